"""A language model's head on the simulated card: its logits exist in chunks of tokens, its numbers are those of float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan import chunk, reuse
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Generated, Plan
from tests.elaborated import SCALES, experiment, parameter
from tests.on_simulator import run_graph

RNG = np.random.default_rng(21)
TOKENS, WIDTH, UNIT = 70, 24, 2.0**-24


def head(folder: Path, tokens: int, width: int, vocabulary: int, options: str = "") -> tuple[Graph, dict[str, Any]]:
    """The loss and the gradients of a hidden value and of the weight that the logits come from."""
    values = {
        "h": RNG.normal(size=(tokens, width)).astype(np.float32),
        "v": RNG.normal(size=(vocabulary, width)).astype(np.float32),
        "t": RNG.integers(0, vocabulary, tokens).astype(np.int32),
    }
    logits = f"(matmul {parameter('h', values['h'])} (transpose {parameter('v', values['v'])}))"
    made = experiment(folder, {"t": values["t"]}, f"(cross-entropy {logits} t {options})")
    return training_graph(made), values


def exact(values: dict[str, Any], counts: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The loss and gradients in float64, and bounds of what float32 may differ by (to first order, in units of 2^-24)."""
    h, v = values["h"].astype(np.float64), values["v"].astype(np.float64)
    rows, vocabulary = np.arange(len(h)), len(v)
    logits = h @ v.T
    largest = logits.max(1, keepdims=True)
    p = np.exp(logits - largest)
    total = p.sum(1, keepdims=True)
    p /= total
    losses = (largest + np.log(total))[:, 0] - logits[rows, values["t"]]
    slope = p.copy()
    slope[rows, values["t"]] -= 1
    slope *= counts[:, None]
    results = {"loss": (losses * counts).sum(), "gradient:h": slope @ v, "gradient:v": slope.T @ h}
    # A logit is a sum of WIDTH products; what a row's logits are off by is off in its log-sum-exp too.
    logit_off = ((WIDTH + 1) * np.abs(h) @ np.abs(v).T).max(1, keepdims=True)
    # exp and log are good to 2 units, the shift and the sums in lanes round once an element of a lane and once a join.
    sums = vocabulary // 32 + 8 + 2 * np.abs(logits - largest).max(1, keepdims=True)
    loss_off = 2 * logit_off[:, 0] + sums[:, 0] + 4 * np.abs(largest[:, 0]) + 4 * np.log(total)[:, 0]
    slope_off = p * (2 * logit_off + sums + 8) * counts[:, None] + np.abs(slope)
    size = np.abs(slope)
    bounds = {
        "loss": loss_off.sum() + len(h) * losses.sum(),
        "gradient:h": slope_off @ np.abs(v) + (vocabulary + 1) * size @ np.abs(v),
        "gradient:v": slope_off.T @ np.abs(h) + (len(h) + 1) * size.T @ np.abs(h),
    }
    return results, {name: bound * UNIT for name, bound in bounds.items()}


@pytest.mark.parametrize(("vocabulary", "ignored"), [(100, None), (1030, 3)])
def test_a_head_in_chunks_has_the_loss_and_gradients_of_float64(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: int, ignored: int | None
) -> None:
    logits_bytes = 4 * TOKENS * vocabulary
    for module, name, value in (
        (chunk, "SMALLEST_BYTES", logits_bytes),
        (chunk, "CHUNK_BYTES", logits_bytes // 4),
        (chunk, "SHARE", 0.0),
        (reuse, "SMALLEST_BYTES", logits_bytes),
    ):
        monkeypatch.setattr(module, name, value)
    graph, values = head(tmp_path, TOKENS, WIDTH, vocabulary, "" if ignored is None else f":ignore {ignored}")
    values["t"][::5] = 3
    results, made = run_graph(graph, values, SCALES)
    assert made.findings == []
    assert chunks_of(made.plan, vocabulary) == [32, 32, 6]
    expected, bounds = exact(values, np.where(values["t"] == ignored, 0.0, 1.0))
    for name, value in expected.items():
        assert np.all(np.abs(results[name] - value) <= bounds[name]), name
        # A bound that allows everything would prove nothing.
        assert np.max(bounds[name]) <= 1e-3 * np.max(np.abs(value)), name


def chunks_of(made: Plan, vocabulary: int) -> list[int]:
    """Tokens of every launch that makes a row of logits into its log-sum-exp."""
    rows = [a for a in made.launches if isinstance(a, Generated) and a.program.kind == "row"]
    return [row.sizes[0] for row in rows if row.sizes[-1] == vocabulary]


def test_the_arena_of_a_head_does_not_grow_with_tokens_times_vocabulary(tmp_path: Path) -> None:
    """From 4096 tokens on, a token more takes one float: its loss."""
    sizes = {}
    for tokens in (4096, 12288):
        graph, _ = head(tmp_path, tokens, 64, 50257)
        sizes[tokens] = plan(graph, aliases=bound_outputs(graph), native=False).arena_bytes
    assert sizes[4096] < 4096 * 50257 * 4 // 40
    assert sizes[12288] - sizes[4096] <= (12288 - 4096) * 4
