"""Exact numbers rounded to floating point formats by the definition, in unbounded integers."""

from __future__ import annotations

import math
from fractions import Fraction

# Digits of the significand, exponents of the least normal and of the largest number.
FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}


def rounded(exact: Fraction | int, kind: str, mode: str = "rn") -> float:
    """With subnormals and overflow; modes as PTX names them. An exact zero is +0."""
    digits, least, most = FORMATS[kind]
    if exact == 0:
        return 0.0
    size, sign = abs(Fraction(exact)), 1 if exact > 0 else -1
    exponent = max(size.numerator.bit_length() - size.denominator.bit_length() - 1, least)
    exponent += Fraction(2) ** (exponent + 1) <= size
    unit = Fraction(2) ** (exponent - digits + 1)
    whole, rest = divmod(size, unit)
    away = (mode == "rp" and sign > 0) or (mode == "rm" and sign < 0)
    up = rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1) if mode == "rn" else rest > 0 and away
    value = (whole + up) * unit
    limit = (2 - Fraction(2) ** (1 - digits)) * Fraction(2) ** most
    if value <= limit:
        return math.copysign(float(value), sign)
    return math.copysign(math.inf if mode == "rn" or away else float(limit), sign)
