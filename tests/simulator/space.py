"""A space of memory as instructions see it: bytes and shadow, with bounds, alignment and initialisation checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.memory import ALLOCATED, IN_FLIGHT, INITIALISED
from tests.simulator.threads import Threads

if TYPE_CHECKING:
    from tests.simulator.machine import Machine


def repeated(value: int, width: int) -> Any:
    """A byte repeated over a word."""
    return np.dtype(f"u{width}").type(int.from_bytes(bytes([value]) * width, "little"))


class Space:
    """One access is `count` words of `width` bytes for each thread, aligned to the whole of it."""

    name = ""

    def __init__(self, held: Array, shadow: Array) -> None:
        self.bytes = held
        self.shadow = shadow

    def place(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> Array:
        """Addresses → offsets into the bytes; a Fault for one that is no address of this space."""
        raise NotImplementedError

    def loaded(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int, read_only: bool) -> None:
        """Told of every load: races, traffic."""

    def stored(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        """Told of every store: races, traffic."""

    def initialised(self, offsets: Array) -> bool:
        """Whether the bytes there are known to have been written, without looking at each."""
        return False

    def aligned(self, machine: Machine, address: Array, n_bytes: int) -> None:
        if int(np.bitwise_or.reduce(address)) & (n_bytes - 1):
            wrong = int(address[(address & (n_bytes - 1)) != 0][0])
            machine.fault("misaligned", f"{n_bytes}-byte access to {self.name} memory at {wrong:#x}")

    def load(
        self, machine: Machine, threads: Threads, address: Array, width: int, count: int, read_only: bool = False
    ) -> list[Array]:
        """The words of each thread, one array for each place in the vector."""
        offsets = self.place(machine, threads, address, width * count)
        if not self.initialised(offsets):
            self.check(machine, threads, offsets, width, count)
        self.loaded(machine, threads, offsets, width * count, read_only)
        words = self.bytes.view(f"u{width}")
        if count == 1:
            return [words[offsets // width]]
        rows = words.reshape(-1, count)[offsets // (width * count)]
        return [rows[:, place] for place in range(count)]

    def check(self, machine: Machine, threads: Threads, offsets: Array, width: int, count: int) -> None:
        shadow = self.shadow.view(f"u{width}").reshape(-1, count)[offsets // (width * count)]
        wrong = shadow != repeated(INITIALISED, width)
        if not wrong.any():
            return
        flying = (shadow & repeated(IN_FLIGHT, width)).any()
        kind = "asynchronous-copy" if flying else "uninitialised-read"
        what = "while a cp.async to it is not waited for" if flying else "that was never written"
        lanes = wrong.any(1)
        first = machine.who(threads.indices[lanes][0])
        machine.note(kind, f"read of {self.name} memory {what}", f"{int(lanes.sum())} threads, the first {first}")

    def store(self, machine: Machine, threads: Threads, address: Array, width: int, values: list[Array]) -> None:
        count = len(values)
        offsets = self.place(machine, threads, address, width * count)
        if not self.initialised(offsets):
            self.shadow.view(f"u{width}").reshape(-1, count)[offsets // (width * count)] = repeated(INITIALISED, width)
        self.stored(machine, threads, offsets, width * count)
        words = self.bytes.view(f"u{width}")
        if count == 1:
            words[offsets // width] = values[0]
            return
        rows = words.reshape(-1, count)
        places = offsets // (width * count)
        for place, value in enumerate(values):
            rows[places, place] = value

    def combine(self, machine: Machine, threads: Threads, address: Array, width: int) -> Array:
        """The places of an atomic access, checked like a load; it is no race."""
        offsets = self.place(machine, threads, address, width)
        if not self.initialised(offsets):
            self.check(machine, threads, offsets, width, 1)
            self.shadow.view(f"u{width}")[offsets // width] = repeated(INITIALISED, width)
        self.combined(machine, threads, offsets, width)
        return offsets // width

    def combined(self, machine: Machine, threads: Threads, offsets: Array, n_bytes: int) -> None:
        """Told of every atomic access."""


class ParameterSpace(Space):
    """What the launch passed, the same for every thread."""

    name = "parameter"

    def __init__(self, given: bytes) -> None:
        held = np.frombuffer(given.ljust(-(-len(given) // 16) * 16, b"\0"), np.uint8)
        super().__init__(held, np.full(held.size, INITIALISED, np.uint8))
        self.used_bytes = len(given)

    def place(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> Array:
        self.aligned(machine, address, n_bytes)
        if address.min() < 0 or address.max() > self.used_bytes - n_bytes:
            machine.fault("out-of-bounds", f"load outside the kernel's {self.used_bytes} bytes of parameters")
        return address

    def initialised(self, offsets: Array) -> bool:
        return True

    def store(self, machine: Machine, threads: Threads, address: Array, width: int, values: list[Array]) -> None:
        machine.fault("read-only", "store to the kernel's parameters")


class LocalSpace(Space):
    """Each thread's own frame, one after another. What is passed to functions holds structs with their padding, which
    nobody writes and copies read: `passed` counts as written."""

    name = "local"

    def __init__(self, threads: int, frame: int, passed: Sequence[slice]) -> None:
        super().__init__(np.zeros(threads * frame, np.uint8), np.full(threads * frame, ALLOCATED, np.uint8))
        self.frame = frame
        self.passed = passed

    def clear(self) -> None:
        self.shadow.fill(ALLOCATED)
        for part in self.passed:
            self.shadow.reshape(-1, self.frame)[:, part] = INITIALISED

    def place(self, machine: Machine, threads: Threads, address: Array, n_bytes: int) -> Array:
        self.aligned(machine, address, n_bytes)
        if address.min() < 0 or address.max() > self.frame - n_bytes:
            machine.fault("out-of-bounds", f"local access outside the thread's frame of {self.frame} bytes")
        return np.asarray(address + threads.indices * self.frame)
