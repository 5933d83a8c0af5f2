"""Arithmetic on plain numbers, done at elaboration: integers stay exact, floats are IEEE's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sexpgpu.ir.host import FUNCTIONS
from sexpgpu.passes.elaboration.values import (
    ListGiven,
    Problem,
    Quotient,
    Value,
    describe,
    is_number,
    plain,
    quotient,
)

_LIMIT = 1 << 63
# A power of integers beyond this many bits is not computed at all.
_POWER_BITS = 128


def _divide(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise Problem("E-TYPE-001", f"/: {a} divided by 0")
        return a // b if a % b == 0 else quotient(a, b)
    return float(FUNCTIONS["div"](a, b))


def _floor_divide(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise Problem("E-TYPE-001", f"//: {a} divided by 0")
        return a // b
    return float(FUNCTIONS["floordiv"](a, b))


def _modulo(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int):
        if b == 0:
            raise Problem("E-TYPE-001", f"mod: {a} divided by 0")
        return a % b
    return float(FUNCTIONS["mod"](float(a), b))


def _power(a: float, b: float) -> float:
    if isinstance(a, int) and isinstance(b, int) and b >= 0:
        if a.bit_length() * b > _POWER_BITS and abs(a) > 1:
            raise Problem("E-TYPE-001", f"pow: {a} to the power {b} does not fit in 64 bits")
        return int(a**b)
    return float(FUNCTIONS["pow"](float(a), float(b)))


def _extremum(better: Callable[[Any, Any], bool]) -> Callable[[float, float], float]:
    def pick(a: float, b: float) -> float:
        if a != a or b != b:
            return math.nan
        return b if better(b, a) else a

    return pick


def _guarded(function: Callable[[float], float], otherwise: float = math.nan) -> Callable[[float], float]:
    def call(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return otherwise if x == x else math.nan
        except OverflowError:
            return math.inf

    return call


def _logarithm(function: Callable[[float], float], pole: float) -> Callable[[float], float]:
    return lambda x: -math.inf if x == pole else _guarded(function)(x)


def _sign(x: float) -> float:
    return x if x != x else type(x)((x > 0) - (x < 0))


def _rounded(function: Callable[[float], float]) -> Callable[[float], float]:
    """Integers stay; floats stay floats, as in NumPy."""
    return lambda x: x if isinstance(x, int) or not math.isfinite(x) else float(function(x))


NUMBERS: Mapping[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "floordiv": _floor_divide,
    "mod": _modulo,
    "pow": _power,
    "neg": lambda a: -a,
    "abs": abs,
    "sign": _sign,
    "exp": _guarded(math.exp),
    "expm1": _guarded(math.expm1),
    "log": _logarithm(math.log, 0),
    "log1p": _logarithm(math.log1p, -1),
    "sqrt": _guarded(math.sqrt),
    "rsqrt": lambda x: float(FUNCTIONS["div"](1.0, _guarded(math.sqrt)(x))),
    "sin": _guarded(math.sin),
    "cos": _guarded(math.cos),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + _guarded(math.exp)(-x)),
    "erf": math.erf,
    "floor": _rounded(math.floor),
    "ceil": _rounded(math.ceil),
    "round": _rounded(round),
    "maximum": _extremum(lambda b, a: b > a),
    "minimum": _extremum(lambda b, a: b < a),
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "isfinite": lambda a: math.isfinite(a),
}
_LOGICAL: Mapping[str, Callable[..., bool]] = {
    "logical_and": lambda a, b: a and b,
    "logical_or": lambda a, b: a or b,
    "logical_not": lambda a: not a,
}


def number_operation(name: str, op: str, values: Sequence[Value]) -> Value:
    """The operation on plain numbers (`=` and `!=` on any values)."""
    if op in ("eq", "ne"):
        a, b = values
        return _equal(a, b) is (op == "eq")
    if op in _LOGICAL:
        for value in values:
            if isinstance(value, tuple):
                raise ListGiven(value, name, "booleans")
            if not isinstance(value, bool):
                raise Problem("E-TYPE-001", f"{name} takes booleans, not {describe(value)}")
        return _LOGICAL[op](*values)
    if op == "stop_gradient":
        return values[0]
    for value in values:
        if isinstance(value, tuple):
            raise ListGiven(value, name, "tensors and numbers")
        if not is_number(value):
            raise Problem("E-TYPE-001", f"{name} takes numbers, not {describe(value)}")
    made = NUMBERS[op](*[v if isinstance(v, int) else plain(v) for v in values])
    if isinstance(made, int) and not isinstance(made, bool) and abs(made) >= _LIMIT:
        raise Problem("E-TYPE-001", f"{name}: {made:.4g} does not fit in 64 bits" if made < 1e300 else f"{name}: overflow")
    if isinstance(made, float) and not isinstance(made, Quotient):
        return _made_of(made, values)
    return made


def _made_of(made: float, values: Sequence[Value]) -> float:
    """The float, which remembers the division that one of its operands was."""
    for value in values:
        if isinstance(value, Quotient):
            kept = Quotient(made)
            kept.operands = value.operands
            return kept
    return made


def _equal(a: Value, b: Value) -> bool:
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    return bool(a == b)
