"""The table of operations on shape and order: making, moving, cutting and joining tensors, reading at indices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, INTEGERS
from sexpgpu.passes.elaboration import values
from sexpgpu.passes.elaboration.lowering import as_tensor, broadcast, cast, common_dtype, fill, size_text
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import (
    Builtin,
    Labels,
    Problem,
    Scalar,
    Value,
    Values,
    describe,
    fold,
    integer,
    is_number,
    labelled,
    number,
    tensor,
)


def _filled(m: Machine, name: str, size: Value, value: Value, dtype: Value) -> Node:
    shape, labels = values.shape(size, name)
    made = fill(m.graph, value, values.dtype(dtype, name), shape, name)  # type: ignore[arg-type]
    return relabelled(made, labels)


def relabelled(node: Node, labels: Labels) -> Node:
    """The node with labels where it has none; a node found again keeps those it has."""
    if labels and not node.tensor.labels:
        node.type = node.tensor.with_labels(labels)
    return node


def _zeros(m: Machine, size: Value, dtype: Value) -> Node:
    return _filled(m, "zeros", size, _unit(0, dtype), dtype)


def _ones(m: Machine, size: Value, dtype: Value) -> Node:
    return _filled(m, "ones", size, _unit(1, dtype), dtype)


def _unit(value: int, dtype: Value) -> Value:
    return bool(value) if dtype == "bool" else value


def _zeros_like(m: Machine, x: Value) -> Node:
    x = as_tensor(m.graph, x, "zeros-like")
    return m.graph.constant(0, x.dtype, x.shape)


def _ones_like(m: Machine, x: Value) -> Node:
    x = as_tensor(m.graph, x, "ones-like")
    return m.graph.constant(1, x.dtype, x.shape)


def _iota(m: Machine, n: Value, dtype: Value) -> Node:
    (size,), labels = values.shape((n,), "iota")
    attributes = {"dtype": values.dtype(dtype, "iota"), "shape": (size,), "axis": 0}
    return m.graph.add("iota", (), attributes, labels=labels or None)


def _arange(m: Machine, low: Value, high: Value, dtype: Value) -> Node:
    a, b = integer(low, "arange"), integer(high, "arange")
    made = _iota(m, max(b - a, 0), dtype)
    return made if a == 0 else made + m.graph.constant(a, made.dtype, made.shape)


def _reshape(m: Machine, x: Value, size: Value) -> Node:
    node = tensor(x, "reshape")
    items = list(size) if isinstance(size, tuple) else [size]
    free = [k for k, item in enumerate(items) if fold(item) == -1 and not isinstance(item, bool)]
    if len(free) > 1:
        raise Problem("E-SHAPE-003", "reshape: -1 stands twice, one size can be left open")
    if free:
        rest = prod([values.size(item, "reshape") for k, item in enumerate(items) if k != free[0]])
        if rest == 0 or node.tensor.elements % rest:
            message = f"reshape: {node.tensor.elements} elements do not divide by {rest}, the sizes beside -1"
            raise Problem("E-SHAPE-001", message)
        items[free[0]] = node.tensor.elements // rest
    shape, labels = values.shape(tuple(items), "reshape")
    return reshaped(node, shape, labels)


def reshaped(node: Node, shape: tuple[int, ...], labels: Labels = ()) -> Node:
    if node.shape == shape:
        return node
    return node.graph.add("reshape", (node,), {"shape": shape}, labels=labels or None)


def permuted(node: Node, axes: tuple[int, ...]) -> Node:
    return node if axes == tuple(range(len(axes))) else node.graph.add("permute", (node,), {"axes": axes})


def _transpose(m: Machine, x: Value) -> Node:
    node = tensor(x, "transpose")
    return permuted(node, tuple(range(node.tensor.rank))[::-1])


def _permute(m: Machine, x: Value, axes: Value) -> Node:
    node = tensor(x, "permute")
    items = axes if isinstance(axes, tuple) else (axes,)
    made = tuple([values.axis(item, node.tensor.rank, "permute") for item in items])
    if sorted(made) != list(range(node.tensor.rank)):
        raise Problem("E-SHAPE-004", f"permute: {list(made)} is not an order of the {node.tensor.rank} axes")
    return permuted(node, made)


def _broadcast_to(m: Machine, x: Value, size: Value) -> Node:
    node = as_tensor(m.graph, x, "broadcast-to")
    shape, labels = values.shape(size, "broadcast-to")
    offset = len(shape) - node.tensor.rank
    if offset < 0 or any([n not in (1, shape[i + offset]) for i, n in enumerate(node.shape)]):
        raise Problem("E-SHAPE-001", f"broadcast-to: {node.type} does not broadcast to {list(shape)}")
    return relabelled(broadcast(node, shape), labels)


def _expand_dims(m: Machine, x: Value, axis: Value) -> Node:
    """Axes are those of the result, as in NumPy."""
    node = as_tensor(m.graph, x, "expand-dims")
    items = axis if isinstance(axis, tuple) else (axis,)
    new = values.axes(items, node.tensor.rank + len(items), "expand-dims")
    shape, labels = list(node.shape), [node.tensor.label(i) for i in range(node.tensor.rank)]
    for i in new:
        shape.insert(i, 1)
        labels.insert(i, None)
    return reshaped(node, tuple(shape), tuple(labels))


def _squeeze(m: Machine, x: Value, axis: Value) -> Node:
    node = tensor(x, "squeeze")
    gone = values.axes(axis, node.tensor.rank, "squeeze")
    if axis is None:
        gone = tuple([i for i in gone if node.shape[i] == 1])
    for i in gone:
        if node.shape[i] != 1:
            size = size_text(node.shape[i], node.tensor.label(i))
            raise Problem("E-SHAPE-001", f"squeeze: axis {i} has size {size}, not 1")
    kept = [i for i in range(node.tensor.rank) if i not in gone]
    return reshaped(node, tuple([node.shape[i] for i in kept]), tuple([node.tensor.label(i) for i in kept]))


def _slice(m: Machine, x: Value, starts: Value, ends: Value, steps: Value) -> Node:
    """Python's slices of the first axes; negative places count from the end, nil is the whole of a side."""
    node = tensor(x, "slice")
    parts = [v if isinstance(v, tuple) else (v,) for v in (starts, ends)]
    count = len(parts[0])
    stride = (1,) * count if steps is None else steps if isinstance(steps, tuple) else (steps,)
    if not len(parts[1]) == len(stride) == count or count > node.tensor.rank:
        message = f"slice: {count} starts, {len(parts[1])} ends and {len(stride)} steps for {node.type}"
        raise Problem("E-SHAPE-001", message)
    cuts: list[tuple[int, int, int]] = []
    flipped: list[int] = []
    for i, n in enumerate(node.shape):
        a, b, s = (parts[0][i], parts[1][i], stride[i]) if i < count else (None, None, 1)
        places = [None if v is None else integer(v, "slice") for v in (a, b, s)]
        if places[2] == 0:
            raise Problem("E-SHAPE-001", "slice: a step is not 0")
        start, stop, step = slice(*places).indices(n)
        if step < 0:
            # Backward: the same elements forward, then turned.
            length = len(range(start, stop, step))
            flipped.append(i)
            start, stop, step = (start + (length - 1) * step, start + 1, -step) if length else (0, 0, 1)
        cuts.append((start, max(stop, start), step))
    return _cut(node, cuts, tuple(flipped))


def _cut(node: Node, cuts: Sequence[tuple[int, int, int]], flipped: tuple[int, ...]) -> Node:
    if any([cut != (0, n, 1) for cut, n in zip(cuts, node.shape)]):
        starts, limits, steps = zip(*cuts) if cuts else ((), (), ())
        node = node.graph.add("slice", (node,), {"starts": starts, "limits": limits, "steps": steps})
    return node.graph.add("flip", (node,), {"axes": flipped}) if flipped else node


def part(node: Node, axis: int, start: int, limit: int) -> Node:
    """node[…, start:limit, …] on one axis."""
    return _cut(node, [(start, limit, 1) if i == axis else (0, n, 1) for i, n in enumerate(node.shape)], ())


def tensors(m: Machine, items: Value, name: str) -> list[Node]:
    """A list of tensors (or numbers) as tensors of one dtype."""
    if not isinstance(items, tuple) or not items:
        raise Problem("E-TYPE-001", f"{name} takes a list of tensors, not {describe(items)}")
    if not any([isinstance(v, Node) for v in items]):
        whole = all([isinstance(v, int) for v in items])
        return [as_tensor(m.graph, v, name, "i32" if whole else "f32") for v in items]
    dtype = common_dtype(name, items)
    return [cast(v, dtype) if isinstance(v, Node) else fill(m.graph, v, dtype, (), name) for v in items]


def _concat(m: Machine, items: Value, axis: Value) -> Node:
    nodes = tensors(m, items, "concat")
    at = values.axis(axis, nodes[0].tensor.rank, "concat")
    return nodes[0] if len(nodes) == 1 else m.graph.add("concat", nodes, {"axis": at})


def _stack(m: Machine, items: Value, axis: Value) -> Node:
    nodes = tensors(m, items, "stack")
    at = values.axis(axis, nodes[0].tensor.rank + 1, "stack")
    widened = [reshaped(n, (*n.shape[:at], 1, *n.shape[at:])) for n in nodes]
    return widened[0] if len(nodes) == 1 else m.graph.add("concat", widened, {"axis": at})


def _split(m: Machine, x: Value, parts: Value, axis: Value) -> Values:
    """A count of equal parts, or their sizes."""
    node = tensor(x, "split")
    at = values.axis(axis, node.tensor.rank, "split")
    total = node.shape[at]
    if isinstance(parts, tuple):
        sizes = [int(values.size(v, "split")) for v in parts]
    else:
        count = integer(parts, "split: the number of parts")
        if count < 1 or total % count:
            raise Problem("E-SHAPE-001", f"split: {size_text(total, node.tensor.label(at))} does not divide by {int(count)}")
        sizes = [total // count] * count
    if sum(sizes) != total:
        raise Problem("E-SHAPE-001", f"split: sizes {sizes} sum to {sum(sizes)}, the axis has {total}")
    made, start = [], 0
    for n in sizes:
        made.append(part(node, at, start, start + n))
        start += n
    return Values(made)


def _pad(m: Machine, x: Value, widths: Value, value: Value) -> Node:
    node = tensor(x, "pad")
    if not isinstance(widths, tuple) or len(widths) != node.tensor.rank:
        raise Problem("E-SHAPE-001", f"pad: one [lo hi] for each axis of {node.type}, not {describe(widths)}")
    pairs = [w if isinstance(w, tuple) else (w, w) for w in widths]
    if any([len(pair) != 2 for pair in pairs]):
        raise Problem("E-SHAPE-001", "pad: an axis has [lo hi]")
    low = tuple([int(values.size(a, "pad")) for a, _ in pairs])
    high = tuple([int(values.size(b, "pad")) for _, b in pairs])
    filler = number(value, "pad: :value") if node.dtype != "bool" else bool(value)
    filler = float(filler) if node.dtype in FLOATS else filler
    attributes = {"low": low, "high": high, "interior": (0,) * len(low), "value": filler}
    return m.graph.add("pad", (node,), attributes)


def _flip(m: Machine, x: Value, axis: Value) -> Node:
    node = tensor(x, "flip")
    return m.graph.add("flip", (node,), {"axes": values.axes(axis, node.tensor.rank, "flip")})


def _roll(m: Machine, x: Value, shift: Value, axis: Value) -> Node:
    """A shift of each axis, or one of all of them."""
    node = tensor(x, "roll")
    axes = axis if isinstance(axis, tuple) else (axis,)
    shifts = shift if isinstance(shift, tuple) else (shift,) * len(axes)
    if len(shifts) != len(axes):
        raise Problem("E-SHAPE-001", f"roll: {len(shifts)} shifts for {len(axes)} axes")
    for by, at in zip(shifts, axes):
        node = _rolled(node, integer(by, "roll: the shift"), values.axis(at, node.tensor.rank, "roll"))
    return node


def _rolled(node: Node, shift: int, at: int) -> Node:
    size = node.shape[at]
    by = shift % size if size else 0
    if by == 0:
        return node
    return node.graph.add("concat", (part(node, at, size - by, size), part(node, at, 0, size - by)), {"axis": at})


def _indices(m: Machine, value: Value, name: str) -> Node:
    node = as_tensor(m.graph, value, name)
    if node.dtype not in INTEGERS:
        raise Problem("E-TYPE-001", f"{name}: indices are integers, not {node.type}")
    return node


def _take(m: Machine, x: Value, i: Value, axis: Value) -> Node:
    node = tensor(x, "take")
    at = values.axis(axis, node.tensor.rank, "take")
    return m.graph.add("take", (node, _indices(m, i, "take")), {"axis": at})


def _gather(m: Machine, x: Value, i: Value, axis: Value) -> Node:
    node = tensor(x, "gather")
    at = values.axis(axis, node.tensor.rank, "gather")
    return m.graph.add("gather", (node, _indices(m, i, "gather")), {"axis": at})


def _scatter_add(m: Machine, x: Value, i: Value, updates: Value, axis: Value) -> Node:
    node = tensor(x, "scatter-add")
    at = values.axis(axis, node.tensor.rank, "scatter-add")
    u = as_tensor(m.graph, updates, "scatter-add", node.dtype)
    return m.graph.add("scatter_add", (node, _indices(m, i, "scatter-add"), u), {"axis": at})


def _argsort(m: Machine, x: Value, axis: Value) -> Node:
    node = tensor(x, "argsort")
    at = values.axis(axis, node.tensor.rank, "argsort")
    return m.graph.add("argsort", (node,), {"axis": at, "descending": False})


def _sort(m: Machine, x: Value, axis: Value) -> Node:
    node = tensor(x, "sort")
    at = values.axis(axis, node.tensor.rank, "sort")
    order = m.graph.add("argsort", (node,), {"axis": at, "descending": False})
    return m.graph.add("gather", (node, order), {"axis": at})


def _top_k(m: Machine, x: Value, k: Value, axis: Value) -> Values:
    node = tensor(x, "top-k")
    at = values.axis(axis, node.tensor.rank, "top-k")
    count = integer(k, "top-k: K")
    if not 0 < count <= node.shape[at]:
        raise Problem("E-SHAPE-001", f"top-k: {int(count)} of {size_text(node.shape[at], node.tensor.label(at))}")
    order = m.graph.add("argsort", (node,), {"axis": at, "descending": True})
    best = part(order, at, 0, int(count))
    return Values((m.graph.add("gather", (node, best), {"axis": at}), best))


def _cumsum(m: Machine, x: Value, axis: Value) -> Node:
    """Halves are summed in f32 and rounded once."""
    node = tensor(x, "cumsum")
    summed = cast(node, {"bool": "i32", "bf16": "f32", "f16": "f32"}.get(node.dtype, node.dtype))
    made = m.graph.add("cumsum", (summed,), {"axis": values.axis(axis, node.tensor.rank, "cumsum")})
    return made if node.dtype == "bool" else cast(made, node.dtype)


def _is_scalar(x: Value) -> bool:
    """A plain number: no axes."""
    return is_number(x) or isinstance(x, (bool, Scalar))


def _shape(m: Machine, x: Value) -> tuple[int, ...]:
    if _is_scalar(x):
        return ()
    t = tensor(x, "shape").tensor
    return tuple([labelled(n, t.label(i)) for i, n in enumerate(t.shape)])


def _dim(m: Machine, x: Value, axis: Value) -> int:
    t = tensor(x, "dim").tensor
    i = values.axis(axis, t.rank, "dim")
    return labelled(t.shape[i], t.label(i))


def _count(m: Machine, x: Value, axis: Value) -> int:
    t = tensor(x, "size").tensor
    return prod([t.shape[i] for i in values.axes(axis, t.rank, "size")])


def _dtype(m: Machine, x: Value) -> Any:
    return values.DtypeName(tensor(x, "dtype").dtype)


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(zeros S :dtype f32)", _zeros, "A tensor of shape S filled with 0."),
        row("(ones S :dtype f32)", _ones, "A tensor of shape S filled with 1."),
        row("(full S V :dtype f32)", lambda m, s, v, dtype: _filled(m, "full", s, v, dtype),
            "A tensor of shape S filled with V."),
        row("(zeros-like X)", _zeros_like, "Zeros of X's shape and dtype."),
        row("(ones-like X)", _ones_like, "Ones of X's shape and dtype."),
        row("(iota N :dtype i32)", _iota, "0, 1, … N − 1."),
        row("(arange LO HI :dtype i32)", _arange, "LO, LO + 1, … HI − 1."),
        row("(reshape X S)", _reshape, "X in another shape; one size may be −1."),
        row("(transpose X)", _transpose, "X with its axes reversed."),
        row("(permute X AXES)", _permute, "X with its axes in the order AXES."),
        row("(broadcast-to X S)", _broadcast_to, "X repeated to the shape S."),
        row("(expand-dims X AXIS)", _expand_dims, "X with an axis of size 1 at AXIS of the result."),
        row("(squeeze X [AXIS])", _squeeze, "X without the axis, whose size is 1; without all such axes."),
        row("(slice X STARTS ENDS :steps nil)", _slice, "Slices of the first axes, negative places as in NumPy."),
        row("(concat XS :axis 0)", _concat, "The tensors of a list joined along an axis."),
        row("(stack XS :axis 0)", _stack, "The tensors of a list along a new axis."),
        row("(split X N :axis 0)", _split, "N equal parts, or parts of the sizes N, as several values."),
        row("(pad X WIDTHS :value 0)", _pad, "X with [lo hi] more elements on each axis."),
        row("(flip X :axis nil)", _flip, "X backward along axes."),
        row("(roll X SHIFT :axis 0)", _roll, "X moved along an axis, or axes, what leaves at the end enters at the front."),
        row("(take X I :axis 0)", _take, "The slices of X at indices I."),
        row("(gather X I :axis -1)", _gather, "X read along an axis at indices I (NumPy's take_along_axis)."),
        row("(scatter-add X I U :axis 0)", _scatter_add, "X with the rows of U added at I."),
        row("(sort X :axis -1)", _sort, "X ascending along an axis, stable."),
        row("(argsort X :axis -1)", _argsort, "The indices that sort X."),
        row("(top-k X K :axis -1)", _top_k, "The K largest values, descending, and their indices."),
        row("(cumsum X :axis -1)", _cumsum, "The running sum along an axis."),
        row("(shape X)", _shape, "The list of a tensor's sizes."),
        row("(rank X)", lambda m, x: 0 if _is_scalar(x) else tensor(x, "rank").tensor.rank, "How many axes a tensor has."),
        row("(dim X I)", _dim, "The size of a tensor's axis I."),
        row("(size X :axis nil)", _count, "How many elements a tensor has along axes (default all)."),
        row("(dtype X)", _dtype, "A tensor's dtype."),
    ]
