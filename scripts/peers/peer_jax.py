"""JAX on the CPU: loss, gradient and AdamW in one jitted function whose state is donated."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from peers.tasks import BETAS, DECAY, EPSILON, LEARNING_RATE, Task, decays

WRITTEN_AS = "jax"
PACKAGES = ("jax",)


def prepare(task: Task, count: int, variant: str) -> Callable[[int], float]:
    """step(i) trains on batch i and gives the loss."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np

    if task.precision != "f32":
        raise NotImplementedError("compared in f32 alone")
    model, size = task.model, task.size
    parameters, loss_of = model.jax(size, model.weights(size))
    first = {name: jnp.zeros_like(p) for name, p in parameters.items()}
    second = {name: jnp.zeros_like(p) for name, p in parameters.items()}

    def updated(p: Any, m: Any, v: Any, t: Any) -> Any:
        mean, variance = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        return p - LEARNING_RATE * (mean / (jnp.sqrt(variance) + EPSILON) + (DECAY * p if decays(p.shape) else 0))

    def train(state: Any, t: Any, batch: Any) -> Any:
        p, m, v = state
        loss, g = jax.value_and_grad(loss_of)(p, batch)
        m = {n: BETAS[0] * m[n] + (1 - BETAS[0]) * g[n] for n in g}
        v = {n: BETAS[1] * v[n] + (1 - BETAS[1]) * g[n] * g[n] for n in g}
        return ({n: updated(p[n], m[n], v[n], t) for n in p}, m, v), loss

    call = jax.jit(train, donate_argnums=0)
    given = model.batches(size, count)
    state = parameters, first, second

    def step(i: int) -> float:
        nonlocal state
        state, loss = call(state, np.float32(i + 1), given[i % count])
        jax.block_until_ready(state)
        return float(loss)

    return step
