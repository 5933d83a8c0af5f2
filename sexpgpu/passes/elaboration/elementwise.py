"""The table of elementwise operations and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, INTEGERS
from sexpgpu.passes.elaboration import values
from sexpgpu.passes.elaboration.lowering import (
    RANGES,
    as_tensor,
    broadcast,
    broadcast_shapes,
    cast,
    common_dtype,
    fill,
    pointwise,
)
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import Builtin, ListGiven, Problem, Scalar, Value, describe, fold, is_number


def _pointwise(name: str, op: str) -> Callable[..., Value]:
    def run(m: Machine, *arguments: Value) -> Value:
        return pointwise(m.graph, name, op, arguments)

    return run


def _chain(name: str, op: str, unit: int | None) -> Callable[..., Value]:
    """Any number of arguments, from the left."""

    def run(m: Machine, arguments: tuple[Value, ...]) -> Value:
        if not arguments:
            if unit is None:
                raise Problem("E-SYN-002", f"{name} takes 1 or more arguments, not 0")
            return unit
        made = arguments[0]
        if len(arguments) == 1:
            _numeric(name, made)
        for argument in arguments[1:]:
            made = pointwise(m.graph, name, op, (made, argument))
        return made

    return run


def _numeric(name: str, value: Value) -> None:
    if not (isinstance(value, (Node, Scalar)) or is_number(value)):
        raise Problem("E-TYPE-001", f"{name} takes numbers, not {describe(value)}")


def _minus(m: Machine, a: Value, rest: tuple[Value, ...]) -> Value:
    if not rest:
        return pointwise(m.graph, "-", "neg", (a,))
    for b in rest:
        a = pointwise(m.graph, "-", "sub", (a, b))
    return a


def _over(m: Machine, a: Value, rest: tuple[Value, ...]) -> Value:
    if not rest:
        return pointwise(m.graph, "/", "div", (1, a))
    for b in rest:
        a = pointwise(m.graph, "/", "div", (a, b))
    return a


def _compare(name: str, op: str) -> Callable[..., Value]:
    def run(m: Machine, a: Value, b: Value) -> Value:
        if not (isinstance(a, Node) or isinstance(b, Node)):
            # Known numbers compare now: a hyper in a condition is folded.
            a, b = fold(a), fold(b)
        elif op in ("eq", "ne") and (_no_operand(a) or _no_operand(b)):
            return op == "ne"
        return pointwise(m.graph, name, op, (a, b))

    return run


def _no_operand(value: Value) -> bool:
    """A value that no tensor is equal to: nil, a text, a list."""
    return value is None or isinstance(value, (str, tuple))


def _square(m: Machine, x: Value) -> Value:
    return pointwise(m.graph, "square", "mul", (x, x))


def _power(m: Machine, a: Value, b: Value) -> Value:
    """A power with an integer exponent of a float tensor is a float's."""
    if isinstance(a, Node) and isinstance(b, int) and not isinstance(b, bool) and a.dtype in FLOATS:
        b = float(b)
    if isinstance(a, Node) and a.dtype in INTEGERS and isinstance(b, int) and b < 0:
        raise Problem("E-TYPE-001", f"pow: {a.type} to the power {b} is no integer", notes=["cast it: (cast x f32)"])
    return pointwise(m.graph, "pow", "pow", (a, b))


def _clip(m: Machine, x: Value, low: Value, high: Value) -> Value:
    """Bounds of nil are none. At a bound the whole gradient flows, as in PyTorch; a maximum would halve it."""
    for bound, beyond, extreme in ((low, "lt", "maximum"), (high, "gt", "minimum")):
        if bound is None:
            continue
        if isinstance(x, Node) or isinstance(bound, Node):
            x = _where(m, pointwise(m.graph, "clip", beyond, (x, bound)), bound, x)
        else:
            x = pointwise(m.graph, "clip", extreme, (x, bound))
    return x


def _where(m: Machine, condition: Value, a: Value, b: Value) -> Value:
    condition = fold(condition)
    if isinstance(condition, bool):
        return a if condition else b
    if isinstance(condition, tuple):
        raise ListGiven(condition, "where", "a bool tensor")
    if not isinstance(condition, Node) or condition.dtype != "bool":
        raise Problem("E-TYPE-001", f"where: the condition is a bool tensor, not {describe(condition)}")
    sides = [v for v in (a, b) if isinstance(v, Node)]
    if sides:
        dtype = common_dtype("where", (a, b))
    elif isinstance(a, bool) and isinstance(b, bool):
        dtype = "bool"
    else:
        dtype = "i32" if all([isinstance(v, int) for v in (a, b)]) else "f32"
    (c, x, y), labels = _with_condition(m, condition, a, b, dtype)
    return m.graph.add("select", (c, x, y), labels=labels or None)


def _with_condition(m: Machine, condition: Node, a: Value, b: Value, dtype: Any) -> tuple[list[Node], values.Labels]:
    """Condition and sides of one shape; the condition stays bool."""
    typed = [cast(v, dtype) if isinstance(v, Node) else v for v in (a, b)]
    shape, labels = broadcast_shapes("where", [v.tensor for v in (condition, *typed) if isinstance(v, Node)])
    sides = [broadcast(v, shape) if isinstance(v, Node) else fill(m.graph, v, dtype, shape, "where") for v in typed]
    return [broadcast(condition, shape), *sides], labels


def _cast(m: Machine, x: Value, dtype: Value) -> Value:
    target = values.dtype(dtype, "cast")
    if isinstance(x, tuple):
        raise ListGiven(x, "cast", "a tensor or a number")
    if isinstance(x, Node):
        return cast(x, target)
    if isinstance(x, Scalar) and x.known and target not in FLOATS:
        x = fold(x)
    if isinstance(x, Scalar):
        return cast(as_tensor(m.graph, x, "cast"), target)
    if not (is_number(x) or isinstance(x, bool)):
        raise Problem("E-TYPE-001", f"cast takes a tensor or a number, not {describe(x)}")
    if target in FLOATS:
        return float(x)
    if target == "bool":
        return bool(x)
    low, high = RANGES[target]
    return 0 if x != x else low if x <= low else high if x >= high else int(x)


_Reduction = Callable[[Machine, Value, Value, Value], Value]


def _reduction(name: str, op: str, on_bool: str | None = None) -> _Reduction:
    """A reduction over axes; bools are counted as `on_bool` where an operation takes no bools."""

    def run(m: Machine, x: Value, axis: Value, keep: Value) -> Value:
        node = as_tensor(m.graph, x, name)
        if node.dtype == "bool" and on_bool is not None:
            node = cast(node, on_bool)
        return reduced(m, name, op, node, axis, values.boolean(keep, f"{name}: :keep"))

    return run


def reduced(m: Machine, name: str, op: str, x: Node, axis: Value, keep: bool) -> Node:
    axes = values.axes(axis, x.tensor.rank, name)
    if not axes and op not in ("argmax", "argmin"):
        return x
    made = m.graph.add(op, (x,), {"axes": axes})
    if not keep:
        return made
    shape = tuple([1 if i in axes else n for i, n in enumerate(x.shape)])
    labels = tuple([None if i in axes else x.tensor.label(i) for i in range(x.tensor.rank)])
    return m.graph.add("reshape", (made,), {"shape": shape}, labels=labels)


def _logical_reduction(name: str) -> _Reduction:
    def run(m: Machine, x: Value, axis: Value, keep: Value) -> Value:
        node = as_tensor(m.graph, x, name)
        if node.dtype != "bool":
            node = pointwise(m.graph, name, "ne", (node, 0))
        return reduced(m, name, name, node, axis, values.boolean(keep, f"{name}: :keep"))

    return run


_UNARY = {
    "neg": "−X", "abs": "|X|", "sign": "−1, 0 or 1", "exp": "e^X", "expm1": "e^X − 1, exact near 0",
    "log": "The natural logarithm.", "log1p": "log(1 + X), exact near 0", "sqrt": "√X", "rsqrt": "1 / √X",
    "sin": "The sine of radians.", "cos": "The cosine of radians.", "tanh": "The hyperbolic tangent.",
    "sigmoid": "1 / (1 + e^−X)", "erf": "The error function.", "floor": "The integer below.",
    "ceil": "The integer above.", "round": "The nearest integer, halves to even.",
    "isfinite": "Whether X is neither infinite nor NaN.", "logical-not": "not X, on bools.",
    "stop-gradient": "X; no gradient flows through it.",
}  # fmt: skip
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "=": "eq", "!=": "ne"}
_REDUCE = {
    "sum": ("sum", "i32", "The sum; bools are counted."),
    "prod": ("prod", "i32", "The product."),
    "max": ("max", "i32", "The largest value; NaN where one is."),
    "min": ("min", "i32", "The smallest value; NaN where one is."),
    "argmax": ("argmax", "i32", "The index of the first of the largest values."),
    "argmin": ("argmin", "i32", "The index of the first of the smallest values."),
}


def rows() -> list[Builtin]:
    """The rows of this table."""
    made = [row(f"({name} X)", _pointwise(name, name.replace("-", "_")), doc) for name, doc in _UNARY.items()]
    made += [row(f"({n} A B)", _compare(n, op), f"Whether A {n} B, element by element.") for n, op in _COMPARE.items()]
    made += [
        row(f"({name} X :axis nil :keep false)", _reduction(name, op, on_bool), doc)
        for name, (op, on_bool, doc) in _REDUCE.items()
    ]
    return [
        *made,
        row("(+ X…)", _chain("+", "add", 0), "The sum of all arguments."),
        row("(* X…)", _chain("*", "mul", 1), "The product of all arguments."),
        row("(- A B…)", _minus, "A minus the others; −A alone."),
        row("(/ A B…)", _over, "A divided by the others; on integer numbers an integer where exact."),
        row("(// A B)", _pointwise("//", "floordiv"), "The quotient rounded down."),
        row("(mod A B)", _pointwise("mod", "mod"), "The remainder, with the sign of B."),
        row("(pow A B)", _power, "A to the power B."),
        row("(square X)", _square, "X · X."),
        row("(maximum A…)", _chain("maximum", "maximum", None), "The largest, element by element; NaN where one is."),
        row("(minimum A…)", _chain("minimum", "minimum", None), "The smallest, element by element; NaN where one is."),
        row("(clip X LOW HIGH)", _clip, "X held between LOW and HIGH; nil is no bound."),
        row("(logical-and A B)", _pointwise("logical-and", "logical_and"), "A and B, on bools."),
        row("(logical-or A B)", _pointwise("logical-or", "logical_or"), "A or B, on bools."),
        row("(where C A B)", _where, "A where C holds, else B."),
        row("(cast X DTYPE)", _cast, "X as DTYPE: to nearest even; float to integer truncates and saturates."),
        row("(any X :axis nil :keep false)", _logical_reduction("any"), "Whether one holds."),
        row("(all X :axis nil :keep false)", _logical_reduction("all"), "Whether all hold."),
    ]

