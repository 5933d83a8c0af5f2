"""Our scalar formulas: error in units in the last place against float64, and the values at the edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sexpgpu.ops.arithmetic import fma
from sexpgpu.ops.formulas import FORMULAS, cast

# A fixed state that every use begins anew: which test runs first must not choose the sample.
RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def same_sample() -> None:
    RNG.bit_generator.state = np.random.default_rng(1).bit_generator.state


COUNT = 100_000
inf, nan = math.inf, math.nan


def patterns(count: int = COUNT) -> Any:
    """Floats of every size, from random bits."""
    return RNG.integers(0, 2**32, count, dtype=np.uint32).view(np.float32)


def uniform(low: float, high: float) -> Any:
    return RNG.uniform(low, high, COUNT).astype(np.float32)


def angles() -> Any:
    return np.concatenate([uniform(-10, 10), uniform(-1e5, 1e5), (10 ** RNG.uniform(5, 38, COUNT)).astype(np.float32)])


def errors(got: Any, wide: Any) -> Any:
    """Distances in units in the last place of the nearest f32."""
    nearest = wide.astype(np.float32)
    unit = np.spacing(np.abs(nearest)).astype(float)
    counts = np.isfinite(nearest) & np.isfinite(got)
    same = counts | (got == nearest) | (np.isnan(got) & np.isnan(nearest))
    assert same.all(), (got[~same][:5], wide[~same][:5])
    return np.where(counts, np.abs(got - wide) / np.where(counts, unit, 1.0), 0.0)


def erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[float])(x)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], float]] = {
    # formula: operands, float64 meaning, the error that is promised
    "exp": (lambda: np.concatenate([uniform(-104, 89), patterns()]), np.exp, 1.0),
    "expm1": (lambda: np.concatenate([uniform(-20, 89), uniform(-1e-3, 1e-3), patterns()]), np.expm1, 0.6),
    "log": (lambda: np.concatenate([patterns(), uniform(0.5, 2)]), np.log, 0.9),
    "log1p": (lambda: np.concatenate([patterns(), uniform(-1, 2), uniform(-1e-3, 1e-3)]), np.log1p, 0.6),
    "sqrt": (patterns, np.sqrt, 0.5),
    "rsqrt": (lambda: np.abs(patterns()), lambda x: 1 / np.sqrt(x), 1.5),
    "sin": (angles, np.sin, 1.6),
    "cos": (angles, np.cos, 1.6),
    "tanh": (lambda: np.concatenate([uniform(-10, 10), patterns()]), np.tanh, 1.95),
    "sigmoid": (lambda: uniform(-87, 100), lambda x: 1 / (1 + np.exp(-x)), 2.4),
    "erf": (lambda: np.concatenate([uniform(-5, 5), patterns(10_000)]), erf, 1.05),
}


@pytest.mark.parametrize("name", CASES)
def test_a_formula_keeps_its_promised_error(name: str) -> None:
    operands, meaning, promised = CASES[name]
    with np.errstate(all="ignore"):
        x = operands()
        got = FORMULAS[f"k_{name}"](x)
        assert got.dtype == np.float32
        assert errors(got, meaning(x.astype(float))).max() <= promised


def test_pow_keeps_its_promised_error() -> None:
    x = np.concatenate([uniform(0, 10), np.abs(patterns()), patterns()])
    y = np.concatenate([uniform(-30, 30), uniform(-3, 3), RNG.integers(-5, 6, COUNT).astype(np.float32)])
    with np.errstate(all="ignore"):
        assert errors(FORMULAS["k_pow"](x, y), np.power(x.astype(float), y.astype(float))).max() <= 0.6


EDGES = {
    "exp": [(0.0, 1.0), (-inf, 0.0), (inf, inf), (88.73, inf), (-104.5, 0.0), (nan, nan)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (-inf, -1.0), (inf, inf), (nan, nan)],
    "log": [(1.0, 0.0), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (inf, inf), (nan, nan)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -inf), (-2.0, nan), (inf, inf), (nan, nan)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan), (nan, nan)],
    "cos": [(0.0, 1.0), (inf, nan), (nan, nan)],
    "tanh": [(-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (nan, nan)],
    "sigmoid": [(0.0, 0.5), (inf, 1.0), (-inf, 0.0), (nan, nan)],
    "erf": [(-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (nan, nan)],
    "sign": [(2.0, 1.0), (-inf, -1.0), (0.0, 0.0), (nan, nan)],
    "abs": [(-0.0, 0.0), (-inf, inf), (nan, nan)],
    "rint": [(0.5, 0.0), (1.5, 2.0), (-2.5, -2.0), (inf, inf)],
    "rsqrt": [(0.0, inf), (inf, 0.0), (-1.0, nan), (4.0, 0.5)],
}


@pytest.mark.parametrize("name", EDGES)
def test_a_formula_has_the_right_values_at_the_edges(name: str) -> None:
    x, expected = (np.array(column, np.float32) for column in zip(*EDGES[name], strict=True))
    with np.errstate(all="ignore"):
        got = FORMULAS[f"k_{name}"](x)
    assert np.array_equal(got, expected, equal_nan=True)
    assert np.array_equal(np.signbit(got[got == 0]), np.signbit(expected[got == 0]))


def test_pow_follows_c99_at_the_edges() -> None:
    edges = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 3.0, 0.5, -0.5, inf, -inf, nan, 2.0**24 + 2], np.float32)
    x, y = (m.ravel() for m in np.meshgrid(edges, edges))
    with np.errstate(all="ignore"):
        got, wide = FORMULAS["k_pow"](x, y), np.power(x.astype(float), y.astype(float))
        assert errors(got, wide).max() <= 0.6
        assert np.array_equal(np.signbit(got[got == 0]), np.signbit(wide[got == 0]))


def test_float_division_with_remainder_is_numpys() -> None:
    edges = np.array([0.0, 1.0, -1.0, 2.5, -2.5, 7.0, 1e-3, -1e-3, inf, -inf, nan], np.float32)
    x, y = (m.ravel() for m in np.meshgrid(np.concatenate([edges, uniform(-100, 100)[:50]]), edges))
    with np.errstate(all="ignore"):
        assert np.array_equal(FORMULAS["k_floordiv"](x, y), np.floor_divide(x, y), equal_nan=True)
        assert np.array_equal(FORMULAS["k_mod"](x, y), np.mod(x, y), equal_nan=True)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.uint32])
def test_integer_division_is_numpys_and_gives_0_by_0(dtype: Any) -> None:
    info = np.iinfo(dtype)
    values = np.array([0, 1, 2, 3, 7, info.max, info.min, max(info.min, -1), max(info.min, -7)], np.int64).astype(dtype)
    x, y = (m.ravel() for m in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        assert np.array_equal(FORMULAS["k_floordiv"](x, y), np.floor_divide(x, y))
        assert np.array_equal(FORMULAS["k_mod"](x, y), np.mod(x, y))


def test_integer_powers_wrap_and_negative_exponents_truncate() -> None:
    pow_ = FORMULAS["k_pow"]
    x, y = np.array([3, -2, 7, 0, 5, -1, -1, 1, 0], np.int32), np.array([4, 31, 40, 0, -1, -3, -2, -9, -1], np.int32)
    wrapped = np.array(pow(7, 40, 2**32)).astype(np.uint32).view(np.int32)
    with np.errstate(all="ignore"):
        assert pow_(x, y).tolist() == [81, -(2**31), int(wrapped), 1, 0, -1, 1, 1, 0]


def test_maximum_and_minimum_pass_nan_on() -> None:
    x, y = np.array([nan, 1.0, 2.0, -inf], np.float32), np.array([1.0, nan, 3.0, inf], np.float32)
    assert np.array_equal(FORMULAS["k_maximum"](x, y), np.maximum(x, y), equal_nan=True)
    assert np.array_equal(FORMULAS["k_minimum"](x, y), np.minimum(x, y), equal_nan=True)


def test_fma_rounds_once() -> None:
    # (1 + 2^-12)·(1 + 2^-12) − 1 − 2^-11 is 2^-24 exactly; in rounded float32 steps it is 0.
    x = np.array([1 + 2.0**-12], np.float32)
    assert fma(x, x, np.array([-1 - 2.0**-11], np.float32))[0] == 2.0**-24
    # A sum whose float64 value is a tie of float32 only because float64 has rounded it.
    a, b, c = np.array([1.0], np.float32), np.array([2.0**-24], np.float32), np.array([1.0], np.float32)
    tiny = np.array([2.0**-24 + 2.0**-47], np.float32)
    assert fma(a, b, c)[0] == 1.0
    assert fma(a, tiny, c)[0] == np.float32(1 + 2.0**-23)


def test_casts_to_bf16_round_to_nearest_even() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.concatenate([patterns(), np.array([1 + 2.0**-8, 1 + 3 * 2.0**-8, inf, -inf, nan, 3.4e38], np.float32)])
    with np.errstate(all="ignore"):
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert np.array_equal(cast(x, "f32", "bf16"), expected, equal_nan=True)
