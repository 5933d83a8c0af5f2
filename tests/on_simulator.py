"""Plans run by the CUDA kernels on the PTX simulator: generated, compiled by NVRTC, launched in order, every finding kept."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from sexpgpu.codegen.cuda_source import Argument, CudaLaunch, Scratch, Words
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.ir.graph import Graph
from sexpgpu.plan.kernel import Generated, Kernel, Place, Plan, Program, places_of
from tests import launched, simulator
from tests.launched import Launched


@lru_cache(maxsize=256)
def compiled(source: str, arch: str = "sm_80") -> Any:
    return simulator.load(compile_source(source, arch).ptx)


class Simulated(Launched):
    """A plan in the simulator's memory. `rewrite` changes the source of the module before it is compiled."""

    def __init__(
        self, plan: Plan, arch: str = "sm_80", seed: int = 0, rewrite: Callable[[str], str] | None = None
    ) -> None:
        self.arch = arch
        # For each outcome the number of its launch in the plan, and the allocations that count once.
        self.cached: list[tuple[int, set[int]]] = []
        self.allocations: list[int] = []
        super().__init__(plan, seed, rewrite)

    def prepare(self, source: str, most_bytes: int) -> None:
        self.module = compiled(source, self.arch) if source else None
        self.memory = simulator.Memory(most_bytes)

    def allocate(self, size_bytes: int) -> int:
        address = self.memory.allocate(size_bytes)
        insort(self.allocations, address)
        return address

    def write(self, address: int, array: Any) -> None:
        self.memory.write(address, array)

    def read_bytes(self, address: int, size_bytes: int, initialised: bool = True) -> np.ndarray:
        return np.asarray(self.memory.read(address, size_bytes, np.uint8, initialised=initialised))

    def launch(self, made: CudaLaunch, kernel: Kernel, number: int) -> None:
        assert self.module is not None
        self.cached.append((number, {self._allocation(self.address(place)) for place in _shared(kernel)}))
        parameters = [self._argument(argument) for argument in made.arguments]
        outcome = self.module.launch(
            made.kernel.name, made.grid, (made.kernel.threads, 1, 1), parameters, self.memory, made.shared_bytes
        )
        self.findings += outcome.findings
        self.outcomes.append((made, outcome))

    def moved_bytes(self) -> list[tuple[int, CudaLaunch, int]]:
        """Bytes between memory and the card, of every CUDA launch, with the number of its launch in the plan: what many
        blocks read of one operand (a bias, a row of gains, what an index picks) comes from the cache and counts once;
        everything else as often as it is asked for."""
        return [
            (number, made, sum(_bytes_of(t, base in cached) for base, t in outcome.traffic.items()))
            for (number, cached), (made, outcome) in zip(self.cached, self.outcomes, strict=True)
        ]

    def _allocation(self, address: int) -> int:
        """The allocation that an address is in."""
        return self.allocations[bisect_right(self.allocations, address) - 1]

    def _argument(self, argument: Argument) -> Any:
        if isinstance(argument, Place):
            return np.uint64(self.address(argument))
        if isinstance(argument, Scratch):
            return np.uint64(self.workspace + argument.offset_bytes)
        if isinstance(argument, Words):
            return b"".join(self._argument(word).tobytes() for word in argument.words)
        return np.int64(argument)


def _bytes_of(traffic: Any, is_cached: bool) -> int:
    return int(traffic.unique_loaded_bytes if is_cached else traffic.loaded_bytes) + int(traffic.stored_bytes)


def _shared(launch: Kernel) -> list[Place]:
    """Operands that the same block does not read alone."""
    if not isinstance(launch, Generated):
        return list(places_of(launch))
    return [
        access.place
        for access in launch.loads
        if access.place and any(size > 1 and step == 0 for size, step in zip(launch.sizes, access.strides, strict=True))
    ]


def run_graph(
    graph: Graph, values: Mapping[str, Any], hosts: Mapping[str, float] | None = None, **options: Any
) -> tuple[dict[str, np.ndarray], Simulated]:
    return launched.run_graph(Simulated, graph, values, hosts, **options)


def run_program(program: Program, operands: Sequence[Any], outputs: Sequence[Any], arch: str = "sm_80") -> Simulated:
    made: Simulated = launched.run_program(lambda plan: Simulated(plan, arch), program, operands, outputs)
    return made
