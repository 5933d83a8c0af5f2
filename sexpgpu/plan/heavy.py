"""Launches that are not generated: products, indexing on contiguous operands, joins of parts."""

from __future__ import annotations

from math import prod
from operator import add
from typing import TYPE_CHECKING, Any

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS, SIZES
from sexpgpu.ops.table import OPS
from sexpgpu.ops.windows import overlaps
from sexpgpu.passes.access import VIEWS, Access, NotAffine, Refine, contiguous, pull
from sexpgpu.plan.attention import lower_attention
from sexpgpu.plan.kernel import Indexed, Place
from sexpgpu.plan.located import Located, join
from sexpgpu.plan.loops import lower_scan
from sexpgpu.plan.products import Products
from sexpgpu.plan.trace import Root, Storage, loops_of, moved

if TYPE_CHECKING:
    from sexpgpu.plan.build import Builder


class Heavy:
    """Lowers the nodes that need a kernel of their own kind."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.buffers = builder.buffers
        self.outputs = set(builder.graph.outputs.values())
        self.readers = builder.readers
        self.products = Products(builder)

    def lower(self, node: Node) -> None:
        if node.op == "contract":
            out = self.builder.result(node)
            self.buffers.storage[node] = out
            if node.tensor.elements:
                self.products.contract(node, out)
        elif node.op == "concat":
            self._concat(node)
        elif node.op == "pad":
            self._pad(node)
        elif node.op == "overlap_add":
            self._overlap_add(node)
        elif node.op == "scan":
            lower_scan(self.builder, node)
        elif node.op == "region":
            lower_attention(self.builder, node)
        elif node.op == "get":
            assert node in self.buffers.storage, node
        else:
            self._indexed(node)

    # -- memory behind views

    def located(self, node: Node, *, widened: bool = False) -> Located | None:
        """Where a node's elements are and the loops of each of its axes, or None where no strides express it; with
        `widened`, what is only read as f32 is where it was before."""
        axes = loops_of(node.shape)
        while True:
            access: Access = axes.access(node.shape)
            at = node
            try:
                while (found := self.buffers.find(at)) is None:
                    if at.op not in VIEWS or (at.op == "widen" and not widened):
                        return None
                    access = pull(at, access, axes.sizes)
                    at = at.inputs[0]
            except Refine as request:
                axes.refine(request)
                continue
            except NotAffine:
                return None
            place, (_, terms) = found.at(access)
            step = dict(terms)
            loops = [
                [(n, step.get(axes.first(axis) + k, 0)) for k, n in enumerate(factors) if n > 1]
                for axis, factors in enumerate(axes.factors)
            ]
            return Located(place, loops, dtype=at.dtype)

    def stored(self, node: Node) -> Storage:
        """The storage of a value that another graph reads, a copy where no strides express it."""
        found = self.located(node)
        if found is None or found.place is None or any(len(loops) > 1 for loops in found.loops):
            return self.builder.copied(node)
        steps = zip(node.shape, found.loops, contiguous(node.shape), strict=True)
        strides = tuple(step if n == 1 else loops[0][1] for n, loops, step in steps)
        return Storage(found.place, strides, SIZES[node.dtype])

    def _contiguous(self, node: Node) -> Place:
        """The place of a node's elements in row-major order; a copy where they do not lie so."""
        found = self.located(node)
        if found is not None and found.place is not None:
            loops = join([loop for axis in found.loops for loop in axis])
            if not loops or (len(loops) == 1 and loops[0][1] == 1):
                return found.place
        return self.builder.copied(node).place

    # -- joins

    def _concat(self, node: Node) -> None:
        out = self.builder.result(node)
        axis, at = node.attributes["axis"], 0
        for part in node.inputs:
            if part.tensor.elements and not self._is_there(part):
                self.builder.copy(part, moved(out, {axis: at}))
            at += part.shape[axis]
        self.buffers.storage[node] = out

    def _is_there(self, part: Node) -> bool:
        """Whether the part was written where it stands in the join."""
        while part.op in ("reshape", "permute"):
            part = part.inputs[0]
        return part in self.builder.layouts.parts

    def _pad(self, node: Node) -> None:
        out = self.buffers.result(node)
        fill = _filler(node, node.attributes["value"])
        self.builder.emit("map", node.shape, (), [Root(fill, out)], set())
        steps = tuple(i + 1 for i in node.attributes["interior"])
        if node.inputs[0].tensor.elements:
            self.builder.copy(node.inputs[0], moved(out, dict(enumerate(node.attributes["low"])), steps))
        self.buffers.storage[node] = out

    def _overlap_add(self, node: Node) -> None:
        """Added to zeros part by part: every element sums what its windows give in their order."""
        out = self.builder.result(node)
        self.builder.emit("map", node.shape, (), [Root(_filler(node, 0), out)], set())
        (x,), at = node.inputs, node.attributes
        lead, spatial = len(node.shape) - len(at["shape"]), len(at["shape"])
        counts, sizes = x.shape[lead : lead + spatial], x.shape[lead + spatial :]
        for element, first, many, start in overlaps(counts, sizes, **at):
            starts = (0,) * lead + first + element
            limits = node.shape[:lead] + tuple(map(add, first, many)) + tuple(j + 1 for j in element)
            cut = _outside(node, "slice", (x,), starts=starts, limits=limits, steps=(1,) * len(x.shape))
            part = _outside(node, "reshape", (cut,), shape=node.shape[:lead] + many)
            there = _outside(node, "reshape", (part,), shape=part.shape)
            storage = moved(out, dict(enumerate(start, lead)), (1,) * lead + at["strides"])
            self.buffers.storage[there] = storage
            self.builder.emit("map", part.shape, (), [Root(_outside(node, "add", (there, part)), storage)], set())
        self.buffers.storage[node] = out

    # -- indexing

    def _indexed(self, node: Node) -> None:
        adds = node.op in ("scatter_add", "gather_add")
        operands = node.inputs[1:] if adds else node.inputs
        inputs = tuple(self._contiguous(operand) for operand in operands)
        out = self._sum_storage(node) if adds else self.buffers.result(node)
        table = node if adds else node.inputs[0]
        axis = node.attributes["axis"]
        indices = node.inputs[1] if len(node.inputs) > 1 else node
        in_rows = node.op in ("take", "scatter_add")
        count = indices.tensor.elements if in_rows else indices.shape[axis]
        has_flag = len(node.inputs) > 1
        self.builder.add(
            Indexed(
                node.op,
                table.dtype,
                indices.dtype,
                prod(table.shape[:axis]),
                table.shape[axis],
                count,
                prod(table.shape[axis + 1 :]),
                inputs,
                out.place,
                self.buffers.flag(self.builder.sources[node.index]) if has_flag else None,
                node.attributes.get("descending", False),
                (node.index,),
            )
        )
        self.buffers.storage[node] = out

    def _sum_storage(self, node: Node) -> Storage:
        """Where the sum will be, holding what is added to: the operand's own memory where nothing else reads it."""
        x = node.inputs[0]
        there = self.buffers.storage.get(x)
        given = node in self.buffers.claimed or node in self.buffers.placed
        alone = self.readers[x] == [node] and x not in self.outputs and x.op not in ("input", "host")
        if there is not None and alone and there.strides == contiguous(x.shape) and not given:
            return there
        out = self.buffers.result(node)
        if there is None or there.place != out.place:
            self.builder.emit("map", node.shape, (), [Root(x, out)], set())
        return out


def _outside(like: Node, op: str, inputs: tuple[Node, ...], **attributes: Any) -> Node:
    """A node that stands in no graph."""
    type_ = OPS[op].infer(*[i.type for i in inputs], **attributes)
    return Node(like.graph, like.index, op, inputs, attributes, type_, like.origins)


def _filler(like: Node, value: float) -> Node:
    """A constant of a node's type."""
    number = float(value) if like.dtype in FLOATS else int(value)
    return _outside(like, "constant", (), value=number, dtype=like.dtype, shape=like.shape)
