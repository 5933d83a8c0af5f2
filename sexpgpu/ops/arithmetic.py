"""The few exact operations that scalar formulas are written in, on NumPy arrays or on the values of a tracer.

A formula (`ops/formulas.py`) is one straight-line Python function. Given float32 arrays it computes with NumPy, which
is the twin that tests compare with; given `Traced` values it records instructions for a code generator (LLVM in
`interp/intrinsics.py`, CUDA C text later). Both have the same bits: every operation here is IEEE and rounded once.

Dtypes of values: f32 f64 i32 i64 u8 u32 u64 bool. Operators: + − × ÷ on floats; + − × & | ^ << >> on integers, which
wrap (>> keeps the sign of signed ones); comparisons; & | on bool. A plain number takes the dtype of the other operand.
"""

from __future__ import annotations

from typing import Any

import numpy as np

# A NumPy array or a Traced value. The code of formulas is the same for both, so its type is left open.
Value = Any

_NAMES = {
    "f32": "float32",
    "f64": "float64",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
}
NUMPY: dict[str, Any] = {name: np.dtype(full) for name, full in _NAMES.items()} | {"bool": np.dtype(np.bool_)}
DTYPE_OF = {dtype: name for name, dtype in NUMPY.items()}


class Traced:
    """A value of a tracer: `dtype` and what the generator knows it by. Generators override `apply` and `constant`."""

    __slots__ = ("dtype",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype

    def apply(self, operation: str, operands: tuple[Traced, ...], dtype: str) -> Traced:
        """Records `operation` on operands; the result has `dtype`."""
        raise NotImplementedError

    def constant(self, number: float, dtype: str) -> Traced:
        raise NotImplementedError

    def lift(self, other: Value) -> Traced:
        """A plain number as a constant of this value's dtype."""
        if isinstance(other, Traced):
            assert other.dtype == self.dtype, (other.dtype, self.dtype)
            return other
        return self.constant(other, self.dtype)

    def _binary(self, operation: str, other: Value, dtype: str | None = None) -> Traced:
        return self.apply(operation, (self, self.lift(other)), dtype or self.dtype)

    def _swapped(self, operation: str, other: Value) -> Traced:
        return self.apply(operation, (self.lift(other), self), self.dtype)

    def __add__(self, other: Value) -> Traced:
        return self._binary("add", other)

    def __radd__(self, other: Value) -> Traced:
        return self._swapped("add", other)

    def __sub__(self, other: Value) -> Traced:
        return self._binary("sub", other)

    def __rsub__(self, other: Value) -> Traced:
        return self._swapped("sub", other)

    def __mul__(self, other: Value) -> Traced:
        return self._binary("mul", other)

    def __rmul__(self, other: Value) -> Traced:
        return self._swapped("mul", other)

    def __truediv__(self, other: Value) -> Traced:
        return self._binary("div", other)

    def __rtruediv__(self, other: Value) -> Traced:
        return self._swapped("div", other)

    def __and__(self, other: Value) -> Traced:
        return self._binary("and", other)

    def __or__(self, other: Value) -> Traced:
        return self._binary("or", other)

    def __xor__(self, other: Value) -> Traced:
        return self._binary("xor", other)

    def __lshift__(self, other: Value) -> Traced:
        return self._binary("shl", other)

    def __rshift__(self, other: Value) -> Traced:
        return self._binary("shr", other)

    def __neg__(self) -> Traced:
        return self.apply("neg", (self,), self.dtype)

    def __lt__(self, other: Value) -> Traced:
        return self._binary("lt", other, "bool")

    def __le__(self, other: Value) -> Traced:
        return self._binary("le", other, "bool")

    def __gt__(self, other: Value) -> Traced:
        return self._binary("gt", other, "bool")

    def __ge__(self, other: Value) -> Traced:
        return self._binary("ge", other, "bool")

    def __eq__(self, other: Value) -> Traced:  # type: ignore[override]
        return self._binary("eq", other, "bool")

    def __ne__(self, other: Value) -> Traced:  # type: ignore[override]
        return self._binary("ne", other, "bool")


def dtype_of(x: Value) -> str:
    """The name of a value's dtype."""
    return x.dtype if isinstance(x, Traced) else DTYPE_OF[np.asarray(x).dtype]


def _unary(operation: str, x: Value, dtype: str) -> Traced | None:
    return x.apply(operation, (x,), dtype) if isinstance(x, Traced) else None


def fma(a: Value, b: Value, c: Value) -> Value:
    """a·b + c in float32, rounded once."""
    first = next((v for v in (a, b, c) if isinstance(v, Traced)), None)
    if first is not None:
        return first.apply("fma", (first.lift(a), first.lift(b), first.lift(c)), first.dtype)
    # The product is exact in float64; the sum is rounded to odd there, so that the second rounding is the only one.
    with np.errstate(all="ignore"):
        # A plain number is rounded to float32 first, as it is in generated code.
        x, y, addend = (np.asarray(v, np.float32).astype(np.float64) for v in (a, b, c))
        product = x * y
        total = np.asarray(product + addend)
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        words = total.view(np.int64)
        step = np.where((lost > 0) == (total > 0), 1, -1)
        inexact = np.isfinite(total) & (lost != 0) & (words & 1 == 0)
        return np.where(inexact, words + step, words).view(np.float64).astype(np.float32)


def select(condition: Value, a: Value, b: Value) -> Value:
    """`a` where the condition holds, else `b`; both are computed."""
    if isinstance(condition, Traced):
        like = a if isinstance(a, Traced) else b
        return like.apply("select", (condition, like.lift(a), like.lift(b)), like.dtype)
    return np.where(condition, a, b)


def bits(x: Value) -> Value:
    """The bit pattern of f32 as i32, of f64 as i64."""
    dtype = {"f32": "i32", "f64": "i64"}[dtype_of(x)]
    return _unary("bits", x, dtype) if isinstance(x, Traced) else np.asarray(x).view(NUMPY[dtype])


def from_bits(x: Value) -> Value:
    """The float with the bit pattern of an i32 or i64."""
    dtype = {"i32": "f32", "i64": "f64"}[dtype_of(x)]
    return _unary("bits", x, dtype) if isinstance(x, Traced) else np.asarray(x).view(NUMPY[dtype])


def convert(x: Value, dtype: str) -> Value:
    """Between floats, from integer or bool to any, between integers (keeping low bits): as NumPy's astype."""
    if dtype_of(x) == dtype:
        return x
    return _unary("convert", x, dtype) if isinstance(x, Traced) else np.asarray(x).astype(NUMPY[dtype])


def saturate(x: Value, dtype: str) -> Value:
    """Float to integer: truncates, saturates, NaN gives 0."""
    if isinstance(x, Traced):
        return _unary("saturate", x, dtype)
    target = NUMPY[dtype]
    low, high = np.iinfo(target).min, np.iinfo(target).max
    with np.errstate(invalid="ignore"):
        wide = np.trunc(np.where(np.isnan(x), 0.0, np.asarray(x, np.float64)))
        inside = np.where((wide >= float(high)) | (wide <= float(low)), 0.0, wide).astype(target)
    return np.where(wide >= float(high), target.type(high), np.where(wide <= float(low), target.type(low), inside))


def half(x: Value) -> Value:
    """f32 rounded to the nearest f16 (ties to even), as f32."""
    if isinstance(x, Traced):
        return _unary("half", x, "f32")
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(np.float16).astype(np.float32)


def sqrt(x: Value) -> Value:
    """Correctly rounded."""
    with np.errstate(invalid="ignore"):
        return _unary("sqrt", x, x.dtype) if isinstance(x, Traced) else np.sqrt(x)


def rint(x: Value) -> Value:
    """The nearest integer, ties to even."""
    return _unary("rint", x, x.dtype) if isinstance(x, Traced) else np.rint(x)


def floor(x: Value) -> Value:
    return _unary("floor", x, x.dtype) if isinstance(x, Traced) else np.floor(x)


def ceil(x: Value) -> Value:
    return _unary("ceil", x, x.dtype) if isinstance(x, Traced) else np.ceil(x)


def logical_not(x: Value) -> Value:
    return _unary("not", x, "bool") if isinstance(x, Traced) else np.logical_not(x)


def quotient(a: Value, b: Value) -> Value:
    """Integer division towards 0; b is neither 0 nor, where a is the least integer, −1."""
    if isinstance(a, Traced):
        return a.apply("quotient", (a, a.lift(b)), a.dtype)
    down = np.floor_divide(a, b)
    remainder = a - down * b
    return down + ((remainder != 0) & ((a < 0) != (b < 0))).astype(down.dtype)
