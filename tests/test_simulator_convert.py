"""cvt of the PTX simulator: every pair of types that CUDA C uses, against exact fractions; half precision arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.exact_rounding import rounded
from tests.ptx_operation import HELD, evaluate

RNG = np.random.default_rng(3)
INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
HALVES: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
FINITE: dict[str, list[float]] = {
    "f32": [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 127.5, 128.5, -129.0, 255.5, 65536.0, 2147483648.0],
    "f64": [0.0, 0.5, -0.5, 1.5, 2.5, 2147483647.5, -2147483649.0, 4294967296.0, 9.3e18, 1.9e19, -1e300, 1e-300, 1e9],
}
ROUND: dict[str, Callable[[float], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def limits(kind: str) -> tuple[int, int]:
    width = int(kind[1:])
    return (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


def filled(values: list[Any], count: int = 64) -> list[Any]:
    return (values * count)[:count]


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integers_are_cut_extended_and_saturated(source: str, target: str) -> None:
    least, most = limits(source)
    x = filled([0, 1, least, most, most // 2 + 1, most // 3, min(127, most), min(128, most)])
    low, high = limits(target)
    cut = [((a - low) % (1 << int(target[1:]))) + low for a in x]
    assert evaluate(f"cvt.{target}.{source} %d, %x;", target, x=(source, x)).tolist() == cut
    found = evaluate(f"cvt.sat.{target}.{source} %d, %x;", target, x=(source, x))
    assert found.tolist() == [min(max(a, low), high) for a in x]


@pytest.mark.parametrize("kind", ["s8", "u8", "s16", "u16"])
def test_a_narrow_result_fills_the_rest_of_its_register(kind: str) -> None:
    """The upper bits of a register after cvt to a narrow type are its sign's, or zeros."""
    x = filled([200, 127, -5, 70000, 32768])
    low, high = limits(kind)
    wanted = [((a - low) % (high - low + 1) + low) % 2**32 for a in x]
    assert evaluate(f"cvt.{kind}.s32 %d, %x;", "u32", x=("s32", x)).tolist() == wanted


@pytest.mark.parametrize("mode", ROUND)
@pytest.mark.parametrize("source", ["f32", "f64"])
@pytest.mark.parametrize("target", INTEGERS)
def test_floats_to_integers_are_rounded_and_clamped(target: str, source: str, mode: str) -> None:
    x = filled(FINITE[source])
    low, high = limits(target)
    exact = np.array(x, HELD[source][2]).tolist()
    found = evaluate(f"cvt.{mode}.{target}.{source} %d, %x;", target, x=(source, x))
    assert found.tolist() == [min(max(ROUND[mode](a), low), high) for a in exact]


@pytest.mark.parametrize("target", ["u32", "s32", "u64", "s64"])
def test_infinities_clamp_and_nan_gives_zero(target: str) -> None:
    x = filled([math.inf, -math.inf, math.nan, 1.0], 32)
    low, high = limits(target)
    for source in ("f32", "f64"):
        found = evaluate(f"cvt.rzi.{target}.{source} %d, %x;", target, x=(source, x))
        assert found.tolist()[:4] == [high, low, 0, 1]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("source", ["u32", "s32", "u64", "s64"])
def test_integers_to_floats_are_rounded_in_every_direction(source: str, mode: str) -> None:
    least, most = limits(source)
    x = [0, 1, least, most, 2**24 + 1, 2**24 + 3, most - 1, most // 2 + 1, 16777217 * 2 + 1]
    x = filled(x + [int(v) % (most + 1) for v in RNG.integers(0, 2**63, 23, dtype=np.uint64)])
    found = evaluate(f"cvt.{mode}.f32.{source} %d, %x;", "f32", x=(source, x))
    assert found.tolist() == [rounded(a, "f32", mode) for a in x]
    found = evaluate(f"cvt.{mode}.f64.{source} %d, %x;", "f64", x=(source, x))
    assert found.tolist() == [rounded(a, "f64", mode) for a in x]


def test_narrow_integers_become_floats() -> None:
    assert evaluate("cvt.rn.f32.s16 %d, %x;", "f32", x=("s16", filled([-32768, 5]))).tolist()[:2] == [-32768.0, 5.0]
    assert evaluate("cvt.rn.f32.u8 %d, %x;", "f32", x=("u8", filled([200, 5]))).tolist()[:2] == [200.0, 5.0]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f64_to_f32_rounds_in_every_direction(mode: str) -> None:
    x = np.concatenate([RNG.normal(size=40) * np.exp2(RNG.integers(-150, 128, 40)), [1e300, -1e300, 0.0, 1e-46] * 6])
    found = evaluate(f"cvt.{mode}.f32.f64 %d, %x;", "f32", x=("f64", x))
    assert found.tolist() == [rounded(Fraction(a), "f32", mode) for a in x.tolist()]


def test_f32_to_f64_and_whole_numbers() -> None:
    x = np.array([1.5, 2.5, -0.5, -2.5, 1e-40, 0.1, 3e38, -7.25] * 4, "f4")
    assert evaluate("cvt.f64.f32 %d, %x;", "f64", x=("f32", x)).tolist() == x.astype("f8").tolist()
    for mode, function in {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}.items():
        found = evaluate(f"cvt.{mode}.f32.f32 %d, %x;", "f32", x=("f32", x))
        assert found.tobytes() == function(x).tobytes()
    assert evaluate("cvt.sat.f32.f32 %d, %x;", "f32", x=("f32", x)).tolist()[:4] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize("kind", HALVES)
def test_halves_widen_exactly(kind: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    found = evaluate(f"cvt.f32.{kind} %d, %x;", "f32", x=("b16", bits))
    np.testing.assert_array_equal(found, bits.view(HALVES[kind]).astype(np.float32))


@pytest.mark.parametrize("kind", HALVES)
def test_f32_is_shortened_to_the_nearest_even_half(kind: str) -> None:
    """Every midpoint between two halves, its neighbours, and any bits."""
    halves = np.arange(0, 0x7F80 if kind == "bf16" else 0x7C00, 5, dtype=np.uint16).view(HALVES[kind]).astype("f4")
    after = (halves[:-1].astype("f8") + halves[1:]) / 2
    x = np.concatenate([after.astype("f4"), np.nextafter(after.astype("f4"), np.float32(0)), halves])
    x = np.concatenate([x, RNG.integers(0, 2**32, 4096, dtype=np.uint32).view("f4"), np.full(-len(x) % 32, 1.0, "f4")])
    found = evaluate(f"cvt.rn.{kind}.f32 %d, %x;", "b16", x=("f32", x)).view(HALVES[kind])
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(HALVES[kind])
    np.testing.assert_array_equal(found.astype("f4"), wanted.astype("f4"))
    assert set(found.view(np.uint16)[np.isnan(x)].tolist()) == {0x7FFF}


@pytest.mark.parametrize("kind", HALVES)
def test_f32_is_cut_to_a_half_towards_zero(kind: str) -> None:
    x = np.concatenate([RNG.normal(size=500) * np.exp2(RNG.integers(-20, 14, 500)), [65535.0] * 12]).astype("f4")
    found = evaluate(f"cvt.rz.{kind}.f32 %d, %x;", "b16", x=("f32", x)).view(HALVES[kind]).astype("f8")
    assert (np.abs(found) <= np.abs(x)).all()
    above = (np.abs(found).astype(HALVES[kind]).view(np.uint16) + np.uint16(1)).view(HALVES[kind]).astype("f8")
    assert (above > np.abs(x)).all()


@pytest.mark.parametrize("kind", HALVES)
def test_a_pair_has_its_first_operand_in_the_high_half(kind: str) -> None:
    x, y = RNG.normal(size=64).astype("f4"), RNG.normal(size=64).astype("f4")
    found = evaluate(f"cvt.rn.{kind}x2.f32 %d, %x, %y;", "u32", x=("f32", x), y=("f32", y))
    high, low = (one.astype(HALVES[kind]).view(np.uint16).astype(np.uint32) for one in (x, y))
    assert found.tolist() == (high << np.uint32(16) | low).tolist()
    found = evaluate(f"cvt.rn.relu.{kind}x2.f32 %d, %x, %y;", "u32", x=("f32", x), y=("f32", y))
    high, low = (np.maximum(one, 0).astype(HALVES[kind]).view(np.uint16).astype(np.uint32) for one in (x, y))
    assert found.tolist() == (high << np.uint32(16) | low).tolist()


def test_integers_and_doubles_to_f16_round_once() -> None:
    x = filled([2049, 2051, -2049, 65519, 65520, 2**30, 3, 0])
    found = evaluate("cvt.rn.f16.s32 %d, %x;", "b16", x=("s32", x)).view(np.float16)
    assert found.tolist()[:8] == [2048.0, 2052.0, -2048.0, 65504.0, math.inf, math.inf, 3.0, 0.0]
    y = np.array(filled([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 3 * 2.0**-11]))
    found = evaluate("cvt.rn.f16.f64 %d, %x;", "b16", x=("f64", y)).view(np.float16)
    assert found.tolist()[:3] == [1 + 2.0**-10, 1.0, 1 + 2.0**-9]


def test_tf32_keeps_ten_bits_and_rounds_ties_away() -> None:
    x = np.array(filled([1 + 2.0**-11, 1 + 2.0**-12, -1 - 2.0**-11, 1 + 2.0**-10]), "f4")
    found = evaluate("cvt.rna.tf32.f32 %d, %x;", "b32", x=("f32", x)).view("f4")
    assert found.tolist()[:4] == [1 + 2.0**-10, 1.0, -1 - 2.0**-10, 1 + 2.0**-10]


@pytest.mark.parametrize("kind", HALVES)
def test_half_arithmetic_rounds_the_exact_result_once(kind: str) -> None:
    dtype = HALVES[kind]
    x, y, z = (RNG.integers(0, 1 << 16, 2048, dtype=np.uint16).view(dtype) for _ in range(3))
    x, y, z = (np.where(np.isfinite(one.astype("f4")), one, dtype(1.5)) for one in (x, y, z))
    given = {name: ("b16", one.view(np.uint16)) for name, one in zip("xyz", (x, y, z))}
    a, b, c = ([Fraction(float(v)) for v in one] for one in (x, y, z))
    exact = {
        f"add.rn.{kind} %d, %x, %y;": [p + q for p, q in zip(a, b)],
        f"sub.rn.{kind} %d, %x, %y;": [p - q for p, q in zip(a, b)],
        f"mul.rn.{kind} %d, %x, %y;": [p * q for p, q in zip(a, b)],
        f"fma.rn.{kind} %d, %x, %y, %z;": [p * q + r for p, q, r in zip(a, b, c)],
    }
    for text, values in exact.items():
        used: dict[str, Any] = {name: one for name, one in given.items() if f"%{name}" in text}
        found = evaluate(text, "b16", **used).view(dtype).astype("f8")
        assert found.tolist() == [rounded(value, kind) for value in values], text


@pytest.mark.parametrize("kind", HALVES)
def test_packed_halves_work_side_by_side(kind: str) -> None:
    dtype = HALVES[kind]
    x, y = (RNG.normal(size=128).astype(dtype) for _ in range(2))
    found = evaluate(
        f"max.{kind}x2 %d, %x, %y;", "u32", x=("b32", x.view(np.uint32)), y=("b32", y.view(np.uint32))
    ).view(dtype)
    assert found.astype("f4").tolist() == np.maximum(x.astype("f4"), y.astype("f4")).tolist()
    found = evaluate(f"neg.{kind}x2 %d, %x;", "u32", x=("b32", x.view(np.uint32))).view(dtype)
    assert found.astype("f4").tolist() == (-x.astype("f4")).tolist()
    below = evaluate(f"setp.lt.{kind} %d, %x, %y;", "pred", x=("b16", x.view("u2")), y=("b16", y.view("u2")))
    assert below.tolist() == (x.astype("f4") < y.astype("f4")).tolist()
