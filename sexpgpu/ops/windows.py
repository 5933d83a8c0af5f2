"""Sliding windows over the last axes and their adjoint: convolutions and pools are made of these and of products.

    windows(x)[…, p…, j…]     = x[…, p·stride + j·dilation …]
    overlap_add(x)[…, i…]     = Σ of x[…, p…, j…] over p·stride + j·dilation = low + i
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product as cartesian
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, NodeType, TensorType
from sexpgpu.ops.movement import checked
from sexpgpu.ops.record import Op, TypeMismatch

Sizes = tuple[int, ...]


def extent(size: int, dilation: int) -> int:
    """How many elements a window reaches over."""
    return (size - 1) * dilation + 1


def positions(length: int, size: int, stride: int, dilation: int) -> int:
    """How many windows lie within an axis."""
    return (length - extent(size, dilation)) // stride + 1


def _infer_windows(x: TensorType, sizes: Sizes, strides: Sizes, dilations: Sizes) -> NodeType:
    """Axis by axis over the last ones; sizes, strides and dilations are at least 1."""
    assert len(sizes) == len(strides) == len(dilations) <= x.rank and min((*sizes, *strides, *dilations), default=1) >= 1
    lead = x.rank - len(sizes)
    for axis, (size, dilation) in enumerate(zip(sizes, dilations, strict=True), lead):
        if extent(size, dilation) > x.shape[axis]:
            reach = f"a window of {size}" + (f" with dilation {dilation}" if dilation > 1 else "")
            raise TypeMismatch("E-SHAPE-001", f"windows: {reach} does not fit axis {axis} of {x}")
    counts = tuple(map(positions, x.shape[lead:], sizes, strides, dilations))
    labels = (*(x.label(i) for i in range(lead)), *(None,) * (2 * len(sizes)))
    return TensorType(x.dtype, checked((*x.shape[:lead], *counts, *sizes)), labels if any(labels) else ())


def _run_windows(x: Any, sizes: Sizes, strides: Sizes, dilations: Sizes) -> Any:
    x = np.asarray(x)
    lead = x.ndim - len(sizes)
    reach = tuple(map(extent, sizes, dilations))
    every = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(lead, x.ndim)))
    return every[(slice(None),) * lead + tuple(slice(None, None, s) for s in (*strides, *dilations))]


def _vjp_windows(
    dy: Node, y: Node, inputs: Sequence[Node], sizes: Sizes, strides: Sizes, dilations: Sizes
) -> Sequence[Node | None]:
    shape = inputs[0].shape[len(inputs[0].shape) - len(sizes) :]
    attributes = {"low": (0,) * len(sizes), "shape": shape, "strides": strides, "dilations": dilations}
    return (y.graph.add("overlap_add", (dy,), attributes),)


def _infer_overlap_add(x: TensorType, low: Sizes, shape: Sizes, strides: Sizes, dilations: Sizes) -> NodeType:
    assert len(low) == len(shape) == len(strides) == len(dilations) and x.rank >= 2 * len(shape)
    if x.dtype not in FLOATS | {"i32", "i64"}:
        raise TypeMismatch("E-TYPE-001", f"overlap_add does not take {x}")
    lead = x.rank - 2 * len(shape)
    labels = (*(x.label(i) for i in range(lead)), *(None,) * len(shape))
    return TensorType(x.dtype, checked((*x.shape[:lead], *shape)), labels if any(labels) else ())


# Of one element of a window: its place there; along each axis the first window that has it inside the result, how many
# such windows there are, and where the first lies in the result.
Overlap = tuple[Sizes, Sizes, Sizes, Sizes]


def overlaps(counts: Sizes, sizes: Sizes, low: Sizes, shape: Sizes, strides: Sizes, dilations: Sizes) -> Iterator[Overlap]:
    """The parts of an overlap-add, one an element of the window, row-major: the order in which they are added."""
    for element in cartesian(*map(range, sizes)):
        shifts = [j * d - b for j, d, b in zip(element, dilations, low, strict=True)]
        first = tuple(max(-(shift // s), 0) for shift, s in zip(shifts, strides, strict=True))
        limits = [
            min((n - 1 - shift) // s + 1, count) for n, shift, s, count in zip(shape, shifts, strides, counts, strict=True)
        ]
        many = tuple(max(b - a, 0) for a, b in zip(first, limits, strict=True))
        if all(many):
            start = tuple(p * s + shift for p, s, shift in zip(first, strides, shifts, strict=True))
            yield element, first, many, start


def _run_overlap_add(x: Any, low: Sizes, shape: Sizes, strides: Sizes, dilations: Sizes) -> Any:
    x = np.asarray(x)
    spatial, whole = len(shape), (slice(None),) * (x.ndim - 2 * len(shape))
    lead = len(whole)
    out = np.zeros((*x.shape[:lead], *shape), x.dtype)
    parts = overlaps(x.shape[lead : lead + spatial], x.shape[lead + spatial :], low, shape, strides, dilations)
    for element, first, many, start in parts:
        to = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(start, many, strides, strict=True))
        of = tuple(slice(p, p + n) for p, n in zip(first, many, strict=True))
        out[whole + to] += x[whole + of + element]
    return out


def _vjp_overlap_add(
    dy: Node, y: Node, inputs: Sequence[Node], low: Sizes, shape: Sizes, strides: Sizes, dilations: Sizes
) -> Sequence[Node | None]:
    """The windows of the cotangent, over zeros where the windows reached beyond the result."""
    lead, spatial = len(dy.shape) - len(shape), len(shape)
    counts, sizes = inputs[0].shape[lead : lead + spatial], inputs[0].shape[lead + spatial :]
    reach = [(n - 1) * s + extent(k, d) for n, k, s, d in zip(counts, sizes, strides, dilations, strict=True)]
    high = tuple(max(r - a - n, 0) for r, a, n in zip(reach, low, shape, strict=True))
    whole = (0,) * lead
    widths = {"low": whole + low, "high": whole + high, "interior": (0,) * len(dy.shape), "value": 0}
    padded = y.graph.add("pad", (dy,), widths) if any((*low, *high)) else dy
    made = y.graph.add("windows", (padded,), {"sizes": sizes, "strides": strides, "dilations": dilations})
    if made.shape == inputs[0].shape:
        return (made,)
    # Elements of the result that no window reaches.
    cut = {"starts": (0,) * len(made.shape), "limits": inputs[0].shape, "steps": (1,) * len(made.shape)}
    return (y.graph.add("slice", (made,), cut),)


def records() -> list[Op]:
    """The records of windows."""
    windows = "windows(x: T[*s]; sizes, strides, dilations) -> T[*lead(s), *positions(s), *sizes]"
    overlap = "overlap_add(x: T[*lead, *positions, *sizes]; low, shape, strides, dilations) -> T[*lead, *shape]"
    return [
        Op("windows", windows, _infer_windows, _run_windows, _vjp_windows, "view"),
        Op("overlap_add", overlap, _infer_overlap_add, _run_overlap_add, _vjp_overlap_add, "overlap_add"),
    ]
