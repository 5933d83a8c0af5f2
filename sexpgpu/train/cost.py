"""What a step costs before it is run: multiply-adds of the products, and how long a CPU will take."""

from __future__ import annotations

import msgspec

from sexpgpu.ir.facts import flops_of
from sexpgpu.train.session import Session

# A careful figure for one core: half of what a good product reaches on AVX2.
CPU_FLOPS_PER_THREAD = 20e9
LONG_SECONDS = 600.0


class Cost(msgspec.Struct, frozen=True):
    """Of one optimizer step; `unit` says what is counted: tokens or examples."""

    flops: int
    tokens: int
    unit: str


def step_cost(session: Session) -> Cost:
    feed = session.step.feed
    flops = flops_of(session.step.graphs.training) * session.microbatches
    unit = "tokens" if session.tokens_per_example > 1 else "examples"
    return Cost(flops, feed.portions.step_examples * session.tokens_per_example, unit)


def too_large_for_cpu(session: Session) -> bool:
    """Whether three steps take more than ten minutes on this CPU, or more memory than there is; never where it is not
    the device."""
    if session.device.kind != "cpu":
        return False
    seconds = cpu_seconds(3 * step_cost(session).flops, session.settings.threads)
    return seconds > LONG_SECONDS or session.memory.planned > session.device.free_bytes()


def cpu_seconds(flops: int, threads: int) -> float:
    """An estimate that errs on the long side."""
    return flops / (CPU_FLOPS_PER_THREAD * threads)
