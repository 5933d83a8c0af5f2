"""Rows drawn from several loaders in given shares: which one a row is of is a pure function of seed and position.

Positions are cut into blocks of a thousand; each block holds every loader's share of it exactly, in a keyed order. So
the n-th row of a loader is found without looking at earlier blocks, and every loader runs through its own epochs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.order import Positions, order
from sexpgpu.train.share import limited

Array = NDArray[Any]

BLOCK = 1000


class Mix:
    """Sources whose fields agree. An epoch is as many rows as all of them have."""

    def __init__(self, spec: LoaderSpec, sources: Sequence[Any]) -> None:
        self.sources = sources
        self.fields = sources[0].fields
        first = spec.parts[0][0].name
        for (part, _), source in zip(spec.parts, sources):
            if dict(source.fields) != dict(self.fields):
                message = f"the fields of {part.name} are {shown(source.fields)}, those of {first} {shown(self.fields)}"
                raise Error("E-DATA-006", message, spec.span)
        self.count = limited(sum(source.count for source in sources), spec)
        known = [source.vocabulary for source in sources if source.vocabulary is not None]
        self.vocabulary: int | None = max(known, default=None)
        self.shift_limit = 1
        self.slots = slots_of([weight for _, weight in spec.parts], spec)

    def draw(self, seed: int, positions: Positions) -> tuple[Array, Positions]:
        """Of each position: which source it is of, and its position among the rows of that source."""
        which, rank = np.empty_like(positions), np.empty_like(positions)
        for block in np.unique(positions // BLOCK).tolist():
            here = positions // BLOCK == block
            in_block, ranks = block_of(seed, block, self.slots)
            which[here] = in_block[positions[here] % BLOCK]
            rank[here] = ranks[positions[here] % BLOCK] + block * np.array(self.slots)[which[here]]
        return which, rank

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        raise AssertionError("a mix is gathered by its loaders")

    def identity(self) -> str:
        return repr((self.slots, [source.identity() for source in self.sources]))


def shown(fields: Any) -> str:
    return ", ".join(f"{name} {field.dtype}{list(field.shape)}" for name, field in fields.items())


def slots_of(weights: Sequence[float], spec: LoaderSpec) -> tuple[int, ...]:
    """How many rows of a block each weight is: rounded down, the rest to the largest remainders."""
    shares = [BLOCK * weight / sum(weights) for weight in weights]
    slots = [int(share) for share in shares]
    for index in sorted(range(len(shares)), key=lambda k: slots[k] - shares[k])[: BLOCK - sum(slots)]:
        slots[index] += 1
    if min(slots) == 0:
        least = spec.parts[slots.index(0)][0].name
        raise Error("E-DATA-007", f"the share of {least} is less than one row in {BLOCK}", spec.span)
    return tuple(slots)


@lru_cache(maxsize=64)
def block_of(seed: int, block: int, slots: tuple[int, ...]) -> tuple[Array, Array]:
    """Of each place of a block: which source, and how many of its rows stand before it in the block."""
    which = np.searchsorted(np.cumsum(slots), order(seed, block, np.arange(BLOCK), BLOCK, "mix"), side="right")
    rank = np.empty(BLOCK, np.int64)
    for source in range(len(slots)):
        rank[which == source] = np.arange(slots[source])
    return which, rank
