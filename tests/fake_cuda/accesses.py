"""Who touched which word of a device's memory last, and whether the next one to touch it comes after."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fake_cuda.order import Lane, Operation

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Bytes that one record stands for. Nothing that two streams use lies closer together.
WORD = 4


@dataclass
class _Block:
    """An allocation's records: of every word the number of the last writer, and of the last reader of every lane."""

    writers: Array
    readers: dict[Lane, Array] = field(default_factory=dict)


@dataclass
class Accesses:
    """The records of all allocations; `findings` grows by a sentence for each pair that nothing orders."""

    findings: list[str]
    blocks: dict[int, _Block] = field(default_factory=dict)
    # Operations by their number in the records; number 0 is nobody.
    known: dict[int, tuple[str, Lane, int]] = field(default_factory=dict)

    def allocated(self, base: int, size_bytes: int) -> None:
        self.blocks[base] = _Block(np.zeros(-(-size_bytes // WORD), np.int32))

    def freed(self, base: int, host: dict[Lane, int]) -> None:
        """The host frees a block: all that used it must be what the host has seen done."""
        block = self.blocks.pop(base)
        for records in (block.writers, *block.readers.values()):
            for name, lane, place in self._named(records):
                if host.get(lane, 0) < place:
                    self._find(f"memory that {name} uses is freed, and the host has not waited for it")

    def touch(self, operation: Operation, base: int, words: Any, write: bool) -> None:
        """An operation reads or writes words of a block: a slice, or their numbers."""
        block = self.blocks[base]
        self.known[operation.number] = (operation.name, operation.lane, operation.place)
        self._check(operation, "write" if write else "read", "writes", block.writers[words])
        if write:
            for lane, records in block.readers.items():
                if lane != operation.lane:
                    self._check(operation, "write", "reads", records[words])
            block.writers[words] = operation.number
        else:
            if operation.lane not in block.readers:
                block.readers[operation.lane] = np.zeros_like(block.writers)
            block.readers[operation.lane][words] = operation.number

    def _check(self, operation: Operation, does: str, did: str, records: Array) -> None:
        for name, lane, place in self._named(records):
            if operation.clock.get(lane, 0) < place:
                self._find(f"unordered: {operation.name} {does}s what {name} {did}, and no event orders them")

    def _named(self, records: Array) -> Iterator[tuple[str, Lane, int]]:
        for number in np.unique(records):
            if number:
                yield self.known[number]

    def _find(self, sentence: str) -> None:
        if sentence not in self.findings:
            self.findings.append(sentence)
