"""Values that the backward pass computes again instead of keeping them: pointwise results that only its products read.

A weight's gradient is a product of the layer's input with its cotangent. Where that input is a few pointwise operations
on values that are kept anyway (gelu of the hidden layer, the output of a norm), keeping it costs memory all the way from
the forward to the backward pass, and computing it again costs one pass over what is at hand, most of it shared with the
derivative that reads the same values. The bits are the same: the same operations on the same operands.
"""

from __future__ import annotations

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes.access import VIEWS
from sexpgpu.passes.clusters import HEAVY, LEAVES, base_of, forward_end, is_pointwise, is_reduction
from sexpgpu.passes.fuse import NEAR
from sexpgpu.passes.inline import Flat
from sexpgpu.passes.stored import AGAIN_OPERATIONS

# Smaller values are kept: the memory is little and the pass is felt.
SMALLEST_BYTES = 2 << 20
# Large operands that may be read again.
MOST_OPERANDS = 2


def recompute(flat: Flat) -> Flat:
    """The graph with these values computed again next to the products that read them in the backward pass."""
    boundary = forward_end(flat.graph)
    if boundary >= len(flat.graph.nodes):
        return flat
    return _Recomputing(flat, boundary).run()


class _Recomputing:
    def __init__(self, flat: Flat, boundary: int) -> None:
        self.flat, self.boundary = flat, boundary
        self.made = Graph(flat.graph.name)
        self.sources: list[Node] = []
        self.readers: dict[Node, list[Node]] = {}
        self.outputs = {base_of(node) for node in flat.graph.outputs.values()}
        for node in flat.graph.nodes:
            if node.op not in VIEWS:
                for base in dict.fromkeys(map(base_of, node.inputs)):
                    self.readers.setdefault(base, []).append(node)
        self.at_hand = self._at_hand()
        self.again = {node for node in flat.graph.nodes if self._is_computed_again(node)}
        self.replace: dict[Node, Node] = {}
        self.copies: dict[Node, Node] = {}

    # -- which values

    def _later(self, value: Node) -> list[Node]:
        return [reader for reader in self.readers.get(value, ()) if reader.index > self.boundary]

    def _is_computed_again(self, value: Node) -> bool:
        if value.index > self.boundary or not is_pointwise(value) or value in self.outputs:
            return False
        later = self._later(value)
        if value.tensor.size_bytes < SMALLEST_BYTES or not later or any(r.op != "contract" for r in later):
            return False
        return any(r.index <= self.boundary and r.op in HEAVY for r in self.readers[value]) and self._is_close(value)

    def _at_hand(self) -> set[Node]:
        """The values of the forward pass that are in memory in the backward pass in any case: kernels there read them,
        or read pointwise results that are computed from them."""
        found: set[Node] = set()
        seen: set[Node] = set()
        pending = [
            base
            for node in self.flat.graph.nodes[self.boundary + 1 :]
            if node.op not in HEAVY and node.op not in VIEWS
            for base in map(base_of, node.inputs)
            if base.index <= self.boundary
        ]
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if is_pointwise(node) and not self._is_stored(node):
                pending.extend(map(base_of, node.inputs))
            else:
                found.add(node)
        return found

    def _is_stored(self, value: Node) -> bool:
        """Whether a pointwise value is in memory: something other than a pointwise kernel reads it."""
        return any(r.op in HEAVY or is_reduction(r) for r in self.readers.get(value, ()))

    def _is_close(self, value: Node) -> bool:
        """Whether a value takes few operations on what is at hand."""
        operations = 0
        large: set[Node] = set()
        seen: set[Node] = set()
        pending = list(map(base_of, value.inputs))
        while pending:
            node = pending.pop()
            if node in seen or node.op in ("constant", "iota", "host"):
                continue
            seen.add(node)
            if node.op == "input" or node in self.at_hand:
                if 2 * node.tensor.elements >= value.tensor.elements:
                    large.add(node)
            elif is_pointwise(node) and node.op not in LEAVES:
                operations += 1
                pending.extend(map(base_of, node.inputs))
            else:
                return False
        return operations < AGAIN_OPERATIONS and len(large) <= MOST_OPERANDS

    # -- the graph in its new order

    def run(self) -> Flat:
        if not self.again:
            return self.flat
        waiting = self._waiting()
        held = {product for products in waiting.values() for product in products}
        for node, source in zip(self.flat.graph.nodes, self.flat.sources, strict=True):
            if node not in held:
                self._emit(node, source)
            for product in waiting.get(node, ()):
                self._emit(product, self.flat.sources[product.index])
        self.made.outputs = {name: self.replace[node] for name, node in self.flat.graph.outputs.items()}
        return Flat(self.made, self.sources, self.flat.notes)

    def _waiting(self) -> dict[Node, list[Node]]:
        """Products that run later, by the node after which: the derivative that shares the work comes first."""
        found: dict[Node, list[Node]] = {}
        for product in self.flat.graph.nodes[self.boundary + 1 :]:
            values = self.again.intersection(map(base_of, product.inputs))
            if product.op != "contract" or not values:
                continue
            first = min((r.index for r in self.readers.get(product, ())), default=len(self.flat.graph.nodes))
            shared = {base_of(operand) for value in values for operand in value.inputs}
            near = [
                r for x in shared for r in self._later(x)
                if product.index < r.index < min(first, product.index + NEAR) and is_pointwise(r)
            ]  # fmt: skip
            if near:
                found.setdefault(max(near, key=lambda r: r.index), []).append(product)
        return found

    def _emit(self, node: Node, source: Node) -> None:
        inputs = [self.replace[i] for i in node.inputs]
        if node.index > self.boundary and node.op == "contract":
            inputs = [self._operand(i) for i in node.inputs]
        self.replace[node] = self._put(node, inputs, source)

    def _operand(self, node: Node) -> Node:
        """The operand of a product, its value computed here where it is one of those."""
        value = base_of(node)
        if value not in self.again:
            return self.replace[node]
        source = self.flat.sources[value.index]
        if node is value:
            if value not in self.copies:
                self.copies[value] = self._put(value, [self.replace[i] for i in value.inputs], source)
            return self.copies[value]
        return self._put(node, [self._operand(node.inputs[0])], source)

    def _put(self, node: Node, inputs: list[Node], source: Node) -> Node:
        made = Node(self.made, len(self.made.nodes), node.op, tuple(inputs), node.attributes, node.type, node.origins)
        self.made.nodes.append(made)
        self.sources.append(source)
        return made
