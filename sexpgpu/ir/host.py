"""Host scalars: expressions of `step`, `updates`, `total-steps` and numbers, computed in float64 on the host.

An expression is a nested tuple, so that it is hashable and prints as it is written:
    ("step",) ("updates",) ("total-steps",) ("number", 0.5) ("hyper", "lr", 0.001) ("runtime", "gradient-scale")
    ("add", a, b) ("if", condition, a, b) …
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

Expression = tuple[Any, ...]


def _divide(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)
    return a / b


def _power(a: float, b: float) -> float:
    try:
        made = a**b
    except (OverflowError, ZeroDivisionError):
        return math.inf
    return made if isinstance(made, (int, float)) else math.nan


def _guarded(function: Callable[[float], float]) -> Callable[[float], float]:
    def call(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return -math.inf if function is math.log and x == 0 else math.nan
        except OverflowError:
            return math.inf

    return call


def _modulo(a: float, b: float) -> float:
    """The remainder with the sign of b; NaN where there is none."""
    if not b or not math.isfinite(a) or b != b:
        return math.nan
    quotient = a / b
    return a - b * math.floor(quotient) if math.isfinite(b) and math.isfinite(quotient) else a % b


def _whole(function: Callable[[float], int]) -> Callable[[float], float]:
    """What is not finite stays."""
    return lambda x: function(x) if math.isfinite(x) else x


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _divide,
    "floordiv": lambda a, b: math.floor(_divide(a, b)) if math.isfinite(_divide(a, b)) else _divide(a, b),
    "mod": _modulo,
    "pow": _power,
    "neg": lambda a: -a,
    "abs": abs,
    "exp": _guarded(math.exp),
    "log": _guarded(math.log),
    "sqrt": _guarded(math.sqrt),
    "sin": _guarded(math.sin),
    "cos": _guarded(math.cos),
    "tanh": math.tanh,
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "maximum": max,
    "minimum": min,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "logical_and": lambda a, b: bool(a) and bool(b),
    "logical_or": lambda a, b: bool(a) or bool(b),
    "logical_not": lambda a: not a,
}


def evaluate(expression: Expression, values: Mapping[str, float]) -> Any:
    """The expression's value; `values` gives step, updates, total-steps and the runtime's own entries."""
    head = expression[0]
    if head == "number":
        return expression[1]
    if head == "hyper":
        return expression[2]
    if head == "runtime":
        return values[expression[1]]
    if head == "if":
        return evaluate(expression[2 if evaluate(expression[1], values) else 3], values)
    if len(expression) == 1:
        return values[head]
    return FUNCTIONS[head](*(evaluate(part, values) for part in expression[1:]))


def known(expression: Expression) -> bool:
    """Whether the value is the same at every step."""
    head = expression[0]
    if head in ("number", "hyper"):
        return True
    return head != "runtime" and len(expression) > 1 and all(known(part) for part in expression[1:])
