"""exp, log, sin, pow and their kin: our own straight-line formulas, one text for every device and for NumPy
(see `ops/arithmetic.py`).

They use no libm, so that LLVM vectorises them and a result depends on nothing but its operands. Largest errors in
units in the last place, measured against float64 by tests/test_formulas.py:

    exp 1.0   expm1 0.6   log 0.9   log1p 0.6   sqrt 0.5   rsqrt 1.5   sin, cos 1.6   tanh 1.9   sigmoid 2.4   erf 1.02
    pow 0.6

Sources: exp and log after Cephes (S. Moshier), erf after N. Juffa, the reduction of huge angles after Payne and Hanek.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf, log, nan, pi

from sexpgpu.ops.arithmetic import (
    Value,
    bits,
    convert,
    floor,
    fma,
    from_bits,
    logical_not,
    rint,
    select,
    sqrt,
)

# 1.5 · 2^23: adding it leaves the nearest integer in the low bits of a float32.
MAGIC = 12582912.0
MAGIC_BITS = 0x4B400000
SIGN = -0x80000000


def _horner(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial, highest coefficient first, each step one fma."""
    value = fma(x, coefficients[0], coefficients[1])
    for coefficient in coefficients[2:]:
        value = fma(value, x, coefficient)
    return value


def _horner_wide(x: Value, coefficients: Sequence[float]) -> Value:
    """The same in float64, in rounded products and sums."""
    value = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        value = value * x + coefficient
    return value


def _signed_as(magnitude: Value, x: Value) -> Value:
    """magnitude (not negative) with the sign of x, both f32."""
    return from_bits(bits(magnitude) | (bits(x) & SIGN))


# exp: 2^n · p(r), r = x − n·log 2 in two steps (log 2 = 0.693359375 − 2.12194440e-4).
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def k_exp(x: Value) -> Value:
    """inf above 88.72, gradual underflow below −87.34, 0 below −104."""
    x = select(x > 89.0, 89.0, x)
    x = select(x < -104.0, -104.0, x)
    shifted = fma(x, 1 / log(2), MAGIC)
    n = shifted - MAGIC
    r = fma(n, 2.12194440e-4, fma(n, -0.693359375, x))
    value = fma(_horner(r, EXP) * r, r, r) + 1.0
    # 2^n in two factors, each a normal number, so that the ends of the range come out by rounding.
    power = bits(shifted) - MAGIC_BITS
    first = power >> 1
    return value * from_bits((first + 127) << 23) * from_bits((power - first + 127) << 23)


def _exp_to_20(x: Value) -> Value:
    """The same bits for 0 ≤ x ≤ 20, and NaN for NaN: MAGIC's bits are all above those that 2^n is made of."""
    shifted = fma(x, 1 / log(2), MAGIC)
    n = shifted - MAGIC
    r = fma(n, 2.12194440e-4, fma(n, -0.693359375, x))
    value = fma(_horner(r, EXP) * r, r, r) + 1.0
    return value * from_bits((bits(shifted) << 23) + 0x3F800000)


# (e^r − 1 − r) / r² by Taylor: r ≤ log 2 / 2, relative error 2^-45.
EXPM1_WIDE = tuple(1.0 / k for k in (479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2))
LOG2_HIGH = 0.6931471804855391  # 32 bits, so that products with a small integer are exact
LOG2_LOW = 7.440617110012397e-11
# 1.5 · 2^52, as MAGIC for float64.
MAGIC_WIDE = 6755399441055744.0
ONE_BITS = 0x3FF0000000000000


def _power_of_two(n: Value) -> Value:
    """2^n as f64 for an integral f64 n in ±1000."""
    return from_bits((bits(n + MAGIC_WIDE) << 52) + ONE_BITS)


def k_expm1(x: Value) -> Value:
    """In float64: 2^n·(e^r − 1) + (2^n − 1)."""
    clamped = select(x > 89.0, 89.0, select(x < -20.0, -20.0, x))
    wide = convert(clamped, "f64")
    n = rint(wide * (1 / log(2)))
    r = wide - n * LOG2_HIGH - n * LOG2_LOW
    scale = _power_of_two(n)
    value = convert(scale * (_horner_wide(r, EXPM1_WIDE) * r * r + r) + (scale - 1.0), "f32")
    return select(x == 0.0, x, value)


# log: cephes, x = 2^e·m, m in [√½, √2).
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def k_log(x: Value) -> Value:
    """−inf at 0, NaN below; subnormal operands are scaled first."""
    small = x < 1.17549435e-38
    scaled = select(small, x * 8388608.0, x)
    # The exponent is taken so that the mantissa lies around 1: 0x3f3504f3 is √½.
    shifted = bits(scaled) - 0x3F3504F3
    exponent = shifted >> 23
    m = from_bits((shifted & 0x007FFFFF) + 0x3F3504F3) - 1.0
    e = convert(exponent, "f32") - select(small, x * 0.0 + 23.0, 0.0)
    z = m * m
    y = fma(e, -2.12194440e-4, m * z * _horner(m, LOG))
    value = fma(e, 0.693359375, m + fma(z, -0.5, y))
    value = select(x == inf, x, value)
    value = select(x > 0.0, value, nan)
    return select(x == 0.0, -inf, value)


# 2·atanh(s)/s in s²: relative error 2^-40 for s ≤ 0.1716.
ATANH = tuple(2.0 / k for k in (17, 15, 13, 11, 9, 7, 5, 3, 1))
SQRT_HALF_BITS = 0x3FE6A09E667F3BCD


def _split_wide(x: Value) -> tuple[Value, Value]:
    """x = 2^e·m with m in [√½, √2), for a normal positive f64: (e as f64, m)."""
    shifted = bits(x) - SQRT_HALF_BITS
    mantissa = from_bits((shifted & 0x000FFFFFFFFFFFFF) + SQRT_HALF_BITS)
    return convert(convert(shifted >> 52, "i32"), "f64"), mantissa


def _log_near_one(f: Value) -> Value:
    """log(1 + f) in f64."""
    s = f / (f + 2.0)
    return s * _horner_wide(s * s, ATANH)


def k_log1p(x: Value) -> Value:
    """In float64; near 0 the 1 is never added."""
    wide = convert(x, "f64")
    whole = wide + 1.0
    e, m = _split_wide(select(whole > 0.0, whole, 1.0))
    f = select(e == 0.0, wide, m - 1.0)
    value = convert(_log_near_one(f) + e * log(2), "f32")
    value = select(x == inf, x, value)
    value = select(x > -1.0, value, nan)
    value = select(x == -1.0, -inf, value)
    return select(x == 0.0, x, value)


def k_sqrt(x: Value) -> Value:
    return sqrt(x)


def k_rsqrt(x: Value) -> Value:
    return 1.0 / sqrt(x)


# 2/π in 32-bit words from the highest, one word of zeros before them.
TWO_OVER_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
HALF_PI_HIGH = 1.5707963267341256  # 33 bits
HALF_PI_LOW = 6.077100506506192e-11


def _huge_angle(x: Value) -> tuple[Value, Value]:
    """|x| ≥ 2^17 as (quadrant i32, rest in radians f64), after Payne and Hanek.

    x = M·2^(E−23) with a 24-bit M. Bits of 2/π above weight 2^(24−E) give multiples of 4 quadrants and are skipped, the
    next 96 are multiplied exactly; of the product modulo 2^96 the two upper bits are the quadrant, the others its part.
    """
    pattern = bits(x) & 0x7FFFFFFF
    mantissa = convert((pattern & 0x007FFFFF) | 0x00800000, "u64")
    skipped = (pattern >> 23) - 120
    word, shift = skipped >> 5, convert(skipped & 31, "u64")
    nothing = mantissa ^ mantissa
    words = []
    for place in range(4):
        chosen = nothing
        for k in range(5):
            chosen = select(word == k, nothing + TWO_OVER_PI[k + place], chosen)
        words.append(chosen)
    window = [(((high << 32) | low) << shift) >> 32 for high, low in pairwise(words)]
    product = ((mantissa * window[0]) << 32) + mantissa * window[1] + ((mantissa * window[2]) >> 32)
    quadrant = convert((product + (1 << 61)) >> 62, "i32")
    rest = convert(convert(product << 2, "i64"), "f64") * (pi / 2 * 2.0**-64)
    return quadrant, rest


def _angle(x: Value) -> tuple[Value, Value]:
    """|x| as (quadrant i32, rest f32 in ±π/4)."""
    magnitude = from_bits(bits(x) & 0x7FFFFFFF)
    wide = convert(magnitude, "f64")
    shifted = wide * (2 / pi) + MAGIC_WIDE
    n = shifted - MAGIC_WIDE
    rest = wide - n * HALF_PI_HIGH - n * HALF_PI_LOW
    huge = magnitude >= 131072.0
    far_quadrant, far_rest = _huge_angle(magnitude)
    quadrant = select(huge, far_quadrant, convert(bits(shifted), "i32"))
    return quadrant, convert(select(huge, far_rest, rest), "f32") + (x - x)


def _sine_of(quadrant: Value, r: Value) -> Value:
    """sin(r + quadrant·π/2), Cephes' polynomials."""
    z = r * r
    sine = fma(_horner(z, (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)) * z, r, r)
    cosine = fma(
        _horner(z, (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)) * z, z, fma(z, -0.5, 1.0)
    )
    value = select((quadrant & 1) == 0, sine, cosine)
    return from_bits(bits(value) ^ ((quadrant & 2) << 30))


def k_sin(x: Value) -> Value:
    quadrant, r = _angle(x)
    value = _sine_of(quadrant, r)
    return from_bits(bits(value) ^ (bits(x) & SIGN))


def k_cos(x: Value) -> Value:
    quadrant, r = _angle(x)
    return _sine_of(quadrant + 1, r)


def k_sigmoid(x: Value) -> Value:
    return 1.0 / (k_exp(-x) + 1.0)


TANH_NEAR = 0.52


def k_tanh(x: Value) -> Value:
    """An odd polynomial near 0, else 1 − 2/(e^2|x| + 1), whose exponential needs one factor of 2^n."""
    t = from_bits(bits(x) & 0x7FFFFFFF)
    s = t * t
    near = fma(_horner(s, (1.57394409e-2, -5.23025580e-2, 1.33152172e-1, -3.33327681e-1)) * s, t, t)
    far = 1.0 - 2.0 / (_exp_to_20(select(t > 10.0, 10.0, t) * 2.0) + 1.0)
    return _signed_as(select(t < TANH_NEAR, near, far), x)


ERF_FAR = (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1)
ERF_NEAR = (-5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1)


def k_erf(x: Value) -> Value:
    """N. Juffa's two branches: a polynomial near 0, 1 − e^p(|x|) beyond."""
    t = from_bits(bits(x) & 0x7FFFFFFF)
    s = x * x
    r = fma(fma(t, -1.72853470e-5, 3.83197126e-4), s, fma(t, -3.88396438e-3, 2.42546219e-2))
    for coefficient in ERF_FAR:
        r = fma(r, t, coefficient)
    far = _signed_as(select(t > 4.0, 1.0, 1.0 - k_exp(fma(r, t, -t))), x)
    near = fma(_horner(s, ERF_NEAR), x, x)
    return select(t > 0.921875, far, near)


def _power(x: Value, y: Value) -> Value:
    """|x|^y in float64, as f32; 0 and infinities by the logarithm's own."""
    wide = convert(from_bits(bits(x) & 0x7FFFFFFF), "f64")
    e, m = _split_wide(wide)
    logarithm = _log_near_one(m - 1.0) * (1 / log(2)) + e
    logarithm = select(wide == 0.0, -inf, select(wide < inf, logarithm, wide))
    t = convert(y, "f64") * logarithm
    t = select(t > 200.0, 200.0, select(t < -200.0, -200.0, t))
    n = rint(t)
    r = (t - n) * log(2)
    return convert((_horner_wide(r, EXPM1_WIDE) * r * r + r + 1.0) * _power_of_two(n), "f32")


def float_pow(x: Value, y: Value) -> Value:
    magnitude = _power(x, y)
    whole = floor(y) == y
    half_y = y * 0.5
    odd = whole & (floor(half_y) != half_y)
    value = select(odd, from_bits(bits(magnitude) | (bits(x) & SIGN)), magnitude)
    value = select((x < 0.0) & (x != -inf) & logical_not(whole), nan, value)
    one = (y == 0.0) | (x == 1.0) | ((x == -1.0) & ((y == inf) | (y == -inf)))
    return select(one, 1.0, value)
