"""Integer instructions of the PTX simulator against Python's own unbounded integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ptx_operation import evaluate

RNG = np.random.default_rng(1)
WIDTHS = {"u16": 16, "s16": 16, "u32": 32, "s32": 32, "u64": 64, "s64": 64}


def wrapped(value: int, kind: str) -> int:
    """An integer cut to a type."""
    width = int(kind[1:])
    value %= 1 << width
    return value - (1 << width) if kind[0] == "s" and value >> (width - 1) else value


def edges(kind: str) -> list[int]:
    width = WIDTHS[kind]
    some = [0, 1, 2, 3, 7, 100, (1 << width) - 1, (1 << width) - 2, 1 << (width - 1), (1 << (width - 1)) - 1]
    return [wrapped(value, kind) for value in some]


def pairs(kind: str) -> tuple[list[int], list[int]]:
    """Every pair of edges and some of any bits, 128 of them."""
    both = [(x, y) for x in edges(kind) for y in edges(kind)]
    some = [wrapped(int(v), kind) for v in RNG.integers(0, 2**63, 56) * 3]
    both += zip(some[::2], some[1::2])
    return [x for x, _ in both], [y for _, y in both]


def truncated(x: int, y: int) -> int:
    """x / y rounded towards zero."""
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul.lo": lambda x, y: x * y,
    "min": min,
    "max": max,
    "div": truncated,
    "rem": lambda x, y: x - truncated(x, y) * y,
}


@pytest.mark.parametrize("kind", WIDTHS)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_wraps_at_the_width(name: str, kind: str) -> None:
    x, y = pairs(kind)
    if name in ("div", "rem"):
        y = [value or 1 for value in y]
    found = evaluate(f"{name}.{kind} %d, %x, %y;", kind, x=(kind, x), y=(kind, y))
    assert found.tolist() == [wrapped(ARITHMETIC[name](a, b), kind) for a, b in zip(x, y)]


@pytest.mark.parametrize("kind", WIDTHS)
def test_mul_hi_gives_the_upper_half_of_the_product(kind: str) -> None:
    x, y = pairs(kind)
    found = evaluate(f"mul.hi.{kind} %d, %x, %y;", kind, x=(kind, x), y=(kind, y))
    assert found.tolist() == [wrapped(a * b >> WIDTHS[kind], kind) for a, b in zip(x, y)]


@pytest.mark.parametrize(("kind", "wide"), [("u16", "u32"), ("s16", "s32"), ("u32", "u64"), ("s32", "s64")])
def test_mul_wide_and_mad_wide_keep_the_whole_product(kind: str, wide: str) -> None:
    x, y = pairs(kind)
    z = [wrapped(3 * a + 2**40, wide) for a in x]
    assert evaluate(f"mul.wide.{kind} %d, %x, %y;", wide, x=(kind, x), y=(kind, y)).tolist() == [
        a * b for a, b in zip(x, y)
    ]
    found = evaluate(f"mad.wide.{kind} %d, %x, %y, %z;", wide, x=(kind, x), y=(kind, y), z=(wide, z))
    assert found.tolist() == [wrapped(a * b + c, wide) for a, b, c in zip(x, y, z)]


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_mad_adds_to_the_low_or_the_high_half(kind: str) -> None:
    x, y = pairs(kind)
    z = y[::-1]
    given: dict[str, Any] = {"x": (kind, x), "y": (kind, y), "z": (kind, z)}
    low = evaluate(f"mad.lo.{kind} %d, %x, %y, %z;", kind, **given)
    assert low.tolist() == [wrapped(a * b + c, kind) for a, b, c in zip(x, y, z)]
    high = evaluate(f"mad.hi.{kind} %d, %x, %y, %z;", kind, **given)
    assert high.tolist() == [wrapped((a * b >> WIDTHS[kind]) + c, kind) for a, b, c in zip(x, y, z)]


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64"])
def test_shifts_by_the_width_and_more_leave_nothing_or_the_sign(kind: str) -> None:
    width = WIDTHS[kind]
    amounts = [0, 1, width - 1, width, width + 1, 255, 2**31, 2**32 - 1]
    both = [(x, by) for x in edges(kind)[2:] for by in amounts]
    x, by = [a for a, _ in both], [b for _, b in both]
    right = evaluate(f"shr.{kind} %d, %x, %y;", kind, x=(kind, x), y=("u32", by))
    assert right.tolist() == [a >> min(b, width) for a, b in both]
    left = evaluate(f"shl.b{width} %d, %x, %y;", kind, x=(kind, x), y=("u32", by))
    assert left.tolist() == [wrapped(a << b, kind) if b < width else 0 for a, b in both]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_a_funnel_shift_moves_two_words_as_one(mode: str) -> None:
    x, y = (RNG.integers(0, 2**32, 64, dtype=np.uint32).tolist() for _ in range(2))
    by = [0, 1, 5, 31, 32, 33, 40, 64] * 8
    amounts = [b % 32 if mode == "wrap" else min(b, 32) for b in by]
    given: dict[str, Any] = {"x": ("u32", x), "y": ("u32", y), "z": ("u32", by)}
    left = evaluate(f"shf.l.{mode}.b32 %d, %x, %y, %z;", "u32", **given)
    assert left.tolist() == [((b << 32 | a) << n >> 32) % 2**32 for a, b, n in zip(x, y, amounts)]
    right = evaluate(f"shf.r.{mode}.b32 %d, %x, %y, %z;", "u32", **given)
    assert right.tolist() == [((b << 32 | a) >> n) % 2**32 for a, b, n in zip(x, y, amounts)]


def test_logic_of_bits() -> None:
    x, y = pairs("u32")
    given: dict[str, Any] = {"x": ("u32", x), "y": ("u32", y)}
    assert evaluate("and.b32 %d, %x, %y;", "u32", **given).tolist() == [a & b for a, b in zip(x, y)]
    assert evaluate("or.b32 %d, %x, %y;", "u32", **given).tolist() == [a | b for a, b in zip(x, y)]
    assert evaluate("xor.b32 %d, %x, %y;", "u32", **given).tolist() == [a ^ b for a, b in zip(x, y)]
    assert evaluate("not.b32 %d, %x;", "u32", x=("u32", x)).tolist() == [2**32 - 1 - a for a in x]


@pytest.mark.parametrize("table", [0x00, 0x96, 0xE8, 0xCA, 0xFF, 0x1D])
def test_lop3_looks_three_bits_up_in_its_table(table: int) -> None:
    x, y, z = (RNG.integers(0, 2**32, 32, dtype=np.uint32).tolist() for _ in range(3))
    found = evaluate(f"lop3.b32 %d, %x, %y, %z, {table};", "u32", x=("u32", x), y=("u32", y), z=("u32", z))
    for a, b, c, d in zip(x, y, z, found.tolist()):
        bits = [(table >> ((a >> n & 1) * 4 + (b >> n & 1) * 2 + (c >> n & 1)) & 1) << n for n in range(32)]
        assert d == sum(bits)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bfe_extends_the_field_by_its_sign_also_beyond_the_word(kind: str) -> None:
    """As the manual's pseudocode says it, bit by bit."""
    width = WIDTHS[kind]
    cases = [(a, p, n) for a in edges(kind)[6:] for p in (0, 3, width - 1, width, 200) for n in (0, 1, 8, width, 255)]
    cases = cases[:96]

    def expected(a: int, place: int, length: int) -> int:
        bits = [a >> n & 1 for n in range(width)]
        sign = 0 if kind[0] == "u" or length == 0 else bits[min(place + length - 1, width - 1)]
        field = [bits[place + n] if n < length and place + n < width else sign for n in range(width)]
        return wrapped(sum(bit << n for n, bit in enumerate(field)), kind)

    x, y, z = (list(values) for values in zip(*cases))
    found = evaluate(f"bfe.{kind} %d, %x, %y, %z;", kind, x=(kind, x), y=("u32", y), z=("u32", z))
    assert found.tolist() == [expected(*case) for case in cases]


@pytest.mark.parametrize("width", [32, 64])
def test_bfi_puts_a_field_into_a_word(width: int) -> None:
    kind = f"u{width}"
    cases = [(p, n) for p in (0, 3, 31, width - 1, width, 255) for n in (0, 1, 8, width, 255)] + [(4, 4), (5, 6)]
    x, y = ([wrapped(int(v) * 5, kind) for v in RNG.integers(0, 2**63, 32)] for _ in range(2))

    def expected(a: int, b: int, place: int, length: int) -> int:
        for n in range(length):
            if place + n < width:
                b = b & ~(1 << (place + n)) | (a >> n & 1) << (place + n)
        return b

    places, lengths = [p for p, _ in cases], [n for _, n in cases]
    given: dict[str, Any] = {"x": (kind, x), "y": (kind, y), "z": ("u32", places), "w_": ("u32", lengths)}
    found = evaluate(f"bfi.b{width} %d, %x, %y, %z, %w_;", kind, **given)
    assert found.tolist() == [expected(*case) for case in zip(x, y, places, lengths)]


def test_prmt_picks_bytes_and_their_signs() -> None:
    x, y = 0x33221180, 0x77665544
    selectors = [0x3210, 0x7654, 0x0123, 0x8888, 0x9080, 0x5040, 0xFFFF, 0x1032] * 4
    found = evaluate(f"prmt.b32 %d, {x}, {y}, %s;", "u32", s=("u32", selectors))
    wanted = [0x33221180, 0x77665544, 0x80112233, 0xFFFFFFFF, 0x0080FF80, 0x55804480, 0x00000000, 0x11803322]
    assert found.tolist()[:8] == wanted


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("f4e", [0x33221100, 0x44332211, 0x55443322, 0x66554433]),
        ("b4e", [0x55667700, 0x66770011, 0x77001122, 0x00112233]),
        ("rc8", [0x00000000, 0x11111111, 0x22222222, 0x33333333]),
        ("ecl", [0x33221100, 0x33221111, 0x33222222, 0x33333333]),
        ("ecr", [0x00000000, 0x11111100, 0x22221100, 0x33221100]),
        ("rc16", [0x11001100, 0x33223322, 0x11001100, 0x33223322]),
    ],
)
def test_prmt_has_modes_of_its_own(mode: str, wanted: list[int]) -> None:
    selectors = [0, 1, 2, 3] * 8
    found = evaluate(f"prmt.b32.{mode} %d, 0x33221100, 0x77665544, %s;", "u32", s=("u32", selectors))
    assert found.tolist()[:4] == wanted


@pytest.mark.parametrize("width", [32, 64])
def test_bits_are_counted_found_and_reversed(width: int) -> None:
    kind = f"u{width}"
    x = [0, 1, 2, 3, 255, 1 << (width - 1), (1 << width) - 1, 0x1234567] * 4
    given: dict[str, Any] = {"x": (kind, x)}
    assert evaluate(f"popc.b{width} %d, %x;", "u32", **given).tolist() == [bin(a).count("1") for a in x]
    assert evaluate(f"clz.b{width} %d, %x;", "u32", **given).tolist() == [width - a.bit_length() for a in x]
    wanted = [int(f"{a:0{width}b}"[::-1], 2) for a in x]
    assert evaluate(f"brev.b{width} %d, %x;", kind, **given).tolist() == wanted
    found = evaluate(f"bfind.u{width} %d, %x;", "u32", **given)
    assert found.tolist() == [(a.bit_length() - 1) % 2**32 for a in x]
    from_top = evaluate(f"bfind.shiftamt.u{width} %d, %x;", "u32", **given)
    assert from_top.tolist() == [width - a.bit_length() if a else 2**32 - 1 for a in x]


def test_bfind_of_a_negative_number_looks_for_its_highest_zero() -> None:
    x = [-1, -2, -256, -(2**31), 5, 0, 2**31 - 1, -3] * 4
    found = evaluate("bfind.s32 %d, %x;", "u32", x=("s32", x))
    assert found.tolist()[:8] == [2**32 - 1, 0, 7, 30, 2, 2**32 - 1, 30, 1]


def test_carries_go_from_one_word_to_the_next() -> None:
    x, y = pairs("u64")
    split = (
        ".reg .b32 %x0, %x1, %y0, %y1, %z0, %z1; mov.b64 {%x0, %x1}, %x; mov.b64 {%y0, %y1}, %y;"
        "OP.cc.u32 %z0, %x0, %y0; OPc.u32 %z1, %x1, %y1; mov.b64 %d, {%z0, %z1};"
    )
    for name, sign in (("add", 1), ("sub", -1)):
        found = evaluate(split.replace("OP", name), "u64", x=("u64", x), y=("u64", y))
        assert found.tolist() == [(a + sign * b) % 2**64 for a, b in zip(x, y)]


def test_a_product_of_two_words_is_built_with_mad_cc_and_madc() -> None:
    x, y = pairs("u32")
    z = [wrapped(int(v) * 3, "u64") for v in RNG.integers(0, 2**63, 128)]
    body = (
        ".reg .b32 %z0, %z1, %l, %h; mov.b64 {%z0, %z1}, %z;"
        "mad.lo.cc.u32 %l, %x, %y, %z0; madc.hi.u32 %h, %x, %y, %z1; mov.b64 %d, {%l, %h};"
    )
    found = evaluate(body, "u64", x=("u32", x), y=("u32", y), z=("u64", z))
    assert found.tolist() == [(a * b + c) % 2**64 for a, b, c in zip(x, y, z)]


def test_add_and_sub_sat_stop_at_the_limits() -> None:
    x, y = pairs("s32")
    given: dict[str, Any] = {"x": ("s32", x), "y": ("s32", y)}
    clipped = [min(max(a + b, -(2**31)), 2**31 - 1) for a, b in zip(x, y)]
    assert evaluate("add.sat.s32 %d, %x, %y;", "s32", **given).tolist() == clipped
    clipped = [min(max(a - b, -(2**31)), 2**31 - 1) for a, b in zip(x, y)]
    assert evaluate("sub.sat.s32 %d, %x, %y;", "s32", **given).tolist() == clipped


def test_signs_and_differences() -> None:
    x, y = pairs("s32")
    assert evaluate("neg.s32 %d, %x;", "s32", x=("s32", x)).tolist() == [wrapped(-a, "s32") for a in x]
    assert evaluate("abs.s32 %d, %x;", "s32", x=("s32", x)).tolist() == [wrapped(abs(a), "s32") for a in x]
    found = evaluate("sad.s32 %d, %x, %y, 7;", "s32", x=("s32", x), y=("s32", y))
    assert found.tolist() == [wrapped(abs(a - b) + 7, "s32") for a, b in zip(x, y)]


def test_dot_products_of_bytes_and_halves() -> None:
    x, y = (RNG.integers(0, 2**32, 32, dtype=np.uint32) for _ in range(2))
    given: dict[str, Any] = {"x": ("b32", x), "y": ("b32", y)}
    octets, signed = x.view("u1").reshape(-1, 4).astype(int), y.view("i1").reshape(-1, 4).astype(int)
    found = evaluate("dp4a.u32.s32 %d, %x, %y, -5;", "s32", **given)
    assert found.tolist() == ((octets * signed).sum(1) - 5).tolist()
    halves = x.view("i2").reshape(-1, 2).astype(int)
    found = evaluate("dp2a.hi.s32.s32 %d, %x, %y, 9;", "s32", **given)
    assert found.tolist() == ((halves * signed[:, 2:]).sum(1) + 9).tolist()
    found = evaluate("dp2a.lo.s32.s32 %d, %x, %y, 9;", "s32", **given)
    assert found.tolist() == ((halves * signed[:, :2]).sum(1) + 9).tolist()


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64", "u16", "s16"])
def test_comparisons_know_the_sign(kind: str) -> None:
    x, y = pairs(kind)
    for name, holds in {"lt": int.__lt__, "le": int.__le__, "eq": int.__eq__, "gt": int.__gt__}.items():
        found = evaluate(f"setp.{name}.{kind} %d, %x, %y;", "pred", x=(kind, x), y=(kind, y))
        assert found.tolist() == [holds(a, b) for a, b in zip(x, y)]
