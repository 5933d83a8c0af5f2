"""Which values of clusters go through memory.

A value read outside its cluster does, unless computing it again is cheap or it would be kept from the forward to the
backward pass; or unless its readers take it apart, each its own elements: then each is computed where it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import prod

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes.clusters import HEAVY, LEAVES, Cluster, base_of, is_pointwise, is_reduction

EXPENSIVE = frozenset("exp expm1 log log1p sin cos tanh sigmoid erf pow".split())
# What may be computed again for one more reader: in the same pass, and in the backward pass.
CHEAP_OPERATIONS, CHEAP_LOADS = 4, 1
AGAIN_OPERATIONS, AGAIN_LOADS = 48, 5
# A value a row may take more operations for a reader that has this many elements a row.
LONG_ROW, ROW_OPERATIONS = 16, 12
# Operations and loads of a value that is computed in the kernels that take it apart.
MOST_APART = 12


class Storing:
    """Finds the stored values of one graph. `boundary` is the last node of the forward pass; `alone` makes a node that is
    in no cluster one of its own."""

    def __init__(
        self, graph: Graph, owner: dict[Node, Cluster], boundary: int, keep_values: bool, alone: Callable[[Node], None]
    ) -> None:
        self.graph = graph
        self.owner = owner
        self.boundary = boundary
        self.keep_values = keep_values
        self.alone = alone
        self.stored: set[Node] = set()
        self.apart = _taken_apart(graph)

    def run(self) -> set[Node]:
        for node in self.graph.outputs.values():
            self._demand_stored(base_of(node))
        later: list[tuple[Node, Node]] = []
        for node in self.graph.nodes:
            if node.op in HEAVY:
                for operand in node.inputs:
                    self._demand_stored(base_of(operand))
            elif node in self.owner or is_pointwise(node):
                self._demands(node, later)
        for reader, value in later:
            self._demand(reader, value, later)
        return self.stored

    def _demands(self, node: Node, later: list[tuple[Node, Node]]) -> None:
        """What a node's kernel reads from elsewhere. Values of the forward pass that the backward pass reads come last:
        by then it is known which of them are in memory anyway."""
        if node not in self.owner:
            return
        for operand in node.inputs:
            value = base_of(operand)
            if self.owner.get(value) is self.owner[node]:
                continue
            if value.index <= self.boundary < node.index:
                later.append((node, value))
            else:
                self._demand(node, value, later)

    def _demand(self, reader: Node, value: Node, later: list[tuple[Node, Node]]) -> None:
        if value in self.stored or not (is_pointwise(value) or is_reduction(value)):
            return
        again = value.index <= self.boundary < reader.index
        if value not in self.owner:
            # Computed where it is read: what it reads is read there.
            for operand in value.inputs:
                self._demand(reader, base_of(operand), later)
            return
        operations, loads = (AGAIN_OPERATIONS, AGAIN_LOADS) if again else (CHEAP_OPERATIONS, CHEAP_LOADS)
        if prod(self._space(reader)) >= LONG_ROW * value.tensor.elements:
            operations = max(operations, ROW_OPERATIONS)
        if value in self.apart and not again:
            operations, loads = MOST_APART, MOST_APART
        from_memory = None
        if not self.keep_values and not is_reduction(value):
            from_memory = self._cheap(value, operations, loads, again)
        if from_memory is None:
            self._demand_stored(value)
        else:
            for node in from_memory:
                self._demand_stored(node)

    def _space(self, reader: Node) -> tuple[int, ...]:
        owner = self.owner.get(reader)
        return reader.shape if owner is None else owner.space

    def _cheap(self, value: Node, operations: int, loads: int, again: bool) -> list[Node] | None:
        """What has to be in memory for a value to be computed again, or None where that takes too much."""
        home = self.owner.get(value)
        from_memory: list[Node] = []
        seen: set[Node] = set()
        read: set[Node] = set()
        pending = [value]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.stored or not is_pointwise(node):
                if is_reduction(node) and node not in self.stored:
                    # Another cluster's reduction will be in memory: this value's cluster reads it.
                    if self.owner.get(node) is home:
                        return None
                    from_memory.append(node)
                if node.op not in LEAVES and node.tensor.elements >= value.tensor.elements > 1:
                    read.add(node)
                continue
            if node.op in EXPENSIVE and not again and value not in self.apart:
                return None
            operations -= 1
            pending.extend(map(base_of, node.inputs))
            if operations < 0 or len(read) > loads:
                return None
        return from_memory if len(read) <= loads else None

    def _demand_stored(self, value: Node) -> None:
        if value in self.stored or not (is_pointwise(value) or is_reduction(value)):
            return
        if value not in self.owner:
            self.alone(value)
            self.stored.add(value)
            self._demands(value, [])
            return
        self.stored.add(value)


def _taken_apart(graph: Graph) -> set[Node]:
    """The values of which every reader is a slice along one axis, and no two slices share an element."""
    slices: dict[Node, list[Node]] = {}
    others = set(graph.outputs.values())
    for node in graph.nodes:
        for operand in node.inputs:
            if node.op == "slice":
                slices.setdefault(operand, []).append(node)
            else:
                others.add(operand)
    return {value for value, parts in slices.items() if value not in others and _are_apart(value, parts)}


def _are_apart(value: Node, parts: list[Node]) -> bool:
    cut = {i for part in parts for i, (n, whole) in enumerate(zip(part.shape, value.shape, strict=True)) if n != whole}
    if len(cut) != 1:
        return False
    (axis,) = cut
    ranges = sorted((part.attributes["starts"][axis], part.attributes["limits"][axis]) for part in parts)
    return all(end <= start for (_, end), (start, _) in pairwise(ranges))
