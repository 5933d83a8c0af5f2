"""Loops without what nothing needs: outputs that nobody reads, carries that never change, operands all of one value."""

from __future__ import annotations

from collections.abc import Iterable

from sexpgpu.ir.graph import Graph, Node, live_nodes
from sexpgpu.ops.scan import add_argument, add_scan, parts
from sexpgpu.passes.active import reached


def has_scans(graph: Graph) -> bool:
    """Whether a graph, its bodies included, holds a loop."""
    bodies = {id(n.attributes["body"]): n.attributes["body"] for n in graph.nodes if "body" in n.attributes}
    return any(node.op == "scan" for node in graph.nodes) or any(map(has_scans, bodies.values()))


def trim(graph: Graph) -> Graph:
    """The graph with every loop trimmed, those inside bodies too."""
    live = live_nodes(graph)
    made = Graph(graph.name)
    read: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node.op == "get" and node in live:
            read.setdefault(node.inputs[0], set()).add(node.attributes["index"])
    replace: dict[Node, Node] = {}
    given: dict[Node, dict[int, Node]] = {}
    for node in graph.nodes:
        if node not in live and node.op != "input":
            continue
        if node.op == "get" and node.inputs[0] in given:
            replace[node] = given[node.inputs[0]][node.attributes["index"]]
            continue
        inputs = [replace[i] for i in node.inputs] if node.op != "scan" else []
        with made.like(node):
            if node.op == "scan":
                given[node] = _Trimmed(node, read[node], made, replace).run()
            elif "body" in node.attributes and has_scans(node.attributes["body"]):
                replace[node] = made.add(node.op, inputs, {"body": trim(node.attributes["body"])})
            else:
                replace[node] = made.clone(node, inputs)
    made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    return made


class _Trimmed:
    """One loop on its way into another graph; `read` are the outputs that anybody reads."""

    def __init__(self, node: Node, read: set[int], graph: Graph, replace: dict[Node, Node]) -> None:
        self.node, self.read, self.graph, self.replace = node, read, graph, replace
        self.old: Graph = node.attributes["body"]
        self.outputs = list(self.old.outputs.values())
        self.arguments = self.old.inputs
        self.length: int = node.attributes["length"]
        self.carries: int = node.attributes["carries"]

    def run(self) -> dict[int, Node]:
        """What the loop gives, by the index of the output."""
        firsts, xs, constants = ([self.replace[n] for n in group] for group in parts(self.node))
        if self.length == 0:
            return {k: firsts[k] if k < self.carries else self._empty(k) for k in self.read}
        fixed = {k for k in range(self.carries) if self.outputs[k] is self.arguments[k]}
        kept = self._needed_carries(fixed)
        self.body = Graph(self.old.name)
        self.copies: dict[Node, Node] = {}
        self.needed = reached([self.outputs[k] for k in {*kept, *self.read}], set())
        first = [firsts[k] for k in kept]
        for k in kept:
            self.copies[self.arguments[k]] = add_argument(self.body, f"carry{len(self.copies)}", self.arguments[k].tensor)
        later: list[tuple[Node, Node]] = [(self.arguments[k], firsts[k]) for k in sorted(fixed)]
        scanned: dict[Node, Node] = {}
        for argument, x in zip(self.arguments[self.carries :], xs, strict=False):
            if argument not in self.needed:
                continue
            if x.op == "constant" or (x.op == "broadcast" and 0 not in x.attributes["dims"]):
                later.append((argument, x))
                continue
            if x not in scanned:
                scanned[x] = add_argument(self.body, f"x{len(scanned)}", argument.tensor)
            self.copies[argument] = scanned[x]
        later += zip(self.arguments[self.carries + len(xs) :], constants, strict=True)
        held = self._constants(later)
        for n in self.old.nodes:
            if n in self.needed and n not in self.copies:
                self.copies[n] = self.body.clone(n, [self.copies[i] for i in n.inputs])
        made = self._outputs(kept)
        body = trim(self.body) if has_scans(self.body) else self.body
        results = add_scan(self.graph, body, first, list(scanned), held, self.length, self.node.attributes["reverse"])
        given = {k: results[at] for k, at in made.items()}
        return given | {k: firsts[k] for k in fixed & self.read}

    def _needed_carries(self, fixed: set[int]) -> list[int]:
        """The carries that an output depends on, or that are one; not those that never change."""
        needed = {k for k in self.read if k < self.carries}
        while True:
            found = reached([self.outputs[k] for k in needed | self.read], set())
            more = {k for k in range(self.carries) if self.arguments[k] in found} - needed
            if not more:
                return sorted(needed - fixed)
            needed |= more

    def _constants(self, later: Iterable[tuple[Node, Node]]) -> list[Node]:
        """Gives the body what is the same in every iteration: numbers are written there, other values are operands."""
        held: dict[Node, Node] = {}
        for argument, value in later:
            if argument not in self.needed:
                continue
            shape, dims = argument.shape, None
            if value.op == "constant":
                self.copies[argument] = self.body.constant(value.attributes["value"], value.dtype, shape)
                continue
            if value.shape != shape:
                # All elements of what is scanned are the same.
                dims = tuple(d - 1 for d in value.attributes["dims"])
                value = value.inputs[0]
            if value not in held:
                held[value] = add_argument(self.body, f"constant{len(held)}", value.tensor)
            made = held[value]
            self.copies[argument] = made if dims is None else self.body.add("broadcast", (made,), {"shape": shape, "dims": dims})
        return list(held)

    def _outputs(self, kept: list[int]) -> dict[int, int]:
        """Sets the body's outputs; gives the place of each that is read. What is stacked twice is stacked once."""
        for at, k in enumerate(kept):
            self.body.outputs[f"out{at}"] = self.copies[self.outputs[k]]
        places = {k: at for at, k in enumerate(kept)}
        stacked: dict[Node, int] = {}
        for k in sorted(self.read):
            if k >= self.carries:
                node = self.copies[self.outputs[k]]
                if node not in stacked:
                    stacked[node] = len(self.body.outputs)
                    self.body.outputs[f"out{len(self.body.outputs)}"] = node
                places[k] = stacked[node]
        return places

    def _empty(self, k: int) -> Node:
        node = self.outputs[k]
        return self.graph.constant(0, node.dtype, (0, *node.shape))
