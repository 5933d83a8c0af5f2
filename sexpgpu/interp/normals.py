"""Initial normal and uniform values as native code: the law of `initial.py` and `quantile.py`, operation by operation, same bits.

Four counters of Philox at a time, one vector for each of their four words; centre and tail of the quantile are both
computed and the right one is chosen. LLVM contracts nothing that is not marked for it, so every + − × ÷ and square root
rounds as NumPy's does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sexpgpu.interp.cache import Cache
from sexpgpu.interp.kernels import load_kernels
from sexpgpu.interp.tape import Record, Workers, record_tape
from sexpgpu.quantile import ATANH, CENTRE, CENTRE_LIMIT, CENTRE_SQUARE, LN_2, ROOT_HALF_BITS, TAIL, TAIL_SHIFT
from sexpgpu.randomness import INCREMENTS, MASK, MULTIPLIERS, ROUNDS, Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

# Elements of one turn of the loop (four counters of four words), and of a block.
TURN, BLOCK = 16, 1 << 14
# Added to a small integer's bits these make the float64 that is so much more than they are.
UNSIGNED, SIGNED = 2.0**52, 2.0**52 + 2.0**51

REALS, WHOLES = "<4 x double>", "<4 x i64>"


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


class _Text:
    """LLVM instructions on vectors of four, each with a name of its own."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, text: str) -> str:
        name = f"%v{len(self.lines)}"
        self.lines.append(f"  {name} = {text}")
        return name

    def number(self, value: float) -> str:
        return f"<{', '.join([f'double 0x{_bits(value) & (1 << 64) - 1:016X}'] * 4)}>"

    def whole(self, value: int) -> str:
        return f"<{', '.join([f'i64 {value}'] * 4)}>"

    def real(self, op: str, a: str, b: str | float) -> str:
        return self.add(f"{op} {REALS} {a}, {b if isinstance(b, str) else self.number(b)}")

    def integer(self, op: str, a: str, b: str | int) -> str:
        return self.add(f"{op} {WHOLES} {a}, {b if isinstance(b, str) else self.whole(b)}")

    def as_float(self, a: str) -> str:
        return self.add(f"bitcast {WHOLES} {a} to {REALS}")

    def call(self, name: str, a: str) -> str:
        return self.add(f"call {REALS} @llvm.{name}.v4f64({REALS} {a})")

    def horner(self, coefficients: Sequence[float], x: str) -> str:
        value = self.real("fmul", x, coefficients[0])
        for coefficient in coefficients[1:-1]:
            value = self.real("fmul", self.real("fadd", value, coefficient), x)
        return self.real("fadd", value, coefficients[-1])

    def ratio(self, polynomials: tuple[Sequence[float], Sequence[float]], x: str) -> str:
        above, below = (self.horner(coefficients, x) for coefficients in polynomials)
        return self.real("fdiv", above, below)


def _philox(text: _Text, counter: str) -> list[str]:
    """The four words of four counters; `%key0` and `%key1` hold the key in every lane."""
    c = [counter, text.whole(0), text.whole(0), text.whole(0)]
    for number in range(ROUNDS):
        products = [text.integer("mul", c[2 * k], MULTIPLIERS[k]) for k in range(2)]
        keys = [text.integer("add", f"%key{k}", number * INCREMENTS[k] & MASK) for k in range(2)]
        keys = [text.integer("and", key, MASK) for key in keys]
        high = [text.integer("lshr", product, 32) for product in products]
        low = [text.integer("and", product, MASK) for product in products]
        crossed = [text.integer("xor", text.integer("xor", high[1 - k], c[2 * k + 1]), keys[k]) for k in range(2)]
        c = [crossed[0], low[1], crossed[1], low[0]]
    return c


def _logarithm(text: _Text, x: str) -> str:
    bits = text.add(f"bitcast {REALS} {x} to {WHOLES}")
    exponent = text.integer("ashr", text.integer("sub", bits, ROOT_HALF_BITS), 52)
    mantissa = text.as_float(text.integer("sub", bits, text.integer("shl", exponent, 52)))
    s = text.real("fdiv", text.real("fsub", mantissa, 1.0), text.real("fadd", mantissa, 1.0))
    series = text.real("fmul", text.horner(ATANH, text.real("fmul", s, s)), text.real("fmul", s, 2.0))
    power = text.real("fsub", text.as_float(text.integer("add", exponent, _bits(SIGNED))), SIGNED)
    return text.real("fadd", text.real("fmul", power, LN_2), series)


def _centred(text: _Text, word: str) -> str:
    """q of one word a lane."""
    drawn = text.real("fsub", text.as_float(text.integer("or", word, _bits(UNSIGNED))), UNSIGNED)
    return text.real("fmul", text.real("fsub", drawn, 2.0**31 - 0.5), 2.0**-32)


def _uniform(text: _Text, word: str) -> str:
    """q · width + middle of one word a lane, as float32."""
    value = text.real("fadd", text.real("fmul", _centred(text, word), "%scale"), "%offset")
    return text.add(f"fptrunc {REALS} {value} to <4 x float>")


def _normal(text: _Text, word: str) -> str:
    """`deviation` · quantile(`scale` · q) of one word a lane, as float32."""
    q = text.real("fmul", _centred(text, word), "%scale")
    square = text.add(f"fsub {REALS} {text.number(CENTRE_SQUARE)}, {text.real('fmul', q, q)}")
    centre = text.real("fmul", text.ratio(CENTRE, square), q)
    side = text.call("fabs", q)
    depth = _logarithm(text, text.add(f"fsub {REALS} {text.number(0.5)}, {side}"))
    root = text.call("sqrt", text.add(f"fneg {REALS} {depth}"))
    tail = text.ratio(TAIL, text.real("fsub", root, TAIL_SHIFT))
    signed = text.add(f"call {REALS} @llvm.copysign.v4f64({REALS} {tail}, {REALS} {q})")
    outside = text.add(f"fcmp ogt {REALS} {side}, {text.number(CENTRE_LIMIT)}")
    value = text.add(f"select <4 x i1> {outside}, {REALS} {signed}, {REALS} {centre}")
    return text.add(f"fptrunc {REALS} {text.real('fmul', value, '%offset')} to <4 x float>")


def _source(name: str, law: Callable[[_Text, str], str]) -> str:
    text = _Text()
    counter = text.integer("add", "%spread", "<i64 0, i64 1, i64 2, i64 3>")
    words = _philox(text, counter)
    lanes = [law(text, word) for word in words]
    order = ", ".join(f"i32 {4 * (k % 4) + k // 4}" for k in range(16))
    halves = [
        text.add(
            f"shufflevector <4 x float> {lanes[k]}, <4 x float> {lanes[k + 1]}, "
            f"<8 x i32> <{', '.join(f'i32 {n}' for n in range(8))}>"
        )
        for k in (0, 2)
    ]
    made = text.add(f"shufflevector <8 x float> {halves[0]}, <8 x float> {halves[1]}, <16 x i32> <{order}>")
    body = "\n".join(text.lines)

    def spread(name: str, type_: str, scalar: str) -> str:
        return (
            f"  %{name}_1 = insertelement <4 x {type_}> poison, {type_} {scalar}, i32 0\n"
            f"  %{name} = shufflevector <4 x {type_}> %{name}_1, <4 x {type_}> poison, <4 x i32> zeroinitializer"
        )

    return f"""; initial {name} values
declare {REALS} @llvm.fabs.v4f64({REALS})
declare {REALS} @llvm.sqrt.v4f64({REALS})
declare {REALS} @llvm.copysign.v4f64({REALS}, {REALS})

; Words: address of the values, key, float64 bits of the law's two numbers, turns. A unit is a block.
define void @kernel(i64 %args, i64 %lo, i64 %hi, i64 %scratch) {{
entry:
  %words = inttoptr i64 %args to ptr
  %address = load i64, ptr %words
  %values = inttoptr i64 %address to ptr
  %p1 = getelementptr i64, ptr %words, i64 1
  %k0 = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %words, i64 2
  %k1 = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %words, i64 3
  %s = load double, ptr %p3
  %p4 = getelementptr i64, ptr %words, i64 4
  %d = load double, ptr %p4
  %p5 = getelementptr i64, ptr %words, i64 5
  %turns = load i64, ptr %p5
{spread("key0", "i64", "%k0")}
{spread("key1", "i64", "%k1")}
{spread("scale", "double", "%s")}
{spread("offset", "double", "%d")}
  %first = mul i64 %lo, {BLOCK // TURN}
  %end0 = mul i64 %hi, {BLOCK // TURN}
  %over = icmp sgt i64 %end0, %turns
  %end = select i1 %over, i64 %turns, i64 %end0
  %any = icmp slt i64 %first, %end
  br i1 %any, label %turn, label %done
turn:
  %t = phi i64 [ %first, %entry ], [ %t2, %turn ]
  %count = mul i64 %t, 4
{spread("spread", "i64", "%count")}
{body}
  %place = mul i64 %t, {TURN}
  %at = getelementptr float, ptr %values, i64 %place
  store <16 x float> {made}, ptr %at, align 4
  %t2 = add i64 %t, 1
  %more = icmp slt i64 %t2, %end
  br i1 %more, label %turn, label %done
done:
  ret void
}}
"""


class Normals:
    """The two kernels, loaded when first asked for."""

    def __init__(self, workers: Workers, cache: Cache) -> None:
        self._workers = workers
        normal, uniform = _source("normal", _normal), _source("uniform", _uniform)
        self._kernels = load_kernels({normal: lambda: normal, uniform: lambda: uniform}, cache)
        self._normal, self._uniform = self._kernels.addresses[normal], self._kernels.addresses[uniform]

    def normal(self, key: Key, count: int, scale: float, deviation: float) -> Array:
        """float32[count]: element e is `deviation` times the normal number at probability 1/2 + `scale` · q of its word,
        as `initial.py` says."""
        return self._drawn(self._normal, key, count, scale, deviation)

    def uniform(self, key: Key, count: int, width: float, middle: float) -> Array:
        """float32[count]: element e is q · `width` + `middle`."""
        return self._drawn(self._uniform, key, count, width, middle)

    def _drawn(self, kernel: int, key: Key, count: int, first: float, second: float) -> Array:
        assert count < 1 << 34, "the counter of an element has 32 bits"
        turns = -(-count // TURN)
        values = np.empty(turns * TURN, np.float32)
        words = [values.ctypes.data, *key, _bits(first), _bits(second), turns]
        record = Record(kernel, np.array(words, np.int64), -(-turns * TURN // BLOCK), 1)
        self._workers.run(record_tape([record], 0))
        return values[:count]
