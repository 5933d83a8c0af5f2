"""Operations that move elements without computing: views (reshape, permute, broadcast, slice, flip), pad, concat, fills."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import MAXIMUM_ELEMENTS, NodeType, TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.ops.record import Op, TypeMismatch

Shape = tuple[int, ...]


def checked(shape: Shape) -> Shape:
    """The shape, refused where it is too large to be meant."""
    if prod(shape) >= MAXIMUM_ELEMENTS:
        raise TypeMismatch("E-SHAPE-005", f"a tensor of {prod(shape):,} elements: 2^48 or more")
    return shape


def _infer_reshape(x: TensorType, shape: Shape) -> NodeType:
    if prod(shape) != x.elements:
        raise TypeMismatch("E-SHAPE-001", f"reshape: {x} has {x.elements} elements, {list(shape)} has {prod(shape)}")
    return TensorType(x.dtype, shape)


def _infer_permute(x: TensorType, axes: Shape) -> NodeType:
    if sorted(axes) != list(range(x.rank)):
        raise TypeMismatch("E-SHAPE-004", f"permute: {list(axes)} is not an order of the {x.rank} axes of {x}")
    labels = tuple(x.label(a) for a in axes) if x.labels else ()
    return TensorType(x.dtype, tuple(x.shape[a] for a in axes), labels)


def _vjp_permute(dy: Node, y: Node, inputs: Sequence[Node], axes: Shape) -> Sequence[Node | None]:
    inverse = tuple(sorted(range(len(axes)), key=axes.__getitem__))
    return (y.graph.add("permute", (dy,), {"axes": inverse}),)


def _infer_broadcast(x: TensorType, shape: Shape, dims: Shape) -> NodeType:
    """Axis i of x becomes axis dims[i]; a size of 1 is repeated."""
    assert len(dims) == x.rank and list(dims) == sorted(set(dims)), (x, dims)
    for size, d in zip(x.shape, dims, strict=True):
        if size not in (1, shape[d]):
            raise TypeMismatch("E-SHAPE-001", f"broadcast: {x} does not fit {list(shape)}")
    labels: list[str | None] = [None] * len(shape)
    for i, d in enumerate(dims):
        labels[d] = x.label(i) if x.shape[i] == shape[d] else None
    return TensorType(x.dtype, checked(shape), tuple(labels) if any(labels) else ())


def _run_broadcast(x: Any, shape: Shape, dims: Shape) -> Any:
    spread = [1] * len(shape)
    for size, d in zip(np.shape(x), dims, strict=True):
        spread[d] = size
    return np.broadcast_to(np.reshape(x, spread), shape)


def _vjp_broadcast(dy: Node, y: Node, inputs: Sequence[Node], shape: Shape, dims: Shape) -> Sequence[Node | None]:
    x = inputs[0]
    repeated = tuple(d for d in range(len(shape)) if d not in dims or x.shape[dims.index(d)] != shape[d])
    reduced = y.graph.add("sum", (dy,), {"axes": repeated}) if repeated else dy
    return (reduced if reduced.shape == x.shape else y.graph.add("reshape", (reduced,), {"shape": x.shape}),)


def _infer_slice(x: TensorType, starts: Shape, limits: Shape, steps: Shape) -> NodeType:
    """Axis i gives x[starts[i]:limits[i]:steps[i]]; 0 ≤ start ≤ limit ≤ size, step ≥ 1."""
    assert len(starts) == len(limits) == len(steps) == x.rank
    assert all(0 <= a <= b <= n and s >= 1 for a, b, s, n in zip(starts, limits, steps, x.shape, strict=True))
    shape = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, steps, strict=True))
    labels = tuple(x.label(i) if shape[i] == x.shape[i] else None for i in range(x.rank)) if x.labels else ()
    return TensorType(x.dtype, shape, labels)


def _run_slice(x: Any, starts: Shape, limits: Shape, steps: Shape) -> Any:
    return x[tuple(slice(a, b, s) for a, b, s in zip(starts, limits, steps, strict=True))]


def _vjp_slice(
    dy: Node, y: Node, inputs: Sequence[Node], starts: Shape, limits: Shape, steps: Shape
) -> Sequence[Node | None]:
    size = inputs[0].shape
    interior = tuple(s - 1 for s in steps)
    high = tuple(
        n - a - (m + (m - 1) * i if m else 0) for n, a, m, i in zip(size, starts, dy.shape, interior, strict=True)
    )
    return (y.graph.add("pad", (dy,), {"low": starts, "high": high, "interior": interior, "value": 0}),)


def _infer_flip(x: TensorType, axes: Shape) -> NodeType:
    return x


def _vjp_flip(dy: Node, y: Node, inputs: Sequence[Node], axes: Shape) -> Sequence[Node | None]:
    return (y.graph.add("flip", (dy,), {"axes": axes}),)


def _padded(n: int, low: int, high: int, interior: int) -> int:
    return n + max(n - 1, 0) * interior + low + high


def _infer_pad(x: TensorType, low: Shape, high: Shape, interior: Shape, value: float) -> NodeType:
    """`interior` zeros stand between neighbours; low and high are not negative."""
    assert all(n >= 0 for n in (*low, *high, *interior)), (low, high, interior)
    shape = tuple(_padded(n, a, b, i) for n, a, b, i in zip(x.shape, low, high, interior, strict=True))
    return TensorType(x.dtype, checked(shape))


def _run_pad(x: Any, low: Shape, high: Shape, interior: Shape, value: float) -> Any:
    shape = tuple(_padded(n, a, b, i) for n, a, b, i in zip(np.shape(x), low, high, interior, strict=True))
    out = np.full(shape, value, np.asarray(x).dtype)
    place = tuple(
        slice(a, a + max((n - 1) * (i + 1) + 1, 0) if n else a, i + 1)
        for a, n, i in zip(low, np.shape(x), interior, strict=True)
    )
    out[place] = x
    return out


def _vjp_pad(
    dy: Node, y: Node, inputs: Sequence[Node], low: Shape, high: Shape, interior: Shape, value: float
) -> Sequence[Node | None]:
    x = inputs[0]
    limits = tuple(a + ((n - 1) * (i + 1) + 1 if n else 0) for a, n, i in zip(low, x.shape, interior, strict=True))
    steps = tuple(i + 1 for i in interior)
    return (y.graph.add("slice", (dy,), {"starts": low, "limits": limits, "steps": steps}),)


def _infer_concat(*xs: TensorType, axis: int) -> NodeType:
    first = xs[0]
    for x in xs[1:]:
        same = x.rank == first.rank and all(x.shape[i] == first.shape[i] for i in range(x.rank) if i != axis)
        if not same or x.dtype != first.dtype:
            raise TypeMismatch("E-SHAPE-001", f"concat on axis {axis}: {first} and {x} do not fit")
    total = sum(x.shape[axis] for x in xs)
    return TensorType(first.dtype, checked((*first.shape[:axis], total, *first.shape[axis + 1 :])))


def _vjp_concat(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    parts: list[Node] = []
    at = 0
    for x in inputs:
        starts = tuple(at if i == axis else 0 for i in range(x.tensor.rank))
        at += x.shape[axis]
        limits = tuple(at if i == axis else n for i, n in enumerate(x.shape))
        steps = (1,) * x.tensor.rank
        parts.append(y.graph.add("slice", (dy,), {"starts": starts, "limits": limits, "steps": steps}))
    return parts


def _infer_fill(**attributes: Any) -> NodeType:
    return TensorType(attributes["dtype"], checked(attributes["shape"]))


def _infer_iota(dtype: str, shape: Shape, axis: int) -> NodeType:
    return TensorType(dtype, checked(shape))  # type: ignore[arg-type]


def _run_iota(dtype: str, shape: Shape, axis: int) -> Any:
    along = [1] * len(shape)
    along[axis] = shape[axis]
    return np.broadcast_to(np.arange(shape[axis]).reshape(along), shape).astype(numpy_dtype(dtype))


def records() -> list[Op]:
    """The records of every movement operation."""
    return [
        Op("constant", "constant(; value, dtype, shape) -> dtype[*shape]", _infer_fill,
           lambda value, dtype, shape: np.full(shape, value, numpy_dtype(dtype)), None, "pointwise"),
        Op("iota", "iota(; dtype, shape, axis) -> dtype[*shape]", _infer_iota, _run_iota, None, "pointwise"),
        Op("reshape", "reshape(x: T[*s]; shape) -> T[*shape]", _infer_reshape,
           lambda x, shape: np.reshape(x, shape),
           lambda dy, y, inputs, shape: (y.graph.add("reshape", (dy,), {"shape": inputs[0].shape}),), "view"),
        Op("permute", "permute(x: T[*s]; axes) -> T[*pick(s, axes)]", _infer_permute,
           lambda x, axes: np.transpose(x, axes), _vjp_permute, "view"),
        Op("broadcast", "broadcast(x: T[*s]; shape, dims) -> T[*shape]", _infer_broadcast, _run_broadcast,
           _vjp_broadcast, "view"),
        Op("slice", "slice(x: T[*s]; starts, limits, steps) -> T[*cut(s)]", _infer_slice, _run_slice, _vjp_slice, "view"),
        Op("flip", "flip(x: T[*s]; axes) -> T[*s]", _infer_flip, lambda x, axes: np.flip(x, axes), _vjp_flip, "view"),
        Op("widen", "widen(x: bf16[*s] or f16[*s]) -> f32[*s]", lambda x: TensorType("f32", x.shape, x.labels),
           lambda x: np.asarray(x).astype(np.float32), None, "view"),
        Op("pad", "pad(x: T[*s]; low, high, interior, value) -> T[*padded(s)]", _infer_pad, _run_pad, _vjp_pad, "pad"),
        Op("concat", "concat(*xs: T[*s]; axis) -> T[*joined(s)]", _infer_concat,
           lambda *xs, axis: np.concatenate(xs, axis), _vjp_concat, "concat"),
    ]  # fmt: skip
