"""From a loss or metric of the file to the two sums that a step adds up: the values and their count or weights."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import FLOATS
from sexpgpu.passes.elaboration.lowering import as_tensor, broadcast, broadcast_shapes, cast, pointwise
from sexpgpu.passes.elaboration.values import Problem, Value, Weighted, describe

_EMPTY = {"max": -inf, "min": inf}


@dataclass(frozen=True)
class Mask:
    """Where a batch may be short: the field `real`, bool[batch]."""

    real: Node


def _float(graph: Graph, value: Value, what: str) -> Node:
    """A loss or metric as f32, whatever `:precision` says."""
    made = cast(as_tensor(graph, value, what), "f32")
    graph.results.discard(made)
    return made


def _masked(node: Node, mask: Mask | None, otherwise: float, what: str) -> Node:
    """The node with rows that are not real replaced: never a product, which would keep a NaN."""
    if mask is None:
        return node
    graph = node.graph
    batch = mask.real.shape[0]
    if not node.shape or node.shape[0] != batch:
        message = f"{what}: a batch can have fewer than {batch} real examples, and {node.type} has no axis of examples"
        note = f"give {what} one value for each example, or a batch that divides the examples"
        raise Problem("E-RUN-003", message, notes=[note])
    spread = graph.add("broadcast", (mask.real,), {"shape": node.shape, "dims": (0,)})
    return graph.add("select", (spread, node, graph.constant(otherwise, "f32", node.shape)))


def _total(node: Node, op: str = "sum") -> Node:
    return node.graph.add(op, (node,), {"axes": tuple(range(node.tensor.rank))}) if node.shape else node


def check_loss(value: Value) -> None:
    """A loss is what parameters can lower: a float tensor."""
    made = value.loss if isinstance(value, Weighted) else value
    if not isinstance(made, Node) or made.dtype not in FLOATS:
        raise Problem("E-TYPE-001", f":loss must be a float tensor, not {describe(made)}")


def loss_sums(graph: Graph, value: Value, mask: Mask | None, what: str) -> tuple[Node, Node]:
    """(Σ L, how many) or (Σ L·W, Σ W) over the real elements, both f32[]. A scalar counts as one element."""
    if isinstance(value, Weighted):
        return _weighted_sums(graph, value, mask, what)
    loss = _float(graph, value, what)
    count = graph.constant(float(loss.tensor.elements), "f32")
    if mask is not None:
        rows = _total(cast(mask.real, "f32"))
        count = pointwise(graph, what, "mul", (rows, float(loss.tensor.elements // max(mask.real.shape[0], 1))))
    return _total(_masked(loss, mask, 0.0, what)), count


def _weighted_sums(graph: Graph, value: Weighted, mask: Mask | None, what: str) -> tuple[Node, Node]:
    loss, weight = _float(graph, value.loss, what), _float(graph, value.weight, what)
    shape, _ = broadcast_shapes(what, [loss.tensor, weight.tensor])
    if shape != loss.shape:
        raise Problem("E-SHAPE-001", f"{what}: weights {weight.type} do not broadcast to the loss, {loss.type}")
    weight = broadcast(weight, shape)
    return _total(_masked(loss * weight, mask, 0.0, what)), _total(_masked(weight, mask, 0.0, what))


def extreme(graph: Graph, value: Value, mask: Mask | None, reduce: str, what: str) -> Node:
    """The largest or smallest real element."""
    if isinstance(value, Weighted):
        raise Problem("E-TYPE-001", f"{what}: `weighted` needs :reduce mean or sum")
    return _total(_masked(_float(graph, value, what), mask, _EMPTY[reduce], what), reduce)
