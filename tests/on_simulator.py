"""Plans run by the CUDA kernels on the PTX simulator: generated, compiled by NVRTC, launched in order, every finding kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from sexpgpu.codegen.cuda_emit import plan_launches
from sexpgpu.codegen.cuda_source import Argument, CudaLaunch, Scratch, Words, module_source
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.host import evaluate
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.build import plan as plan_graph
from sexpgpu.plan.kernel import Generated, Kernel, Launch, Loop, Place, Plan, Program, flattened
from sexpgpu.randomness import key_of
from tests import simulator
from tests.programs import base_of, launch_plan


@lru_cache(maxsize=256)
def compiled(source: str, arch: str = "sm_80") -> Any:
    return simulator.load(compile_source(source, arch).ptx)


@dataclass
class Simulated:
    """A plan in the simulator's memory. `findings`: what its detectors saw; `outcomes`: of each CUDA launch."""

    plan: Plan
    arch: str = "sm_80"
    seed: int = 0
    # Changes the source of the module before it is compiled.
    rewrite: Callable[[str], str] | None = None
    findings: list[Any] = field(default_factory=list)
    outcomes: list[tuple[CudaLaunch, Any]] = field(default_factory=list)
    # For each outcome the number of its launch in the plan, and the allocations that count once.
    cached: list[tuple[int, set[int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made = plan_launches(self.plan)
        every = [launch for launches in self.made for launch in launches]
        source = module_source(launch.kernel for launch in every)
        self.module = compiled(self.rewrite(source) if self.rewrite else source, self.arch) if every else None
        size = sum(b.size_bytes + 1024 for b in self.plan.buffers)
        workspace = max((launch.workspace_bytes for launch in every), default=0)
        self.memory = simulator.Memory((size + workspace + (1 << 20)) // 256 * 256)
        self.workspace = self.memory.allocate(workspace) if workspace else 0
        # Every value has memory of its own, so that nothing is read that this call did not write.
        self.addresses = {
            n: self.memory.allocate(max(b.size_bytes, 16)) for n, b in enumerate(self.plan.buffers) if b.kind != "window"
        }
        self.allocations = sorted(self.addresses.values())
        self.numbers = {b.name: n for n, b in enumerate(self.plan.buffers)}

    def address(self, place: Place) -> int:
        return self.addresses[place.buffer] + place.offset

    def bind(self, name: str, array: Any) -> None:
        if array.nbytes:
            self.memory.write(self.addresses[self.numbers[name]], np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def run(self, hosts: Mapping[str, float] | None = None, microbatch: int = 0, step: int = 0) -> None:
        """One call, as an executable makes it: host scalars, keys, counters and flags, then the launches."""
        for expression, place in self.plan.hosts:
            self.memory.write(self.address(place), np.array([evaluate(expression, hosts or {})], np.float32))
        for path, ordinal, place in self.plan.randoms:
            self.memory.write(self.address(place), np.array(key_of(self.seed, path, ordinal), np.uint32))
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.name == "runtime:counter":
                self.memory.write(self.addresses[number], np.array([0, microbatch, step, 0], np.uint32))
            if buffer.name == "runtime:positions" and buffer.size_bytes:
                self.memory.write(self.addresses[number], np.arange(buffer.size_bytes // 4, dtype=np.uint32))
        for place, _ in self.plan.flags:
            self.memory.write(self.address(place), np.zeros(2, np.int64))
        self._launch_all(self.plan.launches, 0)

    def _launch_all(self, launches: Sequence[Launch], number: int) -> None:
        for launch in launches:
            if not isinstance(launch, Loop):
                cached = {self._allocation(self.address(place)) for place in _shared(launch)}
                for made in self.made[number]:
                    self.cached.append((number, cached))
                    self._launch(made)
                number += 1
                continue
            for position in reversed(range(launch.length)) if launch.reverse else range(launch.length):
                for window in launch.windows:
                    part = position + window.shift
                    part = part % window.period if window.period else part
                    self.addresses[window.buffer] = self.address(window.base) + part * window.step
                self._launch_all(launch.launches, number)
            number += sum(1 for _ in flattened(launch.launches))

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

    def _launch(self, made: CudaLaunch) -> None:
        assert self.module is not None
        parameters = [self._argument(argument) for argument in made.arguments]
        outcome = self.module.launch(
            made.kernel.name, made.grid, (made.kernel.threads, 1, 1), parameters, self.memory, made.shared_bytes
        )
        self.findings += outcome.findings
        self.outcomes.append((made, outcome))

    def _argument(self, argument: Argument) -> Any:
        if isinstance(argument, Place):
            return np.uint64(self.address(argument))
        if isinstance(argument, Scratch):
            return np.uint64(self.workspace + argument.offset_bytes)
        if isinstance(argument, Words):
            return b"".join(self._argument(word).tobytes() for word in argument.words)
        return np.int64(argument)

    def read(self, place: Place, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        made = numpy_dtype(dtype)
        if count == 0:
            return np.zeros(shape, made)
        words = self.memory.read(self.address(place), count * made.itemsize, np.uint8)
        return np.asarray(words.view(made).reshape(shape))

    def contents(self, name: str) -> np.ndarray:
        """All bytes of an external buffer, written or not."""
        number = self.numbers[name]
        words = self.memory.read(self.addresses[number], self.plan.buffers[number].size_bytes, np.uint8, initialised=False)
        return np.asarray(words)

    def output(self, name: str) -> np.ndarray:
        place, type_ = self.plan.outputs[name]
        return self.read(place, type_.shape, type_.dtype)


def _bytes_of(traffic: Any, is_cached: bool) -> int:
    return int(traffic.unique_loaded_bytes if is_cached else traffic.loaded_bytes) + int(traffic.stored_bytes)


def _shared(launch: Kernel) -> list[Place]:
    """Operands of generated kernels that the same block does not read alone."""
    if not isinstance(launch, Generated):
        return []
    return [
        access.place
        for access in launch.loads
        if access.place and any(size > 1 and step == 0 for size, step in zip(launch.sizes, access.strides, strict=True))
    ]


def run_graph(
    graph: Graph, values: Mapping[str, Any], hosts: Mapping[str, float] | None = None, **options: Any
) -> tuple[dict[str, np.ndarray], Simulated]:
    """The outputs in their dtypes, as `on_cpu.run_graph` gives them, and the simulated plan; `values` by input name."""
    made = Simulated(plan_graph(graph, native=False, **options))
    for node in graph.inputs:
        array = np.array(values[node.attributes["name"]], numpy_dtype(node.dtype))
        made.bind(f"{node.attributes['kind']}:{node.attributes['name']}", array)
    made.run(hosts)
    return {name: made.output(name) for name in graph.outputs}, made


def run_program(program: Program, operands: Sequence[Any], outputs: Sequence[Any], arch: str = "sm_80") -> Simulated:
    """Runs one launch of a program written by hand on copies in the simulator, and copies what was written back into the
    arrays' own memory, as `programs.run_program` leaves it."""
    made = Simulated(launch_plan(program, operands, outputs), arch)
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    arrays += [o for o, s in zip(outputs, program.stores, strict=True) if s.alias is None]
    bases = [base_of(array) for array in arrays]
    for number, base in enumerate(bases):
        made.memory.write(made.addresses[number], _bytes(base))
    made.run()
    for number, base in enumerate(bases):
        _bytes(base)[...] = made.memory.read(made.addresses[number], base.nbytes, np.uint8)
    return made


def _bytes(base: Any) -> Any:
    return base.reshape(-1).view(np.uint8)
