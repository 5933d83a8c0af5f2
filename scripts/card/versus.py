"""GPT-2 124M on the card by sexpgpu and by PyTorch, eager and compiled: the same weights and batches, blocks of steps in turn."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from peers.comparison import PEERS, Comparison, Disagreement, Row, compare
from peers.tasks import Task

SIZE = "gpt2-batch-8"
NAMES = ("sexpgpu", "pytorch", "pytorch-compiled")
BLOCKS, BLOCK_S = 15, 1.0


def compared(
    say: Callable[[str], None], size: str = SIZE, device: str = "cuda", blocks: int = BLOCKS, block_s: float = BLOCK_S
) -> tuple[str, str, dict[str, Any]]:
    """State, words and data of the section."""
    if find_spec("torch") is None:
        return "absent", "torch is not installed", {}
    facts: dict[str, Any] = {"size": size, "lines": []}
    state = "ok"
    threads = len(os.sched_getaffinity(0))
    for precision in ("f32", "bf16"):
        task = Task(size, precision, threads, device)
        try:
            made = compare(task, [PEERS[name] for name in NAMES], blocks, block_s, False, say)
        except (Disagreement, SystemExit) as problem:
            # A peer that ends, for lack of memory say, ends the comparison with its last words.
            facts["lines"] += [f"{precision}: {line}" for line in str(problem).splitlines()[-3:]]
            facts[precision] = {"failed": str(problem)}
            state = "failed"
            continue
        facts[precision] = [row_facts(made, row) for row in made.rows]
        facts["lines"] += [words_of(precision, each) for each in facts[precision]]
    return state, f"{size} beside PyTorch", facts


def row_facts(made: Comparison, row: Row) -> dict[str, Any]:
    """`ratio`: our time over the row's, its median and quartiles."""
    if row.missing:
        return {"peer": row.peer.name, "missing": row.missing}
    ratios = made.ratios(row)
    spread = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "peer": row.peer.name,
        "ms": row.ms,
        "units_a_second": made.task.model.units(made.task.size) / row.ms * 1e3,
        "device_peak": max((block.get("device_peak", 0) for block in row.blocks), default=0),
        "ratio": spread,
        "cold_s": row.cold_s,
        "warm_s": row.warm_s,
        "versions": row.versions,
        "losses": row.losses,
    }


def words_of(precision: str, facts: dict[str, Any]) -> str:
    if "missing" in facts:
        return f"{precision} {facts['peer']}: not here ({facts['missing']})"
    low, middle, high = facts["ratio"]
    rate = (
        f"{facts['ms']:.2f} ms a step, {facts['units_a_second']:,.0f} tokens/s, {facts['device_peak'] / 2**30:.2f} GiB"
    )
    return f"{precision} {facts['peer']}: {rate}; sexpgpu takes {middle:.2f} ({low:.2f} – {high:.2f}) of its time"
