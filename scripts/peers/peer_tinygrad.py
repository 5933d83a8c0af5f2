"""tinygrad on its CPU device: TinyJit over the whole step, its own AdamW."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from peers.tasks import BETAS, DECAY, EPSILON, LEARNING_RATE, Task, decays

WRITTEN_AS = "tinygrad"
PACKAGES = ("tinygrad",)


def parameter(value: Any) -> Any:
    from tinygrad import Tensor

    made = Tensor(value.copy())
    return made.is_param_() if hasattr(made, "is_param_") else made.requires_grad_()


def prepare(task: Task, count: int, variant: str) -> Callable[[int], float]:
    """step(i) trains on batch i and gives the loss."""
    os.environ["DEV"] = "CPU"
    os.environ.setdefault("THREADS", "1" if task.threads > 1 else "0")
    from tinygrad import Tensor, TinyJit, nn
    from tinygrad.helpers import Context

    if task.precision != "f32":
        raise NotImplementedError("compared in f32 alone")
    model, size = task.model, task.size
    parameters, loss_of = model.tinygrad(size, model.weights(size))
    options = {"lr": LEARNING_RATE, "b1": BETAS[0], "b2": BETAS[1], "eps": EPSILON}
    kinds = [[p for p in parameters.values() if decays(p.shape) is kind] for kind in (True, False)]
    groups = [nn.optim.AdamW(k, weight_decay=d, **options) for k, d in zip(kinds, (DECAY, 0.0))]
    optimizer = nn.optim.OptimizerGroup(*groups)
    given = model.batches(size, count)

    @TinyJit
    def train(*values: Any) -> Any:
        optimizer.zero_grad()
        loss = loss_of(dict(zip(given[0], values)))
        loss.backward()
        return loss.realize(*optimizer.schedule_step())

    def step(i: int) -> float:
        with Context(TRAINING=1):
            return float(train(*(Tensor(value).realize() for value in given[i % count].values())).item())

    return step
