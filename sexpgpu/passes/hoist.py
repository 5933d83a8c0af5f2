"""Moves out of loops what does not depend on their carries, where that makes one large operation of many small ones.

What is the same in every iteration is computed once before the loop; a product of what is scanned with something that
is the same in every iteration (an input's projection) becomes one product over all iterations; so does reading a table.
"""

from __future__ import annotations

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ops.scan import add_argument, add_scan
from sexpgpu.passes.access import VIEWS
from sexpgpu.passes.batching import batched, can_batch
from sexpgpu.passes.clusters import LEAVES
from sexpgpu.passes.trim import has_scans


def hoist(graph: Graph) -> Graph:
    """An equal graph; the same one where there is no loop."""
    if not has_scans(graph):
        return graph
    made = Graph(graph.name)
    replace: dict[Node, Node] = {}
    given: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "get" and node.inputs[0] in given:
            replace[node] = given[node.inputs[0]][node.attributes["index"]]
            continue
        inputs = [replace[i] for i in node.inputs]
        with made.like(node):
            if node.op == "scan":
                given[node] = _hoisted(node, inputs, made)
            elif "body" in node.attributes:
                replace[node] = made.add(node.op, inputs, {"body": hoist(node.attributes["body"])})
            else:
                replace[node] = made.clone(node, inputs)
    made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    return made


def _hoisted(node: Node, inputs: list[Node], graph: Graph) -> list[Node]:
    """The loop in the new graph, what is worth it computed before."""
    body = hoist(node.attributes["body"])
    carries, first_constant = node.attributes["carries"], node.attributes["carries"] + node.attributes["scanned"]
    outside = _Outside(node, body, inputs, graph)
    moved = outside.run() if node.attributes["length"] else []
    made = Graph(body.name)
    copies: dict[Node, Node] = {}
    given = list(zip(body.inputs, inputs, strict=True))
    groups = [given[:carries], given[carries:first_constant], given[first_constant:]]
    for inner, outer in moved:
        groups[1 if outside.stacked[inner] else 2].append((inner, outer))
    for name, group in zip(("carry", "x", "constant"), groups, strict=True):
        for k, (inner, _) in enumerate(group):
            copies[inner] = add_argument(made, f"{name}{k}", inner.tensor)
    for inner in body.nodes:
        if inner not in copies:
            copies[inner] = made.clone(inner, [copies[i] for i in inner.inputs])
    made.outputs = {name: copies[inner] for name, inner in body.outputs.items()}
    firsts, xs, constants = ([outer for _, outer in group] for group in groups)
    return add_scan(graph, made, firsts, xs, constants, node.attributes["length"], node.attributes["reverse"])


class _Outside:
    """Finds and computes what is hoisted out of one loop. `stacked`: of the nodes that need no carry, whether they differ
    between iterations and so have a leading axis outside."""

    def __init__(self, node: Node, body: Graph, inputs: list[Node], graph: Graph) -> None:
        self.body, self.graph = body, graph
        self.length: int = node.attributes["length"]
        carries, scanned = node.attributes["carries"], node.attributes["scanned"]
        self.stacked: dict[Node, bool] = {n: k < carries + scanned for k, n in enumerate(body.inputs) if k >= carries}
        self.values: dict[Node, Node] = dict(zip(body.inputs[carries:], inputs[carries:], strict=True))

    def run(self) -> list[tuple[Node, Node]]:
        """The nodes that are hoisted, and their values outside."""
        readers: dict[Node, list[Node]] = {}
        for node in self.body.nodes:
            for operand in node.inputs:
                readers.setdefault(operand, []).append(node)
            if node.op != "input":
                self._classify(node)
        outputs = set(self.body.outputs.values())
        found = []
        for node in self.body.nodes:
            if node not in self.stacked or not self._is_worth_it(node):
                continue
            # Of a chain that is computed once only the end is read in the loop.
            inside = [r for r in readers.get(node, ()) if self.stacked.get(r, True) or r.op in VIEWS]
            if self.stacked[node] or inside or node in outputs:
                found.append((node, self._value(node)))
        return found

    def _classify(self, node: Node) -> None:
        if node.op == "random" or "body" in node.attributes or not all(i in self.stacked for i in node.inputs):
            return
        stacked = any(self.stacked[i] for i in node.inputs)
        if not stacked or (can_batch(node) and not (node.op == "take" and self.stacked[node.inputs[0]])):
            self.stacked[node] = stacked

    def _is_worth_it(self, node: Node) -> bool:
        if node.op == "input" or node.op in LEAVES or node.op in VIEWS:
            return False
        if not self.stacked[node]:
            return bool(node.inputs)
        return node.op in ("contract", "take") and not all(self.stacked[i] for i in node.inputs)

    def _value(self, node: Node) -> Node:
        """The value outside: of all iterations, or the one that is the same in all."""
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [i for i in current.inputs if i not in self.values]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            if current in self.values:
                continue
            operands = [self.values[i] for i in current.inputs]
            with self.graph.like(current):
                if self.stacked[current]:
                    has = [self.stacked[i] for i in current.inputs]
                    self.values[current] = batched(self.graph, current, operands, has, self.length)
                else:
                    self.values[current] = self.graph.clone(current, operands)
        return self.values[node]

