"""What the operations of the language mean, by hand in NumPy float64: it shares no line with the program it judges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Array = np.ndarray
Axis = int | tuple[int, ...] | None

# Elementwise

_erf = np.frompyfunc(math.erf, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x)).astype(np.float64)


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


def rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


def clip(x: Array, low: float, high: float) -> Array:
    return np.where(x < low, low, np.where(x > high, high, x))


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)


def gelu(x: Array) -> Array:
    return x * (1 + erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Array) -> Array:
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x: Array) -> Array:
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def leaky_relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.01 * x)


def cast_to_integer(x: Array) -> Array:
    """Toward zero; beyond the range, its end."""
    return np.clip(np.trunc(x), -(2.0**31), 2.0**31 - 1).astype(np.int32)


# Reductions


def logsumexp(x: Array, axis: Axis = None) -> Array:
    largest = np.max(x, axis, keepdims=True)
    total = np.log(np.sum(np.exp(x - largest), axis, keepdims=True)) + largest
    return np.squeeze(total, axis)


def norm(x: Array, axis: Axis = None) -> Array:
    return np.sqrt(np.sum(x * x, axis))


# Shapes


def gather(x: Array, indices: Array, axis: int) -> Array:
    """out[..., j, ...] is x[..., indices[..., j, ...], ...], one index at a time."""
    out = np.zeros(indices.shape)
    for place in np.ndindex(indices.shape):
        source = list(place)
        source[axis] = indices[place]
        out[place] = x[tuple(source)]
    return out


def scatter_add(x: Array, indices: Array, updates: Array) -> Array:
    out = x.copy()
    for place in np.ndindex(indices.shape):
        out[indices[place]] += updates[place]
    return out


def one_hot(indices: Array, count: int) -> Array:
    return (indices[..., None] == np.arange(count)).astype(np.float64)


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The k largest of the last axis, descending; of equals the lower index first."""
    order = np.array([sorted(range(len(row)), key=lambda i: (-row[i], i))[:k] for row in x.reshape(-1, x.shape[-1])])
    order = order.reshape(*x.shape[:-1], k)
    return np.take_along_axis(x, order, -1), order


# Neural


def softmax(x: Array, axis: int = -1) -> Array:
    shares = np.exp(x - np.max(x, axis, keepdims=True))
    return shares / np.sum(shares, axis, keepdims=True)


def log_softmax(x: Array, axis: int = -1) -> Array:
    shifted = x - np.max(x, axis, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis, keepdims=True))


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    out = np.einsum("...i,io->...o", x, weight)
    return out if bias is None else out + bias


def layernorm(x: Array, gain: Array, bias: Array | None = None, eps: float = 1e-5) -> Array:
    centred = x - np.mean(x, -1, keepdims=True)
    out = centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + eps) * gain
    return out if bias is None else out + bias


def rmsnorm(x: Array, gain: Array, eps: float = 1e-5) -> Array:
    return x / np.sqrt(np.mean(x**2, -1, keepdims=True) + eps) * gain


def groupnorm(x: Array, gain: Array, bias: Array, groups: int, eps: float = 1e-5) -> Array:
    """x is [b c …]; the channels of a group and all places are normalized together, gain and bias are a channel's."""
    grouped = x.reshape(x.shape[0], groups, -1)
    centred = grouped - np.mean(grouped, -1, keepdims=True)
    normed = (centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + eps)).reshape(x.shape)
    per_channel = (1, -1) + (1,) * (x.ndim - 2)
    return normed * gain.reshape(per_channel) + bias.reshape(per_channel)


def attention(
    q: Array, k: Array, v: Array, causal: bool = False, scale: float | None = None, mask: Array | None = None
) -> Array:
    """[b h t d], one query at a time; query head i reads key/value head i // (h / h_kv)."""
    b, h, t, d = q.shape
    out = np.zeros((b, h, t, v.shape[3]))
    factor = 1 / math.sqrt(d) if scale is None else scale
    allowed = np.ones((b, h, t, k.shape[2]), bool) if mask is None else np.broadcast_to(mask, (b, h, t, k.shape[2]))
    for n, i, row in np.ndindex(b, h, t):
        shared = i // (h // k.shape[1])
        kept = allowed[n, i, row] & (np.arange(k.shape[2]) <= row if causal else True)
        scores = factor * (k[n, shared, kept] @ q[n, i, row])
        out[n, i, row] = softmax(scores) @ v[n, shared, kept]
    return out


def rope(x: Array, base: float = 10000.0, offset: int = 0) -> Array:
    """Dimension j and dimension j + d/2 turn together, by (position + offset) · base^(−2j/d)."""
    t, d = x.shape[-2:]
    out = np.zeros(x.shape)
    for position, j in np.ndindex(t, d // 2):
        angle = (position + offset) * base ** (-2 * j / d)
        low, high = x[..., position, j], x[..., position, j + d // 2]
        out[..., position, j] = low * math.cos(angle) - high * math.sin(angle)
        out[..., position, j + d // 2] = low * math.sin(angle) + high * math.cos(angle)
    return out


def split_heads(x: Array, heads: int) -> Array:
    width = x.shape[2] // heads
    return np.stack([x[:, :, i * width : (i + 1) * width] for i in range(heads)], 1)


def merge_heads(x: Array) -> Array:
    return np.concatenate([x[:, i] for i in range(x.shape[1])], -1)


# Losses


def cross_entropy(logits: Array, targets: Array, smoothing: float = 0.0, ignore: int | None = None) -> Array:
    """One loss a target: the class gets 1 − smoothing, and all classes share the rest; an ignored target has loss 0."""
    logs = log_softmax(logits)
    out = np.zeros(targets.shape)
    for place in np.ndindex(targets.shape):
        if targets[place] != ignore:
            out[place] = -(1 - smoothing) * logs[place][targets[place]] - smoothing * np.mean(logs[place])
    return out


def binary_cross_entropy(logits: Array, targets: Array) -> Array:
    return -targets * np.log(sigmoid(logits)) - (1 - targets) * np.log(sigmoid(-logits))


def mse(a: Array, b: Array) -> Array:
    return (a - b) ** 2


def huber(a: Array, b: Array, delta: float = 1.0) -> Array:
    far = np.abs(a - b)
    return np.where(far <= delta, far**2 / 2, delta * (far - delta / 2))


def kl_divergence(log_p: Array, log_q: Array) -> Array:
    return np.sum(np.exp(log_p) * (log_p - log_q), -1)


# Optimizers: the parameter after each of the steps whose gradients are given


def sgd(
    p: Array, gradients: Sequence[Array], lr: float = 0.01, momentum: float = 0.0, nesterov: bool = False, decay: float = 0.0
) -> list[Array]:  # fmt: skip
    moving, passed = np.zeros(p.shape), []
    for gradient in gradients:
        g = gradient + decay * p
        moving = momentum * moving + g
        p = p - lr * (g + momentum * moving if nesterov else moving)
        passed.append(p)
    return passed


def adam(
    p: Array, gradients: Sequence[Array], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
    decay: float = 0.0,
) -> list[Array]:  # fmt: skip
    """AdamW where `decay` is not 0: it is decoupled, and the caller leaves it out for vectors."""
    first, second, passed = np.zeros(p.shape), np.zeros(p.shape), []
    for update, g in enumerate(gradients, 1):
        first = betas[0] * first + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g * g
        m, v = first / (1 - betas[0] ** update), second / (1 - betas[1] ** update)
        p = p - lr * (m / (np.sqrt(v) + eps) + decay * p)
        passed.append(p)
    return passed


def lion(
    p: Array, gradients: Sequence[Array], lr: float = 1e-4, betas: tuple[float, float] = (0.9, 0.99), decay: float = 0.0
) -> list[Array]:
    """Chen et al. 2023, algorithm 2; the caller leaves the decay out for vectors."""
    moving, passed = np.zeros(p.shape), []
    for g in gradients:
        direction = np.sign(betas[0] * moving + (1 - betas[0]) * g)
        moving = betas[1] * moving + (1 - betas[1]) * g
        p = p - lr * (direction + decay * p)
        passed.append(p)
    return passed


def clipped(gradients: dict[str, Array], limit: float) -> tuple[dict[str, Array], float]:
    """Gradients scaled by min(1, limit / norm), and the norm over all of them."""
    total = math.sqrt(sum(float(np.sum(g * g)) for g in gradients.values()))
    return {name: g * min(1.0, limit / total) for name, g in gradients.items()}, total


def warmup_cosine(step: int, peak: float, warmup: int, total: int, floor: float = 0.1) -> float:
    if step <= warmup:
        return peak * step / warmup
    turn = math.pi * (step - warmup) / (total - warmup)
    return peak * (floor + (1 - floor) * (1 + math.cos(turn)) / 2)
