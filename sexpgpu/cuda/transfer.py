"""Copies between host and card that do not stop the host: through pinned memory that is used in turns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sexpgpu.cuda.context import Context, PinnedMemory, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

TURNS = 2


class Uploads:
    """Copies to the card of at most `size_bytes`: the host fills one pinned block while another is read."""

    def __init__(self, context: Context, stream: Stream, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._stream = stream
        self._blocks = [context.pinned(max(size_bytes, 1)) for _ in range(TURNS)]
        self._copied = [context.event() for _ in range(TURNS)]
        self._turn = 0

    def upload(self, address: int, array: Array) -> None:
        """Copies an array's bytes to the card; it may be changed as soon as this returns."""
        data = array.reshape(-1).view(np.uint8)
        self._turn = (self._turn + 1) % TURNS
        block, copied = self._blocks[self._turn], self._copied[self._turn]
        # What was copied from this block a few turns ago; it is long done, as a rule.
        copied.synchronize()
        block.bytes[: data.size] = data
        self._stream.upload(address, block.address, data.size)
        self._stream.record(copied)

    def close(self) -> None:
        for owned in (*self._blocks, *self._copied):
            owned.close()


class Readback:
    """Small results that are copied to the host after each call, so that whoever reads them waits for nothing else."""

    def __init__(self, context: Context, stream: Stream, sizes: list[int]) -> None:
        self._stream = stream
        self._sizes = sizes
        self._offsets = [sum(sizes[:n]) for n in range(len(sizes))]
        self._block: PinnedMemory | None = context.pinned(sum(sizes)) if sum(sizes) else None
        self._copied = context.event()

    def take(self, addresses: list[int]) -> None:
        """Begins the copies, of which there is one for each size."""
        if self._block is None:
            return
        for address, offset, size in zip(addresses, self._offsets, self._sizes, strict=True):
            if size:
                self._stream.download(self._block.address + offset, address, size)
        self._stream.record(self._copied)

    def bytes(self, number: int) -> Array:
        """What was copied, once it is there; a copy of it."""
        self._copied.synchronize()
        if self._block is None:
            return np.empty(0, np.uint8)
        offset = self._offsets[number]
        return self._block.bytes[offset : offset + self._sizes[number]].copy()

    def close(self) -> None:
        self._copied.close()
        if self._block is not None:
            self._block.close()
