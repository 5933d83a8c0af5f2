"""Launches that are not generated: products through strides, indexing on contiguous operands, joins of parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as cartesian
from math import prod
from typing import TYPE_CHECKING

from sexpgpu.ir.graph import Node
from sexpgpu.ops.product import free_axes
from sexpgpu.passes.access import VIEWS, Access, NotAffine, Refine, contiguous, pull
from sexpgpu.plan.kernel import Indexed, Matrix, Place, Product
from sexpgpu.plan.trace import Root, Storage, loops_of

if TYPE_CHECKING:
    from sexpgpu.plan.build import _Builder

# Loops of one axis (or group of axes) of an operand: (size, stride in elements).
Loops = list[tuple[int, int]]


class Heavy:
    """Lowers the nodes that need a kernel of their own kind."""

    def __init__(self, builder: _Builder) -> None:
        self.builder = builder
        self.buffers = builder.buffers
        self.outputs = set(builder.graph.outputs.values())
        self.readers: dict[Node, list[Node]] = {}
        for node in builder.graph.nodes:
            for operand in node.inputs:
                self.readers.setdefault(operand, []).append(node)

    def lower(self, node: Node) -> None:
        if node.op == "contract":
            self._contract(node)
        elif node.op == "concat":
            self._concat(node)
        elif node.op == "pad":
            self._pad(node)
        else:
            self._indexed(node)

    # -- memory behind views

    def _located(self, node: Node) -> tuple[Place, list[Loops]] | None:
        """Where a node's elements are and the loops of each of its axes, or None where no strides express it."""
        axes = loops_of(node.shape)
        while True:
            access: Access = axes.access(node.shape)
            at = node
            try:
                while (found := self.buffers.find(at)) is None:
                    if at.op not in VIEWS:
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
            return place, loops

    def _contiguous(self, node: Node) -> Place:
        """The place of a node's elements in row-major order; a copy where they do not lie so."""
        found = self._located(node)
        if found is not None:
            place, loops = found
            joined = _join([loop for axis in loops for loop in axis])
            if not joined or (len(joined) == 1 and joined[0][1] == 1):
                return place
        return self.builder.copied(node).place

    # -- products

    def _contract(self, node: Node) -> None:
        a, b = node.inputs
        batch, contracted = node.attributes["batch"], node.attributes["contracted"]
        out = self.buffers.result(node, self._layout(node))
        self.buffers.storage[node] = out
        for copied in ((), (0,), (1,), (0, 1)):
            made = self._product(node, (a, b), batch, contracted, out, copied)
            if made is not None:
                self.builder.add(made)
                return
        raise AssertionError(node)

    def _product(
        self, node: Node, operands: Sequence[Node], batch: tuple[tuple[int, ...], ...],
        contracted: tuple[tuple[int, ...], ...], out: Storage, copied: tuple[int, ...],
    ) -> Product | None:  # fmt: skip
        """The launch with these operands copied, or None where an operand has no matrix form."""
        found: list[tuple[Place, list[Loops]] | None] = [None, None]
        for side in (0, 1):
            if side not in copied:
                found[side] = self._located(operands[side])
                if found[side] is None:
                    return None
        kept = 1 if copied == (0,) else 0
        order = _order(found[kept], contracted[kept])
        for side in copied:
            found[side] = self._copied(operands[side], batch[side], [contracted[side][k] for k in order])
        groups = []
        for side, operand in enumerate(operands):
            located = found[side]
            assert located is not None
            loops = located[1]
            free = free_axes(operand.tensor.rank, batch[side], contracted[side])
            parts = ([loops[i] for i in free], [loops[contracted[side][k]] for k in order])
            groups.append([_join([loop for axis in part for loop in axis]) for part in parts])
        if any(len(part) > 1 for group in groups for part in group):
            return None
        (m, k), (n, k2) = ((_only(free), _only(inner)) for free, inner in groups)
        assert found[0] is not None and found[1] is not None
        a = Matrix(found[0][0], m[1], k[1], _starts([found[0][1][i] for i in batch[0]]))
        b = Matrix(found[1][0], k2[1], n[1], _starts([found[1][1][j] for j in batch[1]]))
        if not (_has_unit_step(a, m[0], k[0]) and _has_unit_step(b, k[0], n[0])):
            return None
        return Product(node.dtype, m[0], n[0], k[0], a, b, self._result(node, out, batch, m[0], n[0]), (node.index,))

    def _copied(self, operand: Node, batch: Sequence[int], contracted: Sequence[int]) -> tuple[Place, list[Loops]]:
        """An operand copied with its batch axes first and its contracted ones last, in the order that the other has."""
        order = (*batch, *free_axes(operand.tensor.rank, tuple(batch), tuple(contracted)), *contracted)
        steps = contiguous(tuple(operand.shape[i] for i in order))
        strides = tuple(steps[order.index(i)] for i in range(len(order)))
        storage = self.buffers.arena("copy", operand, strides)
        self.builder.copy(operand, storage)
        return storage.place, [[(n, s)] if n > 1 else [] for n, s in zip(operand.shape, strides, strict=True)]

    def _result(self, node: Node, out: Storage, batch: tuple[tuple[int, ...], ...], m: int, n: int) -> Matrix:
        shared = len(batch[0])
        left = node.inputs[0].tensor.rank - shared - len(node.attributes["contracted"][0])
        loops = [[(size, step)] if size > 1 else [] for size, step in zip(node.shape, out.strides, strict=True)]
        rows = _only(_join([loop for axis in loops[shared : shared + left] for loop in axis]))
        return Matrix(out.place, rows[1] if m > 1 else n, 1, _starts(loops[:shared]))

    def _layout(self, node: Node) -> tuple[int, ...] | None:
        """Strides of a product's result such that the permutation by which all readers see it is contiguous; None: row-major."""
        readers = self.readers.get(node, [])
        orders = {reader.attributes["axes"] for reader in readers if reader.op == "permute"}
        if len(orders) != 1 or any(reader.op != "permute" for reader in readers) or node in self.buffers.claimed:
            return None
        if node in self.outputs:
            return None
        (axes,) = orders
        permuted = contiguous(tuple(node.shape[a] for a in axes))
        strides = [0] * len(axes)
        for position, axis in enumerate(axes):
            strides[axis] = permuted[position]
        shared = len(node.attributes["batch"][0])
        left = node.inputs[0].tensor.rank - shared - len(node.attributes["contracted"][0])
        loops = [[(n, s)] if n > 1 else [] for n, s in zip(node.shape, strides, strict=True)]
        rows = _join([loop for axis in loops[shared : shared + left] for loop in axis])
        columns = _join([loop for axis in loops[shared + left :] for loop in axis])
        fits = len(rows) <= 1 and len(columns) <= 1 and (not columns or columns[0][1] == 1)
        return tuple(strides) if fits else None

    # -- joins

    def _concat(self, node: Node) -> None:
        out = self.buffers.result(node)
        axis, at = node.attributes["axis"], 0
        for part in node.inputs:
            if part.tensor.elements:
                self.builder.copy(part, _moved(out, {axis: at}, (1,) * len(out.strides)))
            at += part.shape[axis]
        self.buffers.storage[node] = out

    def _pad(self, node: Node) -> None:
        out = self.buffers.result(node)
        fill = self._filler(node, node.attributes["value"])
        self.builder.emit("map", node.shape, (), [Root(fill, out)], set())
        steps = tuple(i + 1 for i in node.attributes["interior"])
        if node.inputs[0].tensor.elements:
            self.builder.copy(node.inputs[0], _moved(out, dict(enumerate(node.attributes["low"])), steps))
        self.buffers.storage[node] = out

    def _filler(self, node: Node, value: float) -> Node:
        """A constant of the node's type that stands in no graph."""
        number = float(value) if node.dtype in ("f32", "bf16", "f16") else int(value)
        attributes = {"value": number, "dtype": node.dtype, "shape": node.shape}
        return Node(node.graph, node.index, "constant", (), attributes, node.type, node.origins)

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
                self.buffers.flag(node) if has_flag else None,
                node.attributes.get("descending", False),
                (node.index,),
            )
        )
        self.buffers.storage[node] = out

    def _sum_storage(self, node: Node) -> Storage:
        """Where the sum will be, holding what is added to: the operand's own memory where nothing else reads it."""
        x = node.inputs[0]
        there = self.buffers.storage.get(x)
        alone = self.readers[x] == [node] and x not in self.outputs and x.op not in ("input", "host")
        if there is not None and alone and there.strides == contiguous(x.shape) and node not in self.buffers.claimed:
            return there
        out = self.buffers.result(node)
        if there is None or there.place != out.place:
            self.builder.emit("map", node.shape, (), [Root(x, out)], set())
        return out


def _moved(out: Storage, start: dict[int, int], steps: Sequence[int]) -> Storage:
    """The part of a storage that begins at `start` and takes every `steps`-th element."""
    shift = sum(n * out.strides[axis] for axis, n in start.items())
    place = Place(out.place.buffer, out.place.offset + shift * out.item_bytes)
    return Storage(place, tuple(s * k for s, k in zip(out.strides, steps, strict=True)), out.item_bytes)


def _join(loops: Loops) -> Loops:
    """Neighbouring loops along which the memory steps evenly as one."""
    made: Loops = []
    for size, step in loops:
        if made and made[-1][1] == step * size:
            made[-1] = (made[-1][0] * size, step)
        else:
            made.append((size, step))
    return made


def _only(loops: Loops) -> tuple[int, int]:
    return loops[0] if loops else (1, 1)


def _order(located: tuple[Place, list[Loops]] | None, contracted: tuple[int, ...]) -> list[int]:
    """The order of the contracted pairs: by falling step in an operand that is not copied, else as they are."""
    if located is None:
        return list(range(len(contracted)))

    def step(k: int) -> int:
        loops = located[1][contracted[k]]
        return -(loops[-1][1] if loops else 0)

    return sorted(range(len(contracted)), key=step)


def _starts(axes: Sequence[Loops]) -> tuple[int, ...]:
    """The offset of every batch entry, row-major over the batch axes."""
    loops = [loop for axis in axes for loop in axis]
    return tuple(sum(parts) for parts in cartesian(*([step * i for i in range(size)] for size, step in loops)))


def _has_unit_step(matrix: Matrix, rows: int, columns: int) -> bool:
    return matrix.row == 1 or matrix.column == 1 or rows == 1 or columns == 1

