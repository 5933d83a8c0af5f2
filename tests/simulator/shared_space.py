"""Shared memory: one part for each block that runs, and the races between its barriers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.memory import ALLOCATED, IN_FLIGHT
from tests.simulator.space import Space
from tests.simulator.threads import Threads

if TYPE_CHECKING:
    from tests.simulator.machine import Machine

# A tag: barriers passed from 1 above bit 40, __syncwarps passed above bit 20 (modulo 2^20), then the thread or a mark.
EPOCH, WARP_EPOCH = 40, 20
LOW = (1 << WARP_EPOCH) - 1
MANY = LOW
WARP_MARK = 1 << 16


class SharedSpace(Space):
    """Cells of `grain` bytes remember who wrote them last and who read them since the last barrier."""

    name = "shared"

    def __init__(self, blocks: int, n_bytes: int, grain: int) -> None:
        self.block_bytes = max(32, -(-n_bytes // 32) * 32)
        self.used_bytes = n_bytes
        super().__init__(np.zeros(blocks * self.block_bytes, np.uint8), np.zeros(blocks * self.block_bytes, np.uint8))
        self.grain = grain
        cells = self.bytes.size // grain
        self.written: Array = np.zeros(cells, np.int64)
        self.read: Array = np.zeros(cells, np.int64)
        self.clear()

    def clear(self) -> None:
        self.shadow.fill(ALLOCATED)
        self.written.fill(0)
        self.read.fill(0)

    def place(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> Array:
        self.aligned(machine, address, n_bytes)
        if address.min() < 0 or address.max() > self.used_bytes - n_bytes:
            wrong = (address < 0) | (address > self.used_bytes - n_bytes)
            first = machine.who(int(threads.indices[wrong][0]))
            machine.fault(
                "out-of-bounds",
                f"shared address {int(address[wrong][0])} of a block that has {self.used_bytes} bytes; {first}",
            )
        return np.asarray(address + machine.block_slot[threads.pick] * self.block_bytes)

    def cells(self, offsets: Array, n_bytes: int) -> Array:
        first = (offsets // self.grain)[:, None]
        return first + np.arange(n_bytes // self.grain) if n_bytes > self.grain else first

    def loaded(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int, read_only: bool) -> None:
        cells = self.cells(offsets, n_bytes)
        mine = Mine(machine, threads)
        if mine.clashes(self.written[cells]):
            machine.note("shared-race", "read of another thread's write with no barrier between")
        earlier = self.read[cells]
        value = mine.joined(earlier) if (earlier >= mine.base).any() else np.broadcast_to(mine.tag, cells.shape)
        self.read[cells] = value
        self._together(cells, value, mine)

    def _together(self, cells: Array, value: Array, mine: Mine) -> None:
        """Readers of one instruction overwrote each other's tags: mark the cells that several of them read."""
        kept = self.read[cells]
        lost = kept != value
        if lost.any():
            neighbour = lost & (warp_of(kept) == mine.warp)
            self.read[cells[neighbour]] = np.broadcast_to(mine.warp_mark, cells.shape)[neighbour]
            foreign = lost & ~neighbour
            self.read[cells[foreign]] = np.broadcast_to(mine.base | MANY, cells.shape)[foreign]

    def stored(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        cells = self.cells(offsets, n_bytes)
        mine = Mine(machine, threads)
        if mine.clashes(self.written[cells]):
            machine.note("shared-race", "write over another thread's write with no barrier between")
        if mine.clashes_with_readers(self.read[cells]):
            machine.note("shared-race", "write over another thread's read with no barrier between")
        self.written[cells] = mine.tag
        if (self.written[cells] != mine.tag).any():
            machine.note("shared-race", "two threads write one word in one instruction")

    def begin_copy(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> None:
        """An asynchronous copy is a write from now until it is waited for."""
        offsets = self.place(machine, threads, address, n_bytes)
        self.stored(machine, threads, offsets, n_bytes)
        self.shadow.view("u4").reshape(-1, n_bytes // 4)[offsets // n_bytes] = int.from_bytes(
            bytes([ALLOCATED | IN_FLIGHT]) * 4, "little"
        )


def warp_of(tags: Array) -> Array:
    """The warp that alone left a tag; -1 for a mark of several warps."""
    who = tags & LOW
    return np.where(who == MANY, -1, np.where(who >= WARP_MARK, who - WARP_MARK, who // 32))


class Mine:
    """The tags of the threads of one access, and what clashes with them."""

    def __init__(self, machine: Machine, threads: Threads) -> None:
        pick = threads.pick
        self.thread = machine.thread[pick][:, None]
        self.warp = self.thread // 32
        self.base = (machine.epoch[pick][:, None] + 1) << EPOCH
        self.since = (machine.warp_epoch[pick][:, None] & LOW) << WARP_EPOCH
        self.tag = self.base | self.since | self.thread
        self.warp_mark = self.base | self.since | (WARP_MARK + self.warp)

    def clashes(self, tags: Array) -> bool:
        """Whether another thread of the block wrote since the last barrier, in this warp since the last __syncwarp."""
        recent = tags >= self.base
        if not recent.any():
            return False
        who = tags & LOW
        ordered = (who // 32 == self.warp) & (tags & (LOW << WARP_EPOCH) != self.since)
        return bool((recent & (who != self.thread) & ~ordered).any())

    def clashes_with_readers(self, tags: Array) -> bool:
        recent = tags >= self.base
        if not recent.any():
            return False
        ordered = (warp_of(tags) == self.warp) & (tags & (LOW << WARP_EPOCH) != self.since)
        return bool((recent & (tags & LOW != self.thread) & ~ordered).any())

    def joined(self, earlier: Array) -> Array:
        """Tags after one more read of cells that others may have read since the last barrier."""
        stale = (earlier < self.base) | (earlier == self.tag)
        same = warp_of(earlier) == self.warp
        replaced = same & (earlier & (LOW << WARP_EPOCH) != self.since)
        mark = np.where(same, self.warp_mark, self.base | MANY)
        return np.where(stale | replaced, self.tag, mark)
