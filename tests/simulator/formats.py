"""Half precision formats: their bits to float32 and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.rounding import narrow, toward

NAN = np.uint16(0x7FFF)


def widen(bits: Any, kind: str) -> Any:
    """f16 or bf16 bits as float32, exactly."""
    if kind.startswith("bf16"):
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def shorten(value: Any, kind: str, mode: str = "rn") -> Any:
    """float32 as bf16 or f16 bits, rounded to nearest even or towards zero."""
    value = np.asarray(value, np.float32)
    if kind.startswith("bf16"):
        bits = value.view(np.uint32)
        if mode == "rn":
            bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        short = (bits >> np.uint32(16)).astype(np.uint16)
    else:
        half = value.astype(np.float16)
        half = toward(half, np.where(np.isnan(value), 0, value - half.astype(np.float32)), mode)
        short = half.view(np.uint16)
    wrong = np.isnan(value)
    return np.where(wrong, NAN, short) if wrong.any() else short


def shorten_exact(total: Array, error: Any, kind: str) -> Any:
    """An exact value, float64 sum plus error, as bf16 or f16 bits rounded once."""
    nearest = narrow(total, error, "rz")
    inexact = (nearest != total) | (np.asarray(error) != 0)
    odd = np.atleast_1d(nearest).view(np.uint32) | (inexact & np.isfinite(nearest)).astype(np.uint32)
    return shorten(odd.view(np.float32), kind)


def halves(word: Any) -> tuple[Any, Any]:
    """The low and the high half of a packed pair."""
    return (word & np.uint32(0xFFFF)).astype(np.uint16), (word >> np.uint32(16)).astype(np.uint16)


def pair(low: Any, high: Any) -> Any:
    return low.astype(np.uint32) | (high.astype(np.uint32) << np.uint32(16))
