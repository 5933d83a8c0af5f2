"""The table of scalar formulas `k_…`: those of `ops/transcendental.py`, and here the exact ones, where the result is
the only right one: rounding, comparison, division with remainder, integers, casts and random draws.

Integer operations wrap as NumPy's do; a division by zero gives 0.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

from sexpgpu.ops import transcendental
from sexpgpu.ops.arithmetic import (
    Value,
    bits,
    ceil,
    convert,
    dtype_of,
    floor,
    from_bits,
    half,
    logical_not,
    quotient,
    rint,
    saturate,
    select,
)
from sexpgpu.ops.transcendental import SIGN, float_pow

FLOATS = ("f32", "f64")


def _integer_pow(x: Value, y: Value) -> Value:
    """By squaring, wrapping; a negative exponent gives 1/x^|y| towards 0 (0 for x = 0)."""
    signed = dtype_of(x) in ("i32", "i64")
    one = (x ^ x) + 1
    value, square, rest = one, x, y
    for _ in range({"u8": 8, "u32": 32, "i32": 31, "i64": 63}[dtype_of(x)]):
        value = select((rest & 1) == 1, value * square, value)
        square = square * square
        rest = rest >> 1
    if not signed:
        return value
    sign = select((y & 1) == 1, one - 2, one)
    inverse = select(x == 1, one, select(x == -1, sign, one - 1))
    return select(y < 0, inverse, value)


def k_pow(x: Value, y: Value) -> Value:
    """As C99 for floats."""
    return float_pow(x, y) if dtype_of(x) in FLOATS else _integer_pow(x, y)


def k_floor(x: Value) -> Value:
    return floor(x)


def k_ceil(x: Value) -> Value:
    return ceil(x)


def k_rint(x: Value) -> Value:
    return rint(x)


def k_abs(x: Value) -> Value:
    dtype = dtype_of(x)
    if dtype == "f32":
        return from_bits(bits(x) & 0x7FFFFFFF)
    return x if dtype in ("u8", "u32") else select(x < 0, -x, x)


def k_sign(x: Value) -> Value:
    """NaN for NaN."""
    dtype = dtype_of(x)
    if dtype == "f32":
        return select(x > 0.0, 1.0, select(x < 0.0, -1.0, select(x == 0.0, 0.0, x)))
    one = (x ^ x) + 1
    positive = select(x > 0, one, one - 1)
    return positive if dtype in ("u8", "u32") else select(x < 0, one - 2, positive)


def k_isfinite(x: Value) -> Value:
    return from_bits(bits(x) & 0x7FFFFFFF) < inf


def _truncated(x: Value) -> Value:
    return select(x < 0.0, ceil(x), floor(x))


def _float_division(a: Value, b: Value) -> tuple[Value, Value]:
    """(⌊a / b⌋, a − b·⌊a / b⌋) as NumPy has them; exact while the quotient is below 2^53."""
    wide_a, wide_b = convert(a, "f64"), convert(b, "f64")
    large = wide_b * 16777216.0
    q_large = _truncated(wide_a / large)
    rest = wide_a - q_large * large
    q = _truncated(rest / wide_b)
    rest = rest - q * wide_b
    low = (rest != 0.0) & ((rest < 0.0) != (wide_b < 0.0))
    rest, q = select(low, rest + wide_b, rest), select(low, q - 1.0, q)
    narrow = convert(rest, "f32")
    narrow = select(narrow == 0.0, from_bits(bits(b) & SIGN), narrow)
    whole = convert(q_large * 16777216.0 + q, "f32")
    endless = ((b == inf) | (b == -inf)) & k_isfinite(a)
    opposite = (a != 0.0) & ((a < 0.0) != (b < 0.0))
    whole = select(endless, select(opposite, a * 0.0 - 1.0, a * 0.0), whole)
    narrow = select(endless, select(opposite, b, a), narrow)
    whole = select(b == 0.0, a / b, whole)
    return whole, select(b == 0.0, nan, narrow)


def _integer_division(a: Value, b: Value) -> tuple[Value, Value]:
    """Towards −∞; by zero both are 0. Neither a zero nor an overflowing division is ever executed."""
    signed = dtype_of(a) in ("i32", "i64")
    zero = b ^ b
    unsafe = (b == 0) | (b == -1) if signed else b == 0
    down = quotient(a, select(unsafe, zero + 1, b))
    rest = a - down * select(unsafe, zero + 1, b)
    if signed:
        low = (rest != 0) & ((rest < 0) != (b < 0))
        down, rest = select(low, down - 1, down), select(low, rest + b, rest)
        down = select(b == -1, -a, down)
    return select(b == 0, zero, down), select(unsafe, zero, rest)


def k_floordiv(a: Value, b: Value) -> Value:
    return (_float_division if dtype_of(a) in FLOATS else _integer_division)(a, b)[0]


def k_mod(a: Value, b: Value) -> Value:
    """The remainder with the sign of b."""
    return (_float_division if dtype_of(a) in FLOATS else _integer_division)(a, b)[1]


def k_maximum(a: Value, b: Value) -> Value:
    """NaN if either is."""
    if dtype_of(a) == "bool":
        return a | b
    return select((a > b) | (a != a) if dtype_of(a) in FLOATS else a > b, a, b)


def k_minimum(a: Value, b: Value) -> Value:
    """NaN if either is."""
    if dtype_of(a) == "bool":
        return a & b
    return select((a < b) | (a != a) if dtype_of(a) in FLOATS else a < b, a, b)


def k_select(condition: Value, a: Value, b: Value) -> Value:
    return select(condition, a, b)


def k_not(x: Value) -> Value:
    return logical_not(x)


def k_round_f16(x: Value) -> Value:
    return half(x)


def k_round_bf16(x: Value) -> Value:
    """To nearest even; NaN stays NaN."""
    pattern = bits(x)
    rounded = pattern + 0x7FFF + ((pattern >> 16) & 1)
    return from_bits(select(x != x, pattern | 0x00400000, rounded) & -0x10000)


def cast(x: Value, source: str, target: str) -> Value:
    """`language.md`'s cast between dtypes of the IR; bf16 and f16 are kept as f32 whose value is rounded."""
    if source == target:
        return x
    floats = ("f32", "bf16", "f16")
    if target == "bool":
        return x != 0
    if source in floats and target not in floats:
        return saturate(x, target)
    value = x if source in floats else convert(x, "f32" if target in floats else target)
    return {"bf16": k_round_bf16, "f16": k_round_f16}.get(target, _same)(value)


def _same(x: Value) -> Value:
    return x


# Philox-4x32-10, as in sexpgpu/randomness.py.
PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
PHILOX_INCREMENTS = (0x9E3779B9, 0xBB67AE85)


def k_random(element: Value, key0: Value, key1: Value, scan: Value, microbatch: Value, step: Value) -> Value:
    """The uniform draw of [0, 1) of one element (i64), 24 bits: word element mod 4 of counter (element ÷ 4, …)."""
    c0, c1, c2, c3 = convert(element >> 2, "u32"), scan, microbatch, step
    for number in range(10):
        first = convert(c0, "u64") * PHILOX_MULTIPLIERS[0]
        second = convert(c2, "u64") * PHILOX_MULTIPLIERS[1]
        if number:
            key0, key1 = key0 + PHILOX_INCREMENTS[0], key1 + PHILOX_INCREMENTS[1]
        c0, c1, c2, c3 = (
            convert(second >> 32, "u32") ^ c1 ^ key0, convert(second, "u32"),
            convert(first >> 32, "u32") ^ c3 ^ key1, convert(first, "u32"),
        )  # fmt: skip
    place = element & 3
    word = select(place == 0, c0, select(place == 1, c1, select(place == 2, c2, c3)))
    return convert(word >> 8, "f32") * 2.0**-24


FORMULAS: dict[str, Callable[..., Value]] = {
    name: value
    for name, value in {**vars(transcendental), **globals()}.items()
    if name.startswith("k_") and callable(value)
}
