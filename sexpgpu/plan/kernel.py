"""What a device is asked to run: programs (structure, shared and cached) and launches (numbers and places).

A plan is a list of launches over buffers. A launch of a generated kernel has a `Program`, which says what is computed
without any size, and the sizes, strides and places of this one use; so layers and shapes share compiled code.
`nodes` of a launch are numbers in the graph that was planned, a region's for all that it holds.
Strides and offsets count elements of the operand's dtype, places count bytes.

Loops. A program has `rank` loops, outermost first, the last being the vector loop. Fixed meanings per kind:
  map     every loop is parallel; each store writes one element a point.
  row     the last loop is the row (length C): it is reduced by `reduce_…` instructions, whose result is one value a row;
          outer loops are parallel. Element values see row values of earlier instructions (softmax, layernorm).
  column  the second-last loop (length R) is reduced in parts of consecutive rows (codegen/layout.py: part_rows), each in order
          and then the parts in order; the last loop (columns) and outer loops are parallel.
          Stores do not step along the reduced loop (their stride there is 0).

Instructions are in single-assignment order: an argument is the number of an earlier value, loads first (0 … loads-1),
then instructions. Pointwise ones carry the IR operation's name.

The records are msgspec's: a start makes thousands of them, and a dataclass costs four times as much to define and to make.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec import Struct

from sexpgpu.ir.host import Expression
from sexpgpu.ir.types import TensorType

Inner = Literal["zero", "one", "any"]


class Load(Struct, frozen=True):
    """An operand. `memory`: read through strides. `index`: no memory, the integer offset + Σ stride·loop index (an iota,
    or an element's number in its tensor), as i64. `inner` is the class of the last loop's stride; in a row program a
    load with inner `zero` is a row value."""

    kind: Literal["memory", "index"]
    dtype: str
    inner: Inner


class Instruction(Struct, frozen=True):
    """`op`: a pointwise IR operation (`constant` has attribute value; `cast` converts to `dtype`; `random` takes (element,
    key0, key1, scan, microbatch, step) and gives f32), or `reduce_sum|prod|max|min|any|all|argmax|argmin` in row and column
    programs. `dtype` is the result's; `take` (what f32 values of bf16/f16 nodes mean) is by explicit casts only."""

    op: str
    arguments: tuple[int, ...]
    dtype: str
    attributes: tuple[tuple[str, Any], ...] = ()


class Store(Struct, frozen=True):
    """Value number `value` is written; `alias` is the load that names the same memory with the same strides, or None."""

    value: int
    dtype: str
    inner: Inner
    alias: int | None = None


class Program(Struct, frozen=True):
    """A generated kernel's structure; its text (repr) is the cache key."""

    kind: Literal["map", "row", "column"]
    rank: int
    loads: tuple[Load, ...]
    body: tuple[Instruction, ...]
    stores: tuple[Store, ...]


class Place(Struct, frozen=True):
    """A byte offset in a buffer of the plan."""

    buffer: int
    offset: int = 0


class Access(Struct, frozen=True):
    """One operand of one launch: where its first element is (None for an index load) and its stride along every loop.
    `start` is the index load's offset."""

    place: Place | None
    strides: tuple[int, ...]
    start: int = 0


class Generated(Struct, frozen=True):
    """A launch of a generated kernel: `loads` and `stores` in the program's order. `nodes`: what it computes (for reports)."""

    program: Program
    sizes: tuple[int, ...]
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    nodes: tuple[int, ...] = ()


# Loops (size, step in elements), outermost first.
Loops = tuple[tuple[int, int], ...]


class Matrix(Struct, frozen=True):
    """A matrix operand of a product: element (i, j) of batch entry z is at start[z] + i·row + j·column; row or column is 1
    (both may be anything where a size is 1). With `rows` (of a and b alone), row i is where the loops' i-th turn is, the
    innermost turning fastest, in place of i·row; `columns` likewise."""

    place: Place
    row: int
    column: int
    starts: tuple[int, ...]
    rows: Loops = ()
    columns: Loops = ()

    @property
    def has_loops(self) -> bool:
        return bool(self.rows or self.columns)


class Product(Struct, frozen=True):
    """c[z] = a[z] (m × k) · b[z] (k × n), z over the batch; c has column stride 1. k may be 0 (the product is 0 then).
    `dtype` is that of a and b, and of c where `result` names no other. `accumulate`: the product is added to what c holds."""

    dtype: str
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    nodes: tuple[int, ...] = ()
    accumulate: bool = False
    result: str | None = None

    @property
    def c_dtype(self) -> str:
        return self.result or self.dtype


class Indexed(Struct, frozen=True):
    """A hand-written kernel on contiguous operands, seen as [outer, middle, inner]:
    take         (x [outer size inner], i [count])        -> out [outer count inner]
    scatter_add  (i [count], u [outer count inner])       -> out [outer size inner], added in the order of the indices
    gather       (x [outer size inner], i [outer count inner]) -> out [outer count inner]
    gather_add   (i, u [outer count inner])               -> out [outer size inner], in place
    argsort      (x [outer size inner])                   -> out i32; attribute descending
    cumsum       (x [outer size inner])                   -> out
    scatter_add and gather_add add into what `out` holds already. `flag`: i64[2] of the plan's flag buffer: set to (1 + the
    offending index + 2^40, limit) when an index was out of range, by the first that sees it."""

    op: str
    dtype: str
    index_dtype: str
    outer: int
    size: int
    count: int
    inner: int
    inputs: tuple[Place, ...]
    out: Place
    flag: Place | None = None
    descending: bool = False
    nodes: tuple[int, ...] = ()


class Attention(Struct, frozen=True):
    """softmax(scale · q kᵀ) v of every head, or its gradients from the rows' log-sum-exp (natural) that the forward kept.

    loads   q, k, v; backward also out, lse, dout; then the mask where it is `masked` (bool: what counts)
    stores  out and, where it is wanted, lse; backward dq, dk, dv
    A head of k and v serves `group` heads of q. Strides are between batch entries, heads and rows (columns are
    neighbours), of lse [batch heads rows] as it is in row-major order; the mask has also a stride between columns.
    `causal`: of row t the columns up to t count. `dtype` is that of q, k, v and dout; all else is f32, as is what is
    computed."""

    backward: bool
    causal: bool
    masked: bool
    scale: float
    batch: int
    heads: int
    group: int
    rows: int
    columns: int
    width: int
    value_width: int
    loads: tuple[Access, ...]
    stores: tuple[Access, ...]
    nodes: tuple[int, ...] = ()
    dtype: str = "f32"


class Window(Struct, frozen=True):
    """A buffer that is a part of another, which part follows the loop: at position p the memory at base + step · (p + shift),
    where there is a period base + step · ((p + shift) mod period)."""

    buffer: int
    base: Place
    step: int
    shift: int = 0
    period: int = 0

    def offset(self, position: int) -> int:
        """Bytes from the base to the part of a position."""
        part = position + self.shift
        return (part % self.period if self.period else part) * self.step


class Loop(Struct, frozen=True):
    """Launches that run `length` times, at positions 0, 1, … or, in reverse, from the last one down. `windows` are the
    buffers that follow the position; what is in `temporaries` is made and used within an iteration."""

    launches: tuple[Launch, ...]
    length: int
    reverse: bool
    windows: tuple[Window, ...]
    temporaries: frozenset[int]
    nodes: tuple[int, ...] = ()

    @property
    def positions(self) -> range:
        """In the order in which they run."""
        return range(self.length - 1, -1, -1) if self.reverse else range(self.length)


# What is one kernel, and what stands in a plan.
Kernel = Generated | Product | Indexed | Attention
Launch = Kernel | Loop


def repeated(launches: Iterable[Launch], times: int = 1) -> Iterator[tuple[Kernel, int]]:
    """The launches, those of loops once, and how often each runs."""
    for launch in launches:
        if isinstance(launch, Loop):
            yield from repeated(launch.launches, times * launch.length)
        else:
            yield launch, times


def flattened(launches: Iterable[Launch]) -> Iterator[Kernel]:
    """The launches, those of loops once."""
    return (launch for launch, _ in repeated(launches))


def places_of(launch: Launch) -> Iterator[Place]:
    """Every place that a launch reads or writes."""
    if isinstance(launch, Generated | Attention):
        yield from (operand.place for operand in (*launch.loads, *launch.stores) if operand.place is not None)
    elif isinstance(launch, Product):
        yield from (launch.a.place, launch.b.place, launch.c.place)
    elif isinstance(launch, Loop):
        yield from (window.base for window in launch.windows)
        for inner in launch.launches:
            yield from places_of(inner)
    else:
        yield from (*launch.inputs, launch.out)
        if launch.flag is not None:
            yield launch.flag


def attention_flops(launch: Attention) -> int:
    """Those of its products, of a causal one half: 2 of them forward, 5 backward."""
    width = 3 * launch.width + 2 * launch.value_width if launch.backward else launch.width + launch.value_width
    whole = 2 * width * launch.batch * launch.heads * launch.rows * launch.columns
    return whole // 2 if launch.causal else whole


class Buffer(Struct, frozen=True):
    """`arena`: inside the one block that lifetimes share (its place there in `offset`); `external`: bound by name by whoever
    runs the plan (fields, parameters, states, gradients); `runtime`: host scalars, random keys, flags; `window`: no memory of
    its own, a loop says where it is."""

    name: str
    size_bytes: int
    kind: Literal["arena", "external", "runtime", "window"]
    offset: int = 0


class Plan(Struct, frozen=True):
    """Everything decided before the first step.

    externals  buffer name → type: `field:tokens`, `parameter:gpt.wte`, `state:gpt.wte:m`, `gradient:gpt.wte`
    outputs    graph output name → (place, type); an output may be an external buffer (an updated parameter)
    hosts      host scalars, written as f32 at their places before every call
    randoms    (path, ordinal, place): two u32 key words at place; `runtime:counter` holds u32 scan, microbatch, step;
               `runtime:positions` holds u32 0, 1, …, what a draw in a loop has as its word `scan`
    flags      (place, node index): the out-of-range flags, zeroed before every call
    barriers   before launch i, all earlier launches must be done (always true for now)
    notes      what a native lowering declined, and why
    """

    launches: tuple[Launch, ...]
    buffers: tuple[Buffer, ...]
    arena_bytes: int
    externals: dict[str, TensorType]
    outputs: dict[str, tuple[Place, TensorType]]
    hosts: tuple[tuple[Expression, Place], ...] = ()
    randoms: tuple[tuple[str, int, Place], ...] = ()
    flags: tuple[tuple[Place, int], ...] = ()
    notes: tuple[str, ...] = ()
