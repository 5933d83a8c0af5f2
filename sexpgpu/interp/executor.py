"""A plan that is ready to run on the CPU: its memory, its tape, and what the host writes before every call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sexpgpu.codegen import layout
from sexpgpu.codegen.gemm_small import emit_small_gemm
from sexpgpu.codegen.numba_attention import (
    attention_arguments,
    attention_kernel,
    attention_scratch_bytes,
    attention_units,
    emit_attention,
)
from sexpgpu.codegen.numba_indexed import (
    FLAG_BASE,
    emit_indexed,
    indexed_arguments,
    indexed_scratch_bytes,
    indexed_units,
)
from sexpgpu.codegen.numba_kernel import emit
from sexpgpu.interp import gemm, products
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.kernels import Kernels, load_kernels
from sexpgpu.interp.native import Blas, find_blas
from sexpgpu.interp.normals import Normals
from sexpgpu.interp.sums import KERNELS as SUMS
from sexpgpu.interp.sums import Sums
from sexpgpu.interp.tape import Record, Tape, Workers, aligned, record_tape
from sexpgpu.ir.host import evaluate
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Attention, Generated, Indexed, Kernel, Launch, Loop, Place, Plan, flattened
from sexpgpu.randomness import key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# What the kernel of products inside attention is called by.
SMALL_GEMM = f"small gemm {gemm.tiling()!r}"


class Engine:
    """What all plans of a process share: the kernel cache, the workers and the BLAS engine."""

    def __init__(self, threads: int, folder: Path, timed: bool = False) -> None:
        self.cache = Cache(folder / "kernels")
        self.threads = threads
        self.workers = Workers(threads, self.cache, timed)
        self._arena_bytes = 0
        self._arena: Array | None = None
        # The additions and sums of every run are compiled along with its plans' kernels.
        self._pending: dict[str, Callable[[], str]] = dict(SUMS)
        self._kernels: list[Kernels] = []
        self._addresses: dict[str, int] = {}
        self.report: list[str] = []

    def want(self, kernels: Mapping[str, Callable[[], str]]) -> None:
        """Kernels by their texts, to be compiled with those of other plans."""
        self._pending |= {text: source for text, source in kernels.items() if text not in self._addresses}

    def compile(self) -> None:
        """Compiles or loads all that is wanted and not there yet: at once, so that every core has its share."""
        if self._pending:
            made = load_kernels(self._pending, self.cache, self.threads)
            self._kernels.append(made)
            self._addresses |= made.addresses
            self.report += made.report
            self._pending = {}

    def address(self, text: str) -> int:
        """Where the kernel of this text is."""
        return self._addresses[text]

    def reserve(self, size_bytes: int) -> None:
        """A plan will ask for so much. Plans never run at once and keep nothing between calls, so all share one arena."""
        self._arena_bytes = max(self._arena_bytes, size_bytes)

    def arena(self) -> Array:
        """The block that holds the values of whichever plan runs. Pages come when a kernel first writes them."""
        if self._arena is None or self._arena.size < self._arena_bytes:
            self._arena = aligned(self._arena_bytes)
        return self._arena

    @property
    def arena_bytes(self) -> int:
        return self._arena_bytes

    @cached_property
    def blas(self) -> Blas | None:
        return find_blas()

    @cached_property
    def normals(self) -> Normals:
        return Normals(self.workers, self.cache)

    @cached_property
    def sums(self) -> Sums:
        return Sums(self.workers, self.cache)

    @property
    def notes(self) -> list[str]:
        """Lines of the report about what had to be done without."""
        missing = (
            "products: no OpenBLAS is found beside NumPy or SciPy; our own engine computes all of floats, "
            "and attention is computed by its body"
        )
        return [*self.cache.report, *([] if self.blas else [missing])]

    def load(self, plan: Plan, seed: int = 0, base_bytes: int = 0) -> Executable:
        """The plan, its kernels wanted; buffers are bound afterwards. Its values lie in the arena from `base_bytes` on."""
        return Executable(plan, self, seed, base_bytes)

    def close(self) -> None:
        self.workers.close()


class _Memory(msgspec.Struct):
    """Every buffer of a plan: the runtime's are there at once, externals when bound, the arena's at the first call."""

    arrays: list[Array | None]
    # Where the windows of loops are at the moment.
    windows: dict[int, int] = msgspec.field(default_factory=dict)

    def address(self, place: Place) -> int:
        if place.buffer in self.windows:
            return self.windows[place.buffer] + place.offset
        array = self.arrays[place.buffer]
        assert array is not None, place
        return int(array.ctypes.data) + place.offset


class Flag(msgspec.Struct, frozen=True):
    """An index out of range: the node of the graph, the index, the size of its axis."""

    node: int
    index: int
    limit: int


class _Written(msgspec.Struct, frozen=True):
    """Views of the places that the host writes before a call, and of the flags."""

    hosts: list[tuple[Any, Array]]
    counters: list[Array]
    flags: list[tuple[int, Array]] = msgspec.field(default_factory=list)


class Executable:
    """A loaded plan. Bind every external buffer, then `run` as often as wanted, then read outputs."""

    def __init__(self, plan: Plan, engine: Engine, seed: int, base_bytes: int = 0) -> None:
        self.plan = plan
        self._base_bytes = base_bytes
        self._arena: Array | None = None
        self.engine = engine
        wanted = [_wanted(launch, engine.blas) for launch in flattened(plan.launches)]
        engine.want(dict(wanted))
        if any(isinstance(launch, Attention) for launch in flattened(plan.launches)):
            engine.want({SMALL_GEMM: lambda: emit_small_gemm(gemm.tiling())})
        self._texts = [text for text, _ in wanted]
        engine.reserve(base_bytes + plan.arena_bytes)
        self._memory = _Memory([self._own(number) for number in range(len(plan.buffers))])
        self._numbers = {b.name: n for n, b in enumerate(plan.buffers) if b.kind == "external"}
        self._written = self._host_places(seed)
        self._tape: Tape | None = None
        self._tables: list[Array] = []
        self._launches = np.empty(0, np.int64)

    def _own(self, number: int) -> Array | None:
        buffer = self.plan.buffers[number]
        if buffer.kind != "runtime":
            return None
        memory = aligned(buffer.size_bytes)
        memory[:] = 0
        if buffer.name == "runtime:positions":
            memory.view(np.uint32)[:] = np.arange(buffer.size_bytes // 4)
        return memory

    def _view(self, place: Place, dtype: Any, count: int) -> Array:
        array = self._memory.arrays[place.buffer]
        assert array is not None, place
        made: Array = array[place.offset : place.offset + np.dtype(dtype).itemsize * count].view(dtype)
        return made

    def _host_places(self, seed: int) -> _Written:
        plan = self.plan
        for path, ordinal, place in plan.randoms:
            self._view(place, np.uint32, 2)[:] = key_of(seed, path, ordinal)
        hosts = [(expression, self._view(place, np.float32, 1)) for expression, place in plan.hosts]
        numbers = [n for n, buffer in enumerate(plan.buffers) if buffer.name == "runtime:counter"]
        counters = [self._view(Place(n), np.uint32, 3) for n in numbers]
        return _Written(hosts, counters, [(node, self._view(place, np.int64, 2)) for place, node in plan.flags])

    def bind(self, name: str, array: Array) -> None:
        """Gives an external buffer its memory, which must stay as it is for as long as the plan runs."""
        type_ = self.plan.externals[name]
        fits = array.dtype == numpy_dtype(type_.dtype) and array.shape == type_.shape and array.flags.c_contiguous
        assert fits and array.flags.aligned, f"{name}: {array.dtype}{list(array.shape)} where {type_} is needed"
        number = self._numbers[name]
        bound = self._memory.arrays[number]
        self._memory.arrays[number] = array
        if bound is None or bound.ctypes.data != array.ctypes.data:
            self._tape = None

    def run(self, values: Mapping[str, float], microbatch: int = 0, step: int = 0) -> None:
        """One call: writes host scalars and the draws' counter, clears the flags, runs the tape."""
        for expression, view in self._written.hosts:
            view[0] = evaluate(expression, values)
        for counter in self._written.counters:
            counter[:] = (0, microbatch, step)
        for _, flag in self._written.flags:
            flag[:] = 0
        # The arena grows, elsewhere, when a larger plan is loaded.
        if self._tape is None or self._arena is not self.engine.arena():
            self._tape = self._record()
        self.engine.workers.run(self._tape)

    def events(self) -> Array:
        """What the workers did in the last call of a timed engine, a row each: launch, worker, begin and end in ns."""
        worker, record, _, begin, end = self.engine.workers.events().T
        return np.column_stack([self._launches[record], worker, begin, end])

    def flags(self) -> list[Flag]:
        """What the last call read outside its axes."""
        hit = [(node, flag) for node, flag in self._written.flags if flag[0]]
        return [Flag(node, int(flag[0]) - FLAG_BASE, int(flag[1])) for node, flag in hit]

    def output(self, name: str) -> Array:
        """A view of an output's memory, good until the next call."""
        place, type_ = self.plan.outputs[name]
        array = self._memory.arrays[place.buffer]
        assert array is not None, name
        flat = array.reshape(-1).view(np.uint8)[place.offset : place.offset + type_.size_bytes]
        made: Array = flat.view(numpy_dtype(type_.dtype)).reshape(type_.shape)
        return made

    def _record(self) -> Tape:
        """The tape for the memory that is bound now."""
        missing = [name for name, number in self._numbers.items() if self._memory.arrays[number] is None]
        assert not missing, f"not bound: {missing}"
        self._arena = self.engine.arena()
        values = self._arena[self._base_bytes :]
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "arena":
                self._memory.arrays[number] = values[buffer.offset : buffer.offset + buffer.size_bytes]
        self._tables = []
        self.engine.compile()
        made = list(self._records(self.plan.launches, 0))
        # A launch of nothing has no record on the tape.
        self._launches = np.array([n for n, record, _ in made if record.units > 0], np.int64)
        return record_tape([record for _, record, _ in made], max((scratch for _, _, scratch in made), default=0))

    def _records(self, launches: Iterable[Launch], number: int) -> Iterator[tuple[int, Record, int]]:
        """The records of launches, those of loops once for every iteration: the launch's number, the first of them having
        `number`, its record and scratch."""
        for launch in launches:
            if not isinstance(launch, Loop):
                yield number, *self._record_of(launch, self.engine.address(self._texts[number]))
                number += 1
                continue
            for position in launch.positions:
                for window in launch.windows:
                    self._memory.windows[window.buffer] = self._memory.address(window.base) + window.offset(position)
                yield from self._records(launch.launches, number)
            number += sum(1 for _ in flattened(launch.launches))

    def _record_of(self, launch: Kernel, function: int) -> tuple[Record, int]:
        """A launch's record, and the scratch that it needs."""
        address = self._memory.address
        if isinstance(launch, Generated):
            arguments, scratch = layout.arguments(launch, address), layout.scratch_bytes(launch)
            units, per_block = layout.units(launch)
        elif isinstance(launch, Indexed):
            arguments, scratch = indexed_arguments(launch, address), indexed_scratch_bytes(launch)
            units, per_block = indexed_units(launch)
        elif isinstance(launch, Attention):
            assert self.engine.blas is not None, "attention was planned without a BLAS library"
            small = attention_kernel(launch, gemm.tiling())[-1]
            product = self.engine.address(SMALL_GEMM) if small else self.engine.blas.sgemm
            arguments = attention_arguments(launch, product, address)
            scratch = attention_scratch_bytes(launch)
            units, per_block = attention_units(launch)
        else:
            made = products.prepare(launch, self.engine.blas, self.engine.threads, address)
            self._tables.append(made.tables)
            arguments, scratch, units, per_block = made.words, made.scratch_bytes, made.units, made.units_per_block
        return Record(function, np.array(arguments, np.int64), units, per_block), scratch


def _wanted(launch: Kernel, blas: Blas | None) -> tuple[str, Callable[[], str]]:
    """The text that says a launch's kernel, and the call that writes its source."""
    if isinstance(launch, Generated):
        return repr(launch.program), partial(emit, launch.program)
    if isinstance(launch, Indexed):
        dtypes = launch.dtype, launch.index_dtype or "i64"
        return f"indexed {launch.op} {dtypes}", partial(emit_indexed, launch.op, *dtypes)
    if isinstance(launch, Attention):
        form = attention_kernel(launch, gemm.tiling())
        return f"attention {form}", partial(emit_attention, *form)
    return products.wanted(launch, blas)
