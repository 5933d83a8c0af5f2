"""The scalar operations: a row gives both spellings, the NumPy meaning and the partial derivatives.

Operands of one call have the same shape and dtype (`select` has a bool first operand); elaboration broadcasts and
promotes before it builds nodes. `k_…` are the fixed formulas of `ops/formulas.py`, spelled alike on every device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

import msgspec
import numpy as np

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, NodeType, TensorType
from sexpgpu.ops.record import Op, TypeMismatch


class Reciprocal(msgspec.Struct, frozen=True):
    """The partial 1 / node: the cotangent is divided by it, one rounding instead of two."""

    node: Node


# A partial derivative: a node, a plain factor, or None (no gradient).
Partial = Node | Reciprocal | float | None


class Primitive(msgspec.Struct, frozen=True):
    """`result` is `same` (the operands' dtype) or `bool`; `operands` the dtypes it takes."""

    numba: str
    cuda: str
    run: Callable[..., Any]
    partials: Callable[..., Sequence[Partial]] | None = None
    arity: int = 1
    result: str = "same"
    operands: str = "float"  # float | number | any | bool


def _erf(x: Any) -> Any:
    from math import erf

    return np.vectorize(erf, otypes=[np.result_type(x)])(x) if np.size(x) else np.asarray(x)


def _rounded(x: Any, dtype: str) -> Any:
    """Float64 is the meaning without any rounding."""
    x = np.asarray(x)
    with np.errstate(over="ignore"):
        return x if x.dtype == np.float64 else x.astype(numpy_dtype(dtype)).astype(x.dtype)


def _ties(greater: Node, equal: Node) -> tuple[Node, Node]:
    """The shares of the cotangent between two operands: equal ones take half each, as in PyTorch."""
    graph = greater.graph
    like = ("f32", greater.shape)
    one, half, zero = (graph.constant(v, like[0], like[1]) for v in (1.0, 0.5, 0.0))  # type: ignore[arg-type]
    first = graph.add("select", (greater, one, graph.add("select", (equal, half, zero))))
    return first, 1.0 - first


def _extremum(compare: str) -> Callable[..., Sequence[Partial]]:
    def partials(y: Node, a: Node, b: Node) -> Sequence[Partial]:
        first, second = _ties(y.graph.add(compare, (a, b)), y.graph.add("eq", (a, b)))
        graph = y.graph
        return graph.add("cast", (first,), {"dtype": a.dtype}), graph.add("cast", (second,), {"dtype": a.dtype})

    return partials


def _pow_partials(y: Node, a: Node, b: Node) -> Sequence[Partial]:
    """d/da = b·a^(b−1), 0 where b = 0; d/db = y·log a, 0 where a = 0 and b ≥ 0."""
    graph = y.graph
    zero = graph.constant(0.0, a.dtype, a.shape)
    by_base = graph.add("select", (graph.add("eq", (b, zero)), zero, b * graph.add("pow", (a, b - 1.0))))
    flat = graph.add("logical_and", (graph.add("eq", (a, zero)), graph.add("ge", (b, zero))))
    by_exponent = graph.add("select", (flat, zero, y * graph.add("log", (a,))))
    return by_base, by_exponent


def _unary(op: str, x: Node) -> Node:
    return x.graph.add(op, (x,))


def _sign_of(y: Node, a: Node) -> Sequence[Partial]:
    return (_unary("sign", a),)


def _floor_div(a: Any, b: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.floor_divide(a, b)


def _mod(a: Any, b: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mod(a, b)


PRIMITIVES: dict[str, Primitive] = {
    #                       Numba                CUDA C               NumPy          partials, given the result y
    "neg": Primitive("(-{})", "(-{})", np.negative, lambda y, a: (-1,), operands="number"),
    "abs": Primitive("k_abs({})", "k_abs({})", np.abs, _sign_of, operands="number"),
    "sign": Primitive("k_sign({})", "k_sign({})", np.sign, None, operands="number"),
    "exp": Primitive("k_exp({})", "k_exp({})", np.exp, lambda y, a: (y,)),
    "expm1": Primitive("k_expm1({})", "k_expm1({})", np.expm1, lambda y, a: (a.graph.add("exp", (a,)),)),
    "log": Primitive("k_log({})", "k_log({})", np.log, lambda y, a: (Reciprocal(a),)),
    "log1p": Primitive("k_log1p({})", "k_log1p({})", np.log1p, lambda y, a: (Reciprocal(a + 1.0),)),
    "sqrt": Primitive("k_sqrt({})", "k_sqrt({})", np.sqrt, lambda y, a: (Reciprocal(y * 2.0),)),
    "rsqrt": Primitive("k_rsqrt({})", "k_rsqrt({})", lambda a: 1 / np.sqrt(a), lambda y, a: (-0.5 * y / a,)),
    "sin": Primitive("k_sin({})", "k_sin({})", np.sin, lambda y, a: (_unary("cos", a),)),
    "cos": Primitive("k_cos({})", "k_cos({})", np.cos, lambda y, a: (-_unary("sin", a),)),
    "tanh": Primitive("k_tanh({})", "k_tanh({})", np.tanh, lambda y, a: (1.0 - y * y,)),
    "sigmoid": Primitive("k_sigmoid({})", "k_sigmoid({})", lambda a: 1 / (1 + np.exp(-a)), lambda y, a: (y * (1.0 - y),)),
    "erf": Primitive("k_erf({})", "k_erf({})", _erf, lambda y, a: (2 / sqrt(pi) * _unary("exp", -(a * a)),)),
    "floor": Primitive("k_floor({})", "k_floor({})", np.floor),
    "ceil": Primitive("k_ceil({})", "k_ceil({})", np.ceil),
    "round": Primitive("k_rint({})", "k_rint({})", np.rint),
    # f32 that a product reads as bf16 or f16: a parameter's gradient passes it as it is.
    "round_bf16": Primitive("k_round_bf16({})", "k_round_bf16({})", lambda a: _rounded(a, "bf16"), lambda y, a: (1,)),
    "round_f16": Primitive("k_round_f16({})", "k_round_f16({})", lambda a: _rounded(a, "f16"), lambda y, a: (1,)),
    "isfinite": Primitive("k_isfinite({})", "k_isfinite({})", np.isfinite, result="bool"),
    "logical_not": Primitive("k_not({})", "(!{})", np.logical_not, result="bool", operands="bool"),
    "add": Primitive("({} + {})", "({} + {})", np.add, lambda y, a, b: (1, 1), 2, operands="number"),
    "sub": Primitive("({} - {})", "({} - {})", np.subtract, lambda y, a, b: (1, -1), 2, operands="number"),
    "mul": Primitive("({} * {})", "({} * {})", np.multiply, lambda y, a, b: (b, a), 2, operands="number"),
    "div": Primitive("({} / {})", "({} / {})", np.divide, lambda y, a, b: (Reciprocal(b), -(y / b)), 2),
    "floordiv": Primitive("k_floordiv({}, {})", "k_floordiv({}, {})", _floor_div, None, 2, operands="number"),
    "mod": Primitive(
        "k_mod({}, {})", "k_mod({}, {})", _mod, lambda y, a, b: (1, -_unary("floor", a / b)), 2, operands="number"
    ),
    "pow": Primitive("k_pow({}, {})", "k_pow({}, {})", np.power, _pow_partials, 2, operands="number"),
    "maximum": Primitive("k_maximum({}, {})", "k_maximum({}, {})", np.maximum, _extremum("gt"), 2, operands="any"),
    "minimum": Primitive("k_minimum({}, {})", "k_minimum({}, {})", np.minimum, _extremum("lt"), 2, operands="any"),
    "lt": Primitive("({} < {})", "({} < {})", np.less, None, 2, "bool", "any"),
    "le": Primitive("({} <= {})", "({} <= {})", np.less_equal, None, 2, "bool", "any"),
    "gt": Primitive("({} > {})", "({} > {})", np.greater, None, 2, "bool", "any"),
    "ge": Primitive("({} >= {})", "({} >= {})", np.greater_equal, None, 2, "bool", "any"),
    "eq": Primitive("({} == {})", "({} == {})", np.equal, None, 2, "bool", "any"),
    "ne": Primitive("({} != {})", "({} != {})", np.not_equal, None, 2, "bool", "any"),
    "logical_and": Primitive("({} & {})", "({} && {})", np.logical_and, None, 2, "bool", "bool"),
    "logical_or": Primitive("({} | {})", "({} || {})", np.logical_or, None, 2, "bool", "bool"),
    "stop_gradient": Primitive("{}", "{}", lambda a: a, None, operands="any"),
}

_TAKES = {
    "float": FLOATS,
    "number": FLOATS | {"i32", "i64", "u8", "u32"},
    "any": FLOATS | {"i32", "i64", "u8", "u32", "bool"},
    "bool": frozenset(("bool",)),
}


def _infer(name: str, primitive: Primitive) -> Callable[..., NodeType]:
    def infer(*operands: TensorType) -> NodeType:
        assert len(operands) == primitive.arity, (name, operands)
        first = operands[0]
        for operand in operands[1:]:
            if operand.shape != first.shape or operand.dtype != first.dtype:
                raise TypeMismatch("E-SHAPE-001", f"{name}: {first} and {operand} do not fit")
        if first.dtype not in _TAKES[primitive.operands]:
            raise TypeMismatch("E-TYPE-001", f"{name} takes {primitive.operands} tensors, not {first}")
        labels = next((o.labels for o in operands if o.labels), ())
        return TensorType(first.dtype if primitive.result == "same" else "bool", first.shape, labels)

    return infer


def _vjp(primitive: Primitive) -> Callable[..., Sequence[Node | None]] | None:
    if primitive.partials is None:
        return None
    partials = primitive.partials

    def vjp(dy: Node, y: Node, inputs: Sequence[Node]) -> Sequence[Node | None]:
        return [_scaled(dy, partial) for partial in partials(y, *inputs)]

    return vjp


def _scaled(dy: Node, partial: Partial) -> Node | None:
    if partial is None:
        return None
    if isinstance(partial, Reciprocal):
        return dy / partial.node
    if isinstance(partial, Node):
        return dy * partial
    return dy if partial == 1 else -dy if partial == -1 else dy * partial


def _record(name: str, primitive: Primitive) -> Op:
    operands = ", ".join(f"{letter}: T[*s]" for letter in "abc"[: primitive.arity])
    signature = f"{name}({operands}) -> {'T' if primitive.result == 'same' else 'bool'}[*s], T {primitive.operands}"
    return Op(
        name, signature, _infer(name, primitive), primitive.run, _vjp(primitive), "pointwise", primitive.numba, primitive.cuda
    )


def _infer_select(c: TensorType, a: TensorType, b: TensorType) -> NodeType:
    if c.dtype != "bool" or a.dtype != b.dtype or not c.shape == a.shape == b.shape:
        raise TypeMismatch("E-SHAPE-001", f"select: {c}, {a} and {b} do not fit")
    return a if a.labels else b


def _vjp_select(dy: Node, y: Node, inputs: Sequence[Node]) -> Sequence[Node | None]:
    graph, condition = y.graph, inputs[0]
    zero = graph.constant(0.0, dy.dtype, dy.shape)
    return None, graph.add("select", (condition, dy, zero)), graph.add("select", (condition, zero, dy))


def _infer_cast(x: TensorType, dtype: str) -> NodeType:
    return TensorType(dtype, x.shape, x.labels)  # type: ignore[arg-type]


def _vjp_cast(dy: Node, y: Node, inputs: Sequence[Node], dtype: str) -> Sequence[Node | None]:
    source = inputs[0].dtype
    if source not in FLOATS or dtype not in FLOATS:
        return (None,)
    return (y.graph.add("cast", (dy,), {"dtype": source}),)


NUMPY_NAMES = {"f32": "float32", "f16": "float16", "i32": "int32", "i64": "int64", "u8": "uint8", "u32": "uint32", "bool": "bool"}


def numpy_dtype(dtype: str) -> Any:
    """The NumPy dtype of an IR dtype (bf16 is ml_dtypes')."""
    if dtype == "bf16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NUMPY_NAMES[dtype])


def _run_cast(x: Any, dtype: str) -> Any:
    """Float to integer truncates and saturates, NaN gives 0."""
    target = numpy_dtype(dtype)
    if dtype in ("i32", "i64", "u8", "u32") and np.asarray(x).dtype.kind == "f":
        low, high = np.iinfo(target).min, np.iinfo(target).max
        wide = np.trunc(np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70)))
        inside = np.where((wide >= float(high)) | (wide <= float(low)), 0.0, wide).astype(target)
        return np.where(wide >= float(high), target.type(high), np.where(wide <= float(low), target.type(low), inside))
    with np.errstate(over="ignore"):
        return np.asarray(x).astype(target)


def records() -> list[Op]:
    """The records of every pointwise operation."""
    made = [_record(name, primitive) for name, primitive in PRIMITIVES.items()]
    made.append(
        Op(
            "select", "select(c: bool[*s], a: T[*s], b: T[*s]) -> T[*s]", _infer_select, np.where, _vjp_select,
            "pointwise", "k_select({0}, {1}, {2})", "({0} ? {1} : {2})",
        )
    )  # fmt: skip
    made.append(Op("cast", "cast(x: T[*s]; dtype) -> dtype[*s]", _infer_cast, _run_cast, _vjp_cast, "pointwise", "cast"))
    return made
