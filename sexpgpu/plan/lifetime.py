"""Where arena buffers lie: one block that values share whose lives do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64
# The last launch of what lives to the end.
FOREVER = 1 << 60


@dataclass
class Life:
    """A buffer's bytes and the launches between which it holds something (both included)."""

    size_bytes: int
    first: int
    last: int
    offset: int = 0


def aligned(size_bytes: int) -> int:
    return -(-max(size_bytes, 1) // ALIGNMENT) * ALIGNMENT


def place(lives: Sequence[Life]) -> int:
    """Sets every offset; gives the arena's size. Best fit in the order of birth, free neighbours joined."""
    births: dict[int, list[Life]] = {}
    deaths: dict[int, list[Life]] = {}
    for life in lives:
        births.setdefault(life.first, []).append(life)
        deaths.setdefault(life.last, []).append(life)
    free: list[tuple[int, int]] = []
    end = 0
    for moment in sorted({*births, *deaths}):
        for life in sorted(births.get(moment, ()), key=lambda life: -life.size_bytes):
            end = _take(free, life, end)
        for life in deaths.get(moment, ()):
            _give(free, life.offset, aligned(life.size_bytes))
    return end


def _take(free: list[tuple[int, int]], life: Life, end: int) -> int:
    """The smallest hole that is large enough, else the arena grows (from a hole at its end)."""
    need = aligned(life.size_bytes)
    best = min((k for k, (_, size) in enumerate(free) if size >= need), key=lambda k: free[k][1], default=None)
    if best is not None:
        offset, size = free.pop(best)
        if size > need:
            insort(free, (offset + need, size - need))
        life.offset = offset
        return end
    if free and sum(free[-1]) == end:
        offset, _ = free.pop()
    else:
        offset = end
    life.offset = offset
    return offset + need


def _give(free: list[tuple[int, int]], offset: int, size: int) -> None:
    insort(free, (offset, size))
    k = free.index((offset, size))
    if k + 1 < len(free) and offset + size == free[k + 1][0]:
        size += free.pop(k + 1)[1]
        free[k] = (offset, size)
    if k and sum(free[k - 1]) == offset:
        before, before_size = free.pop(k - 1)
        free[k - 1] = (before, before_size + size)
