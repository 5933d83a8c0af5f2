"""How a CUDA kernel of rows lays its threads: which share a row, in how many rounds they take its elements."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.codegen.cuda_reductions import WARP
from sexpgpu.codegen.layout import LONG_ROW, lanes_of

# Threads of a block whose warps have a row each.
THREADS = 128


@dataclass(frozen=True)
class Geometry:
    """`lanes`: threads of a row; `whole` rounds in which each has an element, then one in which the first `rest` do."""

    rows: int
    length: int
    lanes: int
    threads: int

    @property
    def whole(self) -> int:
        return self.length // self.lanes

    @property
    def rest(self) -> int:
        return self.length % self.lanes

    @property
    def rounds(self) -> int:
        return -(-self.length // self.lanes)

    @property
    def rows_per_block(self) -> int:
        return self.threads // self.lanes

    @property
    def is_block(self) -> bool:
        return self.lanes > WARP


def geometry_of(rows: int, length: int) -> Geometry:
    """Lanes that have no element are neutral: a row of up to 16 may leave them out, and several rows share a warp."""
    if length > LONG_ROW:
        return Geometry(rows, length, lanes_of(length), lanes_of(length))
    lanes = min(WARP, 1 << max(length - 1, 0).bit_length())
    return Geometry(rows, length, lanes, min(THREADS, -(-rows * lanes // WARP) * WARP))
