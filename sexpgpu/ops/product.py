"""The one product: `contract`, a dot-general. matmul, einsum, linear, outer and dot lower to it with no copy.

    out[batch…, free of a…, free of b…] = Σ over the contracted axes of a · b
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, NodeType, TensorType
from sexpgpu.ops.movement import checked
from sexpgpu.ops.record import Op, TypeMismatch

Axes = tuple[int, ...]
# Pairs of axes of a and of b, in the same order.
Pairs = tuple[Axes, Axes]


def free_axes(rank: int, batch: Axes, contracted: Axes) -> Axes:
    """The axes of an operand that are neither batch nor contracted, in order."""
    return tuple(i for i in range(rank) if i not in batch and i not in contracted)


def _infer(a: TensorType, b: TensorType, batch: Pairs, contracted: Pairs) -> NodeType:
    if a.dtype != b.dtype or a.dtype not in FLOATS | {"i32", "i64"}:
        raise TypeMismatch("E-TYPE-001", f"contract: {a} and {b} do not fit")
    for i, j in zip(batch[0] + contracted[0], batch[1] + contracted[1], strict=True):
        if a.shape[i] != b.shape[j]:
            raise TypeMismatch("E-SHAPE-002", f"contract: axis {i} of {a} is {a.shape[i]}, axis {j} of {b} is {b.shape[j]}")
    left, right = free_axes(a.rank, batch[0], contracted[0]), free_axes(b.rank, batch[1], contracted[1])
    axes = [(a, i) for i in batch[0] + left] + [(b, j) for j in right]
    return TensorType(a.dtype, checked(tuple(t.shape[i] for t, i in axes)), tuple(t.label(i) for t, i in axes))


def _run(a: Any, b: Any, batch: Pairs, contracted: Pairs) -> Any:
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype.name in ("float16", "bfloat16"):
        # Halves are summed in f32 and rounded once.
        a, b = a.astype(np.float32), b.astype(np.float32)
    names = iter(range(a.ndim + b.ndim))
    of_a = [next(names) for _ in range(a.ndim)]
    of_b = [next(names) for _ in range(b.ndim)]
    for i, j in zip(batch[0] + contracted[0], batch[1] + contracted[1], strict=True):
        of_b[j] = of_a[i]
    left, right = free_axes(a.ndim, batch[0], contracted[0]), free_axes(b.ndim, batch[1], contracted[1])
    out = [of_a[i] for i in batch[0] + left] + [of_b[j] for j in right]
    return np.einsum(a, of_a, b, of_b, out)


def _permuted(x: Node, axes: Axes) -> Node:
    return x if axes == tuple(range(len(axes))) else x.graph.add("permute", (x,), {"axes": axes})


def _inverse(order: Sequence[int]) -> Axes:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def _gradient(graph: Any, x: Node, x_batch: Axes, x_contracted: Axes, x_free: Axes, other: Node, sides: Any, dy: Node) -> Node:
    """The cotangent of one operand: a contract of dy with the other one over the other's free axes.

    Of the two operand orders the one whose result already lies in x's own order of axes is taken, so that
    a weight's gradient is one product with the weight's own shape.
    """
    other_batch, other_contracted, other_free, dy_batch, dy_other_free = sides
    contracted = (dy_other_free, other_free)
    # dy first: [batch, x free, other's contracted axes in their order]
    in_order = sorted(range(len(other_contracted)), key=other_contracted.__getitem__)
    x_axes_of_contracted = tuple(x_contracted[k] for k in in_order)
    order = x_batch + x_free + x_axes_of_contracted
    swapped = x_batch + x_axes_of_contracted + x_free
    if swapped == tuple(range(len(swapped))) and order != swapped:
        made = graph.add("contract", (other, dy), {"batch": (other_batch, dy_batch), "contracted": contracted[::-1]})
        return _permuted(made, _inverse(swapped))
    made = graph.add("contract", (dy, other), {"batch": (dy_batch, other_batch), "contracted": contracted})
    return _permuted(made, _inverse(order))


def _vjp(dy: Node, y: Node, inputs: Sequence[Node], batch: Pairs, contracted: Pairs) -> Sequence[Node | None]:
    a, b = inputs
    left, right = (free_axes(x.tensor.rank, batch[k], contracted[k]) for k, x in enumerate(inputs))
    shared, of_left = len(batch[0]), len(left)
    dy_batch = tuple(range(shared))
    dy_left = tuple(range(shared, shared + of_left))
    dy_right = tuple(range(shared + of_left, dy.tensor.rank))
    da = _gradient(y.graph, a, batch[0], contracted[0], left, b, (batch[1], contracted[1], right, dy_batch, dy_right), dy)
    db = _gradient(y.graph, b, batch[1], contracted[1], right, a, (batch[0], contracted[0], left, dy_batch, dy_left), dy)
    return da, db


def records() -> list[Op]:
    """The record of the product."""
    signature = "contract(a: T[…], b: T[…]; batch, contracted) -> T[*batch, *free(a), *free(b)]"
    return [Op("contract", signature, _infer, _run, _vjp, "contract")]
