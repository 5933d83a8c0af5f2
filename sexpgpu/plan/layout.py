"""In which order a value lies in memory, decided before it is made: as its readers see it, or as part of a join.

A value that is read only through reshapes and permutations lies so that the last of these views is contiguous (heads are
merged without a copy); an operand of a concat is written to its part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sexpgpu.ir.graph import Node
from sexpgpu.passes.access import Access, NoDigits, Refine, contiguous, joined, reshaped
from sexpgpu.passes.clusters import Fusion, base_of
from sexpgpu.plan.buffers import Buffers
from sexpgpu.plan.located import join
from sexpgpu.plan.products import fits_product
from sexpgpu.plan.trace import Storage, moved

Readers = Mapping[Node, Sequence[Node]]


class Layouts:
    """Decides for the nodes of one graph; `buffers.placed` are those whose memory is given already."""

    def __init__(self, fusion: Fusion, readers: Readers, buffers: Buffers) -> None:
        self.fusion = fusion
        self.readers = readers
        self.buffers = buffers
        self.outputs = set(fusion.graph.outputs.values())
        # Operands of joins that are written to their part of the result.
        self.parts: set[Node] = set()

    def preferred(self, node: Node) -> tuple[int, ...] | None:
        """Strides by which the view that all readers share is contiguous; None: row-major."""
        views: list[Node] = []
        current = [node]
        while not self.outputs.intersection(current):
            # A region reads through strides, whatever they are.
            found = [reader for one in current for reader in self.readers.get(one, ()) if reader.op != "region"]
            if not found or not _are_same_views(found):
                break
            views.append(found[0])
            current = found
        if not any(view.op == "permute" for view in views):
            return None
        return self._possible(node, strides_under(node, views, contiguous(views[-1].shape)))

    def place_parts(self, concat: Node) -> None:
        """Gives every operand that can be written there its part of the join's memory."""
        axis, at = concat.attributes["axis"], 0
        whole = self.buffers.result(concat, self.preferred(concat))
        self.buffers.placed[concat] = whole
        for part in concat.inputs:
            self._place(part, moved(whole, {axis: at}))
            at += part.shape[axis]

    def _place(self, part: Node, storage: Storage) -> None:
        views: list[Node] = []
        base, reader = part, None
        while self._is_read_once(base, reader):
            if base.op not in ("reshape", "permute"):
                if self.place_under(base, views[::-1], storage):
                    self.parts.add(base)
                return
            views.append(base)
            base, reader = base.inputs[0], base

    def _is_read_once(self, node: Node, reader: Node | None) -> bool:
        readers = self.readers[node]
        return node not in self.outputs and len(readers) == 1 and (reader is None or readers[0] is reader)

    def place_under(self, base: Node, views: Sequence[Node], storage: Storage) -> bool:
        """Gives a value the memory in which its views are in `storage`, where its kernel can write so."""
        strides = self._possible(base, strides_under(base, views, storage.strides))
        if strides is None or base in self.buffers.placed:
            return False
        self.buffers.placed[base] = Storage(storage.place, strides, storage.item_bytes)
        return True

    def _possible(self, node: Node, strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
        """The strides where a kernel can write them: row-major ones every kernel, a map any, a product those of a matrix,
        attention those with rows of neighbours."""
        if strides is None or node in self.buffers.claimed:
            return None
        if node.op in ("region", "get"):
            return strides if len(strides) == 4 and strides[-1] == 1 and strides[-2] >= node.shape[-1] else None
        if node.op == "contract":
            return strides if fits_product(node, strides) else None
        owner = self.fusion.owner.get(node)
        if owner is not None and node in self.fusion.stored:
            return strides if owner.kind == "map" or strides == contiguous(node.shape) else None
        return strides if node.op == "concat" else None


def _are_same_views(nodes: Sequence[Node]) -> bool:
    first = nodes[0]
    if first.op not in ("reshape", "permute"):
        return False
    return all(n.op == first.op and n.attributes == first.attributes for n in nodes)


def strides_under(node: Node, views: Sequence[Node], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a node under reshapes and permutations of it, given those of the last; None where it has none."""
    found: tuple[int, ...] | None = tuple(strides)
    for view in reversed(views):
        if found is None:
            return None
        if view.op == "permute":
            axes = view.attributes["axes"]
            found = tuple(found[axes.index(k)] for k in range(len(axes)))
        else:
            found = _before_reshape(view.inputs[0].shape, view.shape, found)
    if found is None:
        return None
    # An axis of size 1 steps as it would in row-major order, so that equal layouts have equal strides.
    return tuple(a if n > 1 else b for n, a, b in zip(node.shape, found, contiguous(node.shape), strict=True))


def _before_reshape(shape: tuple[int, ...], made: tuple[int, ...], strides: Sequence[int]) -> tuple[int, ...] | None:
    access: Access = tuple((0, ((axis, 1),) if n > 1 else ()) for axis, n in enumerate(shape))
    try:
        _, terms = joined(list(zip(reshaped(made, shape, access, list(shape)), strides, strict=True)))
    except Refine:
        # An axis was cut: it steps evenly where its parts step as one.
        loops = join([(n, s) for n, s in zip(made, strides, strict=True) if n > 1])
        return tuple(s * loops[0][1] for s in contiguous(shape)) if len(loops) == 1 else None
    except NoDigits:
        return None
    steps = dict(terms)
    return tuple(steps.get(axis, 0) for axis in range(len(shape)))


def base_through(node: Node, readers: Readers) -> tuple[Node, list[Node]]:
    """The node under reshapes and permutations that nothing else reads, and these views, the innermost first."""
    views: list[Node] = []
    base = node
    while base.op in ("reshape", "permute") and len(readers[base.inputs[0]]) == 1:
        views.append(base)
        base = base.inputs[0]
    return (base, views[::-1]) if base_of(node) is base else (node, [])
