"""Values that the backward pass computes again: the same bits, and no memory in between."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_oracle import run_plan
from random_graphs import graphs
from test_plan_random import agrees

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes import recompute
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan.buffers import lives_of
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Plan, Product

RNG = np.random.default_rng(11)
ROWS, WIDTH, HIDDEN, DEPTH = 8, 6, 16, 6
HOSTS = {"loss-scale": 1.0}


def deep() -> tuple[Graph, dict[str, np.ndarray]]:
    """x, six times x := silu(x·a)·b, and the gradients of every weight of Σ x."""
    graph = Graph("deep")
    values: dict[str, np.ndarray] = {}

    def given_(kind: str, name: str, shape: tuple[int, ...]) -> Node:
        values[f"{kind}:{name}"] = RNG.normal(size=shape).astype(np.float32)
        return graph.add("input", (), {"kind": kind, "name": name, "dtype": "f32", "shape": shape})

    def product(a: Node, b: Node) -> Node:
        return graph.add("contract", (a, b), {"batch": ((), ()), "contracted": ((1,), (0,))})

    x = given_("field", "x", (ROWS, WIDTH))
    weights: dict[str, Node] = {}
    for layer in range(DEPTH):
        a = weights[f"a{layer}"] = given_("parameter", f"a{layer}", (WIDTH, HIDDEN))
        b = weights[f"b{layer}"] = given_("parameter", f"b{layer}", (HIDDEN, WIDTH))
        hidden = product(x, a)
        x = product(graph.add("mul", (hidden, graph.add("sigmoid", (hidden,)))), b)
    graph.outputs["loss"] = graph.add("sum", (x,), {"axes": (0, 1)})
    return simplify(differentiate(graph, {"loss": ("runtime", "loss-scale")}, weights)), values


def plans(monkeypatch: pytest.MonkeyPatch, graph: Graph) -> tuple[Plan, Plan]:
    """The plan in which values are kept, and that in which they are computed again."""
    kept = plan(graph, aliases=bound_outputs(graph))
    monkeypatch.setattr(recompute, "SMALLEST_BYTES", 1)
    return kept, plan(graph, aliases=bound_outputs(graph))


def kept_for_later(made: Plan) -> int:
    """The most hidden values in the arena at once."""
    hidden = [life for number, life in lives_of(made).items() if made.buffers[number].size_bytes == 4 * ROWS * HIDDEN]
    moments = range(len(made.launches))
    return max(sum(life.first <= moment <= life.last for life in hidden) for moment in moments)


def test_what_is_computed_again_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, values = deep()
    kept, again = (run_plan(made, values, HOSTS) for made in plans(monkeypatch, graph))
    assert all(np.array_equal(kept[name], again[name]) for name in kept)


def test_one_hidden_value_a_layer_is_kept_and_not_two(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, again = plans(monkeypatch, deep()[0])
    assert kept_for_later(kept) >= 2 * DEPTH
    # The result of the product, and of one layer its silu and the cotangents before and after.
    assert kept_for_later(again) <= DEPTH + 3


def test_no_kernel_more_computes_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, again = plans(monkeypatch, deep()[0])
    assert len(again.launches) == len(kept.launches)
    assert sum(isinstance(x, Product) for x in again.launches) == sum(isinstance(x, Product) for x in kept.launches)


@given(graph=graphs(), seed=st.integers(0, 3))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_random_graph_with_values_computed_again_is_what_it_means(graph: Graph, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recompute, "SMALLEST_BYTES", 1)
        agrees(simplify(graph), seed, keep_values=False)
