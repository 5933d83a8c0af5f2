"""The lock-step comparison: every peer is a process that stays alive, and blocks of their steps alternate.

A ratio is taken block by block, of two blocks that ran within a second or so, so that what slows the machine for a
while slows both. All peers start from the same weights, take the same batches and must give the same losses.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.tasks import Task

HERE = Path(__file__).parent
# Steps whose losses are compared. Rounding differs, so the difference of two runs grows with every step.
COMPARED = 5
PAUSE_S = 0.05
# |loss − loss| / loss. f32: a mean over hundreds of terms that are each right to 2^-24 times some tens of operations;
# bf16: 2^-8 an operation, averaged over the same terms.
TOLERANCE = {"f32": 1e-5, "bf16": 1e-2}


@dataclass(frozen=True)
class Peer:
    """A peer: its name in the table, module, variant, the Python that has it."""

    name: str
    module: str
    variant: str
    python: str = sys.executable


PEERS: Mapping[str, Peer] = {
    "sexpgpu": Peer("sexpgpu", "peer_sexpgpu", ""),
    "pytorch": Peer("PyTorch eager", "peer_pytorch", "eager"),
    "pytorch-compiled": Peer("PyTorch compiled", "peer_pytorch", "compiled"),
    "jax": Peer("JAX jit", "peer_jax", ""),
    "tinygrad": Peer("tinygrad", "peer_tinygrad", ""),
}


class Missing(Exception):
    """There is no such peer here, and why."""


class Disagreement(Exception):
    """Two peers do not compute the same."""


class Process:
    """A peer's process, started; `start_s`: seconds from its start until its first step was done."""

    def __init__(self, peer: Peer, task: Task, cache: Path) -> None:
        command = [peer.python, str(HERE / "process.py"), peer.module, peer.variant, task.name, task.precision]
        self.peer = peer
        # A file, as nobody reads a pipe while the peer works.
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115
        began = time.time()
        self._child = subprocess.Popen(
            [*command, str(task.threads), task.device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words,
            text=True, env=environment(task.threads, cache),
        )  # fmt: skip
        self.first = self._answer()
        if "missing" in self.first:
            self.close()
            raise Missing(self.first["missing"])
        self.start_s = self.first["done"] - began

    def _answer(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._words.seek(0)
            sys.exit(f"{self.peer.name} ended:\n{self._words.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def steps(self, count: int) -> dict[str, Any]:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{count}\n")
        self._child.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._child.communicate()


def environment(threads: int, cache: Path) -> dict[str, str]:
    """This environment with every thread count and every cache folder that a peer has."""
    counts = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    folders = (
        "SEXPGPU_CACHE",
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "JAX_COMPILATION_CACHE_DIR",
        "XDG_CACHE_HOME",
    )
    # Installed packages have their bytecode, so may those that run from their sources.
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {
        **inherited,
        **dict.fromkeys(counts, str(threads)),
        **{name: str(cache / name.lower()) for name in folders},
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


@dataclass
class Row:
    """What was measured of a peer. `blocks`: its answers; `peak` and `children` are bytes, of the cold start too."""

    peer: Peer
    missing: str = ""
    cold_s: float = 0.0
    warm_s: float = 0.0
    children: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    blocks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return statistics.median(block["ms"] for block in self.blocks)

    @property
    def least_ms(self) -> float:
        return min(block["ms"] for block in self.blocks)

    @property
    def peak(self) -> int:
        return int(self.blocks[-1]["peak"])


@dataclass(frozen=True)
class Comparison:
    """Rows in order, the first is ours."""

    task: Task
    busy: bool
    rows: list[Row]

    def ratios(self, row: Row) -> list[float]:
        """Our time over the row's, block by block, lowest first."""
        return sorted(ours["ms"] / theirs["ms"] for ours, theirs in zip(self.rows[0].blocks, row.blocks))

    @property
    def others(self) -> float:
        """Cores' worth of time that neither the peer at work nor the busy process used, at the median block."""
        shares = [block["others"] for row in self.rows for block in row.blocks]
        return max(0.0, statistics.median(shares) - self.busy) if shares else 0.0


def compare(task: Task, peers: Sequence[Peer], blocks: int, block_s: float, busy: bool, say: Any) -> Comparison:
    """Start every peer cold and warm, see that they agree, then alternate blocks of at least `block_s` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        rows, running = [], []
        for peer in peers:
            row = Row(peer)
            rows.append(row)
            try:
                running.append((row, started(row, task, Path(folder) / f"{peer.module}-{peer.variant}")))
                say(f"{peer.name}: started, cold {row.cold_s:.2f} s, warm {row.warm_s:.2f} s, loss {row.losses[0]:.6f}")
            except Missing as problem:
                row.missing = str(problem)
                say(f"{peer.name}: not here: {problem}")
        try:
            agree(task, [row for row, _ in running])
            with busy_process() if busy else quiet():
                alternate(running, blocks, block_s, say)
        finally:
            for _, process in running:
                process.close()
    return Comparison(task, busy, rows)


def started(row: Row, task: Task, cache: Path) -> Process:
    """The warm process, after a cold one; both take the steps that are compared."""
    cold = Process(row.peer, task, cache)
    row.cold_s, row.children = cold.start_s, cold.first["children"]
    cold.close()
    warm = Process(row.peer, task, cache)
    row.warm_s, row.versions = warm.start_s, warm.first["versions"]
    row.losses = [warm.first["loss"], *warm.steps(COMPARED - 1)["losses"]]
    return warm


def agree(task: Task, rows: Sequence[Row]) -> None:
    """Every loss of every peer is that of the first."""
    for row in rows[1:]:
        for step, (ours, theirs) in enumerate(zip(rows[0].losses, row.losses), 1):
            # Written so that a NaN is no agreement.
            if not abs(ours - theirs) <= TOLERANCE[task.precision] * abs(theirs):
                raise Disagreement(f"step {step}: {rows[0].peer.name} has loss {ours}, {row.peer.name} {theirs}")


def alternate(running: Sequence[tuple[Row, Process]], blocks: int, block_s: float, say: Any) -> None:
    counts = {}
    for row, process in running:
        counts[row.peer.name] = max(1, round(block_s * 1e3 / min(process.steps(1)["ms"] for _ in range(2))))
    for number in range(blocks):
        # Everybody goes first equally often.
        begin = number % len(running)
        for row, process in [*running[begin:], *running[:begin]]:
            # Threads of the peer before may still spin a while.
            time.sleep(PAUSE_S)
            row.blocks.append(process.steps(counts[row.peer.name]))
        if (number + 1) % 5 == 0:
            say(f"block {number + 1}/{blocks}: " + ", ".join(f"{row.peer.name} {row.ms:.2f} ms" for row, _ in running))


@contextmanager
def busy_process() -> Iterator[None]:
    """One process that always computes, on the cores of this one."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


@contextmanager
def quiet() -> Iterator[None]:
    yield
