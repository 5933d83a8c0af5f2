"""Memory of a card for tensors and for the values of whichever graph runs, and what is done where there is none left."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

from sexpgpu.cuda.context import Context, DeviceMemory, Stream
from sexpgpu.cuda.driver import DriverError, Status
from sexpgpu.errors import Error

# What the driver gives is a multiple of this.
GRANULE = 512


@dataclass(eq=False)
class Block:
    """A tensor's memory; it goes back to its allocator when nothing refers to it any more."""

    address: int
    size_bytes: int


@dataclass
class Allocator:
    """Blocks of a card's memory. Those that nobody has any more are kept for the next ones of their size, and are used in
    the order of the one stream: what still runs there and reads one comes before whatever is written into it.

    `caches` are called where there is no memory left: each gives back what can be made again. `report` says when."""

    context: Context
    stream: Stream
    report: list[str] = field(default_factory=list)
    caches: list[Callable[[], None]] = field(default_factory=list)
    held_bytes: int = 0
    peak_bytes: int = 0
    _unused: dict[int, list[DeviceMemory]] = field(default_factory=dict)

    def allocate(self, size_bytes: int) -> Block:
        """A block; its content is undefined."""
        size_bytes = -(-max(size_bytes, 1) // GRANULE) * GRANULE
        unused = self._unused.get(size_bytes)
        memory = unused.pop() if unused else self._from_driver(size_bytes)
        block = Block(memory.address, size_bytes)
        weakref.finalize(block, self._keep, memory).atexit = False
        return block

    def _keep(self, memory: DeviceMemory) -> None:
        # The collector may call at any time, in the middle of a capture too: the driver is left alone.
        self._unused.setdefault(memory.size_bytes, []).append(memory)

    def _from_driver(self, size_bytes: int) -> DeviceMemory:
        memory = self._try(size_bytes)
        if memory is None:
            asked, free = _words(size_bytes), _words(self.context.memory_bytes()[0])
            self.release()
            self.report.append(f"memory: allocation failed ({asked} asked, {free} free); caches released, tried again")
            memory = self._try(size_bytes)
        if memory is None:
            raise self._full(size_bytes)
        self.held_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        return memory

    def _try(self, size_bytes: int) -> DeviceMemory | None:
        try:
            return self.context.allocate(size_bytes)
        except DriverError as error:
            if error.number != Status.OUT_OF_MEMORY:
                raise
            return None

    def _full(self, size_bytes: int) -> Error:
        free, total = self.context.memory_bytes()
        message = f"{_words(size_bytes)} more are needed; {_words(free)} of {_words(total)} are free"
        notes = [f"this run holds {_words(self.held_bytes)}", "a smaller :batch, or a smaller model"]
        return Error("E-MEM-001", message, notes=notes)

    def release(self) -> None:
        """Everything that can be had again goes back to the driver."""
        self.stream.synchronize()
        for cache in self.caches:
            cache()
        while self._unused:
            for memory in self._unused.popitem()[1]:
                memory.close()
                self.held_bytes -= memory.size_bytes


@dataclass
class Arena:
    """One block for what never lives at once: every user reserves what it needs before it asks where the block is.

    `moved` counts how often it was given another place; its content is then lost."""

    allocator: Allocator
    size_bytes: int = 0
    moved: int = 0
    _block: Block | None = None

    def reserve(self, size_bytes: int) -> None:
        self.size_bytes = max(self.size_bytes, size_bytes)

    @property
    def address(self) -> int:
        if not self.size_bytes:
            return 0
        if self._block is None or self._block.size_bytes < self.size_bytes:
            # Before the larger one is made, so that both are not needed at once.
            self._block = None
            self._block = self.allocator.allocate(self.size_bytes)
            self.moved += 1
        return self._block.address


def _words(size_bytes: float) -> str:
    """`2.7 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} GiB"
