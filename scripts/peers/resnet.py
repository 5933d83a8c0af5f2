"""The residual network of CIFAR-10 (3 stages of blocks, 32×32 images) with batchnorm and SGD with momentum, for peers."""

# B batch, N blocks a stage, W width of the first stage
from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

FILE = "resnet.sexp"
UNIT = "examples"
LEARNING_RATE, MOMENTUM = 2e-3, 0.9
CLASSES, CHANNELS, SIDE = 10, 3, 32


def units(size: dict[str, int]) -> int:
    return size["B"]


def hypers(size: dict[str, int]) -> dict[str, Any]:
    """A file of one batch says the fields' shapes."""
    path = Path(tempfile.mkdtemp()) / "images.npz"
    np.savez(path, **batches(size, 1)[0])
    return {"width": size["W"], "blocks": size["N"], "batch": size["B"], "data": str(path), "lr": LEARNING_RATE}


def blocks(size: dict[str, int]) -> Iterator[tuple[str, int, int, int]]:
    """Name, channels in and out, stride."""
    before = size["W"]
    for stage in range(3):
        for k in range(size["N"]):
            channels = size["W"] << stage
            yield f"resnet.block.{stage}.{k}", before, channels, 2 if stage and not k else 1
            before = channels


def shapes(size: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Of what is trained, under the names of FILE; the last weight is [in, out]."""
    made: dict[str, tuple[int, ...]] = {}

    def unit(name: str, inputs: int, outputs: int) -> None:
        made[f"{name}.conv2d.weight"] = (outputs, inputs, 3, 3)
        made[f"{name}.batchnorm.gain"] = made[f"{name}.batchnorm.bias"] = (outputs,)

    unit("resnet.unit", CHANNELS, size["W"])
    for name, inputs, outputs, _ in blocks(size):
        unit(f"{name}.unit", inputs, outputs)
        unit(f"{name}.unit_2", outputs, outputs)
        if inputs != outputs:
            made[f"{name}.short.weight"] = (outputs, inputs, 1, 1)
    return {**made, "resnet.linear.weight": (4 * size["W"], CLASSES), "resnet.linear.bias": (CLASSES,)}


def weights(size: dict[str, int]) -> dict[str, Any]:
    generator = np.random.default_rng(1234)
    made = {}
    for name, shape in shapes(size).items():
        if len(shape) == 1:
            made[name] = np.full(shape, name.endswith("gain"), np.float32)
        else:
            fan_in = shape[0] if len(shape) == 2 else int(np.prod(shape[1:]))
            made[name] = generator.standard_normal(shape, dtype=np.float32) * np.float32((2 / fan_in) ** 0.5)
    return made


def batches(size: dict[str, int], count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(99)
    images = generator.standard_normal((count, size["B"], CHANNELS, SIDE, SIDE), dtype=np.float32)
    classes = generator.integers(0, CLASSES, size=(count, size["B"]), dtype=np.int32)
    return [{"x": x, "y": y} for x, y in zip(images, classes)]


def ours(size: dict[str, int], weights: dict[str, Any]) -> dict[str, Any]:
    """With the running statistics, which are not trained."""
    norms = [name.removesuffix("gain") for name in weights if name.endswith("gain")]
    means = {f"{name}mean": np.zeros_like(weights[f"{name}gain"]) for name in norms}
    return {**weights, **means, **{f"{name}var": np.ones_like(weights[f"{name}gain"]) for name in norms}}


def pytorch(size: dict[str, int], weights: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    import torch
    import torch.nn.functional as F

    p = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights.items()}
    running = {name: torch.from_numpy(value) for name, value in ours(size, weights).items() if name not in p}

    def unit(x: Any, name: str, stride: int) -> Any:
        y = F.conv2d(x, p[f"{name}.conv2d.weight"], stride=stride, padding=1)
        norm = f"{name}.batchnorm."
        return F.batch_norm(y, running[f"{norm}mean"], running[f"{norm}var"], p[f"{norm}gain"], p[f"{norm}bias"], True)

    def loss(batch: dict[str, Any]) -> Any:
        x = F.relu(unit(batch["x"], "resnet.unit", 1))
        for name, inputs, outputs, stride in blocks(size):
            y = unit(F.relu(unit(x, f"{name}.unit", stride)), f"{name}.unit_2", 1)
            x = F.relu(y + (x if inputs == outputs else F.conv2d(x, p[f"{name}.short.weight"], stride=stride)))
        logits = x.mean((2, 3)) @ p["resnet.linear.weight"] + p["resnet.linear.bias"]
        return F.cross_entropy(logits, batch["y"])

    return p, loss


def pytorch_optimizer(parameters: dict[str, Any]) -> Any:
    import torch

    return torch.optim.SGD(parameters.values(), lr=LEARNING_RATE, momentum=MOMENTUM, fused=True)
