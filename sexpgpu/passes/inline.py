"""Opens regions into their bodies: a flat graph of primitives, the form that kernels are cut from.

Nodes of different region instances are not merged, although they may compute the same: a backward region computes
again what its forward region did not save, and merging would keep it alive in between. Reductions are brought into the
forms that kernels have: over the last axes (row), or over one run of axes before kept ones (column).

Regions that a device lowers natively stay: as a node of the type of the first result, and `get` nodes of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from sexpgpu.ir.graph import Graph, Node, live_nodes
from sexpgpu.ops.table import OPS
from sexpgpu.passes.attention import BACKWARD, FORWARD, AttentionBody, recognise

# Reductions of more elements than this run over their last axis first, rows in parallel.
LONG = 1 << 16
# A column reduction over more rows than this runs in blocks of BLOCK rows first, where they divide.
LONG_COLUMN, BLOCK = 1024, 256
ATTENTION = (FORWARD, BACKWARD)


@dataclass(frozen=True)
class Flat:
    """`graph` is not interned; `sources` gives for each of its nodes the node of the original graph; `notes` say which
    regions were opened although there is a native lowering, and why."""

    graph: Graph
    sources: list[Node]
    notes: tuple[str, ...] = ()


def inline(graph: Graph, *, native: bool = False, widest_head: int | None = None) -> Flat:
    """The flat graph of a graph's live nodes. `native`: regions with a native lowering stay where it takes them, of
    attention heads up to the widest."""
    return _Inliner(graph, native, widest_head).run()


class _Inliner:
    def __init__(self, graph: Graph, native: bool, widest_head: int | None) -> None:
        self.source = graph
        self.native = native
        self.widest_head = widest_head
        self.notes: dict[str, None] = {}
        self.recognised: dict[int, AttentionBody | str] = {}
        self.flat = Graph(graph.name)
        self.sources: list[Node] = []
        self.current = graph.nodes[0] if graph.nodes else None

    def run(self) -> Flat:
        values: dict[Node, Any] = {}
        live = live_nodes(self.source)
        for node in self.source.nodes:
            if node in live:
                self.current = node
                values[node] = self._node(node, [values[i] for i in node.inputs])
        self.flat.outputs = {name: values[node] for name, node in self.source.outputs.items()}
        return Flat(self.flat, self.sources, tuple(self.notes))

    def _node(self, node: Node, inputs: list[Any]) -> Any:
        if node.op == "get":
            return inputs[0][node.attributes["index"]]
        if node.op == "scan":
            made = self._append("scan", tuple(inputs), node.attributes, node)
            return [self._infer("get", (made,), {"index": k}, node) for k in range(len(node.attributes["body"].outputs))]
        if node.op == "region":
            return self._region(node.attributes["body"], inputs)
        if OPS[node.op].kind == "reduce":
            return self._reduce(node, inputs[0])
        return self._append(node.op, tuple(inputs), node.attributes, node)

    def _region(self, body: Graph, inputs: list[Any]) -> Any:
        if self.native and body.name in ATTENTION:
            found = self.recognised.get(id(body)) or self.recognised.setdefault(id(body), self._recognised(body))
            if isinstance(found, AttentionBody):
                return self._attention(body, found, inputs)
            self.notes[f"{body.name}: {found}; it is computed by its body"] = None
        values: dict[Node, Any] = dict(zip(body.inputs, inputs, strict=True))
        for node in body.nodes:
            if node not in values:
                values[node] = self._node(node, [values[i] for i in node.inputs])
        made = [values[node] for node in body.outputs.values()]
        return made[0] if len(made) == 1 else made

    def _recognised(self, body: Graph) -> AttentionBody | str:
        found = recognise(body)
        if isinstance(found, AttentionBody) and self.widest_head is not None:
            widest = max(node.shape[-1] for node in body.inputs[:3])
            if widest > self.widest_head:
                return f"its heads of {widest} are wider than {self.widest_head}"
        return found

    def _attention(self, body: Graph, found: AttentionBody, inputs: list[Node]) -> Any:
        """A node that is lowered natively; the mask, as the body sees it, is its last operand."""
        values = dict(zip(body.inputs, inputs, strict=True))
        floats = [node for node in body.inputs if node.dtype == "f32"]
        operands = [values[node] for node in floats]
        if found.mask is not None:
            operands.append(self._view(found.mask, values))
        wanted = dict.fromkeys(body.outputs.values())
        first, *further = wanted
        values[first] = made = self._append("region", tuple(operands), {"attention": found}, first)
        for k, node in enumerate(further, 1):
            values[node] = self._append("get", (made,), {"index": k}, node)
        results = [values[node] for node in body.outputs.values()]
        return results[0] if len(results) == 1 else results

    def _view(self, node: Node, values: dict[Node, Node]) -> Node:
        if node not in values:
            values[node] = self._append(node.op, (self._view(node.inputs[0], values),), node.attributes, node)
        return values[node]

    def _append(self, op: str, inputs: tuple[Node, ...], attributes: dict[str, Any], like: Node) -> Node:
        made = Node(self.flat, len(self.flat.nodes), op, inputs, attributes, like.type, like.origins)
        return self._put(made)

    def _put(self, node: Node) -> Node:
        self.flat.nodes.append(node)
        assert self.current is not None
        self.sources.append(self.current)
        return node

    def _infer(self, op: str, inputs: tuple[Node, ...], attributes: dict[str, Any], like: Node) -> Node:
        type_ = OPS[op].infer(*[i.type for i in inputs], **attributes)
        return self._put(Node(self.flat, len(self.flat.nodes), op, inputs, attributes, type_, like.origins))

    def _reduce(self, node: Node, x: Node) -> Node:
        """One reduction as a chain of row and column reductions, the last axes first."""
        axes = node.attributes["axes"]
        if node.op in ("argmax", "argmin"):
            return self._pick(node, x, axes)
        # Over one element there is nothing to reduce.
        long = tuple(a for a in axes if x.shape[a] != 1)
        if len(long) < len(axes):
            if long:
                x = self._reduce_runs(node, x, long)
            return self._infer("reshape", (x,), {"shape": node.shape}, node)
        return self._reduce_runs(node, x, axes)

    def _reduce_runs(self, node: Node, x: Node, axes: tuple[int, ...]) -> Node:
        for run in _runs(axes, x.tensor.rank):
            x = self._run(node, x, run)
        return x

    def _pick(self, node: Node, x: Node, axes: tuple[int, ...]) -> Node:
        """argmax and argmin are over the last axis: other axes are moved there and joined."""
        rank = x.tensor.rank
        kept = tuple(i for i in range(rank) if i not in axes)
        if axes != tuple(range(rank - len(axes), rank)):
            x = self._infer("permute", (x,), {"axes": kept + axes}, node)
        if len(axes) != 1:
            shape = (*x.shape[: len(kept)], prod(x.shape[len(kept) :]))
            x = self._infer("reshape", (x,), {"shape": shape}, node)
        return self._infer(node.op, (x,), {"axes": (len(kept),)}, node)

    def _run(self, node: Node, x: Node, run: tuple[int, ...]) -> Node:
        rank, size = x.tensor.rank, prod(x.shape[a] for a in run)
        is_row = run[-1] == rank - 1
        if is_row and len(run) > 1 and size > LONG:
            x = self._infer(node.op, (x,), {"axes": run[-1:]}, node)
            return self._run(node, x, run[:-1])
        if not is_row and size > LONG_COLUMN and size % BLOCK == 0:
            shape = (*x.shape[: run[0]], size // BLOCK, BLOCK, *x.shape[run[-1] + 1 :])
            x = self._infer("reshape", (x,), {"shape": shape}, node)
            x = self._infer(node.op, (x,), {"axes": (run[0] + 1,)}, node)
            run = (run[0],)
        elif is_row and size > LONG and size % BLOCK == 0:
            shape = (*x.shape[:-1], size // BLOCK, BLOCK)
            x = self._infer("reshape", (x,), {"shape": shape}, node)
            x = self._infer(node.op, (x,), {"axes": (rank,)}, node)
            run = (rank - 1,)
        return self._infer(node.op, (x,), {"axes": run}, node)


def _runs(axes: tuple[int, ...], rank: int) -> list[tuple[int, ...]]:
    """Neighbouring axes together, last run first: earlier axes keep their numbers."""
    runs: list[list[int]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return [tuple(run) for run in reversed(runs)]
