"""Loops: the body is planned once, its carries and what is scanned and stacked in buffers that follow the position.

A carry lies in slots, one for each iteration and one more where its values are stacked too, else in two by turns. An
iteration reads one slot and writes the next, so nothing is copied from iteration to iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import SIZES
from sexpgpu.ops.scan import parts
from sexpgpu.passes.access import VIEWS, contiguous
from sexpgpu.passes.clusters import LEAVES
from sexpgpu.passes.fuse import fuse
from sexpgpu.passes.inline import inline
from sexpgpu.passes.lower import lower
from sexpgpu.plan.buffers import Buffers, OpenLoop
from sexpgpu.plan.kernel import Loop, Place
from sexpgpu.plan.layout import base_through
from sexpgpu.plan.trace import Storage

if TYPE_CHECKING:
    from sexpgpu.plan.build import Builder


@dataclass(frozen=True)
class _Carry:
    """The slots of one carry; the slots of the iteration at position p are p + `reads` and p + `writes`, where there is
    a period modulo that."""

    block: Place
    node: Node
    period: int
    reads: int
    writes: int

    @property
    def slot_bytes(self) -> int:
        return SIZES[self.node.dtype] * prod(self.node.shape)

    def slot(self, number: int) -> Storage:
        number = number % self.period if self.period else number
        place = Place(self.block.buffer, self.block.offset + number * self.slot_bytes)
        return _whole(place, self.node)

    def window(self, buffers: Buffers, loop: OpenLoop, shift: int) -> Storage:
        return _whole(buffers.window(loop, self.block, self.slot_bytes, shift, self.period), self.node)


def _whole(place: Place, node: Node) -> Storage:
    return Storage(place, contiguous(node.shape), SIZES[node.dtype])


def lower_scan(builder: Builder, node: Node) -> None:
    """Adds the launch of a loop, and says where its results are."""
    _Lowering(builder, node).run()


class _Lowering:
    def __init__(self, builder: Builder, node: Node) -> None:
        from sexpgpu.plan.build import Builder

        self.outer, self.node, self.buffers = builder, node, builder.buffers
        self.length: int = node.attributes["length"]
        self.reverse: bool = node.attributes["reverse"]
        keep = self.buffers.keep_values
        flat = inline(node.attributes["body"])
        fusion = fuse((flat if keep else lower(flat)).graph, keep_values=keep)
        sources = [builder.sources[node.index]] * len(fusion.graph.nodes)
        self.builder = Builder(fusion, sources, {}, self.buffers)
        given = {n.attributes["name"]: n for n in fusion.graph.nodes if n.op == "input"}
        # An input that nothing reads is in no flat graph.
        self.inputs = [given.get(n.attributes["name"]) for n in node.attributes["body"].inputs]
        self.results = list(fusion.graph.outputs.values())
        gets = [n for n in builder.graph.nodes if n.op == "get" and n.inputs[0] is node]
        self.gets: dict[int, Node] = {get.attributes["index"]: get for get in gets}

    def run(self) -> None:
        firsts, xs, constants = parts(self.node)
        carries = [self._carry(k, first) for k, first in enumerate(firsts)]
        stacks = self._stacks(carries)
        of_xs = [self.outer.heavy.stored(x) for x in xs]
        of_constants = [self.outer.heavy.stored(x) for x in constants]
        loop = OpenLoop(self.length)
        self.buffers.loops.append(loop)
        inside = [carry.window(self.buffers, loop, carry.reads) for carry in carries]
        inside += [self._element(loop, whole) for whole in of_xs]
        for argument, storage in zip(self.inputs, [*inside, *of_constants], strict=True):
            if argument is not None:
                self.buffers.storage[argument] = storage
        targets = [(carry.node, carry.window(self.buffers, loop, carry.writes)) for carry in carries]
        for result, (whole, is_carry) in stacks.items():
            if not is_carry:
                targets.append((result, self._element(loop, whole)))
        self._launch(targets)
        self.buffers.loops.pop()
        made = Loop(
            tuple(self.builder.launches), self.length, self.reverse, tuple(loop.windows), frozenset(loop.temporaries),
            (self.node.index,),
        )  # fmt: skip
        self.outer.add(made)
        for k, get in self.gets.items():
            last = 0 if self.reverse else self.length
            at = carries[k].slot(last) if k < len(carries) else stacks[self.results[k]][0]
            self.buffers.storage[get] = at

    def _carry(self, k: int, first: Node) -> _Carry:
        """The slots of a carry, the first value put into the first of them."""
        node, stacked = self.results[k], self.results[self.node.attributes["carries"] :]
        is_stacked = node in stacked or self.inputs[k] in stacked
        slots = self.length + 1 if is_stacked else 2
        block = self.buffers.block("carry", slots * SIZES[node.dtype] * prod(node.shape))
        carry = _Carry(block, node, 0 if is_stacked else 2, int(self.reverse), int(not self.reverse))
        self.outer.copy(first, carry.slot(self.length if self.reverse else 0))
        return carry

    def _stacks(self, carries: list[_Carry]) -> dict[Node, tuple[Storage, bool]]:
        """Where the stacked results are, and whether they are a carry's slots."""
        found: dict[Node, tuple[Storage, bool]] = {}
        for k, result in enumerate(self.results):
            if k < len(carries) or result in found:
                continue
            shape = (self.length, *result.shape)
            for number, carry in enumerate(carries):
                shift = carry.writes if carry.node is result else carry.reads
                if carry.node is result or self.inputs[number] is result:
                    at = carry.slot(shift)
                    found[result] = (Storage(at.place, contiguous(shape), at.item_bytes), True)
                    break
            else:
                whole = self.outer.result(self.gets[k]) if k in self.gets else self._unread(result)
                found[result] = (whole, False)
        return found

    def _unread(self, result: Node) -> Storage:
        shape = (self.length, *result.shape)
        place = self.buffers.block("unread", SIZES[result.dtype] * prod(shape))
        return Storage(place, contiguous(shape), SIZES[result.dtype])

    def _element(self, loop: OpenLoop, whole: Storage) -> Storage:
        """The part of what is scanned or stacked that belongs to an iteration."""
        place = self.buffers.window(loop, whole.place, whole.strides[0] * whole.item_bytes)
        return Storage(place, whole.strides[1:], whole.item_bytes)

    def _launch(self, targets: list[tuple[Node, Storage]]) -> None:
        """The body's launches. Results are written where they belong; what is no kernel's own result, or belongs to
        several places, is copied at the end."""
        placed = self.buffers.placed
        copies: list[tuple[Node, Storage]] = []
        for result, storage in targets:
            base, views = base_through(result, self.builder.readers)
            if result in placed or base.op == "input" or base.op in LEAVES:
                copies.append((result, storage))
            elif not views and result.op not in VIEWS and result.op != "get":
                placed[result] = storage
            elif base in self.builder.outputs or not self.builder.layouts.place_under(base, views, storage):
                copies.append((result, storage))
        self.builder.launch_all()
        for result, storage in copies:
            self.builder.copy(result, storage)
