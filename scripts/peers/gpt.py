"""GPT-2 for every peer: embeddings, pre-norm blocks with causal attention and tanh GELU, tied head, cross-entropy."""

# L layers, C width, H heads, T sequence, B batch, V vocabulary
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from peers.tasks import DECAY, LEARNING_RATE

FILE = "gpt.sexp"
UNIT = "tokens"
SHARED = ("wte", "wpe", "norm.gain", "norm.bias")


def units(size: dict[str, int]) -> int:
    return size["B"] * size["T"]


def hypers(size: dict[str, int]) -> dict[str, float]:
    names = {"layers": "L", "width": "C", "heads": "H", "seq": "T", "vocab": "V", "batch": "B"}
    return {**{name: size[letter] for name, letter in names.items()}, "lr": LEARNING_RATE, "decay": DECAY}


def shapes(size: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Weights are [out, in], as PyTorch has them; q, k and v are one."""
    c, shared = size["C"], {"wte": (size["V"], size["C"]), "wpe": (size["T"], size["C"])}
    block = {
        "norm-1.gain": (c,), "norm-1.bias": (c,), "qkv.weight": (3 * c, c), "qkv.bias": (3 * c,),
        "out.weight": (c, c), "out.bias": (c,), "norm-2.gain": (c,), "norm-2.bias": (c,),
        "up.weight": (4 * c, c), "up.bias": (4 * c,), "down.weight": (c, 4 * c), "down.bias": (c,),
    }  # fmt: skip
    blocks = {f"{i}.{name}": shape for i in range(size["L"]) for name, shape in block.items()}
    return {**shared, **blocks, "norm.gain": (c,), "norm.bias": (c,)}


def weights(size: dict[str, int]) -> dict[str, Any]:
    generator = np.random.default_rng(1234)
    made = {}
    for name, shape in shapes(size).items():
        if name.endswith(("gain", "bias")):
            made[name] = np.full(shape, 1 if name.endswith("gain") else 0, np.float32)
        else:
            narrow = name.endswith(("out.weight", "down.weight"))
            made[name] = generator.standard_normal(shape, dtype=np.float32)
            made[name] *= np.float32(0.02 / (2 * size["L"]) ** 0.5 if narrow else 0.02)
    return made


def batches(size: dict[str, int], count: int) -> list[dict[str, Any]]:
    generator = np.random.default_rng(99)
    text = generator.integers(0, size["V"], size=(count, size["B"], size["T"] + 1), dtype=np.int32)
    return [{"tokens": t[:, :-1].copy(), "targets": t[:, 1:].copy()} for t in text]


def ours(size: dict[str, int], weights: dict[str, Any]) -> dict[str, Any]:
    """Names of gpt.sexp, linear weights as [in, out], q, k and v apart."""
    made = {}
    for name, value in weights.items():
        value = value.T if name.endswith(".weight") else value
        block, _, rest = name.partition(".")
        layer, _, kind = rest.rpartition(".")
        if name in SHARED:
            made[f"gpt.{name}"] = value
        elif layer == "qkv":
            for part, third in zip("qkv", np.split(value, 3, axis=-1)):
                made[f"gpt.block.{block}.attn.{part}.{kind}"] = third
        else:
            inside = {"out": "attn.out", "up": "mlp.up", "down": "mlp.down"}.get(layer, layer)
            made[f"gpt.block.{block}.{inside}.{kind}"] = value
    return made


def pytorch(size: dict[str, int], weights: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    import torch
    import torch.nn.functional as F

    p = {name: torch.nn.Parameter(torch.from_numpy(value)) for name, value in weights.items()}
    L, C, H, T, B, V = (size[letter] for letter in "LCHTBV")

    def norm(x: Any, name: str) -> Any:
        return F.layer_norm(x, (C,), p[f"{name}.gain"], p[f"{name}.bias"])

    def linear(x: Any, name: str) -> Any:
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    def loss(batch: dict[str, Any]) -> Any:
        x = p["wte"][batch["tokens"]] + p["wpe"]
        for i in range(L):
            qkv = linear(norm(x, f"{i}.norm-1"), f"{i}.qkv").split(C, 2)
            q, k, v = (part.view(B, T, H, C // H).transpose(1, 2) for part in qkv)
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(o.transpose(1, 2).reshape(B, T, C), f"{i}.out")
            up = F.gelu(linear(norm(x, f"{i}.norm-2"), f"{i}.up"), approximate="tanh")
            x = x + linear(up, f"{i}.down")
        logits = F.linear(norm(x, "norm"), p["wte"])
        return F.cross_entropy(logits.view(-1, V), batch["targets"].view(-1))

    return p, loss


def jax(size: dict[str, int], weights: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    import jax
    import jax.numpy as jnp

    L, C, H, T, B, V = (size[letter] for letter in "LCHTBV")

    def loss(p: dict[str, Any], batch: dict[str, Any]) -> Any:
        def norm(x: Any, name: str) -> Any:
            mean = x.mean(-1, keepdims=True)
            variance = ((x - mean) ** 2).mean(-1, keepdims=True)
            return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.gain"] + p[f"{name}.bias"]

        def linear(x: Any, name: str) -> Any:
            return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

        x = p["wte"][batch["tokens"]] + p["wpe"]
        mask = jnp.tril(jnp.ones((T, T), bool))
        for i in range(L):
            qkv = jnp.split(linear(norm(x, f"{i}.norm-1"), f"{i}.qkv"), 3, -1)
            q, k, v = (part.reshape(B, T, H, C // H).transpose(0, 2, 1, 3) for part in qkv)
            scores = jnp.einsum("bhtd,bhsd->bhts", q, k) * (C // H) ** -0.5
            scores = jax.nn.softmax(jnp.where(mask, scores, -1e30), -1)
            o = jnp.einsum("bhts,bhsd->bhtd", scores, v).transpose(0, 2, 1, 3).reshape(B, T, C)
            x = x + linear(o, f"{i}.out")
            x = x + linear(jax.nn.gelu(linear(norm(x, f"{i}.norm-2"), f"{i}.up"), approximate=True), f"{i}.down")
        logits = (norm(x, "norm") @ p["wte"].T).reshape(-1, V)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["targets"].reshape(-1, 1), 1)
        return -chosen.mean()

    return {name: jnp.asarray(value) for name, value in weights.items()}, loss


def tinygrad(size: dict[str, int], weights: dict[str, Any]) -> tuple[dict[str, Any], Callable[..., Any]]:
    from peers.peer_tinygrad import parameter

    p = {name: parameter(value) for name, value in weights.items()}
    L, C, H, T, B, V = (size[letter] for letter in "LCHTBV")

    def norm(x: Any, name: str) -> Any:
        return x.layernorm(eps=1e-5) * p[f"{name}.gain"] + p[f"{name}.bias"]

    def linear(x: Any, name: str) -> Any:
        return x.linear(p[f"{name}.weight"].T, p[f"{name}.bias"])

    def loss(batch: dict[str, Any]) -> Any:
        x = p["wte"][batch["tokens"]] + p["wpe"]
        for i in range(L):
            qkv = linear(norm(x, f"{i}.norm-1"), f"{i}.qkv").split(C, dim=2)
            q, k, v = (part.reshape(B, T, H, C // H).transpose(1, 2) for part in qkv)
            o = q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
            x = x + linear(o, f"{i}.out")
            x = x + linear(linear(norm(x, f"{i}.norm-2"), f"{i}.up").gelu(), f"{i}.down")
        logits = norm(x, "norm").matmul(p["wte"].T).reshape(-1, V)
        return logits.sparse_categorical_crossentropy(batch["targets"].reshape(-1))

    return p, loss
