"""Large values in chunks of rows: the same numbers, and less memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elaborated import SCALES, experiment, gradients, parameter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_cpu import run_graph
from plan_oracle import run_plan
from random_graphs import graphs
from test_plan_random import agrees

from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan import chunk, reuse
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Plan, Product

RNG = np.random.default_rng(5)
ROWS, INNER, WIDTH, CLASSES = 70, 9, 12, 33
LOGITS_BYTES = 4 * ROWS * CLASSES
# Sums of at most 70 float32 terms near 1.
TOLERANCE = 1e-5


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The logits of these tests are large values."""
    monkeypatch.setattr(chunk, "SMALLEST_BYTES", LOGITS_BYTES)
    monkeypatch.setattr(chunk, "CHUNK_BYTES", LOGITS_BYTES // 4)
    monkeypatch.setattr(chunk, "SHARE", 0.0)
    monkeypatch.setattr(reuse, "SMALLEST_BYTES", LOGITS_BYTES)


def head(folder: Path, options: str = "") -> tuple[Any, dict[str, np.ndarray]]:
    """A language model's head: logits of a hidden value, their cross-entropy, gradients of both weights."""
    values = {
        "x": RNG.normal(size=(ROWS, INNER)).astype(np.float32),
        "t": RNG.integers(0, CLASSES, ROWS).astype(np.int32),
        "w": RNG.normal(size=(INNER, WIDTH)).astype(np.float32),
        "v": RNG.normal(size=(CLASSES, WIDTH)).astype(np.float32),
    }
    hidden = f"(tanh (matmul x {parameter('w', values['w'])}))"
    logits = f"(matmul {hidden} (transpose {parameter('v', values['v'])}))"
    fields = {name: values[name] for name in ("x", "t")}
    return experiment(folder, fields, f"(cross-entropy {logits} t {options})"), values


def products(made: Plan) -> list[tuple[int, int, int]]:
    return [(p.m, p.n, p.k) for p in made.launches if isinstance(p, Product)]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("options", ["", ":ignore 3", ":label-smoothing 0.1"])
def test_loss_and_gradients_of_a_head_in_chunks_are_those_of_float64(tmp_path: Path, options: str) -> None:
    made, values = head(tmp_path, options)
    graph = training_graph(made)
    planned = plan(graph, aliases=bound_outputs(graph))
    # 32 rows a chunk, two tiles: 32, 32 and 6 rows.
    assert [k for m, n, k in products(planned) if (m, n) == (CLASSES, WIDTH)] == [32, 32, 6]
    given = {f"{n.attributes['kind']}:{n.attributes['name']}": values[n.attributes["name"]] for n in graph.inputs}
    expected = gradients(made, values)
    for results in (run_plan(planned, given, SCALES), run_graph(graph, values, SCALES)):
        for name, value in expected.items():
            scale = max(1.0, float(np.abs(value).max()))
            assert np.abs(results[name] - value).max() <= TOLERANCE * scale, name


@pytest.mark.usefixtures("small")
def test_no_buffer_of_a_head_in_chunks_holds_all_logits(tmp_path: Path) -> None:
    graph = training_graph(head(tmp_path)[0])
    planned = plan(graph, aliases=bound_outputs(graph))
    assert max(b.size_bytes for b in planned.buffers if b.kind == "arena") < LOGITS_BYTES
    whole = plan(graph, aliases=bound_outputs(graph), keep_values=True)
    assert any(b.size_bytes == LOGITS_BYTES for b in whole.buffers)


def test_logits_of_gpt2_are_never_in_memory_whole() -> None:
    from sexpgpu import load
    from sexpgpu.examples import __file__ as examples

    made = load(Path(examples).parent / "gpt2.sexp", set={"layers": 1})
    graph = training_graph(made.elaborated)
    planned = plan(graph, aliases=bound_outputs(graph))
    vocabulary, width, rows = 50257, 768, 1024
    # A chunk has half of what the weight has that the logits come from.
    allowed = vocabulary * width * 4 // 2
    assert vocabulary * rows * 4 > 2 * allowed
    assert max(b.size_bytes for b in planned.buffers if b.kind == "arena") <= allowed


@pytest.mark.parametrize("rows", [16, 1])
@given(graph=graphs(), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_random_graph_in_chunks_is_what_it_means(rows: int, graph: Graph, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SMALLEST_BYTES", 1), ("CHUNK_BYTES", 4), ("TILE", rows), ("SHARE", 0.0)):
            patch.setattr(chunk, name, value)
        agrees(simplify(graph), seed, keep_values=False)
