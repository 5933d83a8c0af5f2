"""Sums and products rounded once, in any of IEEE's directions, out of float64 arithmetic with its errors kept."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array

SMALLEST_NORMAL = {np.dtype("f4"): np.float32(2.0**-126), np.dtype("f8"): np.float64(2.0**-1022)}
CANONICAL = np.uint32(0x7FFFFFFF).view(np.float32)
SPLITTER = 2.0**27 + 1


def flush(value: Any) -> Any:
    """Subnormal numbers to zero of the same sign."""
    small = np.abs(value) < SMALLEST_NORMAL[value.dtype]
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if np.any(small) else value


def canonical(value: Any) -> Any:
    """Every NaN of float32 becomes the one that the device makes."""
    if value.dtype != np.float32 or not np.isnan(np.min(value)):
        return value
    return np.where(np.isnan(value), CANONICAL, value)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The rounded sum and its error (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """The rounded product and its error (Dekker); exact while nothing over- or underflows."""
    product = x * y
    x_high, y_high = (SPLITTER * one - (SPLITTER * one - one) for one in (x, y))
    x_low, y_low = x - x_high, y - y_high
    return product, ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low


def to_odd(total: Array, error: Array) -> Array:
    """A float64 sum rounded to odd: rounding it once more to fewer bits is then one rounding (Boldo and Melquiond)."""
    total = np.array(total, np.float64, ndmin=1)
    bits = total.view(np.int64)
    step = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    bits[step] += np.where((error[step] > 0) == (total[step] > 0), 1, -1)
    return total


def fma32(a: Any, b: Any, c: Any) -> Array:
    """float32 a·b + c rounded once: the product is exact in float64, and only a sum on a tie needs its error."""
    product = np.multiply(a, b, dtype=np.float64)
    total = np.atleast_1d(product + c)
    tie = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    tie |= (np.abs(total) < 2.0**-125) & (total != 0)
    if tie.any():
        product, c = np.broadcast_arrays(product, np.asarray(c, np.float64))
        product, c = np.atleast_1d(product)[tie], np.atleast_1d(c)[tie]
        total[tie] = to_odd(*two_sum(product, c))
    return total.astype(np.float32)


def fma64(a: Any, b: Any, c: Any) -> Array:
    """float64 a·b + c rounded once (Boldo and Melquiond 2008); exact fractions where that could over- or underflow."""
    a, b, c = (np.array(one, np.float64) for one in np.broadcast_arrays(*np.atleast_1d(a, b, c)))
    product, product_error = two_product(a, b)
    middle, middle_error = two_sum(c, product_error)
    high, high_error = two_sum(product, middle)
    result = high + to_odd(*two_sum(middle_error, high_error))
    finite = np.isfinite(a) & np.isfinite(b)
    plain = ~(finite & np.isfinite(c))
    plain |= (a == 0) | (b == 0) | ((c == 0) & (product != 0))
    result = np.where(plain, np.where(finite & ~np.isfinite(c), c, a * b + c), result)
    large = np.maximum(np.maximum(np.abs(a), np.abs(b)), np.abs(c)) > 2.0**500
    doubtful = ~plain & (large | (np.abs(a * b) < 2.0**-900) | (np.abs(result) < 2.0**-1000))
    for place in np.flatnonzero(doubtful):
        result[place] = exact_fma(float(a[place]), float(b[place]), float(c[place]))
    return result


def exact_fma(a: float, b: float, c: float) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c
    try:
        return float(exact)
    except OverflowError:
        return np.inf if exact > 0 else -np.inf


def toward(nearest: Array, beyond: Array, mode: str) -> Array:
    """The nearest number moved to where the mode rounds; `beyond` has the sign of the exact value minus the nearest."""
    if mode == "rn":
        return nearest
    down = (beyond < 0) & ((nearest > 0) | (mode == "rm")) & (mode != "rp")
    up = (beyond > 0) & ((nearest < 0) | (mode == "rp")) & (mode != "rm")
    moved = np.where(down, np.nextafter(nearest, nearest.dtype.type(-np.inf)), nearest)
    return np.where(up, np.nextafter(nearest, nearest.dtype.type(np.inf)), moved)


def narrow(total: Array, error: Any, mode: str) -> Array:
    """An exact value, float64 sum plus error, as float32 in the mode's direction."""
    if mode == "rn":
        return to_odd(total, np.broadcast_to(error, np.shape(total))).astype(np.float32)
    nearest = np.asarray(total).astype(np.float32)
    difference = np.where(np.isnan(nearest), 0, total - nearest)
    return toward(nearest, np.where(difference != 0, difference, error), mode)


def rounded_sum(mode: str) -> Callable[[Any, Any], Any]:
    def add(x: Any, y: Any) -> Any:
        if x.dtype == np.float32:
            return narrow(*two_sum(np.asarray(x, np.float64), np.asarray(y, np.float64)), mode)
        return toward(*two_sum(np.asarray(x), np.asarray(y)), mode)

    return np.add if mode == "rn" else add


def rounded_product(mode: str) -> Callable[[Any, Any], Any]:
    def multiply(x: Any, y: Any) -> Any:
        if x.dtype == np.float32:
            return narrow(np.asarray(x, np.float64) * y, 0, mode)
        return toward(*two_product(np.asarray(x), np.asarray(y)), mode)

    return np.multiply if mode == "rn" else multiply


def rounded_fma(mode: str, dtype: np.dtype[Any]) -> Callable[[Any, Any, Any], Any] | None:
    """None where the mode is not built."""
    if dtype == np.float64:
        return fma64 if mode == "rn" else None

    def fma(a: Any, b: Any, c: Any) -> Any:
        return narrow(*two_sum(np.asarray(a, np.float64) * b, np.asarray(c, np.float64)), mode)

    return fma32 if mode == "rn" else fma


def smaller(x: Any, y: Any) -> Any:
    """PTX's min: a number before a NaN, −0 before +0."""
    return _ordered(x, y, np.fmin(x, y), np.bitwise_or)


def larger(x: Any, y: Any) -> Any:
    """PTX's max: a number before a NaN, +0 before −0."""
    return _ordered(x, y, np.fmax(x, y), np.bitwise_and)


def _ordered(x: Any, y: Any, chosen: Any, join: Callable[[Any, Any], Any]) -> Any:
    equal = x == y
    if not np.any(equal):
        return chosen
    bits = f"u{x.dtype.itemsize}"
    return np.where(equal, join(x.view(bits), y.view(bits)).view(x.dtype), chosen)
