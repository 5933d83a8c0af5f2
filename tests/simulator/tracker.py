"""Who wrote and who read each cell of global memory in a launch, and the races that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.simulator.dtypes import Array

# A tag: launch above bit 44, the block's count of barriers (modulo 4096) above bit 32, then the thread or block, from 1.
LAUNCH, EPOCH = 44, 32
EPOCHS = 1 << (LAUNCH - EPOCH)
WHO = (1 << EPOCH) - 1
SEVERAL = WHO


@dataclass(frozen=True)
class Accessor:
    """The threads of one access: number in the launch from 1, block in the launch from 1, barriers passed."""

    thread: Array
    block: Array
    epoch: Array
    slots: int


class Tracker:
    """Cells of `grain` bytes, the fewest that the kernel accesses at once; a launch's own number makes old tags stale."""

    def __init__(self, n_bytes: int, grain: int) -> None:
        self.grain = grain
        cells = -(-n_bytes // grain)
        self.written: Array = np.zeros(cells, np.uint64)
        self.read: Array = np.zeros(cells, np.uint64)
        self.combined: Array | None = None

    def cells(self, offsets: Array, n_bytes: int) -> Array:
        """The cells of each access, one row for each."""
        first = offsets // self.grain
        many = n_bytes // self.grain
        return first[:, None] + np.arange(many) if many > 1 else first[:, None]

    def load(self, launch: int, offsets: Array, n_bytes: int, by: Accessor, read_only: bool) -> list[tuple[str, int]]:
        """Races of a read with earlier writes, as (what, how many); remembers the read."""
        cells = self.cells(offsets, n_bytes)
        base = np.uint64(launch << LAUNCH)
        found = []
        written = self.written[cells]
        recent = written >= base
        if recent.any():
            other = recent & self._unordered(written, by, write=False)
            found.append(("read of a word that another thread wrote in this launch", int(other.any(1).sum())))
            if read_only:
                found.append(("read-only load of a word written in this launch", int(recent.any(1).sum())))
        self._remember(cells, base, by)
        return found

    def _remember(self, cells: Array, base: np.uint64, by: Accessor) -> None:
        tag = (base | by.block.astype(np.uint64))[:, None]
        several = base | np.uint64(SEVERAL)
        earlier = self.read[cells]
        again = (earlier >= base) & (earlier != tag)
        kept = np.where(again, several, tag) if again.any() else np.broadcast_to(tag, cells.shape)
        self.read[cells] = kept
        lost = self.read[cells] != kept
        if lost.any():
            self.read[cells[lost]] = several

    def store(self, launch: int, offsets: Array, n_bytes: int, by: Accessor) -> list[tuple[str, int]]:
        """Races of a write with earlier writes, earlier reads by other blocks, and with its own neighbours."""
        cells = self.cells(offsets, n_bytes)
        base = np.uint64(launch << LAUNCH)
        found = []
        written = self.written[cells]
        recent = written >= base
        if recent.any():
            other = recent & self._unordered(written, by, write=True)
            found.append(("two threads store to one word", int(other.any(1).sum())))
        read = self.read[cells]
        foreign = (read >= base) & ((read & np.uint64(WHO)) != by.block.astype(np.uint64)[:, None])
        if foreign.any():
            found.append(("store to a word that another block reads in this launch", int(foreign.any(1).sum())))
        tag = (base | (by.epoch % EPOCHS << EPOCH).astype(np.uint64) | by.thread.astype(np.uint64))[:, None]
        self.written[cells] = np.broadcast_to(tag, cells.shape)
        lost = (self.written[cells] != tag).any(1)
        found.append(("two threads store to one word in one instruction", int(lost.sum())))
        return found

    def _unordered(self, written: Array, by: Accessor, write: bool) -> Array:
        """Written by a thread of another block, or of this block in another warp with no barrier between."""
        writer = (written & np.uint64(WHO)).astype(np.int64)
        thread = by.thread.astype(np.int64)[:, None]
        foreign = (writer - 1) // by.slots != (thread - 1) // by.slots
        since = (written >> np.uint64(EPOCH)) % np.uint64(EPOCHS) != (by.epoch % EPOCHS).astype(np.uint64)[:, None]
        neighbour = (writer != thread) if write else ((writer - 1) // 32 != (thread - 1) // 32)
        return np.asarray(foreign | (neighbour & ~since))

    def combine(self, launch: int, offsets: Array, n_bytes: int) -> None:
        """Remembers an atomic access, which races with no other."""
        if self.combined is None:
            self.combined = np.zeros(self.written.size, np.uint64)
        self.combined[self.cells(offsets, n_bytes)] = np.uint64(launch << LAUNCH)

    def touched(self, launch: int, part: slice) -> tuple[Array, Array]:
        """Which cells of a part of the arena the launch loaded and stored."""
        cells = slice(part.start // self.grain, -(-part.stop // self.grain))
        base = np.uint64(launch << LAUNCH)
        loaded, stored = self.read[cells] >= base, self.written[cells] >= base
        if self.combined is not None:
            combined = self.combined[cells] >= base
            return loaded | combined, stored | combined
        return loaded, stored
