"""From a cluster to a generated kernel: expressions are traced back from what is stored to what is in memory.

A kernel's base loops are the axes of its space; a reshape on the way may cut one in two (`Refine`, and the trace begins
again). At the end loops of size 1 go and neighbouring loops along which every operand steps evenly are joined, so that
different shapes give one program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from sexpgpu.ir.graph import Node
from sexpgpu.ops.table import OPS
from sexpgpu.passes.access import VIEWS, ZERO, Access, Index, NotAffine, Refine, contiguous, joined, pull
from sexpgpu.plan.kernel import Access as Operand
from sexpgpu.plan.kernel import Generated, Inner, Instruction, Load, Place, Program, Store

Kind = Literal["map", "row", "column"]


@dataclass(frozen=True)
class Storage:
    """Where a value is: its first element and its stride along every axis, in elements."""

    place: Place
    strides: tuple[int, ...]
    item_bytes: int

    def at(self, access: Access) -> tuple[Place, Index]:
        """The place and the index into it of an access (its start is in the place)."""
        start, terms = joined(list(zip(access, self.strides, strict=True)))
        return Place(self.place.buffer, self.place.offset + start * self.item_bytes), (0, terms)


def moved(storage: Storage, start: Mapping[int, int], steps: Sequence[int] | None = None) -> Storage:
    """The part of a storage that begins at `start` (by axis) and takes every `steps`-th element."""
    shift = sum(n * storage.strides[axis] for axis, n in start.items())
    place = Place(storage.place.buffer, storage.place.offset + shift * storage.item_bytes)
    strides = storage.strides if steps is None else tuple(s * k for s, k in zip(storage.strides, steps, strict=True))
    return Storage(place, strides, storage.item_bytes)


@dataclass
class Axes:
    """The base loops and how they are cut: `factors[d]` multiply to the size of axis d of the space."""

    factors: list[list[int]]

    @property
    def sizes(self) -> list[int]:
        return [n for factors in self.factors for n in factors]

    def first(self, axis: int) -> int:
        """The number of an axis's outermost loop."""
        return sum(len(f) for f in self.factors[:axis])

    def index(self, axis: int) -> Index:
        """The index along an axis of the space."""
        loops = range(self.first(axis), self.first(axis + 1))
        strides = contiguous(tuple(self.factors[axis]))
        return 0, tuple((loop, s) for loop, s, n in zip(loops, strides, self.factors[axis], strict=True) if n > 1)

    def refine(self, request: Refine) -> None:
        """Cuts a loop in two."""
        for axis, factors in enumerate(self.factors):
            inside = request.loop - self.first(axis)
            if 0 <= inside < len(factors):
                factors[inside : inside + 1] = [factors[inside] // request.inner, request.inner]
                return
        raise AssertionError(request.loop)

    def access(self, shape: Sequence[int]) -> Access:
        """The access of a value over the first axes of the space (further axes of size 1)."""
        return tuple(ZERO if n == 1 else self.index(axis) for axis, n in enumerate(shape))


def loops_of(space: tuple[int, ...]) -> Axes:
    return Axes([[n] for n in space])


class Trace:
    """One kernel's expressions. `inside` are nodes that are computed although they are also stored (the kernel's own).

    Values are numbered ("load", k) and ("instruction", k) until all loads are known.
    """

    def __init__(
        self,
        axes: Axes,
        storage: Callable[[Node], Storage | None],
        random_keys: Callable[[Node], tuple[Place, Place, Place]],
        inside: set[Node],
    ) -> None:
        self.axes = axes
        self.sizes = axes.sizes
        self.storage = storage
        self.random_keys = random_keys
        self.inside = inside
        self.loads: dict[tuple[str, Place | None, str, Index], int] = {}
        # For each load the outermost view through which it was reached, else the value itself.
        self.reached: list[Node | None] = []
        self.body: list[tuple[str, tuple[tuple[str, int], ...], str, tuple[tuple[str, object], ...]]] = []
        self.known: dict[object, tuple[str, int]] = {}

    def value(self, node: Node, access: Access) -> tuple[str, int]:
        """The number of a node's element at an access. Iterative: expressions may be long."""
        stack: list[tuple[Node, Access, Node | None]] = [(node, access, None)]
        while stack:
            current, place, view = stack[-1]
            if (current, place) in self.known:
                stack.pop()
                continue
            waiting = self._step(current, place, view or current)
            if waiting:
                if current in self.inside:
                    # Whatever view led here, the kernel's own values are each at their own place.
                    view = None
                elif view is None and current.op in VIEWS:
                    view = current
                stack.extend((*operand, view) for operand in waiting)
            else:
                stack.pop()
        return self.known[(node, access)]

    def _step(self, node: Node, access: Access, reached: Node) -> list[tuple[Node, Access]]:
        """Computes the value, or gives the operands that it waits for."""
        stored = None if node in self.inside else self.storage(node)
        if stored is not None:
            place, index = stored.at(access)
            self.known[(node, access)] = self._load("memory", place, node.dtype, index, reached)
            return []
        if node.op in VIEWS:
            operand = (node.inputs[0], pull(node, access, self.sizes))
            if operand not in self.known:
                return [operand]
            self.known[(node, access)] = self.known[operand]
            return []
        if node.op in ("iota", "random", "constant"):
            self.known[(node, access)] = self._leaf(node, access, reached)
            return []
        if OPS[node.op].kind == "reduce":
            source = node.inputs[0]
            full = self.axes.access(source.shape)
            operands = [(source, full)]
        else:
            assert OPS[node.op].kind == "pointwise", (node, "is in no memory")
            operands = [(i, access) for i in node.inputs]
        waiting = [o for o in operands if o not in self.known]
        if not waiting:
            self.known[(node, access)] = self._instruction(node, [self.known[o] for o in operands])
        return waiting

    def _load(
        self, kind: str, place: Place | None, dtype: str, index: Index, reached: Node | None = None
    ) -> tuple[str, int]:
        number = self.loads.setdefault((kind, place, dtype, index), len(self.loads))
        if number == len(self.reached):
            self.reached.append(reached)
        return "load", number

    def _emit(
        self, op: str, arguments: Sequence[tuple[str, int]], dtype: str, attributes: tuple[tuple[str, object], ...] = ()
    ) -> tuple[str, int]:
        instruction = (op, tuple(arguments), dtype, attributes)
        key = (op, instruction[1], dtype, repr(attributes))
        if key not in self.known:
            self.body.append(instruction)
            self.known[key] = ("instruction", len(self.body) - 1)
        return self.known[key]

    def _instruction(self, node: Node, arguments: list[tuple[str, int]]) -> tuple[str, int]:
        if node.op == "stop_gradient":
            return arguments[0]
        op = f"reduce_{node.op}" if OPS[node.op].kind == "reduce" else node.op
        return self._emit(op, arguments, node.dtype)

    def _leaf(self, node: Node, access: Access, reached: Node) -> tuple[str, int]:
        if node.op == "constant":
            return self._emit("constant", (), node.dtype, (("value", node.attributes["value"]),))
        if node.op == "iota":
            index = self._load("index", None, "i64", access[node.attributes["axis"]], reached)
            return index if node.dtype == "i64" else self._emit("cast", [index], node.dtype)
        element = joined(list(zip(access, contiguous(node.shape), strict=True)))
        key, counter, scan = self.random_keys(node)
        words = [(key, 0), (key, 4), (scan, 0), (counter, 4), (counter, 8)]
        loads = [self._load("memory", Place(p.buffer, p.offset + offset), "u32", ZERO) for p, offset in words]
        return self._emit("random", [self._load("index", None, "i64", element, reached), *loads], "f32")


@dataclass(frozen=True)
class Root:
    """A value that a kernel stores; `access` None: at its place in the space."""

    node: Node
    storage: Storage


def generate(
    kind: Kind,
    space: tuple[int, ...],
    reduced: tuple[int, ...],
    roots: Sequence[Root],
    trace_of: Callable[[Axes], Trace],
) -> Generated:
    """The launch of a kernel over `space` that stores `roots`. `reduced`: the axes of rows (the last) or of a column.

    Raises NotAffine where a view cannot be expressed, or a row or column has no even step.
    """
    axes = loops_of(space)
    while True:
        trace = trace_of(axes)
        try:
            values = [trace.value(root.node, _root_access(axes, space, reduced, root, kind)) for root in roots]
        except Refine as request:
            axes.refine(request)
            continue
        return _finish(kind, axes, reduced, roots, trace, values, space)


def _root_access(axes: Axes, space: tuple[int, ...], reduced: tuple[int, ...], root: Root, kind: Kind) -> Access:
    """Where a root stands in the loops: at every axis, or at those that its reduction kept."""
    if kind == "column":
        kept = [a for a in range(len(space)) if a not in reduced]
        return tuple(ZERO if space[a] == 1 else axes.index(a) for a in kept)
    return axes.access(root.node.shape)


def _strides(index: Index, loops: int) -> list[int]:
    made = [0] * loops
    for loop, c in index[1]:
        made[loop] = c
    return made


def _finish(
    kind: Kind,
    axes: Axes,
    reduced: tuple[int, ...],
    roots: Sequence[Root],
    trace: Trace,
    values: Sequence[tuple[str, int]],
    space: tuple[int, ...],
) -> Generated:
    count = len(axes.sizes)
    keys = list(trace.loads)
    rows = [_strides(key[3], count) for key in keys]
    places: list[Place | None] = [key[1] for key in keys]
    starts = [key[3][0] for key in keys]
    for root in roots:
        place, index = root.storage.at(_root_access(axes, space, reduced, root, kind))
        places.append(place)
        starts.append(0)
        rows.append(_strides(index, count))
    groups = _groups(kind, axes, reduced)
    if kind != "map":
        _check_even(groups[1], axes.sizes, rows, trace)
    sizes, rows = _collapse(kind, groups, axes.sizes, rows)
    loads = tuple(Load(key[0], key[2], _inner(row)) for key, row in zip(keys, rows, strict=False))  # type: ignore[arg-type]
    number = {("load", k): k for k in range(len(keys))}
    number |= {("instruction", k): len(keys) + k for k in range(len(trace.body))}
    body = tuple(Instruction(op, tuple(number[a] for a in args), dtype, attributes) for op, args, dtype, attributes in trace.body)
    stores = []
    for k, (root, value) in enumerate(zip(roots, values, strict=True)):
        at = len(keys) + k
        alias = _alias(kind, keys, places, rows, at, root)
        # What steps is stored an element: of none nothing is written, as one value a row would be.
        inner = _inner(rows[at]) if root.node.tensor.elements else "any"
        stores.append(Store(number[value], root.node.dtype, inner, alias))
    operands = [Operand(p, tuple(row), s) for p, row, s in zip(places, rows, starts, strict=True)]
    program = Program(kind, len(sizes), loads, body, tuple(stores))
    nodes = tuple(root.node.index for root in roots)
    return Generated(program, tuple(sizes), tuple(operands[: len(keys)]), tuple(operands[len(keys) :]), nodes)


def _alias(
    kind: Kind, keys: Sequence[tuple[str, Place | None, str, Index]], places: Sequence[Place | None],
    rows: Sequence[Sequence[int]], at: int, root: Root,
) -> int | None:  # fmt: skip
    """The load that reads the very elements which the store writes."""
    for k, key in enumerate(keys):
        if key[0] == "memory" and places[k] == places[at] and list(rows[k]) == list(rows[at]) and key[2] == root.node.dtype:
            return k
    return None


def _inner(row: Sequence[int]) -> Inner:
    last = row[-1] if row else 0
    return "zero" if last == 0 else "one" if last == 1 else "any"


def _groups(kind: Kind, axes: Axes, reduced: tuple[int, ...]) -> list[list[int]]:
    """Loops by their part in the kernel, outermost first: parallel ones, then a row; or parallel, reduced, columns."""
    count = len(axes.factors)
    parts: list[list[int]] = [[], [], []]
    for axis in range(count):
        loops = list(range(axes.first(axis), axes.first(axis + 1)))
        if kind == "column":
            part = 1 if axis in reduced else 0 if axis < reduced[0] else 2
        else:
            part = 1 if kind == "row" and axis in reduced else 0
        parts[part].extend(loops)
    return parts


def _check_even(group: Sequence[int], sizes: Sequence[int], rows: Sequence[Sequence[int]], trace: Trace) -> None:
    """A row or column is one loop: operands that do not step evenly along it have to be copied."""
    if any(sizes[loop] == 0 for loop in group):
        return  # no element has a place, and a copy would be no more even
    loops = [loop for loop in group if sizes[loop] > 1]
    uneven: dict[Node, None] = {}
    for row, reached in zip(rows, trace.reached, strict=False):
        if reached is not None and any(row[a] != row[b] * sizes[b] for a, b in pairwise(loops)):
            uneven[reached] = None
    if uneven:
        raise NotAffine(uneven=tuple(uneven))


def _collapse(
    kind: Kind, groups: list[list[int]], sizes: Sequence[int], rows: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Sizes and strides after joining loops; every row or column is one loop."""
    merged = [_merge(group, sizes, rows) for group in groups]
    if kind == "map":
        chosen = merged[0] or [(1, [0] * len(rows))]
    elif kind == "row":
        chosen = merged[0] + _single(merged[1], len(rows))
    else:
        columns = merged[2] or [(1, [0] * len(rows))]
        chosen = merged[0] + columns[:-1] + _single(merged[1], len(rows)) + columns[-1:]
    return [n for n, _ in chosen], [[steps[k] for _, steps in chosen] for k in range(len(rows))]


def _single(loops: list[tuple[int, list[int]]], operands: int) -> list[tuple[int, list[int]]]:
    assert len(loops) <= 1, loops
    return loops or [(1, [0] * operands)]


def _merge(group: Sequence[int], sizes: Sequence[int], rows: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    made: list[tuple[int, list[int]]] = []
    if any(sizes[loop] == 0 for loop in group):
        return [(0, [0] * len(rows))]
    for loop in group:
        if sizes[loop] == 1:
            continue
        steps = [row[loop] for row in rows]
        if made and all(a == b * sizes[loop] for a, b in zip(made[-1][1], steps, strict=True)):
            made[-1] = (made[-1][0] * sizes[loop], steps)
        else:
            made.append((sizes[loop], steps))
    return made

