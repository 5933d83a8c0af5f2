"""When a result is what ONNX expects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnx_nodes.case import Array

UNITS = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def difference(
    made: Sequence[Array], expected: Sequence[Array], inputs: Sequence[Array], exact: bool, written: float = 0.0
) -> str | None:
    """What differs; None where every output is within its bound.

    A sum of n terms in floats of unit roundoff u is off by about √n u of its largest term (Higham and Mary 2019), and so
    are the expected values, which NumPy computed in the same type: (8 |y| + 4 √n max |y|) u, n the elements of the largest
    input, and `written` more where values were rounded. What is moved, chosen or counted is equal (`exact`).
    """
    if len(made) != len(expected):
        return f"{len(made)} results for {len(expected)}"
    terms = max([a.size for a in inputs], default=1)
    for k, (ours, theirs) in enumerate(zip(made, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"output {k} is {ours.dtype}{list(ours.shape)}, expected {theirs.dtype}{list(theirs.shape)}"
        wrong = _unequal(ours, theirs) if exact or theirs.dtype.name not in UNITS else _beyond(ours, theirs, terms, written)
        if wrong:
            return f"output {k} {wrong}"
    return None


def _unequal(ours: Array, theirs: Array) -> str | None:
    floats = theirs.dtype.name in UNITS
    a, b = (v.astype(np.float64) if floats else v for v in (ours, theirs))
    return None if np.array_equal(a, b, equal_nan=floats) else f"is not equal\n{ours}\n{theirs}"


def _beyond(ours: Array, theirs: Array, terms: int, written: float) -> str | None:
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "has other infinite values or NaN"
    a, b = a[finite], b[finite]
    unit = UNITS[theirs.dtype.name]
    off = np.abs(a - b)
    # A NaN of ours is beyond any bound.
    within = off <= unit * (8 * np.abs(b) + 4 * terms**0.5 * np.abs(b).max(initial=0.0)) + written
    return None if within.all() else f"is off by {off.max():.3g}, {(~within).sum()} elements"
