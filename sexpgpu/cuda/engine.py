"""What all graphs of a card share: its stream, its memory, and the kernels that were compiled for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from sexpgpu.backend import Call
from sexpgpu.codegen import cuda_sums
from sexpgpu.codegen.cuda_program import CudaProgram
from sexpgpu.codegen.cuda_source import CudaLaunch, module_source
from sexpgpu.cuda import cudnn, kernels
from sexpgpu.cuda.allocator import Allocator, Arena
from sexpgpu.cuda.arguments import prepared
from sexpgpu.cuda.attentions import POLICY, Attending, Cudnn, own_attending
from sexpgpu.cuda.context import Context, Kernel, Module
from sexpgpu.cuda.cubin_cache import CubinCache
from sexpgpu.cuda.matmul import Rules
from sexpgpu.cuda.product_graphs import ProductGraphs, candidates, kept, product_graphs
from sexpgpu.cuda.products import Division, Library, own_division
from sexpgpu.cuda.transfer import Uploads
from sexpgpu.plan.kernel import Place, Plan
from sexpgpu.settings import Settings

# Arrays up to this size go through pinned memory.
UPLOAD_BYTES = 1 << 20


class Engine:
    """One card at work: everything runs on one stream, in the order in which it is given."""

    def __init__(self, context: Context, arch: str, settings: Settings) -> None:
        self.context = context
        self.arch = arch
        self.settings = settings
        self.stream = context.stream()
        self.allocator = Allocator(context, self.stream)
        # Plans never run at once and keep nothing between calls, so all share one arena and the workspaces.
        self.arena = Arena(self.allocator)
        self.workspace = Arena(self.allocator)
        self.product_workspace = Arena(self.allocator)
        self.uploads = Uploads(context, self.stream, UPLOAD_BYTES)
        # What the next report is to say, and what the cache of kernels has told already.
        self.report: list[str] = []
        self._told: list[str] = []
        # Timed calls, where times are asked for.
        self.calls: list[Call] | None = [] if settings.timings else None
        self._cache = CubinCache(settings.cache)
        # By their sources.
        self._modules: dict[str, Module] = {}
        self._sums: dict[CudaLaunch, Kernel] = {}

    @cached_property
    def library(self) -> Library | None:
        """What multiplies beside our own kernels. Raises E-DEV-003, E-DEV-004 where it cannot be had."""
        if self.settings.products == "own":
            return None
        return Library(Rules(self.settings.allow_tf32, not self.settings.deterministic))

    def divide(self, plan: Plan) -> Division:
        """Who runs the products of a plan, and its attention. Where there are none, no library is loaded."""
        graphs = self.graph(plan)
        made = own_division(plan, graphs)
        if made.own and self.library is not None:
            made = self.library.divide(plan, graphs)
        return replace(made, attending=self.attend(plan))

    def graph(self, plan: Plan) -> ProductGraphs:
        """The products that cuDNN runs with their bias."""
        if not candidates(plan) or self.settings.cudnn == "off":
            return ProductGraphs()
        if self.settings.cudnn == "auto" and self.arch not in POLICY:
            return kept(plan, f"cuDNN was not compared with cuBLASLt on {self.arch} (cudnn = on asks it)")
        found = self.graph_library
        return kept(plan, found) if isinstance(found, str) else product_graphs(plan, found.choose_product)

    def attend(self, plan: Plan) -> Attending:
        """Who runs the attention of a plan. cuDNN is loaded where there is some, and it may run it."""
        if not own_attending(plan, "").own or self.settings.cudnn == "off":
            return Attending()
        if self.settings.cudnn == "auto" and self.arch not in POLICY:
            return own_attending(plan, f"cuDNN was not compared with them on {self.arch} (cudnn = on asks it)")
        found = self.graph_library
        return own_attending(plan, found) if isinstance(found, str) else found.divide(plan)

    @cached_property
    def graph_library(self) -> Cudnn | str:
        """cuDNN, or why there is none."""
        return cudnn.unusable() or Cudnn(cudnn.cudnn())

    def load(self, program: CudaProgram) -> tuple[dict[str, Kernel], list[str]]:
        """Every kernel of a program by its name, compiled where the cache does not hold it; lines that tell of it."""
        lines = self._load(program.modules)
        found = {name: self._modules[program.modules[module]].kernel(name) for name, module in program.module_of.items()}
        return found, lines

    def _load(self, sources: Mapping[str, str]) -> list[str]:
        missing = {name: source for name, source in sources.items() if source not in self._modules}
        if not missing:
            return []
        made = kernels.load_cubins(missing, self.arch, self._cache, self.settings.threads)
        for name, source in missing.items():
            self._modules[source] = self.context.load(made.modules[name].image)
        new = [line for line in made.report if line not in self._told]
        self._told += new
        return [*new, f"kernels: {made.words}"]

    def upload(self, address: int, array: Any) -> None:
        """Copies an array to the card; it may be changed as soon as this returns."""
        array = np.ascontiguousarray(array)
        if array.nbytes <= self.uploads.size_bytes:
            self.uploads.upload(address, array)
        else:
            self.stream.upload(address, array.ctypes.data, array.nbytes)
            # A driver may still read what is not pinned.
            self.stream.synchronize()

    def download(self, address: int, array: Any) -> None:
        """Fills an array of the host, after everything that was given before."""
        self.stream.download(array.ctypes.data, address, array.nbytes)
        self.stream.synchronize()

    def run(self, launch: CudaLaunch, *addresses: int) -> None:
        """A launch by itself, with an address for each of its buffers."""
        if launch not in self._sums:
            source = module_source((launch.kernel,))
            self._load({launch.kernel.name: source})
            self._sums[launch] = self._modules[source].kernel(launch.kernel.name)

        def address(place: Place) -> int:
            return addresses[place.buffer] + place.offset

        prepared(self._sums[launch], launch, address, 0).run(self.stream)

    def add(self, target: int, source: int, elements: int) -> None:
        """target += source, f32."""
        if elements:
            self.run(cuda_sums.add(elements), target, source)

    def square_sum(self, address: int, elements: int) -> float:
        """Σ x² in float64: blocks in an order of their own, then all blocks in NumPy's pairwise order."""
        sums = np.zeros(cuda_sums.blocks_of(elements), np.float64)
        if elements:
            block = self.allocator.allocate(sums.nbytes)
            self.run(cuda_sums.square_sums(elements), address, block.address)
            self.download(block.address, sums)
        return float(sums.sum())

    def close(self) -> None:
        made = [self.__dict__.get(name) for name in ("library", "graph_library")]
        try:
            for library in made:
                if isinstance(library, Library | Cudnn):
                    library.close()
        finally:
            self.context.close()
