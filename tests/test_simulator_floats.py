"""Floating point of the PTX simulator: every result against exact fractions, libm's fma or the manual's tables."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.exact_rounding import rounded
from tests.ptx_operation import evaluate

RNG = np.random.default_rng(2)
SIZES = {"f32": ("f4", 24), "f64": ("f8", 53)}
LIBM = ctypes.CDLL(ctypes.util.find_library("m"))


def samples(kind: str, count: int = 96) -> np.ndarray:
    """Numbers of every size, and values close to one another."""
    dtype = np.dtype(SIZES[kind][0])
    bits = RNG.integers(0, 2**63, count, dtype=np.uint64) * np.uint64(2) + RNG.integers(0, 2, count, dtype=np.uint64)
    any_bits = bits.astype(f"u{dtype.itemsize}").view(dtype)
    near = (1 + RNG.integers(-5, 6, count) * 2.0 ** (1 - SIZES[kind][1])) * RNG.choice([-1.0, 1.0, 0.5, 3.0], count)
    values = np.where(RNG.random(count) < 0.5, any_bits, near.astype(dtype))
    return np.where(np.isfinite(values), values, dtype.type(1.5))


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_sums_and_products_round_once_in_every_direction(kind: str, mode: str) -> None:
    x, y = samples(kind), samples(kind)
    if kind == "f64" and mode != "rn":
        keep = (np.abs(x) < 1e150) & (np.abs(y) < 1e150) & (np.abs(x) > 1e-150) & (np.abs(y) > 1e-150)
        x, y = np.where(keep, x, 1.1), np.where(keep, y, 1.3)
    given: dict[str, Any] = {"x": (kind, x), "y": (kind, y)}
    exact = {
        "add": [Fraction(float(a)) + Fraction(float(b)) for a, b in zip(x, y)],
        "sub": [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(x, y)],
        "mul": [Fraction(float(a)) * Fraction(float(b)) for a, b in zip(x, y)],
    }
    for name, values in exact.items():
        found = evaluate(f"{name}.{mode}.{kind} %d, %x, %y;", kind, **given)
        assert found.tolist() == [rounded(value, kind, mode) for value in values], name


@pytest.mark.parametrize(("kind", "mode"), [("f32", "rn"), ("f32", "rz"), ("f32", "rm"), ("f32", "rp"), ("f64", "rn")])
def test_fma_rounds_once(kind: str, mode: str) -> None:
    """A third of the sums nearly cancel, where rounding the product first would be seen."""
    x, y, z = samples(kind), samples(kind), samples(kind)
    with np.errstate(all="ignore"):
        cancel = -(x * y) * (1 + RNG.integers(-2, 3, len(x)) * 2.0 ** (2 - SIZES[kind][1])).astype(x.dtype)
    z = np.where((RNG.random(len(x)) < 0.4) & np.isfinite(cancel), cancel, z)
    exact = [Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)) for a, b, c in zip(x, y, z)]
    found = evaluate(f"fma.{mode}.{kind} %d, %x, %y, %z;", kind, x=(kind, x), y=(kind, y), z=(kind, z))
    assert found.tolist() == [rounded(value, kind, mode) for value in exact]


@pytest.mark.parametrize(("kind", "name", "ctype"), [("f32", "fmaf", ctypes.c_float), ("f64", "fma", ctypes.c_double)])
def test_fma_agrees_with_libm_on_any_bits(kind: str, name: str, ctype: Any) -> None:
    fma = getattr(LIBM, name)
    fma.restype, fma.argtypes = ctype, [ctype] * 3
    size = np.dtype(SIZES[kind][0]).itemsize
    x, y, z = (RNG.integers(0, 2**63, 4096 * 8 // size, dtype=np.uint64).view(SIZES[kind][0])[:4096] for _ in range(3))
    found = evaluate(f"fma.rn.{kind} %d, %x, %y, %z;", kind, x=(kind, x), y=(kind, y), z=(kind, z))
    wanted = np.array([fma(*map(float, one)) for one in zip(x, y, z)], found.dtype)
    np.testing.assert_array_equal(found, wanted)
    known = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(found[known]), np.signbit(wanted[known]))


@pytest.mark.parametrize(("kind", "name", "ctype"), [("f32", "fmaf", ctypes.c_float), ("f64", "fma", ctypes.c_double)])
def test_fma_agrees_with_libm_on_zeros_infinities_and_limits(kind: str, name: str, ctype: Any) -> None:
    fma = getattr(LIBM, name)
    fma.restype, fma.argtypes = ctype, [ctype] * 3
    limits = np.finfo(SIZES[kind][0])
    some: list[Any] = [0.0, 1.0, math.inf, limits.max, limits.tiny, limits.smallest_subnormal, 1.5]
    values = [math.nan, *some, *(-value for value in some)]
    cases = [(x, y, z) for x in values for y in values for z in values]
    cases += cases[: -len(cases) % 32]
    x, y, z = (np.array(column, SIZES[kind][0]) for column in zip(*cases))
    found = evaluate(f"fma.rn.{kind} %d, %x, %y, %z;", kind, x=(kind, x), y=(kind, y), z=(kind, z))
    wanted = np.array([fma(*map(float, one)) for one in zip(x, y, z)], found.dtype)
    np.testing.assert_array_equal(found, wanted)
    known = ~np.isnan(wanted)
    assert np.array_equal(np.signbit(found[known]), np.signbit(wanted[known]))


@pytest.mark.parametrize("kind", SIZES)
def test_division_reciprocal_and_root_are_rounded_correctly(kind: str) -> None:
    x, y = samples(kind), samples(kind)
    y = np.where(y == 0, y.dtype.type(1), y)
    found = evaluate(f"div.rn.{kind} %d, %x, %y;", kind, x=(kind, x), y=(kind, y))
    assert found.tolist() == [rounded(Fraction(float(a)) / Fraction(float(b)), kind) for a, b in zip(x, y)]
    found = evaluate(f"rcp.rn.{kind} %d, %y;", kind, y=(kind, y))
    assert found.tolist() == [rounded(1 / Fraction(float(b)), kind) for b in y]
    found = evaluate(f"sqrt.rn.{kind} %d, %x;", kind, x=(kind, np.abs(x)))
    for a, root in zip(np.abs(x), found):
        # No neighbour of the root is nearer: the exact root lies between the midpoints.
        low, high = (Fraction(float(np.nextafter(root, root.dtype.type(to)))) for to in (0, np.inf))
        middle = Fraction(float(root))
        assert ((low + middle) / 2) ** 2 <= Fraction(float(a)) <= ((high + middle) / 2) ** 2


def test_two_singles_in_a_register_are_rounded_by_themselves() -> None:
    x, y, z = (samples("f32", 128) for _ in range(3))
    pairs: dict[str, Any] = {name: ("u64", one.view(np.uint64)) for name, one in zip("xyz", (x, y, z))}
    alone: dict[str, Any] = {name: ("f32", one) for name, one in zip("xyz", (x, y, z))}
    for text in ("fma.rn.f32 %d, %x, %y, %z;", "add.rz.f32 %d, %x, %y;", "mul.rn.ftz.f32 %d, %x, %y;"):
        names = [name for name in "xyz" if f"%{name}" in text]
        found = evaluate(text.replace("f32", "f32x2"), "u64", **{name: pairs[name] for name in names})
        wanted = evaluate(text, "f32", **{name: alone[name] for name in names})
        assert found.tobytes() == wanted.tobytes(), text


def bits32(*values: float) -> list[int]:
    return [struct.unpack("<I", struct.pack("<f", value))[0] for value in values]


def test_every_nan_of_f32_is_the_canonical_one() -> None:
    x = np.array([np.nan, -np.nan, np.inf, 0.0] * 8, np.float32)
    y = np.array([1.0, 2.0, -np.inf, np.inf] * 8, np.float32)
    for text in ("add.f32 %d, %x, %y;", "fma.rn.f32 %d, %x, %y, %x;", "div.rn.f32 %d, %x, %x;", "sub.f32 %d, %x, %x;"):
        found = evaluate(text, "f32", x=("f32", x), y=("f32", y))
        assert set(found[np.isnan(found)].view(np.uint32).tolist()) == {0x7FFFFFFF}


@pytest.mark.parametrize("kind", SIZES)
def test_min_and_max_prefer_numbers_and_order_the_zeros(kind: str) -> None:
    x = np.array([1, np.nan, 2, -0.0, 0.0, np.nan, -3, np.inf] * 4, SIZES[kind][0])
    y = np.array([np.nan, 1, -2, 0.0, -0.0, np.nan, -4, -np.inf] * 4, SIZES[kind][0])
    given: dict[str, Any] = {"x": (kind, x), "y": (kind, y)}
    low = evaluate(f"min.{kind} %d, %x, %y;", kind, **given)[:8]
    high = evaluate(f"max.{kind} %d, %x, %y;", kind, **given)[:8]
    assert [str(value) for value in low.tolist()] == ["1.0", "1.0", "-2.0", "-0.0", "-0.0", "nan", "-4.0", "-inf"]
    assert [str(value) for value in high.tolist()] == ["1.0", "1.0", "2.0", "0.0", "0.0", "nan", "-3.0", "inf"]


def test_min_and_max_nan_keep_a_nan() -> None:
    x, y = np.array([1, np.nan, 2, 3] * 8, "f4"), np.array([np.nan, 1, 1, 4] * 8, "f4")
    found = evaluate("min.NaN.f32 %d, %x, %y;", "f32", x=("f32", x), y=("f32", y))
    assert found.view(np.uint32).tolist()[:4] == [0x7FFFFFFF, 0x7FFFFFFF, *bits32(1, 3)]


def test_min_xorsign_takes_the_smaller_size_and_both_signs() -> None:
    x, y = np.array([1, -2, 3, -4] * 8, "f4"), np.array([-2, -1, 4, 1] * 8, "f4")
    found = evaluate("min.xorsign.abs.f32 %d, %x, %y;", "f32", x=("f32", x), y=("f32", y))
    assert found.tolist()[:4] == [-1.0, 1.0, 3.0, -1.0]


@pytest.mark.parametrize("kind", SIZES)
def test_comparisons_with_a_nan_are_false_unless_unordered(kind: str) -> None:
    x = np.array([1, 2, 2, np.nan, 1, np.nan, 0.0, -np.inf] * 4, SIZES[kind][0])
    y = np.array([2, 1, 2, 1, np.nan, np.nan, -0.0, np.inf] * 4, SIZES[kind][0])
    ordered = {
        "eq": "00100010",
        "ne": "11000001",
        "lt": "10000001",
        "le": "10100011",
        "gt": "01000000",
        "ge": "01100010",
    }
    for name, wanted in ordered.items():
        found = evaluate(f"setp.{name}.{kind} %d, %x, %y;", "pred", x=(kind, x), y=(kind, y))[:8]
        assert "".join(str(int(one)) for one in found) == wanted, name
        found = evaluate(f"setp.{name}u.{kind} %d, %x, %y;", "pred", x=(kind, x), y=(kind, y))[:8]
        assert "".join(str(int(one)) for one in found) == wanted[:3] + "111" + wanted[6:], name
    for name, wanted in {"num": "11100011", "nan": "00011100"}.items():
        found = evaluate(f"setp.{name}.{kind} %d, %x, %y;", "pred", x=(kind, x), y=(kind, y))[:8]
        assert "".join(str(int(one)) for one in found) == wanted


def test_setp_joins_a_predicate_and_gives_the_opposite() -> None:
    x = list(range(32))
    body = ".reg .pred %p, %q; setp.lt.u32 %p, %x, 20; setp.gt.and.u32 %d|%q, %x, 9, %p;"
    assert evaluate(body, "pred", x=("u32", x)).tolist() == [9 < a < 20 for a in x]
    opposite = body.replace("%d|%q", "%q|%d")
    assert evaluate(opposite, "pred", x=("u32", x)).tolist() == [a <= 9 and a < 20 for a in x]


def test_set_selp_and_slct_choose() -> None:
    x = np.array([1.0, -1.0, np.nan, -0.0] * 8, "f4")
    assert evaluate("set.ge.u32.f32 %d, %x, 0f00000000;", "u32", x=("f32", x)).tolist()[:4] == [
        2**32 - 1,
        0,
        0,
        2**32 - 1,
    ]
    assert evaluate("set.ge.f32.f32 %d, %x, 0f00000000;", "f32", x=("f32", x)).tolist()[:4] == [1.0, 0.0, 0.0, 1.0]
    body = ".reg .pred %p; setp.lt.f32 %p, %x, 0f00000000; selp.f32 %d, %x, 0f40A00000, %p;"
    assert evaluate(body, "f32", x=("f32", x)).tolist()[:4] == [5.0, -1.0, 5.0, 5.0]
    found = evaluate("slct.u32.s32 %d, 7, 9, %x;", "u32", x=("s32", [-1, 0, 1, -5] * 8))
    assert found.tolist()[:4] == [9, 7, 7, 9]


def test_ftz_takes_subnormals_for_zeros_of_their_sign() -> None:
    tiny = np.float32(2.0**-130)
    x = np.array([tiny, -tiny, 2.0**-126, 1.0] * 8, "f4")
    assert evaluate("mul.ftz.f32 %d, %x, 0f7E800000;", "f32", x=("f32", x)).tolist()[:2] == [0.0, -0.0]
    halved = evaluate("mul.ftz.f32 %d, %x, 0f3F000000;", "f32", x=("f32", x))
    assert bits32(*halved.tolist()[:4]) == bits32(0.0, -0.0, 0.0, 0.5)
    assert evaluate("mul.f32 %d, %x, 0f3F000000;", "f32", x=("f32", x)).tolist()[0] == 2.0**-131
    assert evaluate("setp.eq.ftz.f32 %d, %x, 0f00000000;", "pred", x=("f32", x)).tolist()[:3] == [True, True, False]


def test_sat_clamps_to_one_and_turns_nan_into_zero() -> None:
    x = np.array([-1, 0.25, 3, np.nan] * 8, "f4")
    assert evaluate("add.sat.f32 %d, %x, %x;", "f32", x=("f32", x)).tolist()[:4] == [0.0, 0.5, 1.0, 0.0]
    assert evaluate("fma.rn.sat.f32 %d, %x, %x, %x;", "f32", x=("f32", x)).tolist()[:4] == [0.0, 0.3125, 1.0, 0.0]


@pytest.mark.parametrize("kind", SIZES)
def test_signs_are_bits(kind: str) -> None:
    x = np.array([1.5, -0.0, np.nan, -np.inf] * 8, SIZES[kind][0])
    assert evaluate(f"neg.{kind} %d, %x;", kind, x=(kind, x)).tobytes() == (-x).tobytes()
    assert evaluate(f"abs.{kind} %d, %x;", kind, x=(kind, x)).tobytes() == np.abs(x).tobytes()
    found = evaluate(f"copysign.{kind} %d, %x, %y;", kind, x=(kind, x), y=(kind, np.full(32, 2.0)))
    assert [str(value) for value in found.tolist()[:2] + found.tolist()[3:4]] == ["2.0", "-2.0", "-2.0"]


def test_testp_knows_the_classes() -> None:
    x = np.array([1.0, np.inf, np.nan, 2.0**-140, 0.0, -np.inf, 2.0**-126, -1] * 4, "f4")
    wanted = {
        "finite": "10011011",
        "infinite": "01000100",
        "number": "11011111",
        "notanumber": "00100000",
        "normal": "10000011",
        "subnormal": "00010000",
    }
    for name, digits in wanted.items():
        found = evaluate(f"testp.{name}.f32 %d, %x;", "pred", x=("f32", x))[:8]
        assert "".join(str(int(one)) for one in found) == digits, name


@pytest.mark.parametrize(("name", "exact"), [("rcp", lambda x: 1 / x), ("rsqrt", lambda x: x**-0.5)])
def test_gross_f64_approximations_have_twenty_bits_and_no_low_word(name: str, exact: Any) -> None:
    x = np.exp(RNG.normal(size=64) * 20)
    found = evaluate(f"{name}.approx.ftz.f64 %d, %x;", "f64", x=("f64", x))
    assert not (found.view(np.uint64) & np.uint64(0xFFFFFFFF)).any()
    assert (np.abs(found / exact(x) - 1) < 2.0**-19).all()


APPROXIMATE: dict[str, tuple[Any, float, float]] = {
    # the function, and its error relative and absolute as the manual has it
    "ex2.approx": (np.exp2, 2.0**-22, 0),
    "lg2.approx": (np.log2, 2.0**-22, 2.0**-22),
    "rcp.approx": (lambda x: 1 / x, 2.0**-23, 0),
    "sqrt.approx": (np.sqrt, 2.0**-23, 0),
    "rsqrt.approx": (lambda x: x**-0.5, 2.0**-22.9, 0),
    "sin.approx": (np.sin, 0, 2.0**-20.9),
    "cos.approx": (np.cos, 0, 2.0**-20.9),
    "tanh.approx": (np.tanh, 2.0**-11, 0),
}


@pytest.mark.parametrize("name", APPROXIMATE)
@pytest.mark.parametrize("perturb", [None, 1, 2])
def test_approximate_functions_keep_to_their_documented_error(name: str, perturb: int | None) -> None:
    function, relative, absolute = APPROXIMATE[name]
    x = np.exp(RNG.normal(size=1024)).clip(2.0**-9, 3.1).astype("f4")
    found = evaluate(f"{name}.f32 %d, %x;", "f32", perturb, x=("f32", x)).astype("f8")
    exact = function(x.astype("f8"))
    room = (
        relative * np.abs(exact) + absolute if name != "lg2.approx" else np.maximum(relative * np.abs(exact), absolute)
    )
    assert (np.abs(found - exact) <= np.maximum(room, np.spacing(np.abs(exact).astype("f4")) / 2)).all()


@pytest.mark.parametrize("mode", ["approx", "full"])
@pytest.mark.parametrize("perturb", [None, 1])
def test_an_approximate_division_is_two_ulps_off_at_most(mode: str, perturb: int | None) -> None:
    x, y = (np.exp(RNG.normal(size=1024)).astype("f4") for _ in range(2))
    found = evaluate(f"div.{mode}.f32 %d, %x, %y;", "f32", perturb, x=("f32", x), y=("f32", y)).astype("f8")
    exact = x.astype("f8") / y
    off = np.abs(found - exact) / np.spacing(exact.astype("f4"))
    assert off.max() <= (0.5 if perturb is None else 2)
    assert (off > 0.5).any() == (perturb is not None)


@pytest.mark.parametrize("name", APPROXIMATE)
def test_a_perturbed_function_is_a_function_of_its_argument_and_the_seed(name: str) -> None:
    x = np.linspace(0.1, 3, 256).astype("f4")
    plain, one, again, other = (evaluate(f"{name}.f32 %d, %x;", "f32", p, x=("f32", x)) for p in (None, 1, 1, 2))
    turned = evaluate(f"{name}.f32 %d, %x;", "f32", 1, x=("f32", x[::-1]))
    assert np.array_equal(one, again)
    assert np.array_equal(one, turned[::-1])
    assert (one != plain).mean() > 0.05
    assert (one != other).mean() > 0.05
