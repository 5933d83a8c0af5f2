"""What stands at a graph's edge (inputs, host scalars), random fields, and regions: nodes whose meaning is a body."""

from __future__ import annotations

from typing import Any

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import NodeType, TensorType
from sexpgpu.ops.movement import checked
from sexpgpu.ops.record import Op, TypeMismatch


def _infer_input(kind: str, name: str, dtype: str, shape: tuple[int, ...]) -> NodeType:
    """`kind`: field, parameter, buffer, state, gradient, update, or argument (of a region's body)."""
    return TensorType(dtype, checked(shape))  # type: ignore[arg-type]


def _infer_host(expression: Any) -> NodeType:
    """A scalar that the host computes in float64 every step and rounds once (see `ir/host.py`)."""
    return TensorType("f32", ())


def _infer_random(shape: tuple[int, ...], path: str, ordinal: int) -> NodeType:
    """Uniform in [0, 1), 24 bits; key = hash(seed, path, ordinal), counter as the language page says."""
    return TensorType("f32", checked(shape))


def _infer_region(*operands: NodeType, body: Graph) -> NodeType:
    for operand, parameter in zip(operands, body.inputs, strict=True):
        if operand != parameter.type:
            raise TypeMismatch("E-TYPE-001", f"region {body.name}: {operand} where {parameter.type} is needed")
    made = [node.tensor for node in body.outputs.values()]
    return made[0] if len(made) == 1 else tuple(made)


def _infer_get(x: NodeType, index: int) -> NodeType:
    assert isinstance(x, tuple), x
    return x[index]


def _needs_context(*_: Any, **__: Any) -> Any:
    raise AssertionError("evaluated by the interpreter of graphs, which knows the inputs")


def records() -> list[Op]:
    """The records of inputs, random fields and regions."""
    return [
        Op("input", "input(; kind, name, dtype, shape) -> dtype[*shape]", _infer_input, _needs_context, None, "input"),
        Op("host", "host(; expression) -> f32[]", _infer_host, _needs_context, None, "input"),
        Op("random", "random(; shape, path, ordinal) -> f32[*shape]", _infer_random, _needs_context, None, "pointwise"),
        Op("region", "region(*xs; body) -> outputs of body", _infer_region, _needs_context, None, "region"),
        Op("get", "get(x; index) -> x[index]", _infer_get, lambda x, index: x[index], None, "get"),
    ]
