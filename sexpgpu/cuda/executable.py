"""A plan that is ready to run on a card: its buffers, its launches, and from the second call on one graph of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from sexpgpu.backend import Call, Counter, Lowering, OutOfRange
from sexpgpu.codegen.cuda_program import CudaProgram
from sexpgpu.codegen.numba_indexed import FLAG_BASE
from sexpgpu.cuda.arguments import prepared
from sexpgpu.cuda.context import Graph as CapturedGraph
from sexpgpu.cuda.engine import Engine
from sexpgpu.cuda.failure import told
from sexpgpu.cuda.products import Division
from sexpgpu.cuda.timed import TimedLaunches, Work
from sexpgpu.cuda.transfer import Readback, Uploads
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.host import evaluate
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Launch, Loop, Place, flattened
from sexpgpu.plan.lifetime import ALIGNMENT
from sexpgpu.randomness import key_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sexpgpu.plan.work import Work as Described

    Array = NDArray[Any]

# Outputs up to this size are copied to the host with every call.
SMALL_BYTES = 64
# What the host writes before a call stands before this buffer, which never changes.
POSITIONS = "runtime:positions"


class Bound(Protocol):
    """Memory that a buffer can be bound to: its place is asked for when the plan runs."""

    @property
    def type(self) -> TensorType: ...

    @property
    def address(self) -> int: ...


class CudaExecutable:
    """A loaded plan. Bind every external buffer, then `run` as often as wanted, then read outputs."""

    def __init__(
        self,
        graph: Graph,
        program: CudaProgram,
        division: Division,
        engine: Engine,
        seed: int,
        base_bytes: int,
        lowering: Lowering,
    ) -> None:
        self.graph, self.program, self.plan, self.engine = graph, program, program.plan, engine
        self.division = division
        self._base_bytes = base_bytes
        self._kernels, lines = engine.load(program)
        self.lowering = msgspec.structs.replace(lowering, notes=(*lowering.notes, *lines))
        engine.arena.reserve(base_bytes + self.plan.arena_bytes)
        engine.workspace.reserve(max(program.workspace_bytes, division.native_workspace_bytes))
        engine.product_workspace.reserve(division.workspace_bytes)
        self._bound: dict[str, Bound] = {}
        self._numbers = {buffer.name: n for n, buffer in enumerate(self.plan.buffers)}
        self._runtime = self._runtime_places()
        self._host = self._written_once(seed)
        runtime_bytes = max([ALIGNMENT, *(end for _, end in self._runtime.values())])
        self._block = engine.allocator.allocate(runtime_bytes)
        self._uploads = Uploads(engine.context, engine.stream, self._host.size)
        self._small = [name for name, (_, t) in self.plan.outputs.items() if 0 < t.size_bytes <= SMALL_BYTES]
        sizes = [self.plan.outputs[name][1].size_bytes for name in self._small]
        self._readback = Readback(engine.context, engine.stream, [*sizes, 16 * len(self.plan.flags)])
        # With their numbers in the plan.
        self._launches: list[tuple[int, Work]] = []
        # Where every buffer was when the launches were made, the workspace last; and what this depends on.
        self._places: tuple[int, ...] = ()
        self._made_for: tuple[int, ...] = ()
        self._bindings = 0
        self._captured: CapturedGraph | None = None
        self._timed: TimedLaunches | None = None
        engine.allocator.caches.append(self._forget_graph)
        self._write_positions()

    # Buffers.

    def _runtime_places(self) -> dict[int, tuple[int, int]]:
        """Begin and end of the runtime's buffers in their block, what the host writes before every call first."""
        found, begin = {}, 0
        runtime = [(n, buffer) for n, buffer in enumerate(self.plan.buffers) if buffer.kind == "runtime"]
        for number, buffer in sorted(runtime, key=lambda pair: pair[1].name == POSITIONS):
            found[number] = (begin, begin + buffer.size_bytes)
            begin += -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
        return found

    def _written_once(self, seed: int) -> Array:
        """What the host writes before every call, with the keys of draws, which stay."""
        ends = [end for n, (_, end) in self._runtime.items() if self.plan.buffers[n].name != POSITIONS]
        host = np.zeros(max(ends, default=0), np.uint8)
        for path, ordinal, place in self.plan.randoms:
            self._host_view(host, place, np.uint32, 2)[:] = key_of(seed, path, ordinal)
        return host

    def _host_view(self, host: Array, place: Place, dtype: Any, count: int) -> Array:
        begin = self._runtime[place.buffer][0] + place.offset
        made: Array = host[begin : begin + np.dtype(dtype).itemsize * count].view(dtype)
        return made

    def _write_positions(self) -> None:
        number = self._numbers.get(POSITIONS)
        if number is not None and self.plan.buffers[number].size_bytes:
            begin, end = self._runtime[number]
            self.engine.upload(self._block.address + begin, np.arange((end - begin) // 4, dtype=np.uint32))

    @property
    def externals(self) -> Mapping[str, TensorType]:
        return self.plan.externals

    @cached_property
    def works(self) -> Sequence[Described]:
        from sexpgpu.plan.work import works_of

        return works_of(self.plan, self.graph)

    def bind(self, name: str, memory: Bound) -> None:
        type_ = self.plan.externals[name]
        fits = memory.type.dtype == type_.dtype and memory.type.shape == type_.shape
        assert fits, f"{name}: {memory.type} where {type_} is needed"
        self._bound[name] = memory
        self._bindings += 1

    def _addresses(self) -> tuple[int, ...]:
        """Where every buffer is now; windows are nowhere yet."""
        arena, workspace = self.engine.arena.address, self.engine.workspace.address
        found = []
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.kind == "arena":
                found.append(arena + self._base_bytes + buffer.offset)
            elif buffer.kind == "runtime":
                found.append(self._block.address + self._runtime[number][0])
            elif buffer.kind == "external":
                assert buffer.name in self._bound, f"not bound: {buffer.name}"
                found.append(self._bound[buffer.name].address)
            else:
                found.append(0)
            assert found[-1] % ALIGNMENT == 0, (buffer.name, found[-1])
        return (*found, workspace)

    # Calls.

    @told
    def run(self, hosts: Mapping[str, float], counter: Counter) -> None:
        begin_ns = time.perf_counter_ns()
        fresh = self._place_buffers()
        self._write_call(hosts, counter)
        if self.engine.calls is not None:
            events = self._run_timed()
            self._read_back()
            self.engine.calls.append(Call(self, begin_ns, time.perf_counter_ns(), events))
            return
        if fresh:
            self._launch_all()
        elif self._launches:
            # The first call has shown that everything runs.
            if self._captured is None:
                self._captured = self.engine.stream.captured(self._launch_all)
            self._captured.launch(self.engine.stream)
        self._read_back()

    def _place_buffers(self) -> bool:
        """Makes the launches anew where a buffer has another place than at the last call; whether they were made."""
        # Asking where they are may move them.
        arenas = (self.engine.arena, self.engine.workspace, self.engine.product_workspace)
        for arena in arenas:
            _ = arena.address
        made_for = (*(arena.moved for arena in arenas), self._bindings)
        if made_for == self._made_for:
            return False
        self._forget_launches()
        self._places = self._addresses()
        self._launches = list(self._prepare(self.plan.launches, 0, list(self._places)))
        self._made_for = made_for
        return True

    def _run_timed(self) -> Array:
        if self._timed is None:
            self._timed = TimedLaunches(self.engine.context, self.engine.stream, self._launches)
        return self._timed.run()

    def _write_call(self, hosts: Mapping[str, float], counter: Counter) -> None:
        """Host scalars and the draws' counter; flags are zeros."""
        for expression, place in self.plan.hosts:
            self._host_view(self._host, place, np.float32, 1)[0] = evaluate(expression, hosts)
        number = self._numbers.get("runtime:counter")
        if number is not None and self.plan.buffers[number].size_bytes:
            self._host_view(self._host, Place(number), np.uint32, 3)[:] = (0, counter.microbatch, counter.step)
        if self._host.size:
            self._uploads.upload(self._block.address, self._host)

    def _launch_all(self) -> None:
        for _, launch in self._launches:
            launch.run(self.engine.stream)

    def _prepare(self, launches: Iterable[Launch], number: int, addresses: list[int]) -> Iterator[tuple[int, Work]]:
        """The launches with their parameters, those of loops once for every iteration, the first of them having `number`."""
        for launch in launches:
            if not isinstance(launch, Loop):
                if number in self.division.chosen:
                    workspace = self.engine.product_workspace.address
                    yield number, self.division.chosen[number].at(self._address_in(addresses), workspace)
                kernels = [
                    (number, prepared(self._kernels[made.kernel.name], made, self._address_in(addresses), self._places[-1]))
                    for made in self.program.launches[number]
                ]
                graph = self.division.native.get(number)
                before = len(kernels) if graph is None else len(graph.before)
                yield from kernels[:before]
                if graph is not None:
                    yield number, graph.at(self._address_in(addresses), self._places[-1])
                yield from kernels[before:]
                number += 1
                continue
            for position in launch.positions:
                for window in launch.windows:
                    base = addresses[window.base.buffer] + window.base.offset
                    addresses[window.buffer] = base + window.offset(position)
                yield from self._prepare(launch.launches, number, addresses)
            number += sum(1 for _ in flattened((launch,)))

    @staticmethod
    def _address_in(addresses: list[int]) -> Callable[[Place], int]:
        return lambda place: addresses[place.buffer] + place.offset

    def _forget_launches(self) -> None:
        self._forget_graph()
        if self._timed is not None:
            self._timed.close()
            self._timed = None
        self._made_for, self._launches = (), []

    def _forget_graph(self) -> None:
        if self._captured is not None:
            self._captured.close()
            self._captured = None

    # Results.

    def _read_back(self) -> None:
        places = [self.plan.outputs[name][0] for name in self._small]
        flags = [place for place, _ in self.plan.flags[:1]] or [Place(0)]
        self._readback.take([self._places[place.buffer] + place.offset for place in (*places, *flags)])

    @told
    def output(self, name: str) -> Array:
        place, type_ = self.plan.outputs[name]
        dtype = numpy_dtype(type_.dtype)
        if name in self._small:
            small: Array = self._readback.bytes(self._small.index(name)).view(dtype)
            return small.reshape(type_.shape)
        made: Array = np.empty(type_.shape, dtype)
        if made.nbytes:
            assert self._made_for, "no call was made"
            self.engine.download(self._places[place.buffer] + place.offset, made)
        return made

    @told
    def out_of_range(self) -> Sequence[OutOfRange]:
        if not self.plan.flags:
            return ()
        flags = self._readback.bytes(len(self._small)).view(np.int64).reshape(-1, 2)
        first = self.plan.flags[0][0]
        rows = [(node, flags[(place.offset - first.offset) // 16]) for place, node in self.plan.flags]
        return [OutOfRange(node, int(row[0]) - FLAG_BASE, int(row[1])) for node, row in rows if row[0]]
