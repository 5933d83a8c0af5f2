"""Simplification: a graph is rebuilt in order, each node through the rules of its operation, dead nodes left behind.

Every rule keeps the value bit for bit (NaN, infinities and signs of zero included); no rule removes a narrowing cast.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sexpgpu.ir.graph import Graph, Node, live_nodes
from sexpgpu.ir.rewrite import build, match, parse_rules
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.pointwise import PRIMITIVES, numpy_dtype
from sexpgpu.ops.product import free_axes
from sexpgpu.ops.table import OPS

RULES = parse_rules("""
(mul ?x 1) => ?x
(mul 1 ?x) => ?x
(mul ?x -1) => (neg ?x)
(mul -1 ?x) => (neg ?x)
(div ?x 1) => ?x
(div ?x -1) => (neg ?x)
(add ?x -0.0) => ?x
(add -0.0 ?x) => ?x
(sub ?x 0.0) => ?x
(neg (neg ?x)) => ?x
(add ?x (neg ?y)) => (sub ?x ?y)
(add (neg ?x) ?y) => (sub ?y ?x)
(sub ?x (neg ?y)) => (add ?x ?y)
(mul (neg ?x) ?y) => (neg (mul ?x ?y))
(mul ?x (neg ?y)) => (neg (mul ?x ?y))
(div (neg ?x) ?y) => (neg (div ?x ?y))
(div ?x (neg ?y)) => (neg (div ?x ?y))
(abs (neg ?x)) => (abs ?x)
(abs (abs ?x)) => (abs ?x)
(logical_not (logical_not ?x)) => ?x
(select ?c ?x ?x) => ?x
(select (logical_not ?c) ?x ?y) => (select ?c ?y ?x)
""")

_MOVES = ("reshape", "permute", "broadcast", "slice", "flip")


def simplify(graph: Graph) -> Graph:
    """An equal graph with fewer nodes."""
    return _Simplifier({}).run(graph)


class _Simplifier:
    def __init__(self, bodies: dict[int, tuple[Graph, Graph]]) -> None:
        # Old body → new one (the old is kept so that its identity stays taken).
        self.bodies = bodies

    def run(self, graph: Graph) -> Graph:
        made = Graph(graph.name)
        live = live_nodes(graph)
        replace: dict[Node, Node] = {}
        for node in graph.nodes:
            # Inputs stay even where unread: a body's arguments are positional.
            if node in live or node.op == "input":
                replace[node] = self._node(made, node, [replace[i] for i in node.inputs])
        made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
        return _without_dead(made)

    def _node(self, made: Graph, node: Node, inputs: list[Node]) -> Node:
        if "body" in node.attributes:
            with made.like(node):
                return made.add(node.op, inputs, {**node.attributes, "body": self._body(node.attributes["body"])})
        new = made.clone(node, inputs)
        with made.like(node):
            while True:
                better = _better(made, new)
                if better is None or better is new:
                    return new
                new = better

    def _body(self, body: Graph) -> Graph:
        if id(body) not in self.bodies:
            self.bodies[id(body)] = (body, _Simplifier(self.bodies).run(body))
        return self.bodies[id(body)][1]


def _without_dead(graph: Graph) -> Graph:
    live = live_nodes(graph)
    if len(live) == len(graph.nodes):
        return graph
    made = Graph(graph.name)
    replace: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in live or node.op == "input":
            replace[node] = made.clone(node, [replace[i] for i in node.inputs])
    made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    return made


def _better(graph: Graph, node: Node) -> Node | None:
    for rule in RULES.get(node.op, ()):
        found: dict[str, Node] = {}
        if match(rule.pattern, node, found):
            return build(rule.result, graph, found, node)
    structural = _STRUCTURAL.get(node.op)
    if structural is not None:
        better = structural(graph, node)
        if better is not None:
            return better
    return _folded(graph, node)


def _folded(graph: Graph, node: Node) -> Node | None:
    """A pointwise operation of constants, computed in the dtype's own arithmetic where that is exact IEEE."""
    if node.op not in _FOLDABLE or not node.inputs or any(i.op != "constant" for i in node.inputs):
        return None
    operands = [numpy_dtype(i.dtype).type(i.attributes["value"]) for i in node.inputs]
    with np.errstate(all="ignore"):
        value = PRIMITIVES[node.op].run(*operands)
    return graph.constant(value.item(), node.dtype, node.shape)


# Correctly rounded operations only: the others are our own formulas, whose bits a device gives.
_FOLDABLE = frozenset(
    ("neg", "abs", "add", "sub", "mul", "div", "sqrt", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "ne",
     "logical_and", "logical_or", "logical_not", "floor", "ceil", "round")
)  # fmt: skip


def _refilled(graph: Graph, node: Node) -> Node | None:
    """A moved constant is a constant of the new shape."""
    source = node.inputs[0]
    if source.op != "constant":
        return None
    return graph.constant(source.attributes["value"], node.dtype, node.shape)


def _reshape(graph: Graph, node: Node) -> Node | None:
    source = node.inputs[0]
    if source.shape == node.shape:
        return source
    if source.op == "reshape":
        return graph.add("reshape", (source.inputs[0],), node.attributes)
    return _refilled(graph, node)


def _permute(graph: Graph, node: Node) -> Node | None:
    source, axes = node.inputs[0], node.attributes["axes"]
    if axes == tuple(range(len(axes))):
        return source
    if source.op == "permute":
        inner = source.attributes["axes"]
        return graph.add("permute", (source.inputs[0],), {"axes": tuple(inner[a] for a in axes)})
    return _refilled(graph, node)


def _broadcast(graph: Graph, node: Node) -> Node | None:
    source = node.inputs[0]
    if source.shape == node.shape:
        return source
    if source.op == "broadcast":
        dims = tuple(node.attributes["dims"][d] for d in source.attributes["dims"])
        return graph.add("broadcast", (source.inputs[0],), {"shape": node.shape, "dims": dims})
    return _refilled(graph, node)


def _slice(graph: Graph, node: Node) -> Node | None:
    source = node.inputs[0]
    if source.shape == node.shape:
        return source
    if source.op == "overlap_add":
        return _narrowed(graph, source, node)
    return _refilled(graph, node)


def _narrowed(graph: Graph, overlap: Node, cut: Node) -> Node | None:
    """What is cut off an overlap-add is not summed in the first place."""
    lead = len(cut.shape) - len(overlap.attributes["shape"])
    if cut.shape[:lead] != overlap.shape[:lead] or set(cut.attributes["steps"]) != {1}:
        return None
    low = tuple(a + b for a, b in zip(overlap.attributes["low"], cut.attributes["starts"][lead:], strict=True))
    return graph.add("overlap_add", overlap.inputs, overlap.attributes | {"low": low, "shape": cut.shape[lead:]})


def _flip(graph: Graph, node: Node) -> Node | None:
    source = node.inputs[0]
    if not node.attributes["axes"]:
        return source
    if source.op == "flip" and source.attributes == node.attributes:
        return source.inputs[0]
    return _refilled(graph, node)


def _cast(graph: Graph, node: Node) -> Node | None:
    source = node.inputs[0]
    if source.dtype == node.dtype:
        return source
    if source.op == "constant" and source.dtype in ("bool", "u8", "i32") and node.dtype in FLOATS:
        value = numpy_dtype(node.dtype).type(source.attributes["value"])
        return graph.constant(float(value), node.dtype, node.shape)
    return None


def _reduced(graph: Graph, node: Node) -> Node | None:
    return node.inputs[0] if not node.attributes["axes"] else None


def _pad(graph: Graph, node: Node) -> Node | None:
    return node.inputs[0] if node.inputs[0].shape == node.shape else None


def _concat(graph: Graph, node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _contract(graph: Graph, node: Node) -> Node | None:
    """A permuted operand is read through its axes: no copy, and a weight's gradient has the weight's own order. A sum
    over nothing is 0."""
    if any(0 in operand.shape for operand in node.inputs):
        return graph.constant(numpy_dtype(node.dtype).type(0).item(), node.dtype, node.shape)
    for side in (0, 1):
        operand = node.inputs[side]
        if operand.op != "permute":
            continue
        axes = operand.attributes["axes"]
        batch, contracted = node.attributes["batch"], node.attributes["contracted"]
        free = free_axes(operand.tensor.rank, batch[side], contracted[side])
        # The free axes of the result stand in the operand's order: it must not change.
        if sorted(axes[i] for i in free) != [axes[i] for i in free]:
            continue
        inputs = list(node.inputs)
        inputs[side] = operand.inputs[0]
        moved = {
            name: tuple(tuple(axes[i] for i in part) if k == side else part for k, part in enumerate(pairs))
            for name, pairs in (("batch", batch), ("contracted", contracted))
        }
        return graph.add("contract", inputs, moved)
    return None


_STRUCTURAL: dict[str, Callable[[Graph, Node], Node | None]] = {
    "reshape": _reshape,
    "permute": _permute,
    "broadcast": _broadcast,
    "slice": _slice,
    "flip": _flip,
    "cast": _cast,
    "pad": _pad,
    "concat": _concat,
    "contract": _contract,
    **{name: _reduced for name, op in OPS.items() if op.kind == "reduce" and not name.startswith("arg")},
}
