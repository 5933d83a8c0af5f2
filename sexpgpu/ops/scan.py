"""The loop of the IR: a body that runs once for every element of axis 0, handing its carries on.

Operands are the carries' first values, what is scanned, then constants; a body's inputs are one carry each, one element
of each that is scanned, and the constants; its outputs the next carries, then what is stacked. The node gives the last
carries and the stacked values, always taken apart by `get`. With `reverse` the last element comes first; what element t
gives is stacked at t all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import NodeType, TensorType
from sexpgpu.ops.movement import checked
from sexpgpu.ops.record import Op, TypeMismatch


def _infer(*operands: NodeType, body: Graph, carries: int, scanned: int, length: int, reverse: bool) -> NodeType:
    time: str | None = None
    for k, (operand, parameter) in enumerate(zip(operands, body.inputs, strict=True)):
        wanted = parameter.tensor
        if carries <= k < carries + scanned:
            assert isinstance(operand, TensorType)
            wanted = TensorType(wanted.dtype, (length, *wanted.shape))
            time = time or operand.label(0)
        if operand != wanted:
            raise TypeMismatch("E-TYPE-001", f"scan: {operand} where {wanted} is needed")
    outputs = [node.tensor for node in body.outputs.values()]
    for k in range(carries):
        if outputs[k] != operands[k]:
            raise TypeMismatch("E-TYPE-001", f"scan: a carry of {operands[k]} becomes {outputs[k]}")
    return (*outputs[:carries], *(_stacked(type_, length, time) for type_ in outputs[carries:]))


def _stacked(type_: TensorType, length: int, label: str | None) -> TensorType:
    labels = (label, *(type_.label(i) for i in range(type_.rank))) if label or type_.labels else ()
    return TensorType(type_.dtype, checked((length, *type_.shape)), labels)


def _needs_context(*_: Any, **__: Any) -> Any:
    raise AssertionError("evaluated by the interpreter of graphs")


def positions(node: Node) -> range:
    """The elements of axis 0 in the order in which a scan takes them."""
    length = node.attributes["length"]
    return range(length - 1, -1, -1) if node.attributes["reverse"] else range(length)


def parts(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """A scan's operands: first carries, what is scanned, constants."""
    first, second = node.attributes["carries"], node.attributes["carries"] + node.attributes["scanned"]
    operands = list(node.inputs)
    return operands[:first], operands[first:second], operands[second:]


def add_scan(
    graph: Graph, body: Graph, carries: Sequence[Node], xs: Sequence[Node], constants: Sequence[Node],
    length: int, reverse: bool = False,
) -> list[Node]:  # fmt: skip
    """A scan, taken apart: its last carries and what it stacks."""
    attributes = {"carries": len(carries), "scanned": len(xs), "length": length, "reverse": reverse, "body": body}
    made = graph.add("scan", [*carries, *xs, *constants], attributes)
    return [graph.add("get", (made,), {"index": k}) for k in range(len(body.outputs))]


def add_argument(body: Graph, name: str, like: TensorType) -> Node:
    """An input of a body."""
    attributes = {"kind": "argument", "name": name, "dtype": like.dtype, "shape": like.shape}
    return body.add("input", (), attributes, labels=like.labels or None)


def records() -> list[Op]:
    """The record of the loop."""
    signature = "scan(*carries, *xs, *constants; body, carries, scanned, length, reverse) -> (*carries, *stacked)"
    return [Op("scan", signature, _infer, _needs_context, None, "scan")]
