"""The table of gradients inside an expression: `grad` of a function at tensors, `grad-params` of a value.

The function runs on the inputs of a graph of its own, which is differentiated and written into the graph at hand: what comes
out are ordinary nodes, so a gradient has a gradient, and a scan's body may hold one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.ir.graph import Graph, Node, copy_into
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.scan import add_argument
from sexpgpu.passes.active import dependent_nodes, reached
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.elaboration.bodies import Body, is_wrong
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import POISON, Builtin, Problem, Value, Values, describe, listed, tensor
from sexpgpu.passes.globs import glob, nearest_glob

ONE = ("number", 1.0)


def _grad(m: Machine, f: Value, xs: tuple[Value, ...]) -> Value:
    if not xs:
        raise Problem("E-TYPE-001", "grad takes the function and where its gradient is wanted: (grad (fn (x …) E) X …)")
    points = [_point(x) for x in xs]
    span, outer = m.here, m.graph
    assert span is not None
    body = Body(outer)
    arguments = [add_argument(body, f"at{k}", x.tensor) for k, x in enumerate(points)]
    m.graph = body
    try:
        with body.at(outer._origin):
            value = m.call(f, arguments, span)
    finally:
        m.graph = outer
    if is_wrong(value):
        return POISON
    # What the function gives may stand outside altogether: then it is a constant of the body.
    body.outputs["value"] = body.inside(_scalar(value, "grad"))
    replace = dict(zip(arguments, points, strict=True)) | {inner: node for node, inner in body.constants.items()}
    gradients = _written(outer, body, arguments, replace)
    return gradients[0] if len(gradients) == 1 else Values(gradients)


def _grad_params(m: Machine, value: Value, pattern: Value) -> Value:
    if not isinstance(pattern, str) or not pattern:
        raise Problem("E-TYPE-001", f"grad-params: the glob is a text, not {describe(pattern)}")
    root = _scalar(value, "grad-params")
    targets = _parameters(m.graph, pattern)
    if isinstance(m.graph, Body):
        _nothing_between(m.graph, targets)
        targets = [m.graph.inside(node) for node in targets]
    part = Graph("grad-params")
    replace: dict[Node, Node] = {}
    needed = reached([root, *targets], set())
    for node in m.graph.nodes:
        if node in needed:
            replace[node] = part.clone(node, [replace[i] for i in node.inputs])
    part.outputs["value"] = replace[root]
    leaves = {replace[node]: node for node in m.graph.inputs if node in replace}
    return listed(_written(m.graph, part, [replace[node] for node in targets], leaves))


def _point(value: Value) -> Node:
    node = tensor(value, "grad: where the gradient is wanted")
    if node.dtype not in FLOATS:
        raise Problem("E-TYPE-001", f"grad: only float tensors have a gradient, and this one is {node.type}")
    return node


def _scalar(value: Value, what: str) -> Node:
    if not isinstance(value, Node) or value.dtype not in FLOATS:
        raise Problem("E-TYPE-001", f"{what}: the gradient of a float scalar, not of {describe(value)}")
    if value.shape:
        note = "take its sum or mean"
        raise Problem("E-SHAPE-001", f"{what}: the gradient of a scalar, not of {value.type}", notes=[note])
    return value


def _written(outer: Graph, graph: Graph, targets: Sequence[Node], leaves: dict[Node, Node]) -> list[Node]:
    """The gradients of the graph's output `value`, written into `outer` with its `leaves` for the graph's inputs."""
    made = differentiate(graph, {"value": ONE}, {str(k): node for k, node in enumerate(targets)})
    # The copy has the graph's inputs, in order.
    replace = {copy: leaves[node] for copy, node in zip(made.inputs, graph.inputs, strict=True)}
    copy_into(outer, made, replace)
    return [replace[made.outputs[f"gradient:{k}"]] for k in range(len(targets))]


def _parameters(graph: Graph, pattern: str) -> list[Node]:
    """The parameters read so far whose names match, in order."""
    while isinstance(graph, Body):
        graph = graph.outer
    known = {node.attributes["name"]: node for node in graph.inputs if node.attributes["kind"] == "parameter"}
    matches = glob(pattern)
    found = [node for name, node in known.items() if matches.match(name)]
    if not found:
        close = nearest_glob(pattern, list(known))
        notes = [f"did you mean {close}?"] if close else ["the parameters of what stands before are known"]
        raise Problem("E-NAME-001", f"grad-params: {pattern} matches no parameter", notes=notes)
    return found


def _nothing_between(body: Body, parameters: Sequence[Node]) -> None:
    """Inside a function of grad or scan a parameter must be read there: what was computed from it outside is a constant."""
    graph: Graph = body
    while isinstance(graph, Body):
        outer = graph.outer
        targets = [outer.inside(node) if isinstance(outer, Body) else node for node in parameters]
        between = dependent_nodes(outer, targets) - set(targets)
        if any(node in between for node in graph.constants):
            message = "grad-params: the function takes a value from outside that depends on the parameters"
            raise Problem("E-TYPE-001", message, notes=["compute it inside, or take grad-params outside"])
        graph = outer


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(grad F X…)", _grad, "The gradient of the scalar that F gives, at X…; several as (values …). It has a gradient."),
        row("(grad-params E GLOB)", _grad_params, "The gradients of the scalar E for the parameters that match GLOB, a list."),
    ]
