"""Clusters of nodes that run in one kernel, and the words in which fusing speaks of nodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ops.table import OPS
from sexpgpu.passes.access import VIEWS

# Computed wherever they are read.
LEAVES = frozenset(("constant", "iota", "random"))
# Operations that only another kernel of their own computes; their operands are in memory. A region that is there still
# is lowered natively, `get` is one of its further results.
HEAVY = frozenset(
    "contract take scatter_add gather gather_add argsort cumsum concat pad overlap_add region get scan".split()
)

# When something runs: after the node of this number, as put there by a later node.
Moment = tuple[int, int]
BEFORE: Moment = (-1, -1)


@dataclass(eq=False)
class Cluster:
    """`space` is the shape of its elements; in rows, `reduced` of its last axes are the row. `start` orders clusters."""

    kind: Literal["map", "row", "column"]
    start: Moment
    space: tuple[int, ...]
    reduced: int = 0
    nodes: list[Node] = field(default_factory=list)
    reads: set[Node] = field(default_factory=set)

    @property
    def row_space(self) -> tuple[int, ...]:
        return self.space[: len(self.space) - self.reduced]


@dataclass
class Fusion:
    """`owner` gives the cluster of a node (by number); `stored` are the nodes whose values go through memory."""

    graph: Graph
    clusters: list[Cluster]
    owner: dict[Node, Cluster]
    stored: set[Node]


def forward_end(graph: Graph) -> int:
    """The number of the last node of the forward pass; beyond all nodes in a graph without gradients."""
    forward = [n.index for name, n in graph.outputs.items() if not name.startswith("gradient:")]
    return max(forward, default=-1) if len(forward) < len(graph.outputs) else len(graph.nodes)


def base_of(node: Node) -> Node:
    """The node under a chain of views."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def is_pointwise(node: Node) -> bool:
    return OPS[node.op].kind == "pointwise" and node.op not in LEAVES


def is_reduction(node: Node) -> bool:
    return OPS[node.op].kind == "reduce"
