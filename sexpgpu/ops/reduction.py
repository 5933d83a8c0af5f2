"""Reductions over axes, and the running sum.

A device sums in a fixed order that the shape alone decides (see `codegen`), so bits never depend on threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, NodeType, TensorType
from sexpgpu.ops.record import Op, TypeMismatch

Axes = tuple[int, ...]


def _infer_reduce(name: str, takes: frozenset[str], result: str | None = None) -> Callable[..., NodeType]:
    def infer(x: TensorType, axes: Axes) -> NodeType:
        assert list(axes) == sorted(set(axes)) and all(0 <= a < x.rank for a in axes), (name, axes, x)
        if x.dtype not in takes:
            raise TypeMismatch("E-TYPE-001", f"{name} does not take {x}")
        kept = [i for i in range(x.rank) if i not in axes]
        # As in NumPy, no result needs no element.
        if name in ("max", "min", "argmax", "argmin") and x.elements == 0 and all(x.shape[i] for i in kept):
            raise TypeMismatch("E-SHAPE-001", f"{name} over no element: {x}")
        labels = tuple(x.label(i) for i in kept) if x.labels else ()
        return TensorType(result or x.dtype, tuple(x.shape[i] for i in kept), labels)  # type: ignore[arg-type]

    return infer


def spread(y: Node, like: Node, axes: Axes) -> Node:
    """A reduction's result over the axes that it lost."""
    dims = tuple(i for i in range(like.tensor.rank) if i not in axes)
    return y.graph.add("broadcast", (y,), {"shape": like.shape, "dims": dims})


def _vjp_sum(dy: Node, y: Node, inputs: Sequence[Node], axes: Axes) -> Sequence[Node | None]:
    return (spread(dy, inputs[0], axes),)


def _vjp_extremum(dy: Node, y: Node, inputs: Sequence[Node], axes: Axes) -> Sequence[Node | None]:
    """Equal extremes share the cotangent equally."""
    x, graph = inputs[0], y.graph
    hit = graph.add("cast", (graph.add("eq", (x, spread(y, x, axes))),), {"dtype": x.dtype})
    return (hit * spread(dy / graph.add("sum", (hit,), {"axes": axes}), x, axes),)


def _vjp_prod(dy: Node, y: Node, inputs: Sequence[Node], axes: Axes) -> Sequence[Node | None]:
    """The product of the others: exact also where one factor (or several) is 0."""
    x, graph = inputs[0], y.graph
    zero, one = (graph.constant(v, x.dtype, x.shape) for v in (0.0, 1.0))
    null = graph.add("eq", (x, zero))
    nulls = graph.add("sum", (graph.add("cast", (null,), {"dtype": x.dtype}),), {"axes": axes})
    filled = graph.add("select", (null, one, x))
    rest = spread(dy * graph.add("prod", (filled,), {"axes": axes}), x, axes) / filled
    alone = graph.add("eq", (spread(nulls, x, axes) - graph.add("cast", (null,), {"dtype": x.dtype}), zero))
    return (graph.add("select", (alone, rest, zero)),)


def _infer_cumsum(x: TensorType, axis: int) -> NodeType:
    if x.dtype == "bool":
        raise TypeMismatch("E-TYPE-001", f"cumsum does not take {x}")
    return x


def _vjp_cumsum(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    flip = {"axes": (axis,)}
    back = y.graph.add("cumsum", (y.graph.add("flip", (dy,), flip),), {"axis": axis})
    return (y.graph.add("flip", (back,), flip),)


def _reduce(name: str, run: Callable[..., Any], vjp: Any, takes: frozenset[str], result: str | None = None) -> Op:
    signature = f"{name}(x: T[*s]; axes) -> {result or 'T'}[*drop(s, axes)]"
    return Op(name, signature, _infer_reduce(name, takes, result), run, vjp, "reduce")


_NUMBERS = FLOATS | {"i32", "i64", "u8", "u32"}
_BOOL = frozenset(("bool",))


def _summed(x: Any) -> Any:
    """What is added up in: halves in f32, and rounded once at the end."""
    dtype = np.asarray(x).dtype
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def _arg(run: Callable[..., Any]) -> Callable[..., Any]:
    def pick(x: Any, axes: Axes) -> Any:
        """Over several axes the index is into their row-major product."""
        x = np.moveaxis(np.asarray(x), axes, range(-len(axes), 0))
        return run(x.reshape(*x.shape[: x.ndim - len(axes)], -1), axis=-1).astype(np.int32)

    return pick


def records() -> list[Op]:
    """The records of every reduction."""
    return [
        _reduce("sum", lambda x, axes: np.sum(x, axes, dtype=_summed(x)), _vjp_sum, _NUMBERS),
        _reduce("prod", lambda x, axes: np.prod(x, axes, dtype=_summed(x)), _vjp_prod, _NUMBERS),
        _reduce("max", lambda x, axes: np.max(x, axes), _vjp_extremum, _NUMBERS),
        _reduce("min", lambda x, axes: np.min(x, axes), _vjp_extremum, _NUMBERS),
        _reduce("any", lambda x, axes: np.any(x, axes), None, _BOOL),
        _reduce("all", lambda x, axes: np.all(x, axes), None, _BOOL),
        _reduce("argmax", _arg(np.argmax), None, _NUMBERS, "i32"),
        _reduce("argmin", _arg(np.argmin), None, _NUMBERS, "i32"),
        Op("cumsum", "cumsum(x: T[*s]; axis) -> T[*s]", _infer_cumsum,
           lambda x, axis: np.cumsum(x, axis, dtype=np.asarray(x).dtype), _vjp_cumsum, "cumsum"),
    ]  # fmt: skip
