"""Lowering of a flat graph: what would take a pass over memory of its own becomes part of another kernel.

Each rule keeps the meaning; the last five may change the order or the rounding of a float operation, or the sign of 0:
  bf16 or f16 read as f32                a view, moved to where it is read; cast back, the number itself
  f32 rounded to bf16, kept as f32       a cast to bf16, read as f32 (f16 alike)
  a product of bf16, cast to bf16        one that rounds its sums
  a product with its free axes swapped   the product of its operands in the other order
  gather of a pointwise value            the pointwise value of what is gathered
  gather-add of one element a row to 0   a comparison with the element's number
  y + scatter-add of u to 0              scatter-add of u to y, in place
  sums of neighbouring parts, padded with 0                                       their join
  a product of windows with few results over many steps   a sum of products over parts of them
  overlapping windows of a product, added                                         a product of windows (convolve.py)
  exp(x), computed again for a backward pass that keeps p = exp(x) / Σ exp(x)     p · Σ exp(x)
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import FLOATS, NodeType, TensorType
from sexpgpu.ops.table import OPS
from sexpgpu.passes.access import VIEWS
from sexpgpu.passes.convolve import overlap_of_product, parts_of_product
from sexpgpu.passes.inline import Flat

# A gather moves below a pointwise operation only where it picks less than one element of this many.
FEW_PICKED = 4


def lower(flat: Flat) -> Flat:
    """The lowered graph, without what nothing reads any more."""
    return Lowerer(flat).run()


class Lowerer:
    """The graph that is being made; `single` are its nodes that one node alone will read."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        self.made = Graph(flat.graph.name)
        self.sources: list[Node] = []
        self.uses = [0] * len(flat.graph.nodes)
        # Of the made graph: who reads a node, its number among equal ones, the first node of that number.
        self.readers: dict[Node, list[Node]] = {}
        self.numbers: dict[Node, int] = {}
        self.firsts: dict[Any, Node] = {}
        self.single: set[Node] = set()
        self.current: Node | None = None

    def run(self) -> Flat:
        graph = self.flat.graph
        for node in (*(i for n in graph.nodes for i in n.inputs), *graph.outputs.values()):
            self.uses[node.index] += 1
        replace: dict[Node, Node] = {}
        for node, source in zip(graph.nodes, self.flat.sources, strict=True):
            self.current = source
            replace[node] = made = self._node(node, tuple([replace[i] for i in node.inputs]))
            if self.uses[node.index] == 1:
                self.single.add(made)
        self.made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
        return self._living()

    def _node(self, node: Node, inputs: tuple[Node, ...]) -> Node:
        rule = _RULES.get(node.op)
        if rule is not None:
            found = rule(self, node, inputs)
            if found is not None:
                return found
        return self._put(node.op, inputs, node.attributes, node.type, node)

    def _put(self, op: str, inputs: tuple[Node, ...], attributes: dict[str, Any], type_: NodeType, like: Node) -> Node:
        made = Node(self.made, len(self.made.nodes), op, inputs, attributes, type_, like.origins)
        self.made.nodes.append(made)
        assert self.current is not None
        self.sources.append(self.current)
        for operand in inputs:
            self.readers.setdefault(operand, []).append(made)
        values = attributes.values() if op != "constant" else map(repr, attributes.values())
        first = self.firsts.setdefault((op, *(self.numbers[i] for i in inputs), *values), made)
        self.numbers[made] = first.index
        return made

    def add(self, like: Node, op: str, *inputs: Node, **attributes: Any) -> Node:
        """A further node, at the place of `like`."""
        type_ = OPS[op].infer(*[i.type for i in inputs], **attributes)
        assert isinstance(type_, TensorType)
        return self._put(op, inputs, attributes, type_, like)

    def first(self, node: Node) -> Node:
        """The first node that computes the same."""
        return self.made.nodes[self.numbers[node]]

    def _living(self) -> Flat:
        living = [False] * len(self.made.nodes)
        for node in self.made.outputs.values():
            living[node.index] = True
        for node in reversed(self.made.nodes):
            if living[node.index]:
                for operand in node.inputs:
                    living[operand.index] = True
            # A plan's inputs are those of its graph, read or not.
            living[node.index] |= node.op == "input"
        kept = [(n, s) for n, s, lives in zip(self.made.nodes, self.sources, living, strict=True) if lives]
        self.made.nodes = [n for n, _ in kept]
        for k, node in enumerate(self.made.nodes):
            node.index = k
        return Flat(self.made, [s for _, s in kept], self.flat.notes)


def _gather(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    x, indices = inputs
    axis = node.attributes["axis"]
    if x.op == "widen":
        return _picked(to, node, node.op, x, indices, axis)
    if node.op == "take" or indices.shape[axis] * FEW_PICKED > x.shape[axis]:
        return None
    return _gathered(to, node, x, indices, axis) if _is_light(x) else None


def _picked(to: Lowerer, like: Node, op: str, x: Node, indices: Node, axis: int) -> Node:
    """What a gather or take reads are the narrow elements."""
    if x.op == "widen":
        return to.add(like, "widen", to.add(like, op, x.inputs[0], indices, axis=axis))
    return to.add(like, op, x, indices, axis=axis)


def _is_light(x: Node) -> bool:
    return OPS[x.op].kind == "pointwise" and bool(x.inputs)


def _gathered(to: Lowerer, like: Node, x: Node, indices: Node, axis: int) -> Node | None:
    """x at the indices, computed from what x is computed from; None where more than one operand would be gathered."""
    varying = [i for i in x.inputs if not _is_even(i, axis)]
    if len(varying) != 1 or len(x.inputs) > 2:
        return None
    parts: list[Node] = []
    for operand in x.inputs:
        if operand is not varying[0]:
            parts.append(_narrowed(to, like, operand, indices.shape))
            continue
        deeper = _gathered(to, like, operand, indices, axis) if _is_light(operand) else None
        parts.append(deeper or _picked(to, like, "gather", operand, indices, axis))
    return to.add(like, x.op, *parts, **x.attributes)


def _is_even(x: Node, axis: int) -> bool:
    """Whether x is the same all along the axis, by what it is."""
    if x.op == "constant":
        return True
    dims = x.attributes.get("dims", ())
    return x.op == "broadcast" and (axis not in dims or x.inputs[0].shape[dims.index(axis)] == 1)


def _narrowed(to: Lowerer, like: Node, x: Node, shape: tuple[int, ...]) -> Node:
    """A constant or broadcast in another size."""
    if x.op == "constant":
        return to.add(like, "constant", **(x.attributes | {"shape": shape}))
    return to.add(like, "broadcast", x.inputs[0], shape=shape, dims=x.attributes["dims"])


def _gather_add(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """The indices were checked by the gather whose derivative this is."""
    x, indices, updates = inputs
    axis = node.attributes["axis"]
    if not _is_zero(x) or indices.shape[axis] != 1 or x.dtype not in FLOATS:
        return None

    def number(n: int) -> Node:
        return to.add(node, "constant", value=n, dtype=indices.dtype, shape=indices.shape)

    size, at = x.shape[axis], indices
    if indices.dtype in ("i32", "i64"):
        negative = to.add(node, "lt", at, number(0))
        at = to.add(node, "select", negative, to.add(node, "add", at, number(size)), at)
        at = to.add(node, "maximum", at, number(0))
    at = to.add(node, "minimum", at, number(size - 1))
    spread = {"shape": x.shape, "dims": tuple(range(len(x.shape)))}
    here = to.add(node, "iota", dtype=at.dtype, shape=x.shape, axis=axis)
    hit = to.add(node, "eq", here, to.add(node, "broadcast", at, **spread))
    return to.add(node, "select", hit, to.add(node, "broadcast", updates, **spread), x)


def _add(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    for x, y in (inputs, inputs[::-1]):
        if x.op == "scatter_add" and x in to.single and _is_zero(x.inputs[0]) and y.op != "constant":
            return to.add(node, "scatter_add", y, x.inputs[1], x.inputs[2], **x.attributes)
    return _joined(to, node, *inputs)


def _joined(to: Lowerer, node: Node, x: Node, y: Node) -> Node | None:
    """Neighbouring parts of zeros: joined, and padded by what is left."""
    parts = [_padded_part(to, x), _padded_part(to, y)]
    if parts[0] is None or parts[1] is None or parts[0][0] != parts[1][0]:
        return None
    axis, low, high = parts[0]
    _, start, end = parts[1]
    if high == start:
        first, second, start, end = x, y, low, end
    elif end == low:
        first, second, start, end = y, x, start, high
    else:
        return None
    pieces = [p for part in (first.inputs[0], second.inputs[0]) for p in _pieces(part, axis)]
    whole = to.add(node, "concat", *pieces, axis=axis)
    size = node.shape[axis]
    if (start, end) == (0, size):
        return whole
    none = (0,) * len(node.shape)
    before, after = (tuple(n if i == axis else 0 for i in range(len(none))) for n in (start, size - end))
    made = to.add(node, "pad", whole, low=before, high=after, interior=none, value=0)
    to.single.add(made)
    return made


def _pieces(x: Node, axis: int) -> tuple[Node, ...]:
    return x.inputs if x.op == "concat" and x.attributes["axis"] == axis else (x,)


def _padded_part(to: Lowerer, x: Node) -> tuple[int, int, int] | None:
    """The axis, begin and end of what a pad with zeros pads along one axis."""
    if x.op != "pad" or x.attributes["value"] != 0 or any(x.attributes["interior"]) or x not in to.single:
        return None
    low, high = x.attributes["low"], x.attributes["high"]
    axes = [i for i in range(len(low)) if low[i] or high[i]]
    return (axes[0], low[axes[0]], x.shape[axes[0]] - high[axes[0]]) if len(axes) == 1 else None


def _permute(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """A product whose free axes change sides is the product of the operands in the other order."""
    x = inputs[0]
    if x.op != "contract" or x not in to.single:
        return None
    a, b = x.inputs
    batch, contracted = x.attributes["batch"], x.attributes["contracted"]
    shared = len(batch[0])
    columns = shared + len(a.shape) - shared - len(contracted[0])
    rank = len(x.shape)
    if node.attributes["axes"] != (*range(shared), *range(columns, rank), *range(shared, columns)):
        return None
    return to.add(node, "contract", b, a, batch=batch[::-1], contracted=contracted[::-1])


def _is_zero(x: Node) -> bool:
    return x.op == "constant" and x.attributes["value"] == 0


def _exp(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    earlier = to.firsts.get(("exp", to.numbers[inputs[0]]))
    for share in () if earlier is None else to.readers.get(earlier, ()):
        if share.op == "div" and share.inputs[0] is earlier and _is_kept(to, share):
            total = share.inputs[1]
            if total.op == "broadcast" and _is_sum_of(total.inputs[0], earlier):
                return to.add(node, "mul", share, total)
    return None


def _is_sum_of(total: Node, x: Node) -> bool:
    while total.op == "reshape":
        total = total.inputs[0]
    return total.op == "sum" and total.inputs[0] is x


def _is_kept(to: Lowerer, value: Node) -> bool:
    """Whether a product reads the value, so that it lies in memory."""
    pending = [value]
    while pending:
        for reader in to.readers.get(pending.pop(), ()):
            if reader.op == "contract":
                return True
            if reader.op in VIEWS:
                pending.append(reader)
    return False


def _cast(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    x = inputs[0]
    if node.dtype == "f32" and x.dtype in ("bf16", "f16"):
        return to.add(node, "widen", x)
    if x.op == "widen" and x.inputs[0].dtype == node.dtype:
        return x.inputs[0]
    if x.op == "contract" and x in to.single and [i.inputs[0].dtype for i in x.inputs if i.op == "widen"] == [node.dtype] * 2:
        # As an attribute the dtype tells this product from the one that stays f32.
        return to._put("contract", x.inputs, x.attributes | {"dtype": node.dtype}, node.tensor, node)
    return None


def _round(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    return to.add(node, "widen", to.add(node, "cast", inputs[0], dtype=node.op.removeprefix("round_")))


def _move(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """What is moved are the narrow elements."""
    narrow = {x.inputs[0].dtype if x.op == "widen" else None for x in inputs}
    if len(narrow) > 1 or None in narrow or node.attributes.get("value", 0) not in (0, inf, -inf):
        return _permute(to, node, inputs) if node.op == "permute" else None
    return to.add(node, "widen", to.add(node, node.op, *(x.inputs[0] for x in inputs), **node.attributes))


_RULES: dict[str, Callable[[Lowerer, Node, tuple[Node, ...]], Node | None]] = {
    "add": _add,
    "broadcast": _move,
    "cast": _cast,
    "concat": _move,
    "contract": parts_of_product,
    "exp": _exp,
    "flip": _move,
    "gather": _gather,
    "gather_add": _gather_add,
    "overlap_add": overlap_of_product,
    "pad": _move,
    "permute": _move,
    "reshape": _move,
    "round_bf16": _round,
    "round_f16": _round,
    "slice": _move,
    "take": _gather,
    "windows": _move,
}
