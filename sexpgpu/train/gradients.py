"""The gradients of a step: every microbatch's call of the training graph, summed by the canonical tree."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Literal

import msgspec
import numpy as np

from sexpgpu.device import Device, Executable
from sexpgpu.dist.exchange import Exchange, SingleRank
from sexpgpu.dist.reduction import MOST_LANES, SumPlan
from sexpgpu.ir.types import TensorType
from sexpgpu.passes.experiment import Parameter

# Parts of a flat buffer begin at whole cache lines (64 bytes), so that kernels may use aligned vectors.
ALIGNMENT_ELEMENTS = 16


class Move(msgspec.Struct, frozen=True):
    """One step of a sum as it is done: every call leaves its gradients in the landing buffer.

    call: microbatch `source` runs; copy: buffer `target` = landing; add: buffer `target` += buffer `source`, or landing
    where that is None.
    """

    kind: Literal["call", "copy", "add"]
    target: int
    source: int | None = None


def moves(plan: SumPlan) -> tuple[Move, ...]:
    """A plan's operations with one landing buffer, so that the graph's outputs are bound once. What lands is copied only
    if another call comes before it is added elsewhere."""
    made: list[Move] = []
    standing: int | None = None
    for operation in plan.operations:
        if operation.kind != "add":
            if standing is not None:
                made.append(Move("copy", standing))
            made.append(Move("call", operation.target, operation.source))
            standing = operation.target
            if operation.kind == "accumulate":
                made.append(Move("add", operation.target))
                standing = None
        elif operation.source == standing:
            made.append(Move("add", operation.target))
            standing = None
        else:
            assert standing is None, "a sum waits for what landed last"
            made.append(Move("add", operation.target, operation.source))
    return (*made, Move("copy", standing)) if standing is not None else tuple(made)


class GradientSum:
    """Flat memory that holds all trainable parameters' gradients end to end, then what `:loss` updates buffers to; `total`
    holds the sum of a step, over all ranks. `calls`: microbatches of a full step of all ranks; with `short`, steps may
    have any smaller number."""

    def __init__(
        self,
        device: Device,
        parameters: tuple[Parameter, ...],
        calls: int,
        lanes: int | None,
        exchange: Exchange | None = None,
        short: bool = False,
        updated: tuple[Parameter, ...] = (),
    ) -> None:
        self.device = device
        exchange = exchange or SingleRank()
        self.offsets: dict[str, tuple[int, TensorType]] = {}
        self._gaps: list[tuple[int, int]] = []
        of_gradients = self._place("gradient", parameters, 0)
        self.type = TensorType("f32", (max(self._place("update", updated, of_gradients), 1),))
        self._gradients = TensorType("f32", (max(of_gradients, 1),))
        counts = range(1, calls + 1) if short else (calls,)
        self.exchange = exchange.gradients(self.type.elements, counts, lanes or MOST_LANES)
        self.landing: Any = device.landing(self.type)
        shared = self.exchange.arrays
        # Memory that ranks share is theirs already; alone, a step of one call needs no other buffer than the landing one.
        self._buffers: dict[int, Any] = {k: device.adopt(array) for k, array in enumerate(shared or ())}
        if shared is None:
            self._buffers[0] = self.landing if calls == 1 else device.allocate(self.type)
        total = self.exchange.total
        # On the first rank of a node the sum stands in its own first buffer, which is not to be counted twice.
        elsewhere = total is not None and (shared is None or total is not shared[0])
        self.total: Any = device.adopt(total) if total is not None and elsewhere else self._buffers[0]
        for move in self.moves(calls):
            if move.kind != "call":
                self._buffer(move.target)

    def _place(self, kind: str, parameters: tuple[Parameter, ...], start: int) -> int:
        """Give each its part of the flat memory from `start` on; where the last one ends."""
        for parameter in parameters:
            self.offsets[f"{kind}:{parameter.name}"] = (start, TensorType("f32", parameter.shape))
            end = start + prod(parameter.shape)
            start += -(-max(prod(parameter.shape), 1) // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
            if end < start:
                self._gaps.append((end, start - end))
        return start

    def moves(self, calls: int) -> tuple[Move, ...]:
        return moves(self.exchange.plan(calls))

    def _buffer(self, number: int) -> Any:
        if number not in self._buffers:
            self._buffers[number] = self.device.allocate(self.type)
        return self._buffers[number]

    @property
    def size_bytes(self) -> int:
        held = {id(buffer) for buffer in (self.landing, self.total, *self._buffers.values())}
        return self.type.size_bytes * len(held)

    def parts(self, buffer: Any) -> dict[str, Any]:
        """Every `gradient:…` and `update:…` in a flat buffer."""
        return {name: self.device.part(buffer, offset, type_) for name, (offset, type_) in self.offsets.items()}

    def bind(self, executable: Executable, buffer: Any) -> None:
        """Let an executable's `gradient:…` and `update:…` stand in flat memory."""
        for name, memory in self.parts(buffer).items():
            if name in executable.externals:
                executable.bind(name, memory)

    def sum(self, calls: int, call: Callable[[int], None]) -> None:
        """`call(i)` leaves the gradients of microbatch i in the landing buffer; afterwards `total` holds the sum over
        all ranks. Of `calls` this rank runs its own."""
        self.exchange.begin()
        for move in self.moves(calls):
            if move.kind == "call":
                assert move.source is not None
                call(move.source)
                self._clear_gaps()
            elif move.kind == "add":
                source = self.landing if move.source is None else self._buffer(move.source)
                self.device.add(self._buffer(move.target), source)
            elif self._buffer(move.target) is not self.landing:
                self.device.copy(self._buffer(move.target), self.landing)
        self.exchange.finish(calls)

    def _clear_gaps(self) -> None:
        """Other values lay in the landing memory before; between gradients zeros are summed."""
        for start, size in self._gaps:
            gap = self.device.part(self.landing, start, TensorType("f32", (size,)))
            self.device.write(gap, np.zeros(size, np.float32))

    def square_sum(self) -> float:
        """Σ g² over every gradient, in float64: parts between the gradients hold zeros."""
        return self.device.square_sum(self.device.part(self.total, 0, self._gradients))
