"""cp.async: copies from global to shared memory that are there only once they are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.form import Action, Form
from tests.simulator.machine import Copies, Machine
from tests.simulator.threads import Threads


def asynchronous(form: Form) -> Action:
    if not form.has("async") or form.has("bulk") or form.has("mbarrier"):
        raise form.unsupported()
    if form.has("commit_group"):
        return lambda machine, threads: commit(machine, threads)
    if form.has("wait_all"):
        return lambda machine, threads: wait(machine, threads, None)
    if form.has("wait_group"):
        pending = int(form.text(0), 0)
        return lambda machine, threads: wait(machine, threads, pending)
    return begin(form)


def begin(form: Form) -> Action:
    """The third operand is the size; a fourth is how much of it is read, the rest being zeros."""
    target, source, size = form.address(0), form.address(1), int(form.text(2), 0)
    given = form.source(3, "u32") if form.count > 3 else None
    if (
        form.count > 3
        and form.text(3) in form.kernel.registers
        and form.kernel.register_types[form.kernel.registers[form.text(3)]] == "pred"
    ):
        raise form.unsupported()

    def run(machine: Machine, threads: Threads) -> None:
        at, origin = target(machine, threads), source(machine, threads)
        some = machine.spread(given(machine, threads) if given else np.uint32(size), threads)
        words = read_source(machine, threads, origin, size, some)
        machine.shared.begin_copy(machine, threads, at, size)
        copy = Copies(threads.indices.copy(), np.array(at), words, np.full(threads.count, -1))
        machine.copies.append(copy)

    return run


def read_source(machine: Machine, threads: Threads, origin: Any, size: int, some: Any) -> list[Any]:
    if (some == size).all():
        return machine.memory.load(machine, threads, origin, 4, size // 4)
    if not np.isin(some, [0, size]).all():
        machine.fault("unsupported", "cp.async that reads a part of its size")
    words = [np.zeros(threads.count, np.uint32) for _ in range(size // 4)]
    reading = some == size
    if reading.any():
        for word, value in zip(
            words, machine.memory.load(machine, threads.where(reading), origin[reading], 4, size // 4)
        ):
            word[reading] = value
    return words


def commit(machine: Machine, threads: Threads) -> None:
    machine.committed[threads.pick] += 1
    here = np.zeros(machine.places, bool)
    here[threads.pick] = True
    for copy in machine.copies:
        joins = (copy.group < 0) & here[copy.indices]
        copy.group = np.where(joins, machine.committed[copy.indices], copy.group)


def wait(machine: Machine, threads: Threads, pending: int | None) -> None:
    """Lands the copies of these threads but for the newest `pending` groups; None means every copy."""
    here = np.zeros(machine.places, bool)
    here[threads.pick] = True
    left = []
    for copy in machine.copies:
        done = here[copy.indices]
        if pending is not None:
            done &= (copy.group >= 0) & (copy.group <= machine.committed[copy.indices] - pending)
        if done.any():
            landing = part_of(copy, done)
            machine.shared.store(machine, Threads.at(landing.indices), landing.address, 4, landing.words)
        if not done.all():
            left.append(part_of(copy, ~done))
    machine.copies = left


def part_of(copy: Copies, chosen: Any) -> Copies:
    words = [word[chosen] for word in copy.words]
    return Copies(copy.indices[chosen], copy.address[chosen], words, copy.group[chosen])


BUILDERS: dict[str, Callable[[Form], Action]] = {"cp": asynchronous}
