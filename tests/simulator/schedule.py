"""Runs the blocks of a machine: the threads with the lowest instruction go first, so that they meet again.

Barriers hold threads until their block has arrived; a wait that cannot end is a deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulator.form import Action, Read, Write
from tests.simulator.machine import Machine
from tests.simulator.threads import Threads

END = 1 << 60
STEP_LIMIT = 20_000_000


@dataclass(frozen=True)
class Guard:
    """A predicate register, or its opposite."""

    register: int
    negated: bool

    def holds(self, machine: Machine, threads: Threads) -> Any:
        value = machine.value(self.register, threads)
        return ~value if self.negated else value


@dataclass(frozen=True)
class Barrier:
    """`number` and `count` are read when it is reached; a reduction's vote and result are those of bar.red."""

    number: Read
    count: Read | None
    reduction: str = ""
    vote: Read | None = None
    result: Write | None = None


Flow = Callable[["Scheduler", int, Threads], None]


@dataclass(frozen=True)
class Step:
    """Either something that every thread does, or something that decides where they go on."""

    action: Action | None = None
    flow: Flow | None = None
    barrier: Barrier | None = None


class Scheduler:
    """Which threads stand at which instruction."""

    def __init__(self, machine: Machine, steps: list[Step]) -> None:
        self.machine = machine
        self.steps = steps
        self.fragments: dict[int, Threads] = {0: machine.present}
        self.taken = 0

    def run(self) -> None:
        with np.errstate(all="ignore"):
            while not self.machine.exited.all():
                if not self.fragments:
                    self._deadlock()
                pc = min(self.fragments)
                threads = self.fragments.pop(pc)
                self._straight(pc, threads, min(self.fragments, default=END))

    def _straight(self, pc: int, threads: Threads, stop: int) -> None:
        """Runs until the threads branch, wait, end, or meet others."""
        machine = self.machine
        begun = pc
        while pc < stop:
            machine.pc = pc
            step = self.steps[pc]
            if step.action is None:
                self._account(pc - begun + 1, threads)
                assert step.flow is not None
                step.flow(self, pc, threads)
                return
            step.action(machine, threads)
            pc += 1
        self._account(pc - begun, threads)
        self.at(pc, threads)

    def _account(self, steps: int, threads: Threads) -> None:
        self.machine.instructions += steps * threads.count
        self.taken += steps
        if self.taken > STEP_LIMIT:
            self.machine.fault("step-limit", f"more than {STEP_LIMIT} steps: the kernel does not end")

    def at(self, pc: int, threads: Threads) -> None:
        """These threads go on at an instruction, together with those that are there already."""
        there = self.fragments.get(pc)
        joined = threads if there is None else threads.and_also(there)
        self.fragments[pc] = self._known(joined)

    def _known(self, threads: Threads) -> Threads:
        """One object for all that are present, whose registers are then known at a glance."""
        machine = self.machine
        return machine.present if threads.count == machine.present.count else threads

    def parted(self, threads: Threads, condition: Any) -> tuple[Threads | None, Threads | None]:
        """Those for which it holds and the others."""
        condition = self.machine.spread(condition, threads)
        if condition.all():
            return threads, None
        if not condition.any():
            return None, threads
        return threads.where(condition), threads.where(~condition)

    def _deadlock(self) -> None:
        machine = self.machine
        waiting = machine.waiting != 0
        machine.pc = int(machine.wait_pc[waiting][0])
        many = f"{int(waiting.sum())} threads wait"
        machine.fault("deadlock", f"{many} at a barrier that the others of their block never reach")

    # Barriers

    def release(self) -> None:
        """Lets those blocks go on whose barrier is complete."""
        machine = self.machine
        if not machine.waiting.any():
            return
        rows = machine.waiting.reshape(-1, machine.slots)
        exited = machine.exited.reshape(-1, machine.slots)
        for number in np.flatnonzero(np.bincount(machine.waiting)[1:]) + 1:
            here = rows == number
            counts = np.where(here, machine.wait_count.reshape(-1, machine.slots), 0).max(1)
            arrived = here.sum(1)
            complete = np.where(counts > 0, arrived >= counts, (here | exited).all(1)) & (arrived > 0)
            if complete.any():
                self._open(here & complete[:, None], counts == 0)

    def _open(self, leaving: Any, whole_block: Any) -> None:
        machine = self.machine
        places = np.flatnonzero(leaving.reshape(-1))
        self._judge(leaving, whole_block)
        machine.waiting[places] = 0
        pcs = machine.wait_pc[places]
        for pc in np.unique(pcs) if pcs.min() != pcs.max() else pcs[:1]:
            going = Threads.at(places[pcs == pc])
            self._reduce(self.steps[int(pc)].barrier, going)
            self.at(int(pc) + 1, going)
        # A barrier orders its whole block: threads that did not take part were not waited for.
        machine.epoch[places] += 1

    def _judge(self, leaving: Any, whole_block: Any) -> None:
        machine = self.machine
        pcs = machine.wait_pc.reshape(-1, machine.slots)
        least = np.where(leaving, pcs, END).min(1)
        apart = leaving & (pcs != least[:, None])
        machine.pc = int(least[leaving.any(1)][0])
        if apart.any():
            machine.note("divergent-barrier", "threads of one block met at different barriers")
        gone = (machine.exited & ~machine.absent).reshape(-1, machine.slots)
        if gone[leaving.any(1) & whole_block].any():
            machine.note("barrier-after-exit", "some threads of the block had ended before the others' barrier")

    def _reduce(self, barrier: Barrier | None, threads: Threads) -> None:
        if barrier is None or barrier.result is None:
            return
        machine = self.machine
        blocks = machine.block_slot[threads.pick]
        votes = np.bincount(blocks, machine.votes[threads.pick]).astype(np.uint32)[blocks]
        here = np.bincount(blocks)[blocks]
        answers = {"popc": votes, "and": votes == here, "or": votes > 0}
        barrier.result(machine, threads, answers[barrier.reduction])


def branch(guard: Guard | None, target: int) -> Flow:
    def flow(scheduler: Scheduler, pc: int, threads: Threads) -> None:
        if guard is None:
            scheduler.at(target, threads)
            return
        going, staying = scheduler.parted(threads, guard.holds(scheduler.machine, threads))
        if going:
            scheduler.at(target, going)
        if staying:
            scheduler.at(pc + 1, staying)

    return flow


def table_branch(index: Read, targets: list[int]) -> Flow:
    """brx.idx: each thread's index chooses from a list."""

    def flow(scheduler: Scheduler, pc: int, threads: Threads) -> None:
        chosen = scheduler.machine.spread(index(scheduler.machine, threads), threads)
        if (chosen >= len(targets)).any():
            scheduler.machine.fault("out-of-bounds", f"brx.idx beyond its {len(targets)} targets")
        for number in np.unique(chosen):
            scheduler.at(targets[int(number)], threads.where(chosen == number))

    return flow


def leave(guard: Guard | None) -> Flow:
    def flow(scheduler: Scheduler, pc: int, threads: Threads) -> None:
        machine = scheduler.machine
        ending: Threads | None = threads
        staying: Threads | None = None
        if guard is not None:
            ending, staying = scheduler.parted(threads, guard.holds(machine, threads))
        if staying:
            scheduler.at(pc + 1, staying)
        if ending:
            machine.exited[ending.pick] = True
            scheduler.release()

    return flow


def arrive(guard: Guard | None, barrier: Barrier) -> Flow:
    def flow(scheduler: Scheduler, pc: int, threads: Threads) -> None:
        machine = scheduler.machine
        if guard is not None:
            arriving, passing = scheduler.parted(threads, guard.holds(machine, threads))
            if passing:
                scheduler.at(pc + 1, passing)
            if arriving is None:
                return
            threads = arriving
        machine.waiting[threads.pick] = barrier.number(machine, threads).astype(np.int64) + 1
        machine.wait_count[threads.pick] = 0 if barrier.count is None else barrier.count(machine, threads)
        machine.wait_pc[threads.pick] = pc
        if barrier.vote is not None:
            machine.votes[threads.pick] = barrier.vote(machine, threads)
        scheduler.release()

    return flow
