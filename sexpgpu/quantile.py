"""The inverse of the normal distribution function in + − × ÷, sqrt and bit operations, float64, alike on every machine.

Wichura, "Algorithm AS 241: the percentage points of the normal distribution" (1988), PPND16: relative error about
1e-16 from exact inputs. Its logarithm is our own, `natural_logarithm`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array64 = NDArray[np.float64]

# Numerator and denominator, highest power first. Centre: |q| ≤ 0.425, in 0.425² − q²; tail: in √(−ln p) − 1.6.
CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
TAIL = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
CENTRE_LIMIT = 0.425
CENTRE_SQUARE = 0.180625
TAIL_SHIFT = 1.6

# The probability that a normal number lies within 2 deviations of its mean: erf(√2).
SPAN_OF_TWO_DEVIATIONS = 0.9544997361036416

LN_2 = 0.6931471805599453
# The bits of √½. Adding the distance from it to 1 before the exponent is read moves the cut from 1 to √½.
ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
# atanh(s)/s in powers of s², highest first: s² ≤ 0.0295, so the next term is below 2^-60.
ATANH = tuple(1.0 / (2 * k + 1) for k in range(11, -1, -1))


def normal_quantile(q: Array64) -> Array64:
    """The normal number that lies at probability 1/2 + q, |q| ≤ 1/2 − 2^-33 (AS 241's far tail begins at 2^-36)."""
    square = np.subtract(CENTRE_SQUARE, np.multiply(q, q))
    values = ratio(CENTRE, square)
    np.multiply(values, q, out=values)
    outside = np.flatnonzero(np.abs(q) > CENTRE_LIMIT)
    side = q[outside]
    depth = np.sqrt(np.negative(natural_logarithm(np.subtract(0.5, np.abs(side)))))
    values[outside] = np.copysign(ratio(TAIL, np.subtract(depth, TAIL_SHIFT)), side)
    return values


def ratio(polynomials: tuple[Sequence[float], Sequence[float]], x: Array64) -> Array64:
    above, below = (horner(coefficients, x) for coefficients in polynomials)
    return np.divide(above, below, out=above)


def horner(coefficients: Sequence[float], x: Array64) -> Array64:
    value = np.multiply(x, coefficients[0])
    for coefficient in coefficients[1:-1]:
        np.add(value, coefficient, out=value)
        np.multiply(value, x, out=value)
    return np.add(value, coefficients[-1], out=value)


def natural_logarithm(x: Array64) -> Array64:
    """ln x of normal positive numbers: x = m · 2^e with m in [√½, √2), ln m = 2 atanh((m − 1) / (m + 1))."""
    bits = x.view(np.int64)
    exponent = (bits - ROOT_HALF_BITS) >> 52
    mantissa = (bits - (exponent << 52)).view(np.float64)
    s = np.divide(np.subtract(mantissa, 1.0), np.add(mantissa, 1.0))
    series = np.multiply(horner(ATANH, np.multiply(s, s)), np.multiply(s, 2.0))
    return np.add(np.multiply(exponent.astype(np.float64), LN_2), series)
