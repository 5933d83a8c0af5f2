"""Which threads run an instruction together."""

from __future__ import annotations

import numpy as np

from tests.simulator.dtypes import Array

WARP = 32


class Threads:
    """Places of threads in the machine, ascending: a slice where they are neighbours, since slices are views."""

    __slots__ = ("_indices", "_whole", "count", "pick")

    def __init__(self, pick: slice | Array, count: int) -> None:
        self.pick = pick
        self.count = count
        self._indices: Array | None = None
        self._whole: bool | None = None

    @classmethod
    def at(cls, indices: Array) -> Threads:
        first, count = int(indices[0]), len(indices)
        if int(indices[-1]) - first + 1 == count:
            return cls(slice(first, first + count), count)
        made = cls(indices, count)
        made._indices = indices
        return made

    @property
    def indices(self) -> Array:
        if self._indices is None:
            assert isinstance(self.pick, slice)
            self._indices = np.arange(self.pick.start, self.pick.stop)
        return self._indices

    @property
    def whole_warps(self) -> bool:
        """Whether every warp that is here is here with all its 32 lanes."""
        if self._whole is None:
            self._whole = self.count % WARP == 0 and self._aligned()
        return self._whole

    def _aligned(self) -> bool:
        if isinstance(self.pick, slice):
            return int(self.pick.start) % WARP == 0
        rows = self.indices.reshape(-1, WARP)
        return bool((rows[:, 0] % WARP == 0).all() and (rows[:, -1] - rows[:, 0] == WARP - 1).all())

    def where(self, condition: Array) -> Threads:
        """Those of them for which the condition, one value for each, holds (for some it must)."""
        return Threads.at(self.indices[condition])

    def and_also(self, other: Threads) -> Threads:
        first = min(int(self.indices[0]), int(other.indices[0]))
        here = np.zeros(max(int(self.indices[-1]), int(other.indices[-1])) - first + 1, bool)
        here[self.indices - first] = True
        here[other.indices - first] = True
        return Threads.at(np.flatnonzero(here) + first)
