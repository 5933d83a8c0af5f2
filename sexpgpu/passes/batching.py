"""Operations over a leading axis of time: what a loop's body computes of one element, computed of all elements at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ops.table import OPS

_LATER_AXES = ("permute", "flip")
_LATER_AXIS = ("concat", "cumsum", "argsort", "gather")


def can_batch(node: Node) -> bool:
    """Whether `batched` knows the operation (of `take`: with a table that is the same at all times)."""
    known = node.op in ("reshape", "broadcast", "slice", "pad", "contract", "take", *_LATER_AXES, *_LATER_AXIS)
    kind = OPS[node.op].kind
    return known or (kind == "pointwise" and bool(node.inputs)) or kind == "reduce"


def over_time(node: Node, length: int) -> Node:
    """The same at all times."""
    shape, dims = (length, *node.shape), tuple(range(1, len(node.shape) + 1))
    return node.graph.add("broadcast", (node,), {"shape": shape, "dims": dims})


def batched(graph: Graph, node: Node, operands: Sequence[Node], stacked: Sequence[bool], length: int) -> Node:
    """The node's operation on operands of which those that are `stacked` have the leading axis; at least one has it."""
    assert any(stacked), node
    if node.op == "contract":
        return _contract(graph, node.attributes, operands, stacked)
    if node.op == "take":
        return _take(graph, node, operands)
    whole = [x if has else over_time(x, length) for x, has in zip(operands, stacked, strict=True)]
    return graph.add(node.op, whole, _attributes(node, length))


def _attributes(node: Node, length: int) -> dict[str, Any]:
    given = node.attributes
    if node.op in _LATER_AXES or OPS[node.op].kind == "reduce":
        axes = tuple(a + 1 for a in given["axes"])
        return {**given, "axes": (0, *axes) if node.op == "permute" else axes}
    if node.op in _LATER_AXIS:
        return {**given, "axis": given["axis"] + 1}
    if node.op == "reshape":
        return {"shape": (length, *given["shape"])}
    if node.op == "broadcast":
        return {"shape": (length, *given["shape"]), "dims": (0, *(d + 1 for d in given["dims"]))}
    if node.op == "slice":
        starts, limits, steps = given["starts"], given["limits"], given["steps"]
        return {"starts": (0, *starts), "limits": (length, *limits), "steps": (1, *steps)}
    if node.op == "pad":
        return {**given, **{name: (0, *given[name]) for name in ("low", "high", "interior")}}
    assert OPS[node.op].kind == "pointwise", node
    return given


def _contract(graph: Graph, given: dict[str, Any], operands: Sequence[Node], stacked: Sequence[bool]) -> Node:
    batch, contracted = (
        tuple(tuple(a + has for a in axes) for axes, has in zip(given[name], stacked, strict=True))
        for name in ("batch", "contracted")
    )
    if all(stacked):
        batch = tuple((0, *axes) for axes in batch)
    made = graph.add("contract", operands, {"batch": batch, "contracted": contracted})
    # The axis stands where the free axes of its operand begin.
    at = 0 if all(stacked) else len(batch[0])
    if not stacked[0]:
        at += operands[0].tensor.rank - len(batch[0]) - len(contracted[0])
    return _to_front(made, at)


def _take(graph: Graph, node: Node, operands: Sequence[Node]) -> Node:
    axis = node.attributes["axis"]
    return _to_front(graph.add("take", operands, {"axis": axis}), axis)


def _to_front(node: Node, axis: int) -> Node:
    if axis == 0:
        return node
    axes = (axis, *(i for i in range(node.tensor.rank) if i != axis))
    return node.graph.add("permute", (node,), {"axes": axes})
