"""PyTorch, eager or compiled: fused AdamW, or the model's own optimizer; bf16 is its autocast."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from peers.tasks import BETAS, DECAY, EPSILON, LEARNING_RATE, Task, decays

WRITTEN_AS = "pytorch"
PACKAGES = ("torch",)


def prepare(task: Task, count: int, variant: str) -> Callable[[int], float]:
    """step(i) trains on batch i and gives the loss."""
    import torch

    torch.set_num_threads(task.threads)
    model, size = task.model, task.size
    if task.device != "cpu" and not torch.cuda.is_available():
        raise NotImplementedError("this PyTorch has no CUDA")
    parameters, loss_of = model.pytorch(size, model.weights(size))
    for value in parameters.values():
        value.data = value.data.to(task.device)
    optimizer = getattr(model, "pytorch_optimizer", adamw)(parameters)
    given = [
        {k: as_tensor(torch.from_numpy(v)).to(task.device) for k, v in b.items()} for b in model.batches(size, count)
    ]
    if variant == "compiled":
        loss_of = torch.compile(loss_of)
    half = task.precision == "bf16"

    def step(i: int) -> float:
        with torch.autocast(task.device, dtype=torch.bfloat16) if half else nullcontext():
            loss = loss_of(given[i % count])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    return step


def adamw(parameters: dict[str, Any]) -> Any:
    import torch

    groups = [
        {"params": [p for p in parameters.values() if decays(p.shape)], "weight_decay": DECAY},
        {"params": [p for p in parameters.values() if not decays(p.shape)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)


def device_bytes(step: object) -> int:
    """The most that PyTorch's allocator held of the card."""
    import torch

    return int(torch.cuda.max_memory_reserved())


def as_tensor(value: Any) -> Any:
    """Indices are int64 in PyTorch."""
    return value if value.is_floating_point() else value.long()
