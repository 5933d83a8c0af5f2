"""The host's memory as the device sees it: what is pinned, and whether the host let it be while a copy read it."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fake_cuda.order import Clock, Operation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# What freed memory is filled with, so that a late reader stands out.
FREED = 0xDD


@dataclass(eq=False)
class Pinned:
    address: int
    size_bytes: int
    buffer: Any


@dataclass(eq=False)
class Upload:
    """A copy from pinned memory that the host has not seen done, and what was to be copied."""

    address: int
    data: bytes
    operation: Operation | None = None


@dataclass
class HostMemory:
    findings: list[str]
    blocks: list[Pinned] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)
    # Kept, so that a use after the end is seen and breaks nothing else.
    freed: list[Pinned] = field(default_factory=list)

    def allocate(self, size_bytes: int) -> Pinned:
        buffer = (ctypes.c_ubyte * size_bytes)(*[FREED] * min(size_bytes, 64))
        made = Pinned(ctypes.addressof(buffer), size_bytes, buffer)
        self.blocks.append(made)
        return made

    def free(self, block: Pinned) -> None:
        end = block.address + block.size_bytes
        if any(block.address <= upload.address < end for upload in self.uploads):
            self.findings.append("pinned memory is freed, and the host has not waited for a copy from it")
        self.blocks.remove(block)
        self.freed.append(block)
        ctypes.memset(block.address, FREED, block.size_bytes)

    def pinned(self, address: int, size_bytes: int) -> bool:
        return any(
            block.address <= address and address + size_bytes <= block.address + block.size_bytes
            for block in self.blocks
        )

    def upload(self, address: int, size_bytes: int) -> Upload:
        """A copy begins that reads pinned memory at some time until the host sees it done."""
        for earlier in self.uploads:
            self._check(earlier)
        made = Upload(address, view(address, size_bytes).tobytes())
        self.uploads.append(made)
        return made

    def seen(self, host: Clock) -> None:
        """The host has seen these done: until now it should have changed nothing that they read."""
        for upload in list(self.uploads):
            operation = upload.operation
            if operation is not None and host.get(operation.lane, 0) >= operation.place:
                self._check(upload)
                self.uploads.remove(upload)

    def _check(self, upload: Upload) -> None:
        if view(upload.address, len(upload.data)).tobytes() != upload.data:
            self.findings.append("pinned memory is changed, and the host has not waited for a copy from it")
            upload.data = view(upload.address, len(upload.data)).tobytes()


def view(address: int, size_bytes: int) -> Array:
    """The bytes at an address of the host."""
    return np.ctypeslib.as_array((ctypes.c_ubyte * size_bytes).from_address(address))
