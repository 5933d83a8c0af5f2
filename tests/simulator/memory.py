"""The device's memory: an arena with a shadow that knows of each byte whether it is allocated and was ever written."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.report import Fault
from tests.simulator.tracker import Tracker

BASE = 0x7F00_0000_0000
ALIGNMENT = 256
RED_ZONE = 1024
# Bits of the shadow.
ALLOCATED, WRITTEN, IN_FLIGHT = 1, 2, 4
INITIALISED = ALLOCATED | WRITTEN


@dataclass
class Allocation:
    """`start` is the offset in the arena; `initialised` says that every byte is known to have been written."""

    start: int
    n_bytes: int
    live: bool = True
    initialised: bool = False

    @property
    def address(self) -> int:
        return BASE + self.start

    @property
    def part(self) -> slice:
        return slice(self.start, self.start + self.n_bytes)


class Memory:
    """Freed memory is given out again only when nothing else is left, so that a use after free is found."""

    def __init__(self, size: int = 64 << 20) -> None:
        size = -(-size // ALIGNMENT) * ALIGNMENT + 2 * RED_ZONE
        self.bytes: Array = np.zeros(size, np.uint8)
        self.shadow: Array = np.zeros(size, np.uint8)
        self.allocations: list[Allocation] = []
        self.starts: list[int] = []
        self.end = RED_ZONE
        self.launches = 0
        self.trackers: dict[int, Tracker] = {}
        self.last: Tracker | None = None
        self.modules: dict[object, dict[str, int]] = {}

    def allocate(self, n_bytes: int) -> int:
        """Uninitialised memory; MemoryError where there is no room."""
        made = self._fresh(n_bytes) or self._recycled(n_bytes)
        if made is None:
            raise MemoryError(f"{n_bytes} bytes do not fit in the device's memory")
        self.shadow[made.part] = ALLOCATED
        return made.address

    def _fresh(self, n_bytes: int) -> Allocation | None:
        end = -(-(self.end + n_bytes + RED_ZONE) // ALIGNMENT) * ALIGNMENT
        if end > self.bytes.size:
            return None
        made = Allocation(self.end, n_bytes)
        self.allocations.append(made)
        self.starts.append(made.start)
        self.end = end
        return made

    def _recycled(self, n_bytes: int) -> Allocation | None:
        for place, old in enumerate(self.allocations):
            if not old.live and old.n_bytes >= n_bytes:
                self.allocations[place] = Allocation(old.start, n_bytes)
                return self.allocations[place]
        return None

    def put(self, array: Any) -> int:
        """The address of a new allocation that holds the array."""
        address = self.allocate(np.asarray(array).nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: Any) -> None:
        values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        owner, part = self.inside(address, values.size, "write")
        self.bytes[part] = values
        self.shadow[part] = INITIALISED
        owner.initialised |= part == owner.part

    def fill(self, address: int, value: int, n_bytes: int) -> None:
        self.write(address, np.full(n_bytes, value, np.uint8))

    def read(self, address: int, count: int, dtype: Any, *, initialised: bool = True) -> Array:
        """A copy of `count` elements; a Fault where a byte was never written, unless that is allowed."""
        n_bytes = count * np.dtype(dtype).itemsize
        _, part = self.inside(address, n_bytes, "read")
        missing = np.flatnonzero(self.shadow[part] != INITIALISED) if initialised else np.zeros(0, np.int64)
        if missing.size:
            first = f"{missing.size} of {n_bytes} bytes, the first at byte {missing[0]}"
            raise Fault("uninitialised-read", f"the host reads {first}, that were never written")
        return self.bytes[part].copy().view(dtype)

    def copy(self, target: int, source: int, n_bytes: int) -> None:
        """Bytes that were never written stay so."""
        _, there = self.inside(source, n_bytes, "copy from")
        owner, here = self.inside(target, n_bytes, "copy to")
        self.bytes[here] = self.bytes[there].copy()
        self.shadow[here] = self.shadow[there].copy()
        owner.initialised = bool((self.shadow[owner.part] == INITIALISED).all())

    def free(self, address: int) -> None:
        owner = self.owner(address - BASE)
        if owner is None or not owner.live or owner.address != address:
            raise Fault("wild-address", f"free of {address:#x}, which is the start of no allocation")
        owner.live = False
        self.shadow[owner.part] = 0

    def owner(self, offset: int) -> Allocation | None:
        """The allocation, live or freed, that an offset lies in or after."""
        place = bisect_right(self.starts, offset)
        return self.allocations[place - 1] if place else None

    def inside(self, address: int, n_bytes: int, what: str) -> tuple[Allocation, slice]:
        """The allocation and the part of the arena; a Fault where they do not lie in one live allocation."""
        start = int(address) - BASE
        owner = self.owner(start)
        if owner is None or start + n_bytes > owner.start + max(owner.n_bytes, 1):
            raise Fault("out-of-bounds", f"{what} of {n_bytes} bytes at {int(address):#x} is inside no allocation")
        if not owner.live:
            raise Fault("use-after-free", f"{what} of {n_bytes} bytes at {int(address):#x}, which was freed")
        return owner, slice(start, start + n_bytes)

    def touched(self, address: int, n_bytes: int, written: bool) -> Array:
        """Which 4-byte words from an address on the last launch wrote (or read): their numbers, ascending."""
        _, part = self.inside(address, n_bytes, "look")
        if self.last is None:
            return np.zeros(0, np.int64)
        loaded, stored = self.last.touched(self.launches, part)
        cells = np.flatnonzero(stored if written else loaded)
        return np.unique(cells * self.last.grain // 4)

    def tracker(self, grain: int) -> Tracker:
        if grain not in self.trackers:
            self.trackers[grain] = Tracker(self.bytes.size, grain)
        self.last = self.trackers[grain]
        return self.last
