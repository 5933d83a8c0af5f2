"""The blocks that run in lockstep: their registers, special registers, shared and local memory, what was noted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from tests.simulator.approximate import Perturbation
from tests.simulator.dtypes import DTYPES, Array
from tests.simulator.global_space import GlobalSpace
from tests.simulator.program import Kernel
from tests.simulator.report import Fault, Finding
from tests.simulator.shared_space import SharedSpace
from tests.simulator.space import LocalSpace, ParameterSpace
from tests.simulator.threads import WARP, Threads


@dataclass(frozen=True)
class Launch:
    """What all blocks of a launch share; `symbols` are the addresses of the module's variables."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_bytes: int
    parameters: bytes
    symbols: Mapping[str, int]
    memory: GlobalSpace
    perturbation: Perturbation | None
    findings: dict[tuple[str, int], Finding] = field(default_factory=dict)

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]


@dataclass
class Copies:
    """cp.async copies of some threads that are not waited for; `group` is -1 until it is committed."""

    indices: Array
    address: Array
    words: list[Array]
    group: Array


class Machine:
    """Every thread has a place; places are whole warps, and those past the block's last thread are never used."""

    def __init__(self, launch: Launch, blocks: int) -> None:
        kernel, threads = launch.kernel, launch.threads
        self.launch = launch
        self.kernel = kernel
        self.slots = -(-threads // WARP) * WARP
        self.places = blocks * self.slots
        place = np.arange(self.places)
        self.block_slot: Array = place // self.slots
        self.thread: Array = place % self.slots
        self.lane: Array = place % WARP
        self.absent: Array = self.thread >= threads
        self.all = Threads(slice(0, self.places), self.places)
        self.present = Threads.at(np.flatnonzero(~self.absent)) if self.absent.any() else self.all
        shared_bytes = kernel.shared_bytes + launch.dynamic_bytes
        self.shared = SharedSpace(blocks, shared_bytes, kernel.narrowest["shared"])
        self.local = LocalSpace(self.places, kernel.local_bytes, kernel.passed)
        self.memory = launch.memory
        self.parameters = ParameterSpace(launch.parameters)
        self.registers: list[Any] = [None] * len(kernel.register_types)
        self.defined: list[Any] = []
        self.masks: list[Any] = []
        self.specials: dict[str, Any] = {}
        self.instructions = 0
        self.pc = 0

    def start(self, blocks: Sequence[int]) -> None:
        """Begins the given blocks of the grid afresh."""
        count = len(self.kernel.register_types)
        self.defined = [None] * count
        self.masks = [None] * count
        self.shared.clear()
        self.local.clear()
        block = np.asarray(blocks)[self.block_slot]
        self.block_number: Array = block + 1
        self.number: Array = block * self.slots + self.thread + 1
        self.epoch: Array = np.zeros(self.places, np.int64)
        self.warp_epoch: Array = np.zeros(self.places, np.int64)
        self.exited: Array = self.absent.copy()
        self.waiting: Array = np.zeros(self.places, np.int64)
        self.wait_count: Array = np.zeros(self.places, np.int64)
        self.wait_pc: Array = np.zeros(self.places, np.int64)
        self.votes: Array = np.zeros(self.places, bool)
        self.carry: Array = np.zeros(self.places, bool)
        self.copies: list[Copies] = []
        self.committed: Array = np.zeros(self.places, np.int64)
        self.specials = specials(self, block)

    def value(self, register: int, threads: Threads) -> Any:
        """A register of the threads; its bits must have been defined."""
        known = self.defined[register]
        if known is not self.all and known is not threads:
            self._undefined(register, threads)
        return self.registers[register][threads.pick]

    def _undefined(self, register: int, threads: Threads) -> None:
        if self.registers[register] is None:
            self._make(register)
        mask = self.masks[register]
        if mask is None or not mask[threads.pick].all():
            self.note("undefined-register", f"{self._register_name(register)} is read before it is written")
            return
        self.defined[register] = threads

    def _register_name(self, register: int) -> str:
        return next(name for name, number in self.kernel.registers.items() if number == register)

    def _make(self, register: int) -> None:
        self.registers[register] = np.zeros(self.places, DTYPES[self.kernel.register_types[register]])

    def define(self, register: int, threads: Threads, value: Any) -> None:
        if self.registers[register] is None:
            self._make(register)
        self.registers[register][threads.pick] = value
        known = self.defined[register]
        if known is self.all or known is threads:
            return
        self.defined[register] = threads
        if threads is not self.all:
            if self.masks[register] is None:
                self.masks[register] = np.zeros(self.places, bool)
            self.masks[register][threads.pick] = True

    def who(self, place: int) -> str:
        block = int(self.block_number[place]) - 1
        return f"thread {int(self.thread[place])} of block {block}"

    def where(self) -> str:
        return self.kernel.code[min(self.pc, len(self.kernel.code) - 1)].where

    def note(self, kind: str, what: str, more: str = "") -> None:
        """A finding; the same kind at the same instruction is told once."""
        detail = f"{what} ({more})" if more else what
        finding = Finding(kind, detail, self.kernel.name, self.where())
        self.launch.findings.setdefault((f"{kind} {what}", self.pc), finding)

    def fault(self, kind: str, message: str) -> NoReturn:
        raise Fault(kind, f"{self.kernel.name}, {self.where()}: {message}")

    def spread(self, value: Any, threads: Threads) -> Array:
        """One value for each of the threads."""
        return np.broadcast_to(value, threads.count)


def specials(machine: Machine, block: Array) -> dict[str, Any]:
    """Special registers by name: one value, or one for each place."""
    launch = machine.launch
    thread, lane = machine.thread, machine.lane
    x, y, _ = launch.block
    columns, rows, _ = launch.grid
    word = np.uint32
    made: dict[str, Any] = {
        "%tid.x": (thread % x).astype(word),
        "%tid.y": (thread // x % y).astype(word),
        "%tid.z": (thread // (x * y)).astype(word),
        "%ctaid.x": (block % columns).astype(word),
        "%ctaid.y": (block // columns % rows).astype(word),
        "%ctaid.z": (block // (columns * rows)).astype(word),
        "%laneid": lane.astype(word),
        "%warpid": (thread // WARP).astype(word),
        "%lanemask_eq": (1 << lane).astype(word),
        "%lanemask_lt": ((1 << lane) - 1).astype(word),
        "%lanemask_le": ((2 << lane) - 1).astype(word),
        "%lanemask_gt": ((1 << WARP) - (2 << lane)).astype(word),
        "%lanemask_ge": ((1 << WARP) - (1 << lane)).astype(word),
        "%nwarpid": word(machine.slots // WARP),
        "WARP_SZ": word(WARP),
        "%dynamic_smem_size": word(launch.dynamic_bytes),
        "%total_smem_size": word(launch.dynamic_bytes + machine.kernel.shared_bytes),
    }
    for axis, name in enumerate("xyz"):
        made[f"%ntid.{name}"] = word(launch.block[axis])
        made[f"%nctaid.{name}"] = word(launch.grid[axis])
    for name in ("%smid", "%nsmid", "%gridid", "%clock", "%clock_hi"):
        made[name] = word(0)
    for name in ("%clock64", "%globaltimer"):
        made[name] = np.uint64(0)
    return made
