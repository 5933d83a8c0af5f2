"""sexpgpu through its Python face, as a user's loop would call it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from peers.tasks import Task

if TYPE_CHECKING:
    from sexpgpu.api import Trainer

WRITTEN_AS = "ours"
PACKAGES = ("sexpgpu", "numba", "numpy")


@dataclass(frozen=True)
class Steps:
    """The trainer's next step, whatever its number."""

    trainer: Trainer

    def __call__(self, number: int) -> float:
        return self.trainer.step().loss


def prepare(task: Task, count: int, variant: str) -> Steps:
    """step(i) trains on batch i and gives the loss."""
    import sexpgpu

    model, size = task.model, task.size
    given = model.batches(size, count)
    trainer = sexpgpu.load(Path(__file__).with_name(model.FILE), set=model.hypers(size)).trainer(
        device=task.device,
        threads=task.threads,
        precision="bfloat16" if task.precision == "bf16" else "off",
        batches=lambda step, microbatch: given[(step - 1) % count],
        parameters=model.ours(size, model.weights(size)),
    )
    return Steps(trainer)


def device_bytes(steps: Steps) -> int:
    """The most that the run held of the card."""
    return int(steps.trainer._session.device.peak_bytes())
