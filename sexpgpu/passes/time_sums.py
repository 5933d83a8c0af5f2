"""Sums over the iterations of a loop, computed after it: of a product of stacked values one product over all of them."""

from __future__ import annotations

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ops.scan import add_argument
from sexpgpu.passes.access import VIEWS
from sexpgpu.passes.batching import batched, can_batch, over_time

_LINEAR_VIEWS = (*VIEWS, "pad", "overlap_add")


class TimeSums:
    """Builds `graph`, the sums of nodes of a body (`work`) over `length` iterations.

    constants  the body's inputs that are the same in every iteration
    stacks     node of the body → input of `graph`: its values of all iterations, on a leading axis
    invariants constant → input of `graph`
    """

    def __init__(self, work: Graph, constants: list[Node], length: int, stops: set[Node]) -> None:
        self.work = work
        self.length = length
        self.stops = stops
        self.graph = Graph(f"{work.name}-sums")
        self.stacks: dict[Node, Node] = {}
        self.invariants: dict[Node, Node] = {}
        self._constants = set(constants)
        self._varying: dict[Node, bool] = {}

    def add(self, name: str, node: Node) -> Node | None:
        """The sum of the node as output `name`; gives the part of it that has to be summed in the loop, if any."""
        total: Node | None = None
        rest: Node | None = None
        for term, negative in _terms(node):
            made = self._total(term)
            if made is None:
                term = -term if negative else term
                rest = term if rest is None else rest + term
            else:
                made = -made if negative else made
                total = made if total is None else total + made
        if total is not None:
            self.graph.outputs[name] = total
        return rest

    def _total(self, node: Node) -> Node | None:
        """The sum over time of a node, or None where it is not linear in what can be stacked."""
        if not self._varies(node):
            return None
        given = node.attributes
        if node.op in _LINEAR_VIEWS and given.get("value", 0) == 0:
            inner = self._total(node.inputs[0])
            return None if inner is None else self.graph.add(node.op, (inner,), given)
        if node.op == "sum":
            axes = (0, *(a + 1 for a in given["axes"]))
            return self.graph.add("sum", (self._stacked(node.inputs[0]),), {"axes": axes})
        if node.op == "contract":
            return self._product(node)
        if node.op == "scatter_add" and _is_zero(node.inputs[0]):
            zero, indices, updates = node.inputs
            axis = given["axis"]
            if not self._varies(indices):
                return None
            moved = self._stacked(updates)
            if axis:
                axes = (*range(1, axis + 1), 0, *range(axis + 1, moved.tensor.rank))
                moved = self.graph.add("permute", (moved,), {"axes": axes})
            base = self.graph.constant(0.0, zero.dtype, zero.shape)
            return self.graph.add("scatter_add", (base, self._stacked(indices), moved), given)
        return None

    def _product(self, node: Node) -> Node | None:
        a, b = node.inputs
        batch, contracted = node.attributes["batch"], node.attributes["contracted"]
        if self._varies(a) and self._varies(b):
            later = {"batch": tuple(tuple(i + 1 for i in axes) for axes in batch)}
            later["contracted"] = tuple((0, *(i + 1 for i in axes)) for axes in contracted)
            return self.graph.add("contract", (self._stacked(a), self._stacked(b)), later)
        pair = [self._total(x) if self._varies(x) else self._invariant(x) for x in (a, b)]
        if pair[0] is None or pair[1] is None:
            return None
        return self.graph.add("contract", (pair[0], pair[1]), node.attributes)

    def _stacked(self, node: Node) -> Node:
        """The values of all iterations."""
        if not self._varies(node):
            return over_time(self._invariant(node), self.length)
        if node in self.stacks:
            return self.stacks[node]
        if node.op in VIEWS and can_batch(node) and node not in self.stops:
            return batched(self.graph, node, [self._stacked(node.inputs[0])], [True], self.length)
        type_ = node.tensor
        shape = (self.length, *type_.shape)
        self.stacks[node] = add_argument(self.graph, f"t{node.index}", type(type_)(type_.dtype, shape))
        return self.stacks[node]

    def _invariant(self, node: Node) -> Node:
        if node in self._constants:
            if node not in self.invariants:
                self.invariants[node] = add_argument(self.graph, f"c{node.index}", node.tensor)
            return self.invariants[node]
        return self.graph.clone(node, [self._invariant(i) for i in node.inputs])

    def _varies(self, node: Node) -> bool:
        """Whether a node's value may differ between iterations. Draws do."""
        known = self._varying
        pending = [node]
        while pending:
            current = pending[-1]
            missing = [i for i in current.inputs if i not in known]
            if current in known or not missing:
                if current not in known:
                    of_itself = current.op == "random" or (current.op == "input" and current not in self._constants)
                    known[current] = of_itself or "body" in current.attributes or any(known[i] for i in current.inputs)
                pending.pop()
            else:
                pending.extend(missing)
        return known[node]


def _terms(node: Node) -> list[tuple[Node, bool]]:
    """What is added and what is subtracted (True)."""
    made: list[tuple[Node, bool]] = []
    pending = [(node, False)]
    while pending:
        current, negative = pending.pop()
        if current.op in ("add", "sub"):
            pending.append((current.inputs[1], negative != (current.op == "sub")))
            pending.append((current.inputs[0], negative))
        elif current.op == "neg":
            pending.append((current.inputs[0], not negative))
        else:
            made.append((current, negative))
    return made


def _is_zero(node: Node) -> bool:
    return node.op == "constant" and node.attributes["value"] == 0
