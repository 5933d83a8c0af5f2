"""From a graph to a plan: regions opened, kernels cut, buffers placed; every number that a device needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec.structs import replace

from sexpgpu.ir.building import uncollected
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes.access import NotAffine, contiguous
from sexpgpu.passes.clusters import HEAVY, LEAVES, Cluster, Fusion, Moment, base_of
from sexpgpu.passes.fuse import fuse
from sexpgpu.passes.inline import inline
from sexpgpu.passes.lower import lower
from sexpgpu.passes.recompute import recompute
from sexpgpu.plan.buffers import Buffers
from sexpgpu.plan.heavy import Heavy
from sexpgpu.plan.kernel import Launch, Plan
from sexpgpu.plan.layout import Layouts, base_through
from sexpgpu.plan.trace import Axes, Root, Storage, Trace, generate

# Outputs that are buffers of the model, written where they are.
BOUND_OUTPUTS = ("gradient:", "update:", "parameter:", "state:", "buffer:", "average:")


def bound_outputs(graph: Graph) -> dict[str, str]:
    """The outputs that a run binds to external buffers of the same names."""
    return {name: name for name in graph.outputs if name.startswith(BOUND_OUTPUTS)}


@uncollected()
def plan(
    graph: Graph,
    *,
    aliases: Mapping[str, str] | None = None,
    keep_values: bool = False,
    landing: Mapping[str, int] | None = None,
    native: bool = True,
    widest_head: int | None = None,
    narrow_attention: bool = False,
) -> Plan:
    """The plan of a graph.

    aliases      output name → name of the external buffer that it is written to (`parameter:…`, `gradient:…`); an input
                 of that name may be read by the same graph: it is replaced once nothing reads its old value
    keep_values  every node a kernel of its own, every value kept (the reference executor)
    landing      external buffers that stand in the arena itself: name → byte offset there. They hold what was written to
                 them when a call is done; other values may lie there until then
    native       the device has native lowerings of regions
    widest_head  the widest head that its lowering of attention takes; None: any
    narrow_attention  whether it reads bf16 and f16 there as they are, where they are only read as f32
    """
    flat = inline(graph) if keep_values else recompute(lower(inline(graph, native=native, widest_head=widest_head)))
    fusion = fuse(flat.graph, keep_values=keep_values)
    sources = [node.index for node in flat.sources]
    buffers = Buffers(keep_values, landing or {})
    made = Builder(fusion, sources, aliases or {}, buffers, narrow_attention=narrow_attention).run()
    return replace(made, notes=flat.notes)


class Builder:
    def __init__(
        self,
        fusion: Fusion,
        sources: list[int],
        aliases: Mapping[str, str],
        buffers: Buffers,
        *,
        narrow_attention: bool = False,
    ) -> None:
        self.fusion = fusion
        self.narrow_attention = narrow_attention
        self.graph = fusion.graph
        self.outputs = set(fusion.graph.outputs.values())
        self.sources = sources
        self.buffers = buffers
        self.launches: list[Launch] = []
        self.aliases = aliases
        self.pending_copies: list[tuple[Node, Storage]] = []
        self.readers: dict[Node, list[Node]] = {}
        for node in self.graph.nodes:
            # A further result of a region does not read the first one.
            for operand in node.inputs if node.op != "get" else ():
                self.readers.setdefault(operand, []).append(node)
        self.layouts = Layouts(fusion, self.readers, self.buffers)
        self.heavy = Heavy(self)

    def run(self) -> Plan:
        for given in self.graph.nodes:
            if given.op == "input":
                self.buffers.external(given)
            elif given.op == "host":
                self.buffers.host(given)
        self._claim_externals()
        self.launch_all()
        outputs = {name: self._output(name, node) for name, node in self.graph.outputs.items()}
        for copied, storage in self.pending_copies:
            self.copy(copied, storage)
        places = {name: (storage.place, node.tensor) for name, (node, storage) in outputs.items()}
        return self.buffers.finish(tuple(self.launches), places)

    def launch_all(self) -> None:
        """The launches of every node that has a kernel."""
        if not self.buffers.keep_values:
            for node in self.graph.nodes:
                if node.op == "concat":
                    self.layouts.place_parts(node)
        items: list[tuple[Moment, Cluster | Node]] = [(c.start, c) for c in self.fusion.clusters]
        items += [((n.index, n.index), n) for n in self.graph.nodes if n.op in HEAVY]
        for _, item in sorted(items, key=lambda item: item[0]):
            if isinstance(item, Cluster):
                self._cluster(item)
            else:
                self.heavy.lower(item)

    # -- outputs

    def _claim_externals(self) -> None:
        """Outputs that may be written straight to their external buffers."""
        inputs = {self.buffers.external_name(n): n for n in self.graph.nodes if n.op == "input"}
        for name, target in self.aliases.items():
            made = self.graph.outputs.get(name)
            if made is None or made in self.buffers.claimed or made.op in ("input", "host") or made.op in LEAVES:
                continue
            old = inputs.get(target)
            if old is None:
                self._claim_under(made, target)
            if base_of(made) is made and (old is None or self._last_reader(old, made)):
                self.buffers.claim(made, target)
                while old is None and made.op == "scatter_add" and self._is_added_to(made):
                    made = made.inputs[0]
                    self.buffers.claim(made, target)

    def _claim_under(self, made: Node, target: str) -> None:
        """An output that is a view of a value which nothing else reads: the value is written so that the view is right."""
        base, views = base_through(made, self.readers)
        if views and base not in self.outputs:
            self.layouts.place_under(base, views, self.buffers.named(target, made))

    def _is_added_to(self, node: Node) -> bool:
        """Whether a scatter-add is the only reader of what it adds to, which then lies where its result will."""
        x = node.inputs[0]
        is_value = not (x.op in ("input", "host", "get") or x.op in LEAVES) and base_of(x) is x
        return is_value and self.readers[x] == [node] and x not in self.outputs

    def _last_reader(self, old: Node, new: Node) -> bool:
        """Whether only the map that computes the new value reads the old one, each element at its own place."""
        cluster = self.fusion.owner.get(new)
        if cluster is None or cluster.kind != "map" or cluster.space != old.shape or old in self.outputs:
            return False
        return all(self.fusion.owner.get(reader) is cluster for reader in self.readers.get(old, ()))

    def _output(self, name: str, node: Node) -> tuple[Node, Storage]:
        """Outputs are contiguous: a view, an input or a leaf is copied."""
        target = self.aliases.get(name)
        storage = self.buffers.storage.get(node)
        if target is not None:
            external = self.buffers.named(target, node)
            base, _ = base_through(node, self.readers)
            written = self.buffers.placed.get(base, storage)
            if written is None or written.place != external.place:
                self.pending_copies.append((node, external))
            return node, external
        if storage is not None and node.op not in ("input", "host") and storage.strides == contiguous(node.shape):
            self.buffers.keep(storage)
            return node, storage
        made = self.buffers.arena(f"output {name}", node)
        self.copy(node, made)
        self.buffers.keep(made)
        return node, made

    # -- launches

    def result(self, node: Node) -> Storage:
        """The storage of a value that is about to be written, laid out for its readers."""
        return self.buffers.result(node, None if self.buffers.keep_values else self.layouts.preferred(node))

    def add(self, launch: Launch) -> None:
        nodes = tuple(dict.fromkeys(self.sources[index] for index in launch.nodes))
        self.launches.append(replace(launch, nodes=nodes))

    def emit(
        self, kind: Literal["map", "row", "column"], space: tuple[int, ...], reduced: tuple[int, ...],
        roots: list[Root], inside: set[Node],
    ) -> None:  # fmt: skip
        """A generated kernel; operands that strides cannot express are copied first."""

        def trace_of(axes: Axes) -> Trace:
            return Trace(axes, self.buffers.find, self.buffers.random, inside)

        while True:
            try:
                made = generate(kind, space, reduced, roots, trace_of)
                break
            except NotAffine as problem:
                at_fault = problem.uneven if problem.reshape is None else problem.reshape.inputs[:1]
                for node in at_fault:
                    self.buffers.storage[node] = self.copied(node)
        self.add(made)

    def copy(self, node: Node, storage: Storage) -> None:
        """A node's value (a view's, or an expression's) written to a storage of its own shape."""
        self.emit("map", node.shape, (), [Root(node, storage)], set())

    def copied(self, node: Node) -> Storage:
        """A contiguous copy in the arena."""
        storage = self.buffers.arena("copy", node)
        self.copy(node, storage)
        return storage

    def _cluster(self, cluster: Cluster) -> None:
        roots = [node for node in cluster.nodes if node in self.fusion.stored]
        made = [Root(node, self.result(node)) for node in roots]
        inside = set(cluster.nodes)
        rank = len(cluster.space)
        reduced: tuple[int, ...] = ()
        if cluster.kind == "row":
            reduced = tuple(range(rank - cluster.reduced, rank))
        elif cluster.kind == "column":
            reduced = roots[0].attributes["axes"]
        self.emit(cluster.kind, cluster.space, reduced, made, inside)
        for root in made:
            self.buffers.storage[root.node] = root.storage
