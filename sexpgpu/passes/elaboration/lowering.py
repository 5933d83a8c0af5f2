"""From the language's operands to the IR's: promotion of dtypes, NumPy's broadcasting, numbers as constants."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import FUNCTIONS
from sexpgpu.ir.types import FLOATS, INTEGERS, Dtype, TensorType, promote
from sexpgpu.passes.elaboration.numbers import number_operation
from sexpgpu.passes.elaboration.values import (
    Labels,
    ListGiven,
    Problem,
    Scalar,
    Value,
    describe,
    fold,
    is_number,
    plain,
    scalar,
)

RANGES = {"i32": (-(1 << 31), (1 << 31) - 1), "i64": (-(1 << 63), (1 << 63) - 1), "u8": (0, 255), "u32": (0, (1 << 32) - 1)}
# Operations that compute in floats: integers are cast to f32 first.
_FLOAT_ONLY = frozenset(
    ("exp", "expm1", "log", "log1p", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "div", "isfinite")
)
_ON_BOOLS = frozenset(
    ("logical_and", "logical_or", "logical_not", "eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "stop_gradient")
)
_LOGICAL = frozenset(("logical_and", "logical_or", "logical_not"))
# The most numbers of a list that becomes a tensor: each is written into the kernels.
MAXIMUM_LIST = 4_096
# These leave integers as they are.
_ROUNDING = frozenset(("floor", "ceil", "round"))


def common_dtype(name: str, values: Sequence[Value]) -> Dtype:
    """The dtype of an operation on tensors and numbers, of which at least one is a tensor."""
    dtypes = [v.dtype for v in values if isinstance(v, Node)]
    made = reduce(lambda a, b: _promoted(name, a, b), dtypes)
    for value in values:
        if isinstance(value, (float, Scalar)) and made not in FLOATS:
            return "f32"
    if made == "bool" and any([is_number(v) for v in values]):
        return "i32"
    return made


def _promoted(name: str, a: Dtype, b: Dtype) -> Dtype:
    made = promote(a, b)
    if made is None:
        raise Problem("E-TYPE-003", f"{name}: {a} and {b} have no common dtype", notes=["cast one of them"])
    return made


def broadcast_shapes(name: str, types: Sequence[TensorType]) -> tuple[tuple[int, ...], Labels]:
    """NumPy's common shape, with the label of each size."""
    rank = max([t.rank for t in types])
    sizes = [1] * rank
    labels: list[str | None] = [None] * rank
    for t in types:
        offset = rank - t.rank
        for i, n in enumerate(t.shape):
            d = i + offset
            if n != 1 and sizes[d] not in (1, n):
                raise Problem("E-SHAPE-001", _misfit(name, sizes[d], labels[d], n, t.label(i)))
            if n != 1 or sizes[d] == 1:
                if n != 1 and sizes[d] == 1:
                    labels[d] = None
                sizes[d] = n if sizes[d] == 1 else sizes[d]
                labels[d] = labels[d] or t.label(i)
    return tuple(sizes), tuple(labels) if any(labels) else ()


def size_text(n: int, label: str | None) -> str:
    """`128 (width)`."""
    return f"{n} ({label})" if label else str(n)


def _misfit(name: str, a: int, a_label: str | None, b: int, b_label: str | None) -> str:
    return f"{name}: sizes {size_text(a, a_label)} and {size_text(b, b_label)} do not broadcast"


def cast(node: Node, dtype: str) -> Node:
    return node if node.dtype == dtype else node.graph.add("cast", (node,), {"dtype": dtype})


def broadcast(node: Node, shape: tuple[int, ...]) -> Node:
    """The node repeated to a shape, aligned at the last axis."""
    if node.shape == shape:
        return node
    offset = len(shape) - len(node.shape)
    return node.graph.add("broadcast", (node,), {"shape": shape, "dims": tuple(range(offset, len(shape)))})


def fill(graph: Graph, value: Value, dtype: Dtype, shape: tuple[int, ...], name: str) -> Node:
    """A number, a boolean or a host scalar as a tensor."""
    if isinstance(value, Scalar):
        host = graph.add("host", (), {"expression": value.expression})
        return broadcast(cast(host, dtype), shape)
    if isinstance(value, tuple):
        raise ListGiven(value, name, "tensors and numbers")
    if dtype == "bool":
        if not isinstance(value, bool):
            raise Problem("E-TYPE-001", f"{name}: true or false is needed beside a bool tensor, not {describe(value)}")
        return graph.constant(value, dtype, shape)
    if not is_number(value):
        if not isinstance(value, bool):
            raise Problem("E-TYPE-001", f"{name} takes tensors and numbers, not {describe(value)}")
        value = int(value)
    value = plain(value)
    if dtype in INTEGERS:
        low, high = RANGES[dtype]
        if not low <= value <= high:
            raise Problem("E-TYPE-001", f"{name}: {value} does not fit {dtype}")
    return graph.constant(value, dtype, shape)


def as_tensor(graph: Graph, value: Value, name: str, dtype: Dtype | None = None) -> Node:
    """A tensor; a number becomes one of rank 0."""
    if isinstance(value, Node):
        return value if dtype is None else cast(value, dtype)
    if dtype is None:
        dtype = "bool" if isinstance(value, bool) else "i32" if isinstance(value, int) else "f32"
    return fill(graph, value, dtype, (), name)


def tensor_of_list(graph: Graph, value: Value, name: str) -> Node | None:
    """A list of numbers, or of equally long lists of them, as a tensor; None for any other list."""
    shape: list[int] = []
    items = [value]
    while items and all([isinstance(item, tuple) for item in items]):
        if len({len(item) for item in items}) > 1:
            return None
        shape.append(len(items[0]))
        items = [part for item in items for part in item]
    if not items or not all([is_number(item) or isinstance(item, (bool, Scalar)) for item in items]):
        return None
    if len(items) > MAXIMUM_LIST:
        message = f"{name}: a list of {len(items):,} numbers, at most {MAXIMUM_LIST:,} become a tensor"
        raise Problem("E-TYPE-001", message, notes=["read them as data, with a loader"])
    kinds = {bool: "bool", int: "i32"}
    dtypes = {next((d for t, d in kinds.items() if isinstance(item, t)), "f32") for item in items}
    dtype: Dtype = "f32" if "f32" in dtypes else "i32" if "i32" in dtypes else "bool"
    nodes = [graph.add("reshape", (fill(graph, item, dtype, (), name),), {"shape": (1,)}) for item in items]
    joined = nodes[0] if len(nodes) == 1 else graph.add("concat", nodes, {"axis": 0})
    return joined if len(shape) == 1 else graph.add("reshape", (joined,), {"shape": tuple(shape)})


def fitting(graph: Graph, value: Value, shape: tuple[int, ...], what: str) -> Node:
    """What an f32 state or buffer becomes: a value of the shape that it has."""
    if is_number(value) or isinstance(value, Scalar):
        return fill(graph, value, "f32", shape, what)
    if not isinstance(value, Node) or value.dtype == "bool":
        raise Problem("E-TYPE-001", f"{what} must become a tensor f32{list(shape)}, not {describe(value)}")
    if value.shape != shape:
        raise Problem("E-SHAPE-001", f"{what} must become f32{list(shape)}, not {value.type}")
    return cast(value, "f32")


def operands(graph: Graph, name: str, values: Sequence[Value], dtype: Dtype) -> tuple[list[Node], Labels]:
    """The values as tensors of one dtype and one shape."""
    types = [v.tensor for v in values if isinstance(v, Node)]
    shape, labels = (types[0].shape, types[0].labels) if len(types) == 1 else broadcast_shapes(name, types)
    made = [
        broadcast(cast(v, dtype), shape) if isinstance(v, Node) else fill(graph, v, dtype, shape, name) for v in values
    ]
    return made, labels


def pointwise(graph: Graph, name: str, op: str, values: Sequence[Value]) -> Value:
    """A scalar operation on tensors, numbers and host scalars; `name` is the language's, `op` the IR's."""
    if not any([isinstance(v, Node) for v in values]):
        return scalar_operation(graph, name, op, values)
    dtype = common_dtype(name, values)
    if op in _LOGICAL:
        for value in values:
            if isinstance(value, tuple):
                raise ListGiven(value, name, "bool tensors")
            if not (isinstance(value, bool) or (isinstance(value, Node) and value.dtype == "bool")):
                raise Problem("E-TYPE-001", f"{name} takes bool tensors, not {describe(value)}")
    elif op in _FLOAT_ONLY and dtype not in FLOATS:
        dtype = "f32"
    elif dtype == "bool" and op not in _ON_BOOLS:
        raise Problem("E-TYPE-001", f"{name} takes numbers, not bool tensors", notes=["cast them: (cast x f32)"])
    elif op in _ROUNDING and dtype not in FLOATS:
        return values[0]
    made, labels = operands(graph, name, values, dtype)
    return graph.add(op, made, labels=labels or None)


def scalar_operation(graph: Graph, name: str, op: str, values: Sequence[Value]) -> Value:
    """An operation on numbers alone: done now, or on the host at every step."""
    if not any([isinstance(v, Scalar) for v in values]):
        return number_operation(name, op, values)
    for value in values:
        if isinstance(value, tuple):
            raise ListGiven(value, name, "tensors and numbers")
        if not (isinstance(value, (Scalar, bool)) or is_number(value)):
            raise Problem("E-TYPE-001", f"{name} takes numbers, not {describe(value)}")
    if op in FUNCTIONS:
        return scalar(op, *values)
    if all([not isinstance(v, Scalar) or v.known for v in values]):
        return number_operation(name, op, [fold(v) for v in values])
    # The host has no such function: the kernels compute it.
    return graph.add(op, [fill(graph, v, "f32", (), name) for v in values])

