"""Runs the PTX that NVRTC makes, on the CPU, and finds the mistakes that a GPU would hide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator import prototype as prototype_module
from simulator.prototype import Fault as Fault

prototype: Any = prototype_module


@dataclass(frozen=True)
class Finding:
    kind: str
    detail: str
    kernel: str
    where: str


@dataclass(frozen=True)
class Traffic:
    loaded_bytes: int
    stored_bytes: int
    unique_loaded_bytes: int
    unique_stored_bytes: int


@dataclass(frozen=True)
class Outcome:
    findings: list[Finding]
    instructions: int

    @property
    def traffic(self) -> dict[int, Traffic]:
        raise NotImplementedError("traffic is not counted yet")


class Memory:
    """The device's memory: what is allocated, what of it was ever written."""

    def __init__(self, size: int = 64 << 20) -> None:
        self.arena: Any = prototype.Memory(size)
        self.launches = 0

    def allocate(self, n_bytes: int) -> int:
        return int(self.arena.alloc(n_bytes))

    def put(self, array: Any) -> int:
        address = self.allocate(np.asarray(array).nbytes)
        self.write(address, array)
        return address

    def write(self, address: int, array: Any) -> None:
        self.arena.write(address, np.asarray(array))

    def read(self, address: int, count: int, dtype: Any, initialised: bool = True) -> np.ndarray:
        n_bytes = count * np.dtype(dtype).itemsize
        if initialised:
            return np.asarray(self.arena.read(address, n_bytes, dtype))
        start = self.arena._chk(address, n_bytes, "read")
        return np.asarray(self.arena.a[start : start + n_bytes].copy().view(dtype))

    def free(self, address: int) -> None:
        self.arena.free(address)

    def touched(self, address: int, n_bytes: int, written: bool) -> np.ndarray:
        """Which 4-byte words from an address on the last launch wrote (or read): their numbers, ascending."""
        start = self.arena._chk(address, n_bytes, "touched") // 4
        launches = self.arena.wl if written else self.arena.rl
        return np.flatnonzero(launches[start : start - (-n_bytes // 4)] == self.launches)


class Module:
    """A loaded PTX text."""

    def __init__(self, text: str | bytes) -> None:
        self.parsed: Any = prototype.parse(text)
        self.kernels: dict[str, Any] = self.parsed["kernels"]
        self.placed: list[tuple[Memory, Any]] = []

    def place(self, memory: Memory) -> Any:
        """The device whose memory holds the module's own variables."""
        for known, device in self.placed:
            if known is memory:
                return device
        device = prototype.Device(1024)
        device.mem = memory.arena
        self.parsed["gaddr"] = device.place(self.parsed)
        self.placed.append((memory, device))
        return device

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: Sequence[Any],
        memory: Memory,
        shared_bytes: int = 0,
        perturb: int | None = None,
    ) -> Outcome:
        if perturb is not None:
            raise NotImplementedError("perturb is not built yet")
        device = self.place(memory)
        device.launches = memory.launches
        state = device.launch(self.parsed, name, grid, block, parameters, shared_bytes)
        memory.launches = device.launches
        findings = [Finding(kind, detail, name, text) for kind, detail, _, text in state["findings"]]
        return Outcome(findings, int(state["lane_ops"]))


def load(text: str | bytes) -> Module:
    return Module(text)
