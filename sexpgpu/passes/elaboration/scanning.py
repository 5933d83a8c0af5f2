"""The table of the in-graph loop: `scan` calls its function once, on the inputs of a body."""

from __future__ import annotations

from collections.abc import Callable

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.scan import add_argument, add_scan
from sexpgpu.passes.elaboration.bodies import Body, is_wrong, mapped, tensors
from sexpgpu.passes.elaboration.lowering import as_tensor, size_text
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import POISON, Builtin, Problem, Value, Values, describe, is_number, tensor


def _scan(m: Machine, f: Value, start: Value, xs: Value) -> Value:
    span = m.here
    assert span is not None
    scanned = list(tensors(_checked(xs, "what is scanned")))
    length = _length(scanned)
    start = _begun(m.graph, start, scanned[0])
    first = list(tensors(start))
    outer = m.graph
    body = Body(outer)
    carry, x = _arguments(body, "carry", start, lambda n: n.tensor), _arguments(body, "x", xs, _element)
    m.graph = body
    try:
        with body.at(outer._origin):
            given = m.call(f, [carry, x], span)
            if is_wrong(given):
                return POISON
            if not (isinstance(given, Values) and len(given) == 2):
                raise Problem("E-TYPE-001", f"scan: the function gives {describe(given)}, not (values carry y)")
            last, y = _number_tensor(body, given[0], start), _outputs(body, given[1])
    finally:
        m.graph = outer
    _same_carry(start, last)
    outputs = [body.inside(node) for node in (*tensors(last), *tensors(y))]
    body.outputs = {f"out{k}": node for k, node in enumerate(outputs)}
    made = iter(add_scan(outer, body, first, scanned, list(body.constants), length))
    return Values([mapped(lambda _: next(made), start), mapped(lambda _: next(made), y)])


def _checked(value: Value, what: str) -> Value:
    if not (isinstance(value, Node) or (isinstance(value, tuple) and value)):
        raise Problem("E-TYPE-001", f"scan: {what} is a tensor or a list of tensors, not {describe(value)}")
    for part in value if isinstance(value, tuple) else ():
        tensor(part, f"scan: {what}")
    return value


def _length(scanned: list[Node]) -> int:
    for node in scanned:
        if not node.shape:
            raise Problem("E-SHAPE-001", "scan goes over axis 0, and a tensor of rank 0 has none")
        if node.shape[0] != scanned[0].shape[0]:
            sizes = [size_text(n.shape[0], n.tensor.label(0)) for n in (scanned[0], node)]
            raise Problem("E-SHAPE-001", f"scan: the first axes differ, {sizes[0]} and {sizes[1]}")
    return scanned[0].shape[0]


def _begun(graph: Graph, value: Value, x: Node) -> Value:
    """The first carry: a number takes the dtype that it would have beside what is scanned."""
    if isinstance(value, tuple):
        return tuple([_begun(graph, part, x) for part in value])
    if isinstance(value, Node):
        return value
    if not is_number(value):
        raise Problem("E-TYPE-001", f"scan: a carry is a tensor or a list of tensors, not {describe(value)}")
    whole = isinstance(value, int) and x.dtype != "bool"
    return as_tensor(graph, value, "scan") if not whole else graph.constant(value, x.dtype)


def _arguments(body: Graph, name: str, value: Value, type_of: Callable[[Node], TensorType]) -> Value:
    numbers = iter(range(sum(1 for _ in tensors(value))))
    return mapped(lambda n: add_argument(body, f"{name}{next(numbers)}", type_of(n)), value)


def _element(node: Node) -> TensorType:
    return TensorType(node.dtype, node.shape[1:], node.tensor.labels[1:])


def _number_tensor(body: Graph, value: Value, start: Value) -> Value:
    """The next carry; a number in it is a tensor of the first carry's dtype."""
    if isinstance(value, tuple) and isinstance(start, tuple) and len(value) == len(start):
        return tuple([_number_tensor(body, v, s) for v, s in zip(value, start)])
    if is_number(value) and isinstance(start, Node):
        return as_tensor(body, value, "scan", start.dtype)
    return value


def _outputs(body: Graph, value: Value) -> Value:
    """What is stacked: a tensor, a list of them, or nil for nothing."""
    if value is None or isinstance(value, Node):
        return value
    if isinstance(value, tuple):
        return tuple([_outputs(body, part) for part in value])
    return as_tensor(body, value, "scan")


def _same_carry(start: Value, last: Value) -> None:
    if isinstance(start, tuple) and isinstance(last, tuple) and len(start) == len(last):
        for before, after in zip(start, last):
            _same_carry(before, after)
    elif not (isinstance(start, Node) and isinstance(last, Node)):
        raise Problem("E-TYPE-001", f"scan: the carry begins as {describe(start)} and becomes {describe(last)}")
    elif start.tensor != last.tensor:
        code = "E-SHAPE-001" if start.shape != last.shape else "E-TYPE-001"
        raise Problem(code, f"scan: the carry begins as {start.type} and becomes {last.type}")


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(scan F INIT XS)", _scan, "F of a carry and each element of XS in turn; gives (values LAST STACKED)."),
    ]
