"""Plans run by the CUDA kernels on a card, through the driver: the face of on_simulator.py. What a card does not tell, how
many bytes moved and which accesses race, is asked of the simulator alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import pytest

from sexpgpu.codegen.cuda_source import CudaLaunch
from sexpgpu.cuda import library
from sexpgpu.cuda.arch import choose_arch
from sexpgpu.cuda.arguments import prepared
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context, DeviceMemory, Module
from sexpgpu.cuda.driver import TABLE
from sexpgpu.cuda.library import DRIVER
from sexpgpu.cuda.nvrtc import Compiled, compile_source, supported_archs
from sexpgpu.cuda.probe import Card, probe_driver, require
from sexpgpu.ir.graph import Graph
from sexpgpu.plan.kernel import Kernel, Place, Plan, Program
from tests import launched
from tests.launched import Launched

# Around every buffer, on both sides; a kernel that writes there is found.
GUARD_BYTES, GUARD = 512, 0xA5


@dataclass
class OpenCard:
    """A card that plans run on, and its modules by their sources. `compile` makes them."""

    card: Card
    context: Context
    arch: str
    compile: Callable[[str, str], Compiled] = compile_source
    modules: dict[str, Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stream = self.context.stream()

    def module(self, source: str) -> Module:
        if source not in self.modules:
            made = self.compile(source, self.arch)
            self.modules[source] = self.context.load(made.cubin or made.ptx.encode() + b"\0")
        return self.modules[source]

    def faces(self) -> dict[str, Any]:
        """What stands in the place of the names of on_simulator.py. An arch that is asked for is the card's own."""

        def on_card(plan: Plan, arch: str = "", seed: int = 0, rewrite: Callable[[str], str] | None = None) -> OnCard:
            return OnCard(self, plan, seed, rewrite)

        def run_graph(
            graph: Graph, values: Mapping[str, Any], hosts: Mapping[str, float] | None = None, **options: Any
        ) -> tuple[dict[str, np.ndarray], Any]:
            return launched.run_graph(on_card, graph, values, hosts, **options)

        def run_program(program: Program, operands: Sequence[Any], outputs: Sequence[Any], arch: str = "") -> Any:
            return launched.run_program(on_card, program, operands, outputs)

        return {"Simulated": on_card, "run_graph": run_graph, "run_program": run_program}


def open_card(
    load: Callable[[str], Any] | None = None, ordinal: int = 0, compile: Callable[[str, str], Compiled] = compile_source
) -> OpenCard:
    """The card of an ordinal. Raises E-DEV-001 where there is none, as a run would."""
    load = load or library.load_driver
    card = require(probe_driver(load), ordinal)
    calls = bind(load(DRIVER), TABLE)
    calls.cuInit(0)
    return OpenCard(card, Context(calls, ordinal), choose_arch(card.capability, supported_archs()).name, compile)


class Untold:
    """What a card does not tell of a launch."""

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip("the simulator alone counts what a kernel does")


class OnCard(Launched):
    """A plan in a card's memory. `findings`: buffers that something was written beside."""

    def __init__(self, opened: OpenCard, plan: Plan, seed: int, rewrite: Callable[[str], str] | None) -> None:
        self.opened = opened
        self._blocks: list[tuple[DeviceMemory, int]] = []
        super().__init__(plan, seed, rewrite)

    def prepare(self, source: str, most_bytes: int) -> None:
        self._module = self.opened.module(source) if source else None

    def allocate(self, size_bytes: int) -> int:
        inside = -(-size_bytes // GUARD_BYTES) * GUARD_BYTES
        block = self.opened.context.allocate(inside + 2 * GUARD_BYTES)
        self.opened.stream.fill(block.address, GUARD, block.size_bytes)
        # What nothing writes is read as the simulator's.
        self.opened.stream.fill(block.address + GUARD_BYTES, 0, max(size_bytes, 1))
        self._blocks.append((block, size_bytes))
        return block.address + GUARD_BYTES

    def write(self, address: int, array: Any) -> None:
        data = np.ascontiguousarray(array)
        if not data.nbytes:
            return
        self.opened.stream.upload(address, data.ctypes.data, data.nbytes)
        self.opened.stream.synchronize()

    def read_bytes(self, address: int, size_bytes: int, initialised: bool = True) -> np.ndarray:
        made = np.empty(size_bytes, np.uint8)
        if size_bytes:
            self.opened.stream.download(made.ctypes.data, address, size_bytes)
            self.opened.stream.synchronize()
        return made

    def launch(self, made: CudaLaunch, kernel: Kernel, number: int) -> None:
        assert self._module is not None
        addresses = dict(self.addresses)

        def address(place: Place) -> int:
            return addresses[place.buffer] + place.offset

        launch = prepared(self._module.kernel(made.kernel.name), made, address, self.workspace)
        launch.run(self.opened.stream)
        self.outcomes.append((made, Untold()))

    def run(self, hosts: Mapping[str, float] | None = None, microbatch: int = 0, step: int = 0) -> None:
        super().run(hosts, microbatch, step)
        self.opened.stream.synchronize()
        self.findings += [
            f"written beside a buffer of {size} bytes" for block, size in self._blocks if self._is_spoilt(block, size)
        ]

    def _is_spoilt(self, block: DeviceMemory, size_bytes: int) -> bool:
        whole = self.read_bytes(block.address, block.size_bytes)
        outside = (whole[:GUARD_BYTES], whole[GUARD_BYTES + size_bytes :])
        return any((part != GUARD).any() for part in outside)

    def moved_bytes(self) -> NoReturn:
        pytest.skip("the simulator alone counts what a kernel does")

    def __del__(self) -> None:
        for block, _ in self.__dict__.get("_blocks", ()):
            block.close()
