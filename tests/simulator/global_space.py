"""Global memory: allocations as bounds, races between threads, traffic by allocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.memory import ALLOCATED, BASE, INITIALISED, Allocation, Memory
from tests.simulator.report import Traffic
from tests.simulator.space import Space
from tests.simulator.threads import WARP, Threads
from tests.simulator.tracker import Accessor

if TYPE_CHECKING:
    from tests.simulator.machine import Machine


@dataclass
class Counted:
    """Bytes by allocation's start, distinct within a warp's instruction."""

    loaded: dict[int, int] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)


class GlobalSpace(Space):
    """One for a launch; `launch` is its number in the memory."""

    name = "global"

    def __init__(self, memory: Memory, grain: int) -> None:
        super().__init__(memory.bytes, memory.shadow)
        memory.launches += 1
        self.memory = memory
        self.launch = memory.launches
        self.tracker = memory.tracker(grain)
        self.counted = Counted()
        self.owner: Allocation | None = None

    def place(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> Array:
        self.aligned(machine, address, n_bytes)
        offsets = address - BASE
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high > self.bytes.size - n_bytes:
            wrong = (offsets < 0) | (offsets > self.bytes.size - n_bytes)
            machine.fault("wild-address", self._where(machine, threads, offsets, wrong, "is no address of the device"))
        self.owner = self._one_owner(low, high + n_bytes)
        if self.owner is None:
            self._each(machine, threads, offsets, n_bytes)
        return offsets

    def _one_owner(self, low: int, end: int) -> Allocation | None:
        """The allocation that all of an access lies in."""
        last = self.owner
        if last is None or not last.start <= low < last.start + last.n_bytes:
            last = self.memory.owner(low)
        return last if last and last.live and end <= last.start + last.n_bytes else None

    def _each(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        ends = self.shadow[offsets] & self.shadow[offsets + n_bytes - 1]
        wrong = (ends & ALLOCATED) == 0
        if not wrong.any():
            return
        owner = self.memory.owner(int(offsets[wrong][0]))
        if owner and not owner.live and int(offsets[wrong][0]) < owner.start + owner.n_bytes:
            machine.fault("use-after-free", self._where(machine, threads, offsets, wrong, "was freed"))
        where = "lies before every allocation"
        if owner:
            past = int(offsets[wrong][0]) - owner.start
            where = f"is byte {past} of an allocation of {owner.n_bytes} bytes"
        machine.fault("out-of-bounds", self._where(machine, threads, offsets, wrong, where))

    def _where(self, machine: Machine, threads: Threads, offsets: Array, wrong: Array, what: str) -> str:
        return f"{int(offsets[wrong][0]) + BASE:#x} {what}; {machine.who(int(threads.indices[wrong][0]))}"

    def initialised(self, offsets: Array) -> bool:
        return self.owner is not None and self.owner.initialised

    def accessor(self, machine: Machine, threads: Threads) -> Accessor:
        pick = threads.pick
        return Accessor(machine.number[pick], machine.block_number[pick], machine.epoch[pick], machine.slots)

    def loaded(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int, read_only: bool) -> None:
        by = self.accessor(machine, threads)
        self._races(machine, self.tracker.load(self.launch, offsets, n_bytes, by, read_only))
        self._count(self.counted.loaded, threads, offsets, n_bytes)

    def stored(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        self._races(machine, self.tracker.store(self.launch, offsets, n_bytes, self.accessor(machine, threads)))
        self._count(self.counted.stored, threads, offsets, n_bytes)

    def combined(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        self.tracker.combine(self.launch, offsets, n_bytes)
        self._count(self.counted.loaded, threads, offsets, n_bytes)
        self._count(self.counted.stored, threads, offsets, n_bytes)

    def _races(self, machine: Machine, races: list[tuple[str, int]]) -> None:
        for what, many in races:
            if many:
                machine.note("global-race", what, f"{many} threads")

    def _count(self, counted: dict[int, int], threads: Threads, offsets: Array, n_bytes: int) -> None:
        if self.owner is not None:
            start = self.owner.start
            counted[start] = counted.get(start, 0) + distinct(threads, offsets) * n_bytes
            return
        owners = np.searchsorted(self.memory.starts, offsets, side="right") - 1
        warps = threads.indices // WARP
        alone = np.unique(np.stack([owners, warps, offsets]), axis=1)[0]
        for owner, many in zip(*np.unique(alone, return_counts=True)):
            start = self.memory.starts[owner]
            counted[start] = counted.get(start, 0) + int(many) * n_bytes

    def traffic(self) -> dict[int, Traffic]:
        """By allocation's address; also settles which allocations are now wholly written."""
        made = {}
        for start in sorted({*self.counted.loaded, *self.counted.stored}):
            owner = self.memory.owner(start)
            assert owner is not None
            touched = self.tracker.touched(self.launch, owner.part)
            unique = [int(np.count_nonzero(cells)) * self.tracker.grain for cells in touched]
            made[owner.address] = Traffic(self.counted.loaded.get(start, 0), self.counted.stored.get(start, 0), *unique)
            owner.initialised = owner.initialised or bool((self.shadow[owner.part] == INITIALISED).all())
        return made


def distinct(threads: Threads, offsets: Array) -> int:
    """Accesses of one width that differ within their warps: each warp's broadcast counts once."""
    if len(offsets) == 1:
        return 1
    steps = np.diff(offsets)
    if (steps > 0).all():
        return len(offsets)
    warps = threads.indices // WARP
    if (steps >= 0).all():
        return int(((steps != 0) | (np.diff(warps) != 0)).sum()) + 1
    if threads.whole_warps:
        rows = np.sort(offsets.reshape(-1, WARP), axis=1)
        return int((np.diff(rows, axis=1) != 0).sum()) + len(rows)
    order = np.lexsort((offsets, warps))
    return int(((np.diff(offsets[order]) != 0) | (np.diff(warps[order]) != 0)).sum()) + 1
