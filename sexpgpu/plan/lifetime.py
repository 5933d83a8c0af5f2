"""Where arena buffers lie: one block that values share whose lives do not overlap."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

ALIGNMENT = 64
# The last launch of what lives to the end.
FOREVER = 1 << 60


class Life(msgspec.Struct):
    """A buffer's bytes and the launches between which it holds something (both included)."""

    size_bytes: int
    first: int
    last: int
    offset: int = 0


def aligned(size_bytes: int) -> int:
    return -(-max(size_bytes, 1) // ALIGNMENT) * ALIGNMENT


def place(lives: Sequence[Life], fixed: Sequence[Life] = ()) -> int:
    """Sets every offset; gives the arena's size. `fixed` have theirs: before their lives others may lie there.

    Greedy by size: the largest first, each at the lowest place that no life at the same time takes.
    """
    count = len(lives) + len(fixed)
    first, last, start, end = (np.zeros(count, np.int64) for _ in range(4))
    placed = 0

    def take(life: Life) -> None:
        nonlocal placed
        first[placed], last[placed] = life.first, life.last
        start[placed], end[placed] = life.offset, life.offset + aligned(life.size_bytes)
        placed += 1

    for life in fixed:
        take(life)
    for life in sorted(lives, key=lambda life: (-aligned(life.size_bytes), life.first)):
        meets = np.flatnonzero((first[:placed] <= life.last) & (last[:placed] >= life.first))
        meets = meets[np.argsort(start[meets], kind="stable")]
        # The gaps between what is there at the same time; the last has no end.
        begins = np.concatenate(([0], np.maximum.accumulate(end[meets])))
        room = np.append(start[meets], FOREVER) - begins
        life.offset = int(begins[np.argmax(room >= aligned(life.size_bytes))])
        take(life)
    return int(end.max(initial=0))
