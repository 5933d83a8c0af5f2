"""Reading and adding at computed places. Indices may be negative as in NumPy; out of range the nearest valid one is
read and a flag is set, which stops the run with E-NUM-002."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import INTEGERS, NodeType, TensorType
from sexpgpu.ops.movement import checked
from sexpgpu.ops.record import Op, TypeMismatch


def _integers(name: str, indices: TensorType) -> None:
    if indices.dtype not in INTEGERS:
        raise TypeMismatch("E-TYPE-001", f"{name}: indices are integers, not {indices}")


def _nearest(indices: Any, size: int) -> Any:
    i = np.asarray(indices).astype(np.int64)
    return np.clip(np.where(i < 0, i + size, i), 0, size - 1)


def _infer_take(x: TensorType, indices: TensorType, axis: int) -> NodeType:
    _integers("take", indices)
    if x.shape[axis] == 0:
        raise TypeMismatch("E-SHAPE-001", f"take from an empty axis: {x}")
    labels: tuple[str | None, ...] = ()
    if x.labels or indices.labels:
        of_x = [x.label(i) for i in range(x.rank)]
        labels = (*of_x[:axis], *(indices.label(i) for i in range(indices.rank)), *of_x[axis + 1 :])
    return TensorType(x.dtype, checked((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])), labels)


def _run_take(x: Any, indices: Any, axis: int) -> Any:
    return np.take(x, _nearest(indices, np.shape(x)[axis]), axis)


def _vjp_take(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    x, indices = inputs
    zero = y.graph.constant(0.0, x.dtype, x.shape)
    return y.graph.add("scatter_add", (zero, indices, dy), {"axis": axis}), None


def _infer_scatter_add(x: TensorType, indices: TensorType, updates: TensorType, axis: int) -> NodeType:
    _integers("scatter-add", indices)
    expected = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if updates.shape != expected or updates.dtype != x.dtype:
        raise TypeMismatch("E-SHAPE-001", f"scatter-add: updates are {updates}, {x.dtype}{list(expected)} is needed")
    if x.shape[axis] == 0 and indices.elements:
        raise TypeMismatch("E-SHAPE-001", f"scatter-add to an empty axis: {x}")
    return x


def _run_scatter_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    """Rows of `updates` added at `indices`, in the order of the indices."""
    out = np.moveaxis(np.array(x), axis, 0)
    i = _nearest(indices, out.shape[0]).ravel()
    rank = np.ndim(indices)
    rows = np.moveaxis(updates, tuple(range(axis, axis + rank)), tuple(range(rank)))
    np.add.at(out, i, rows.reshape(i.size, *out.shape[1:]))
    return np.moveaxis(out, 0, axis)


def _vjp_scatter_add(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    return dy, None, y.graph.add("take", (dy, inputs[1]), {"axis": axis})


def _infer_gather(x: TensorType, indices: TensorType, axis: int) -> NodeType:
    """NumPy's take_along_axis: all axes but `axis` are equal."""
    _integers("gather", indices)
    same = x.rank == indices.rank and all(x.shape[i] == indices.shape[i] for i in range(x.rank) if i != axis)
    if not same or (x.shape[axis] == 0 and indices.elements):
        raise TypeMismatch("E-SHAPE-001", f"gather on axis {axis}: {x} and {indices} do not fit")
    return TensorType(x.dtype, indices.shape, indices.labels)


def _run_gather(x: Any, indices: Any, axis: int) -> Any:
    return np.take_along_axis(np.asarray(x), _nearest(indices, np.shape(x)[axis]), axis)


def _vjp_gather(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    x, indices = inputs
    zero = y.graph.constant(0.0, x.dtype, x.shape)
    return y.graph.add("gather_add", (zero, indices, dy), {"axis": axis}), None


def _infer_gather_add(x: TensorType, indices: TensorType, updates: TensorType, axis: int) -> NodeType:
    if updates.shape != indices.shape or updates.dtype != x.dtype:
        raise TypeMismatch("E-SHAPE-001", f"gather-add: updates are {updates}, indices {indices}")
    if x.shape[axis] == 0 and indices.elements:
        raise TypeMismatch("E-SHAPE-001", f"gather-add to an empty axis: {x}")
    return x


def _run_gather_add(x: Any, indices: Any, updates: Any, axis: int) -> Any:
    out = np.array(x)
    place = list(np.indices(np.shape(indices), sparse=True))
    place[axis] = _nearest(indices, out.shape[axis])
    np.add.at(out, tuple(place), updates)
    return out


def _vjp_gather_add(dy: Node, y: Node, inputs: Sequence[Node], axis: int) -> Sequence[Node | None]:
    return dy, None, y.graph.add("gather", (dy, inputs[1]), {"axis": axis})


def _infer_argsort(x: TensorType, axis: int, descending: bool) -> NodeType:
    return TensorType("i32", x.shape, x.labels)


def _run_argsort(x: Any, axis: int, descending: bool) -> Any:
    """Stable: of equals the lower index comes first, in both directions; NaN last, as NumPy has it."""
    x = np.asarray(x)
    if not descending:
        return np.argsort(x, axis, kind="stable").astype(np.int32)
    backward = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
    return (x.shape[axis] - 1 - backward).astype(np.int32)


def records() -> list[Op]:
    """The records of indexing."""
    return [
        Op("take", "take(x: T[*s], i: I[*j]; axis) -> T[*put(s, axis, j)]", _infer_take, _run_take, _vjp_take, "take"),
        Op("scatter_add", "scatter_add(x: T[*s], i: I[*j], u: T[*put(s, axis, j)]; axis) -> T[*s]", _infer_scatter_add,
           _run_scatter_add, _vjp_scatter_add, "scatter_add"),
        Op("gather", "gather(x: T[*s], i: I[*t]; axis) -> T[*t]", _infer_gather, _run_gather, _vjp_gather, "gather"),
        Op("gather_add", "gather_add(x: T[*s], i: I[*t], u: T[*t]; axis) -> T[*s]", _infer_gather_add, _run_gather_add,
           _vjp_gather_add, "gather_add"),
        Op("argsort", "argsort(x: T[*s]; axis, descending) -> i32[*s]", _infer_argsort, _run_argsort, None, "argsort"),
    ]  # fmt: skip
