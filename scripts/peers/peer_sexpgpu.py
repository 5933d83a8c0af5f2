"""sexpgpu through its Python face, as a user's loop would call it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peers.tasks import Task

WRITTEN_AS = "ours"
PACKAGES = ("sexpgpu", "numba", "numpy")


def prepare(task: Task, count: int, variant: str) -> Callable[[int], float]:
    """step(i) trains on batch i and gives the loss."""
    import sexpgpu

    model, size = task.model, task.size
    given = model.batches(size, count)
    trainer = sexpgpu.load(Path(__file__).with_name(model.FILE), set=model.hypers(size)).trainer(
        device="cpu",
        threads=task.threads,
        precision="bfloat16" if task.precision == "bf16" else "off",
        batches=lambda step, microbatch: given[(step - 1) % count],
        parameters=model.ours(size, model.weights(size)),
    )
    return lambda i: trainer.step().loss
