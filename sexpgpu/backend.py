"""What a device is: the protocol that both backends meet.

A device owns memory and prepares graphs. `Memory` is opaque to its users: a tensor's place on that device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from sexpgpu.initial import Normals
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sexpgpu.plan.work import Work

    Array = NDArray[Any]

DeviceKind = Literal["cpu", "cuda"]


class Memory(Protocol):
    """One tensor on a device; contiguous."""

    @property
    def type(self) -> TensorType: ...


class Counter(msgspec.Struct, frozen=True):
    """Where the draws of one call stand: words of Philox's counter beside the element's number."""

    microbatch: int = 0
    step: int = 0


class OutOfRange(msgspec.Struct, frozen=True):
    """An index that a take, gather or scatter of the graph met outside its axis; `node` is its number in the graph."""

    node: int
    index: int
    limit: int


class Lowering(msgspec.Struct, frozen=True):
    """What became of a graph: a row of the lowering report, and what the memory report needs."""

    nodes: int
    kernels: int
    fused: int
    products: int
    arena_bytes: int
    product_engine: str = ""
    workspace_bytes: int = 0
    notes: tuple[str, ...] = ()


class Call(msgspec.Struct, frozen=True):
    """A timed call of an executable. Times are ns of `time.perf_counter`; `events` is i64 [n 4], a row for each share of
    a launch that a worker did: the launch's number, the worker, begin and end."""

    executable: Executable
    begin_ns: int
    end_ns: int
    events: Array


class Executable(Protocol):
    """A graph that is ready to run. Its external buffers are bound by name: `field:tokens`, `parameter:gpt.wte`,
    `gradient:gpt.wte` (an output of a training graph, an input of an update), `state:gpt.wte:m`. Bound parameters and
    states of an update are replaced in place."""

    @property
    def lowering(self) -> Lowering: ...

    @property
    def works(self) -> Sequence[Work]:
        """What each launch does, in the order of their numbers."""
        ...

    @property
    def externals(self) -> Mapping[str, TensorType]: ...

    def bind(self, name: str, memory: Any) -> None: ...

    def run(self, hosts: Mapping[str, float], counter: Counter) -> None:
        """One call. `hosts` gives step, updates, total-steps and the runtime's own scalars."""
        ...

    def output(self, name: str) -> Array:
        """An output of the last call, copied to the host."""
        ...

    def out_of_range(self) -> Sequence[OutOfRange]:
        """What the last call read outside its axes; nothing when all was well."""
        ...


@runtime_checkable
class CompilesTogether(Protocol):
    """A device that compiles the kernels of several graphs at once: `prepare` wants them, `compile` makes them."""

    def compile(self) -> None: ...


class Device(Protocol):
    """`description` is the head of the lowering report: `cpu 2 threads, AVX-512, Numba 0.68`."""

    @property
    def kind(self) -> DeviceKind: ...

    @property
    def description(self) -> str: ...

    def allocate(self, type: TensorType) -> Any:
        """Memory of zeros."""
        ...

    def part(self, memory: Any, offset_elements: int, type: TensorType) -> Any:
        """A tensor inside another, so that many lie end to end."""
        ...

    def adopt(self, array: Array) -> Any:
        """Memory of the device that the host's array is, as far as the device can reach it: ranks share such memory."""
        ...

    def write(self, memory: Any, array: Array) -> None: ...

    def read(self, memory: Any) -> Array: ...

    def look(self, memory: Any) -> Array:
        """The memory's content, to be read before anything else happens: it may be the memory itself."""
        ...

    def landing(self, type: TensorType) -> Any:
        """Memory in which a graph leaves results that are read before another graph runs: values of the graph may lie
        there until the results come, so that both need little more than one of them."""
        ...

    def prepare(self, graph: Graph, seed: int, lands: Mapping[str, Any] | None = None, keeps: Any = None) -> Executable:
        """The graph ready to run. `lands`: parts of a landing memory for bound outputs, by name; `keeps`: a landing
        memory whose results this graph leaves alone, because it reads them."""
        ...

    def add(self, target: Any, source: Any) -> None:
        """target += source, f32, element by element."""
        ...

    def copy(self, target: Any, source: Any) -> None:
        """target = source."""
        ...

    def square_sum(self, memory: Any) -> float:
        """The sum of squares in float64, in an order that the shape alone decides."""
        ...

    def timed_calls(self) -> Sequence[Call]:
        """The calls since this was last asked, where the device was opened with the setting `timings`; else none."""
        ...

    @property
    def normals(self) -> Normals | None:
        """A faster way to draw initial values on the host, with the same bits; None: there is none."""
        ...

    def peak_bytes(self) -> int:
        """The most that this device has held at once."""
        ...

    def free_bytes(self) -> int: ...

    def report(self) -> Sequence[str]:
        """Lines about what the device had to do otherwise, since this was last asked."""
        ...

    def close(self) -> None:
        """Gives back what the device holds; nothing is done with it afterwards."""
        ...
