"""What is trained: every size by name, the module that has its model, and the hyperparameters that all peers share.

A module of a model has, for a size (a dict of numbers):
    FILE, hypers(size)                    its s-expression file beside it, and what `set` gives it
    UNIT, units(size)                     what a step counts, tokens or examples, and how many
    weights(size) -> {name: array}        initial weights, the same for every peer
    batches(size, count) -> [{field: array}]
    ours(size, weights) -> {name: array}  the weights under the names and layouts of FILE
    pytorch(size, weights) -> (parameters, loss)   {name: Parameter}, loss(batch of tensors) -> scalar
    jax, tinygrad                         the same, with loss(parameters, batch) for jax; a model may lack any of them
    pytorch_optimizer(parameters)         where it is not the AdamW of all others
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

LEARNING_RATE, BETAS, EPSILON, DECAY = 3e-4, (0.9, 0.999), 1e-8, 0.01

# L layers, C width, H heads (of an LSTM: hidden), E embedding, T sequence, B batch, V vocabulary
SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "toy": ("gpt", {"L": 2, "C": 128, "H": 4, "T": 64, "B": 8, "V": 256}),
    "small": ("gpt", {"L": 4, "C": 256, "H": 4, "T": 256, "B": 8, "V": 4096}),
    "resnet": ("resnet", {"B": 32, "N": 3, "W": 16}),
    "gpt2": ("gpt", {"L": 12, "C": 768, "H": 12, "T": 1024, "B": 1, "V": 50257}),
    "gpt2-batch-8": ("gpt", {"L": 12, "C": 768, "H": 12, "T": 1024, "B": 8, "V": 50257}),
    "lstm": ("lstm", {"E": 128, "H": 256, "T": 64, "B": 32, "V": 256}),
}


@dataclass(frozen=True)
class Task:
    """One comparison: a size at a precision (f32 or bf16) on so many threads, or on a device cuda, with its module's model."""

    name: str
    precision: str
    threads: int
    device: str = "cpu"

    @property
    def model(self) -> Any:
        return import_module(f"peers.{SIZES[self.name][0]}")

    @property
    def size(self) -> dict[str, int]:
        return SIZES[self.name][1]


def decays(shape: tuple[int, ...]) -> bool:
    """Weight decay is for matrices, not for biases and gains, with every peer."""
    return len(shape) >= 2
