"""A character LSTM for PyTorch's nn.LSTM and for `scan`: embedding, one layer over time, a linear head, cross-entropy."""

# E embedding, H hidden, T sequence, B batch, V vocabulary
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

FILE = "lstm.sexp"
UNIT = "tokens"
# Names of nn.LSTM's parameters in lstm.sexp.
OURS = {
    "weight_ih_l0": "cell.input.weight", "bias_ih_l0": "cell.input.bias",
    "weight_hh_l0": "cell.state.weight", "bias_hh_l0": "cell.state.bias",
}  # fmt: skip


def units(size: dict[str, int]) -> int:
    return size["B"] * size["T"]


def hypers(size: dict[str, int]) -> dict[str, int]:
    names = {"width": "H", "inner": "E", "seq": "T", "vocab": "V", "batch": "B"}
    return {name: size[letter] for name, letter in names.items()}


def weights(size: dict[str, int]) -> dict[str, Any]:
    """As PyTorch has them: weights are [out, in]."""
    generator = np.random.default_rng(1234)
    h, shapes = (
        size["H"],
        {"wte": (size["V"], size["E"]), "head.weight": (size["V"], size["H"]), "head.bias": (size["V"],)},
    )
    shapes |= {
        "weight_ih_l0": (4 * h, size["E"]),
        "weight_hh_l0": (4 * h, h),
        "bias_ih_l0": (4 * h,),
        "bias_hh_l0": (4 * h,),
    }
    bound = np.float32(1 / h**0.5)
    return {name: generator.uniform(-bound, bound, shape).astype(np.float32) for name, shape in shapes.items()}


def batches(size: dict[str, int], count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(99)
    text = generator.integers(0, size["V"], size=(count, size["B"], size["T"] + 1), dtype=np.int32)
    return [{"tokens": t[:, :-1].copy(), "targets": t[:, 1:].copy()} for t in text]


def ours(size: dict[str, int], weights: dict[str, Any]) -> dict[str, Any]:
    """Names of lstm.sexp, weights of linear layers as [in, out]."""
    made = {}
    for name, value in weights.items():
        value = value if name == "wte" or value.ndim == 1 else np.ascontiguousarray(value.T)
        made[f"lstm.{OURS.get(name, name)}"] = value
    return made


def pytorch(size: dict[str, int], weights: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    import torch
    import torch.nn.functional as F

    layer = torch.nn.LSTM(size["E"], size["H"])
    p = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights.items() if name not in OURS}
    for name, parameter in layer.named_parameters():
        parameter.data = torch.from_numpy(weights[name])
        p[name] = parameter

    def loss(batch: dict[str, Any]) -> Any:
        hidden, _ = layer(p["wte"][batch["tokens"].t()])
        logits = F.linear(hidden, p["head.weight"], p["head.bias"])
        return F.cross_entropy(logits.view(-1, size["V"]), batch["targets"].t().reshape(-1))

    return p, loss
