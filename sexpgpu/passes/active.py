"""Which nodes a gradient flows through, and which forward values a backward pass reads again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import FLOATS, TensorType
from sexpgpu.ops.scan import add_argument
from sexpgpu.ops.table import OPS
from sexpgpu.passes.access import VIEWS

# Nodes with bodies, and what takes them apart.
NESTED = ("region", "scan")


def is_float(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.dtype in FLOATS


def dependent_nodes(graph: Graph, targets: Iterable[Node]) -> set[Node]:
    """The targets and the nodes that carry a gradient to one of them."""
    depends = set(targets)
    for node in graph.nodes:
        if OPS[node.op].vjp is None and node.op not in (*NESTED, "get"):
            continue
        if any(i in depends for i in node.inputs) and (node.op in NESTED or is_float(node)):
            depends.add(node)
    return depends


def active_nodes(roots: Iterable[Node], depends: set[Node]) -> set[Node]:
    """The nodes through which a gradient flows: they depend on a target and a root depends on them."""
    active: set[Node] = set()
    pending = [root for root in roots if root in depends]
    while pending:
        node = pending.pop()
        if node not in active:
            active.add(node)
            pending.extend(i for i in node.inputs if i in depends)
    return active


def materialised(work: Graph, forward_count: int, kept: Iterable[Node]) -> set[Node]:
    """The forward values that are in memory anyway (or `kept`): results of reductions and products, operands of these."""
    found = set()
    for node in work.nodes[:forward_count]:
        if OPS[node.op].kind not in ("pointwise", "view", "input") and isinstance(node.type, TensorType):
            found.add(node)
        if node.op == "contract":
            found.update(base_of(i) for i in node.inputs)
    return {n for n in found if n.op not in ("input", "constant", "iota")} | set(kept)


def first_reached(roots: Sequence[Node], forward_count: int, stops: set[Node]) -> set[Node]:
    """The forward nodes of `stops` that backward nodes reach first."""
    found: set[Node] = set()
    seen: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.index < forward_count and node in stops:
            found.add(node)
        else:
            pending.extend(node.inputs)
    return found


def base_of(node: Node) -> Node:
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def add_seed(work: Graph, k: int, type_: TensorType) -> Node:
    """The cotangent of output k as an input of a body, which may have such an input of its own already."""
    taken = {node.attributes["name"] for node in work.inputs}
    name = f"d{k}"
    while name in taken:
        name += "'"
    return add_argument(work, name, type_)


def reached(roots: Iterable[Node], stops: set[Node]) -> set[Node]:
    """What the roots need, up to the stops (which are among them)."""
    found: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            if node not in stops:
                pending.extend(node.inputs)
    return found


def with_outputs(
    body: Graph, work: Graph, forward_count: int, outputs: Sequence[Node], saved: Sequence[Node]
) -> Graph:
    """The body with the saved values as outputs `saved0`, `saved1`, … after its own; `work` begins with its nodes."""
    if not saved:
        return body
    forward = Graph(body.name)
    copies: dict[Node, Node] = {}
    for node in work.nodes[:forward_count]:
        copies[node] = forward.clone(node, [copies[i] for i in node.inputs])
    forward.outputs = {name: copies[node] for name, node in zip(body.outputs, outputs, strict=True)}
    # A derivative of a derivative saves more.
    before = sum(name.startswith("saved") for name in body.outputs)
    forward.outputs |= {f"saved{k}": copies[node] for k, node in enumerate(saved, before)}
    return forward
