"""A simulated card: its figures, its memory with who touched what, and the kernels that run in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tests import simulator
from tests.fake_cuda.accesses import WORD, Accesses
from tests.fake_cuda.order import Operation
from tests.fake_cuda.streams import Refused, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

INVALID_VALUE, OUT_OF_MEMORY = 1, 2
ILLEGAL_ADDRESS, MISALIGNED_ADDRESS, LAUNCH_FAILED = 700, 716, 719
# What the simulator's faults are on a card, where they are no illegal address.
_BREAKS = {"misaligned": MISALIGNED_ADDRESS, "deadlock": LAUNCH_FAILED}


@dataclass(frozen=True)
class Figures:
    """What a card tells of itself. Of its memory no more is there than what the simulator holds."""

    name: str
    capability: tuple[int, int]
    memory_bytes: int = 80 << 30
    multiprocessors: int = 108
    l2_bytes: int = 40 << 20
    shared_bytes_opt_in: int = 163 << 10


# How much the simulator holds.
SIMULATED_BYTES = 256 << 20
A100 = Figures("NVIDIA A100-SXM4-80GB", (8, 0))
H100 = Figures("NVIDIA H100 80GB HBM3", (9, 0), multiprocessors=132, l2_bytes=50 << 20, shared_bytes_opt_in=227 << 10)
T4 = Figures("Tesla T4", (7, 5), 16 << 30, multiprocessors=40, l2_bytes=4 << 20, shared_bytes_opt_in=64 << 10)


@dataclass(eq=False)
class Card:
    """`broken`: the sticky error that every call gives; `retained`: how often its context is held."""

    figures: Figures
    number: int
    findings: list[str]
    faults: list[str] = field(default_factory=list)
    blocks: dict[int, int] = field(default_factory=dict)
    retained: int = 0
    broken: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0

    def __post_init__(self) -> None:
        self.accesses = Accesses(self.findings)
        self.null = Stream((self.number, 0), blocking=True)
        self.launches = 0

    @cached_property
    def memory(self) -> simulator.Memory:
        """Freed memory is not used again, so that every use of it is seen: there must be more than the card's."""
        return simulator.Memory(min(4 * self.figures.memory_bytes, SIMULATED_BYTES))

    def allocate(self, size_bytes: int) -> int:
        if not size_bytes:
            raise Refused(INVALID_VALUE)
        if self.used_bytes + size_bytes > self.figures.memory_bytes:
            raise Refused(OUT_OF_MEMORY)
        address = self.memory.allocate(size_bytes)
        self.blocks[address] = size_bytes
        self.accesses.allocated(address, size_bytes)
        self.used_bytes += size_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return address

    def free(self, address: int, host: dict[Any, int]) -> None:
        self.used_bytes -= self.blocks.pop(address)
        self.accesses.freed(address, host)
        self.memory.free(address)

    def inside(self, address: int, size_bytes: int) -> int:
        """The block that holds these bytes."""
        for base, size in self.blocks.items():
            if base <= address and address + size_bytes <= base + size:
                return base
        self.findings.append(f"{size_bytes} bytes at {address:#x} are in no allocation")
        raise Refused(INVALID_VALUE)

    def touch(self, operation: Operation, address: int, size_bytes: int, write: bool) -> None:
        base = self.inside(address, size_bytes)
        first, last = (address - base) // WORD, -(-(address + size_bytes - base) // WORD)
        self.accesses.touch(operation, base, slice(first, last), write)

    def write(self, operation: Operation, address: int, data: Array) -> None:
        self.touch(operation, address, data.nbytes, True)
        self.memory.write(address, data)

    def read(self, operation: Operation, address: int, size_bytes: int) -> Array:
        self.touch(operation, address, size_bytes, False)
        try:
            return self.memory.read(address, size_bytes, np.uint8)
        except simulator.Fault:
            self.findings.append(f"{operation.name} reads bytes that nothing wrote")
            return self.memory.read(address, size_bytes, np.uint8, initialised=False)

    def copy(self, operation: Operation, target: int, source: int, size_bytes: int) -> None:
        """What nothing wrote stays so."""
        self.touch(operation, source, size_bytes, False)
        self.touch(operation, target, size_bytes, True)
        self.memory.copy(target, source, size_bytes)

    def launch(
        self,
        operation: Operation,
        module: simulator.Module,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: Sequence[bytes],
        shared_bytes: int,
    ) -> None:
        outcome = module.launch(name, grid, block, parameters, self.memory, shared_bytes)
        self.launches += 1
        self.findings += [f"{name}: {finding}" for finding in outcome.findings]
        for base, size_bytes in self.blocks.items():
            for write in (False, True):
                words = self.memory.touched(base, size_bytes, write)
                if words.size:
                    self.accesses.touch(operation, base, words, write)

    def guarded(self, run: Callable[[Operation], None]) -> Callable[[Operation], None]:
        """On a broken card nothing runs; a fault breaks it."""

        def call(operation: Operation) -> None:
            if self.broken:
                return
            try:
                run(operation)
            except simulator.Fault as fault:
                self.faults.append(f"{operation.name}: {fault}")
                self.broken = _BREAKS.get(fault.kind, ILLEGAL_ADDRESS)

        return call
