"""Which primitives run in one kernel: the clusters of a flat graph.

A cluster is a set of pointwise operations and reductions over one space of elements: a map (no reduction), rows (its
reductions are over the last axes) or column reductions. Nodes join in order: a node joins the cluster of an operand
when every other operand is there before that cluster begins, or the cluster can wait for it because nothing that was
placed yet reads the cluster's values. So clusters in the order of their starts are a valid order of execution.
"""

from __future__ import annotations

from typing import Literal

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ops.table import OPS
from sexpgpu.passes.access import VIEWS, ZERO, Access, Index, NotAffine, Refine, pull
from sexpgpu.passes.clusters import (
    BEFORE,
    LEAVES,
    Cluster,
    Fusion,
    Moment,
    base_of,
    forward_end,
    is_pointwise,
    is_reduction,
)
from sexpgpu.passes.stored import Storing

MOST_NODES = 120
MOST_READS = 24
# Kernels over one space that read the same value become one where they stand this near.
NEAR = 100


def fuse(graph: Graph, *, keep_values: bool = False) -> Fusion:
    """The clusters of a flat graph; with `keep_values` every node is a kernel and every value is kept."""
    return _Fuser(graph, keep_values).run()


class _Fuser:
    def __init__(self, graph: Graph, keep_values: bool) -> None:
        self.graph = graph
        self.keep_values = keep_values
        self.clusters: list[Cluster] = []
        self.owner: dict[Node, Cluster] = {}
        self.stored: set[Node] = set()
        self.readers: dict[Node, list[Node]] = {}
        # The newest column cluster by space and axes, the newest map cluster by space.
        self.columns: dict[tuple[object, ...], Cluster] = {}
        self.maps: dict[tuple[int, ...], Cluster] = {}
        # The number of the node that is being placed.
        self.current = 0
        self.outputs = set(graph.outputs.values())
        # Nodes after this one belong to the backward pass.
        self.boundary = forward_end(graph)

    def run(self) -> Fusion:
        for node in self.graph.nodes:
            if node.op not in VIEWS:
                for operand in dict.fromkeys(map(base_of, node.inputs)):
                    self.readers.setdefault(operand, []).append(node)
        for node in self.graph.nodes:
            if is_pointwise(node) or is_reduction(node):
                self._place(node)
        storing = Storing(self.graph, self.owner, self.boundary, self.keep_values, self._alone)
        self.stored = storing.run()
        self._prune()
        return Fusion(self.graph, self.clusters, self.owner, self.stored)

    # -- clusters

    def _begins(self, node: Node) -> Moment:
        """When a value is there: its cluster's start, its own place, or before everything."""
        if node in self.owner:
            return self.owner[node].start
        if node.op in LEAVES or OPS[node.op].kind == "input":
            return BEFORE
        if is_pointwise(node):
            return max((self._begins(base_of(i)) for i in node.inputs), default=BEFORE)
        return node.index, node.index

    def _can_wait(self, cluster: Cluster, until: Moment, other: Cluster | None = None) -> bool:
        """Whether the cluster may run after `until`: its readers so far (but for `other`) run later still."""
        if cluster.start[0] <= self.boundary < until[0]:
            return False
        for node in cluster.nodes:
            for reader in self.readers.get(node, ()):
                if reader.index >= self.current:
                    break
                owner = self.owner.get(reader)
                if owner is cluster or (owner is not None and owner is other):
                    continue
                if (owner.start if owner is not None else (reader.index, reader.index)) <= until:
                    return False
        return True

    def _place(self, node: Node) -> None:
        if is_pointwise(node) and self._only_for_a_column(node):
            return
        row = is_reduction(node) and node.attributes["axes"][-1] == node.inputs[0].tensor.rank - 1
        self.current = node.index
        if is_reduction(node) and not row:
            self._place_column(node)
            return
        cluster = None if self.keep_values else self._joinable(node)
        if cluster is None and not row and not self.keep_values:
            cluster = self._sibling(node)
        if cluster is not None:
            self._join(cluster, node)
            if row:
                cluster.kind, cluster.reduced = "row", len(node.attributes["axes"])
        elif row:
            self._new("row", node, node.inputs[0].shape, len(node.attributes["axes"]))
        else:
            self._new("map", node, node.shape, 0)
            self.maps[node.shape] = self.owner[node]
        if not self.keep_values:
            self._merge_operands(node)

    def _sibling(self, node: Node) -> Cluster | None:
        """A map near by that reads a whole operand of this node from memory, and none of whose values the node needs."""
        cluster = self.maps.get(node.shape)
        if cluster is None or cluster.kind != "map" or len(cluster.nodes) >= MOST_NODES or not cluster.nodes:
            return None
        operands = [base_of(i) for i in node.inputs]
        shared = [o for o in operands if o in cluster.reads and o.op not in LEAVES]
        if not any(o.tensor.elements >= node.tensor.elements for o in shared):
            return None
        if node.index - cluster.nodes[0].index > NEAR or any(self.owner.get(o) is cluster for o in operands):
            return None
        return cluster if self._may_hold(cluster, node, operands) else None

    def _merge_operands(self, node: Node) -> None:
        """A node with operands of two clusters over the same space may make them one."""
        for operand in map(base_of, node.inputs):
            mine, other = self.owner[node], self.owner.get(operand)
            if other is None or other is mine:
                continue
            first, second = sorted((mine, other), key=lambda cluster: cluster.start)
            start = self._merged_start(first, second)
            if start is not None:
                first.start = start
                for moved in second.nodes:
                    self.owner[moved] = first
                first.nodes.extend(second.nodes)
                first.reads |= second.reads
                if second.kind == "row":
                    first.kind, first.reduced = "row", second.reduced
                # Left empty: it stores nothing and goes with the others that do not.
                second.nodes = []

    def _merged_start(self, first: Cluster, second: Cluster) -> Moment | None:
        """When the two as one would run: `second` reads from `first` in place, and what it reads from others is there
        before `first` begins, or `first` can wait. None: they stay two."""
        kinds = {first.kind, second.kind}
        if first.space != second.space or "column" in kinds or len(first.nodes) + len(second.nodes) > MOST_NODES:
            return None
        if kinds == {"row"} and first.reduced != second.reduced:
            return None
        if first.start[0] <= self.boundary < second.start[0] or self._reads_much(
            first.reads | second.reads, first, second
        ):
            return None
        waits = False
        for node in second.nodes:
            for operand in node.inputs:
                source = base_of(operand)
                owner = self.owner.get(source)
                if owner is first:
                    shape = operand.shape
                    space = first.space if shape == first.space else first.row_space
                    if not self._in_place(operand, shape, first, space):
                        return None
                elif owner is not second and self._begins(source) >= first.start:
                    waits = True
        if not waits:
            return first.start
        return second.start if self._can_wait(first, second.start, second) else None

    def _new(self, kind: Literal["map", "row", "column"], node: Node, space: tuple[int, ...], reduced: int) -> None:
        cluster = Cluster(kind, (node.index, node.index), space, reduced)
        self.clusters.append(cluster)
        self._join(cluster, node)

    def _reads_much(self, reads: set[Node], *inside: Cluster) -> bool:
        """Whether a kernel would have too many operands; its own values are none."""
        if len(reads) <= MOST_READS:
            return False
        return sum(n.op not in LEAVES and self.owner.get(n) not in inside for n in reads) > MOST_READS

    def _alone(self, node: Node) -> None:
        self._new("map", node, node.shape, 0)

    def _join(self, cluster: Cluster, node: Node) -> None:
        cluster.nodes.append(node)
        cluster.reads.update(map(base_of, node.inputs))
        self.owner[node] = cluster

    def _place_column(self, node: Node) -> None:
        """Column reductions over one space share a kernel where they read the same values."""
        x = base_of(node.inputs[0])
        read = set(map(base_of, x.inputs)) if is_pointwise(x) and x not in self.owner else {x}
        key = (node.inputs[0].shape, node.attributes["axes"])
        before = None if self.keep_values else self.columns.get(key)
        if before is not None and read & before.reads and node.index - before.nodes[0].index <= NEAR:
            needed = self._begins(x)
            until = (needed[0], node.index)
            crosses = before.start[0] <= self.boundary < node.index
            if not crosses and (needed < before.start or self._can_wait(before, until)):
                before.start = max(before.start, until) if needed >= before.start else before.start
                self._join(before, node)
                before.reads |= read
                return
        self._new("column", node, node.inputs[0].shape, 0)
        self.columns[key] = self.owner[node]
        self.owner[node].reads |= read

    def _only_for_a_column(self, node: Node) -> bool:
        """Read by one column reduction alone: computed there, by name of its operands."""
        readers = self.readers.get(node, [])
        if self.keep_values or len(readers) != 1 or node in self.outputs:
            return False
        reader = readers[0]
        return is_reduction(reader) and reader.attributes["axes"][-1] != reader.inputs[0].tensor.rank - 1

    def _joinable(self, node: Node) -> Cluster | None:
        """The cluster of an operand that the node can join, the latest first."""
        operands = [base_of(i) for i in node.inputs]
        owners = {id(c): c for c in map(self.owner.get, operands) if c is not None}
        for cluster in sorted(owners.values(), key=lambda c: c.start, reverse=True):
            if cluster.kind == "column" or len(cluster.nodes) >= MOST_NODES or not self._fits(node, cluster):
                continue
            if self._may_hold(cluster, node, operands):
                return cluster
        return None

    def _may_hold(self, cluster: Cluster, node: Node, operands: list[Node]) -> bool:
        """Whether a node's operands are there when the cluster runs; the cluster is made to wait where it can."""
        if cluster.start[0] <= self.boundary < node.index or self._reads_much(cluster.reads.union(operands), cluster):
            return False
        needed = max((self._begins(o) for o in operands if self.owner.get(o) is not cluster), default=BEFORE)
        if needed < cluster.start:
            return True
        until = (needed[0], node.index)
        if not self._can_wait(cluster, until):
            return False
        cluster.start = until
        return True

    def _fits(self, node: Node, cluster: Cluster) -> bool:
        """Whether the node reads the cluster's values each at its own place."""
        if is_reduction(node):
            reduced = len(node.attributes["axes"])
            if node.inputs[0].shape != cluster.space or cluster.reduced not in (0, reduced):
                return False
            return self._in_place(node.inputs[0], cluster.space, cluster, node.inputs[0].shape)
        if node.shape == cluster.space:
            return all(self._in_place(i, node.shape, cluster, cluster.space) for i in node.inputs)
        if not cluster.reduced or not self._is_row(node.shape, cluster):
            return False
        return all(self._in_place(i, node.shape, cluster, cluster.row_space) for i in node.inputs)

    def _is_row(self, shape: tuple[int, ...], cluster: Cluster) -> bool:
        kept = len(cluster.row_space)
        return (
            shape[:kept] == cluster.row_space and all(n == 1 for n in shape[kept:]) and len(shape) <= len(cluster.space)
        )

    def _in_place(self, operand: Node, shape: tuple[int, ...], cluster: Cluster, space: tuple[int, ...]) -> bool:
        base = base_of(operand)
        if self.owner.get(base) is not cluster:
            return True
        sizes = list(shape)
        access = _identity(shape)
        try:
            while operand is not base:
                access = pull(operand, access, sizes)
                operand = operand.inputs[0]
        except (NotAffine, Refine):
            return False
        if base.shape == cluster.space:
            # A row value cannot read single elements.
            return len(space) == len(cluster.space) and access == _identity(base.shape)
        kept = len(cluster.row_space)
        return self._is_row(base.shape, cluster) and access[:kept] == _identity(cluster.row_space)

    def _prune(self) -> None:
        """Leaves out clusters that store nothing: all their values are computed where they are read."""
        self.clusters = [c for c in self.clusters if any(n in self.stored for n in c.nodes)]
        self.clusters.sort(key=lambda cluster: cluster.start)


def _identity(shape: tuple[int, ...]) -> Access:
    return tuple(ZERO if n == 1 else _loop(i) for i, n in enumerate(shape))


def _loop(number: int) -> Index:
    return 0, ((number, 1),)
