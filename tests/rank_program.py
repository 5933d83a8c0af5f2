"""What tests/test_ranks.py runs under mpirun: `rank_program.py WHAT [ARGUMENT]…`."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time

import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from sexpgpu.dist.exchange import Exchange, joined
from sexpgpu.dist.reduction import tree_sum_f64
from sexpgpu.errors import Error

ELEMENTS = 70_003  # neither a multiple of a cache line nor of a chunk


def gradient(call: int) -> NDArray[np.float32]:
    """Numbers of very different sizes, so that another order of sums has other bits."""
    draw = np.random.default_rng(100 + call)
    scale = np.exp(draw.uniform(-12, 6, ELEMENTS))
    return (draw.standard_normal(ELEMENTS) * scale).astype(np.float32)


def summed(exchange: Exchange, counts: list[int], lanes: int) -> dict[str, object]:
    """Three steps of every number of calls; the hash of each step's sum, the losses' sum, what this rank ran."""
    exchanged = exchange.gradients(ELEMENTS, counts, lanes)
    hashes, losses, ran = [], [], []
    for step in range(3):
        for calls in counts:
            plan = exchanged.plan(calls)
            shared = exchanged.arrays
            arrays = shared if shared is not None else [np.zeros(ELEMENTS, np.float32) for _ in range(plan.buffers)]
            exchanged.begin()
            mine = []
            for operation in plan.operations:
                if operation.kind == "add":
                    arrays[operation.target][:] += arrays[operation.source]
                    continue
                mine.append(operation.source)
                found = gradient(operation.source + step)
                arrays[operation.target][:] = found if operation.kind == "write" else arrays[operation.target] + found
            exchanged.finish(calls)
            total = arrays[0] if exchanged.total is None else exchanged.total
            hashes.append(hashlib.sha256(total.tobytes()).hexdigest())
            losses.append(tree_sum_f64(exchange.gather([float(gradient(call).sum()) for call in mine])))
            ran.append(mine)
    return {"hashes": hashes, "losses": losses, "ran": ran}


def sums(exchange: Exchange, counts: str, lanes: str = "16") -> None:
    found = summed(exchange, [int(count) for count in counts.split(",")], int(lanes))
    facts = {"count": exchange.count(exchange.world.rank + 1), "largest": exchange.agree(exchange.world.rank)}
    told = exchange.broadcast({"from": exchange.world.rank, "loss": float("nan")})
    report = {"world": asdict(exchange.world), "threads": exchange.threads, **found, **facts, "told": told}
    # One call, so that no other rank's line comes in between.
    os.write(1, (json.dumps(report) + "\n").encode())


def fail(exchange: Exchange, how: str, which: str) -> None:
    """One rank, or all, fail in the middle of a loop of sums."""
    for step in range(100_000):
        if step % 10 == 0:
            exchange.phase(f"step {step}")
        if step == 50 and which in ("all", str(exchange.world.rank)):
            end(how)
        exchange.count(step)


def end(how: str) -> None:
    match how:
        case "error":
            raise Error("E-NUM-001", "the loss is nan at step 50")
        case "raise":
            raise ZeroDivisionError("a bug")
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(3600)


class Agreed(Exception):
    """What all ranks raise together."""


def main(what: str, *arguments: str) -> None:
    with joined(os.environ, agreed=(Agreed,)) as exchange:
        if what == "sums":
            sums(exchange, *arguments)
        elif what == "fail":
            fail(exchange, *arguments)
        elif what == "agreed":
            raise Agreed


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Agreed:
        sys.exit(143)
