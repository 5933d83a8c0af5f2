"""A peer's process: its first step, then blocks of steps on request; every answer is one line of JSON on stdout.

    process.py MODULE VARIANT SIZE PRECISION THREADS DEVICE
The first line has the time at which the first step was done, or why there is no such peer here. Then each line N on
stdin is answered by the milliseconds, CPU milliseconds and losses of N steps, and the memory so far.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

# Different batches, taken in turn.
BATCHES = 16


def resident_bytes(process: int | str) -> int:
    """VmHWM: the most that was resident at once since the program started."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def children_bytes() -> int:
    """The largest child that ended, or all that live together: compilers that a peer starts."""
    living = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return max(ended, sum(map(resident_bytes, living)))


def machine_seconds() -> float:
    """CPU seconds of everything on this machine since it started, idle and waiting aside."""
    with open("/proc/stat") as file:
        ticks = [int(part) for part in file.readline().split()[1:]]
    return (sum(ticks[:8]) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def block(step: Callable[[int], float], first: int, count: int) -> dict[str, Any]:
    """So many steps: milliseconds a step, losses, and how many cores' worth of time others used meanwhile."""
    begin, own, machine = time.perf_counter(), time.process_time(), machine_seconds()
    losses = [step(first + i) for i in range(count)]
    seconds, own, machine = time.perf_counter() - begin, time.process_time() - own, machine_seconds() - machine
    return {
        "ms": seconds / count * 1e3,
        "losses": losses,
        "others": max(0.0, machine - own) / seconds,
        "peak": resident_bytes("self"),
        "children": children_bytes(),
    }


def main(module: str, variant: str, name: str, precision: str, threads: str, device: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    # What a library prints is no answer.
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from peers.tasks import Task

    task = Task(name, precision, int(threads), device)
    try:
        peer = import_module(f"peers.{module}")
        if task.device != "cpu" and not hasattr(peer, "device_bytes"):
            raise NotImplementedError(f"it is not compared on {task.device}")
        if not hasattr(task.model, peer.WRITTEN_AS):
            raise NotImplementedError(f"{task.name} is not written for it")
        step = peer.prepare(task, BATCHES, variant)
        loss = step(0)
    except (ImportError, NotImplementedError, FileNotFoundError) as problem:
        say({"missing": f"{problem}"})
        return
    done = time.time()
    versions = {package: version(package) for package in peer.PACKAGES}
    say(
        {"done": done, "loss": loss, "versions": versions, "peak": resident_bytes("self"), "children": children_bytes()}
    )
    taken = 1
    for line in sys.stdin:
        answer = block(step, taken, int(line))
        say(answer if task.device == "cpu" else {**answer, "device_peak": peer.device_bytes(step)})
        taken += int(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
