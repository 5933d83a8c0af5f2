"""The CPU as a device: memory is NumPy's, a graph is planned, compiled by Numba and run from a native tape."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sexpgpu.backend import Call, Counter, DeviceKind, Lowering, OutOfRange
from sexpgpu.initial import Normals as InitialNormals
from sexpgpu.installed import version_of
from sexpgpu.interp import products
from sexpgpu.interp.executor import Engine
from sexpgpu.interp.executor import Executable as LoadedPlan
from sexpgpu.interp.plans import Plans
from sexpgpu.interp.processor import simd_class
from sexpgpu.ir.facts import node_count
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Generated, Plan, Product, flattened
from sexpgpu.plan.lifetime import aligned
from sexpgpu.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sexpgpu.plan.work import Work

    Array = NDArray[Any]


class CpuMemory(msgspec.Struct, frozen=True):
    """A contiguous tensor in NumPy's memory."""

    type: TensorType
    array: Array


class ArenaMemory(msgspec.Struct, frozen=True):
    """A contiguous tensor in the arena that all graphs share, whose place is known when the first of them runs."""

    type: TensorType
    engine: Engine
    offset_bytes: int

    @property
    def array(self) -> Array:
        flat = self.engine.arena()[self.offset_bytes : self.offset_bytes + self.type.size_bytes]
        made: Array = flat.view(numpy_dtype(self.type.dtype)).reshape(self.type.shape)
        return made


class CpuExecutable:
    """A graph that is ready to run on the CPU."""

    def __init__(
        self, graph: Graph, made: Plan, loaded: LoadedPlan, lowering: Lowering, calls: list[Call] | None
    ) -> None:
        self._late: dict[str, ArenaMemory] = {}
        self._arena: Array | None = None
        self.graph = graph
        self.plan = made
        self.loaded = loaded
        self._lowering = lowering
        self._calls = calls

    @property
    def lowering(self) -> Lowering:
        return self._lowering

    @property
    def externals(self) -> Mapping[str, TensorType]:
        return self.plan.externals

    def bind(self, name: str, memory: CpuMemory | ArenaMemory) -> None:
        if isinstance(memory, ArenaMemory):
            self._late[name] = memory
            self._arena = None
        else:
            self.loaded.bind(name, memory.array)

    @cached_property
    def works(self) -> Sequence[Work]:
        from sexpgpu.plan.work import works_of

        return works_of(self.plan, self.graph)

    def run(self, hosts: Mapping[str, float], counter: Counter) -> None:
        if self._late and self._arena is not self.loaded.engine.arena():
            # The arena grows, elsewhere, when a larger graph is prepared.
            self._arena = self.loaded.engine.arena()
            for name, memory in self._late.items():
                self.loaded.bind(name, memory.array)
        begin = time.perf_counter_ns()
        self.loaded.run(hosts, counter.microbatch, counter.step)
        if self._calls is not None:
            self._calls.append(Call(self, begin, time.perf_counter_ns(), self.loaded.events()))

    def output(self, name: str) -> Array:
        return self.loaded.output(name).copy()

    def out_of_range(self) -> Sequence[OutOfRange]:
        return [OutOfRange(flag.node, flag.index, flag.limit) for flag in self.loaded.flags()]


class CpuDevice:
    """The interpreter's device. Threads follow the setting; a result never does."""

    kind: DeviceKind = "cpu"

    def __init__(self, settings: Settings) -> None:
        self.engine = Engine(settings.threads, settings.cache, settings.timings)
        self._calls: list[Call] | None = [] if settings.timings else None
        self.plans = Plans(self.engine.cache)
        self.keep_values = settings.keep_values
        self._limit_bytes = settings.memory
        self._held_bytes = 0

    @property
    def description(self) -> str:
        threads = f"{self.engine.threads} thread" + ("s" if self.engine.threads > 1 else "")
        numba = ".".join(version_of("numba").split(".")[:2])
        return f"cpu {threads}, {simd_class()}, Numba {numba}"

    def allocate(self, type: TensorType) -> CpuMemory:
        self._held_bytes += type.size_bytes
        return CpuMemory(type, np.zeros(type.shape, numpy_dtype(type.dtype)))

    def landing(self, type: TensorType) -> ArenaMemory:
        return ArenaMemory(type, self.engine, 0)

    def part(self, memory: CpuMemory | ArenaMemory, offset_elements: int, type: TensorType) -> CpuMemory | ArenaMemory:
        if isinstance(memory, ArenaMemory):
            return ArenaMemory(type, self.engine, memory.offset_bytes + offset_elements * SIZES[memory.type.dtype])
        flat = memory.array.reshape(-1)[offset_elements : offset_elements + type.elements]
        return CpuMemory(type, flat.reshape(type.shape))

    def adopt(self, array: Array) -> CpuMemory:
        assert array.dtype == np.float32 and array.flags.c_contiguous, array.dtype
        self._held_bytes += array.nbytes
        return CpuMemory(TensorType("f32", array.shape), array)

    def write(self, memory: CpuMemory | ArenaMemory, array: Array) -> None:
        memory.array[...] = array

    def read(self, memory: CpuMemory | ArenaMemory) -> Array:
        return memory.array.copy()

    def look(self, memory: CpuMemory | ArenaMemory) -> Array:
        return memory.array

    def prepare(
        self,
        graph: Graph,
        seed: int,
        lands: Mapping[str, ArenaMemory] | None = None,
        keeps: ArenaMemory | None = None,
    ) -> CpuExecutable:
        landing = {name: memory.offset_bytes for name, memory in (lands or {}).items()}
        native = self.engine.blas is not None
        made = self.plans.plan(graph, keep_values=self.keep_values, landing=landing, native=native)
        base = 0 if keeps is None else aligned(keeps.offset_bytes + keeps.type.size_bytes)
        loaded = self.engine.load(made, seed, base)
        return CpuExecutable(graph, made, loaded, self._lowering(graph, made, base), self._calls)

    def _lowering(self, graph: Graph, made: Plan, base: int) -> Lowering:
        every = list(flattened(made.launches))
        launches = [launch for launch in every if isinstance(launch, Product)]
        fused = sum(isinstance(x, Generated) and _computes(x) > 1 for x in every)
        return Lowering(
            nodes=node_count(graph),
            kernels=len(every) - len(launches),
            fused=fused,
            products=len(launches),
            arena_bytes=base + made.arena_bytes,
            product_engine=products.described(launches, self.engine.blas),
            notes=(*self.engine.notes, *made.notes),
        )

    def add(self, target: CpuMemory | ArenaMemory, source: CpuMemory | ArenaMemory) -> None:
        self.engine.sums.add(target.array, source.array)

    def copy(self, target: CpuMemory | ArenaMemory, source: CpuMemory | ArenaMemory) -> None:
        np.copyto(target.array, source.array)

    def square_sum(self, memory: CpuMemory | ArenaMemory) -> float:
        return self.engine.sums.square_sum(memory.array)

    def timed_calls(self) -> Sequence[Call]:
        made = tuple(self._calls or ())
        if self._calls:
            self._calls.clear()
        return made

    @property
    def normals(self) -> InitialNormals:
        return self.engine.normals

    def peak_bytes(self) -> int:
        return self._held_bytes + self.engine.arena_bytes

    def free_bytes(self) -> int:
        with open("/proc/meminfo") as file:
            found = {line.split(":")[0]: line.split()[1] for line in file}
        available = int(found["MemAvailable"]) * 1024
        return available if self._limit_bytes is None else min(available, self._limit_bytes)

    def compile(self) -> None:
        self.engine.compile()

    def report(self) -> Sequence[str]:
        lines = tuple(self.engine.report)
        self.engine.report.clear()
        return lines

    def close(self) -> None:
        self.engine.close()


def _computes(launch: Generated) -> int:
    """How many operations a kernel computes, constants and casts of indices aside."""
    return sum(instruction.op != "constant" for instruction in launch.program.body)


def open_cpu(settings: Settings) -> CpuDevice:
    """The CPU with the threads and the kernel cache of the settings."""
    return CpuDevice(settings)
