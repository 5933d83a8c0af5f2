"""The types of PTX as NumPy holds them: half precision and untyped bits are unsigned integers."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(held)
    for held, names in {
        "?": "pred",
        "u1": "b8 u8",
        "i1": "s8",
        "u2": "b16 u16 f16 bf16",
        "i2": "s16",
        "u4": "b32 u32 f16x2 bf16x2 tf32",
        "i4": "s32",
        "f4": "f32",
        "u8": "b64 u64 f32x2",
        "i8": "s64",
        "f8": "f64",
    }.items()
    for name in names.split()
}
FLOATS = ("f32", "f64")
HALVES = ("f16", "bf16", "f16x2", "bf16x2")


def reinterpret(value: Any, dtype: np.dtype[Any]) -> Any:
    """The value as bits of another type: the same width is viewed, another is cut or extended by the value's own sign."""
    if value.dtype == dtype:
        return value
    if value.dtype.itemsize == dtype.itemsize and value.dtype.kind != "b" and dtype.kind != "b":
        return value.view(dtype)
    if value.dtype.kind == "f":
        value = value.view(f"u{value.dtype.itemsize}")
    if dtype.kind == "f":
        return value.astype(f"u{dtype.itemsize}").view(dtype)
    return value.astype(dtype)
