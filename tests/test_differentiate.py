"""Reverse mode: every operation's derivative against central differences of its NumPy meaning, and regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operations import CASES, ELSEWHERE, Case, central_difference

from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.verify import verify
from sexpgpu.ops.table import OPS
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.simplify import simplify

DTYPES = {"f": "f32", "i": "i32", "b": "bool"}
SMOOTH = [c for c in CASES if OPS[c.op].vjp is not None and len(c.fixed) < len(c.inputs) and c.inputs[0].size <= 200]


def field(graph: Graph, name: str, like: np.ndarray, kind: str = "field") -> Node:
    attributes = {"kind": kind, "name": name, "dtype": DTYPES[like.dtype.kind], "shape": like.shape}
    return graph.add("input", (), attributes)


def gradient_graph(case: Case) -> Graph:
    """Σ weights · op(inputs) and its gradients."""
    graph = Graph(case.name)
    inputs = [field(graph, f"x{k}", x) for k, x in enumerate(case.inputs)]
    made = graph.add(case.op, inputs, case.attributes)
    weights = field(graph, "weights", np.zeros(made.shape))
    graph.outputs["y"] = made
    graph.outputs["loss"] = graph.add("sum", (made * weights,), {"axes": tuple(range(made.tensor.rank))})
    targets = {f"x{k}": x for k, x in enumerate(inputs) if k not in case.fixed}
    return verify(differentiate(graph, {"loss": ("number", 1.0)}, targets))


def values(case: Case, weights: np.ndarray) -> dict[str, Any]:
    return {f"x{k}": x for k, x in enumerate(case.inputs)} | {"weights": weights}


def test_every_operation_has_a_case() -> None:
    assert {c.op for c in CASES} | set(ELSEWHERE) == set(OPS)


@pytest.mark.parametrize("case", SMOOTH, ids=[c.name for c in SMOOTH])
def test_the_gradient_is_the_central_difference(case: Case) -> None:
    graph = gradient_graph(case)
    weights = np.random.default_rng(1).normal(size=graph.outputs["y"].shape)
    for made in (graph, verify(simplify(graph))):
        outputs = evaluate_graph(made, values(case, weights))
        for k, x in enumerate(case.inputs):
            if k in case.fixed:
                continue
            expected = central_difference(lambda *a: OPS[case.op].run(*a, **case.attributes), case.inputs, k, weights)
            bound = 1e-6 * max(1.0, float(np.abs(expected).max()))
            assert np.abs(outputs[f"gradient:x{k}"] - expected).max() <= bound, (case.name, k)
            assert outputs[f"gradient:x{k}"].shape == x.shape


def test_equal_extremes_share_the_gradient() -> None:
    x = np.array([[1.0, 3.0, 3.0, 2.0]])
    graph = gradient_graph(Case("ties", "max", (x,), {"axes": (1,)}))
    assert evaluate_graph(graph, {"x0": x, "weights": np.ones(1)})["gradient:x0"].tolist() == [[0.0, 0.5, 0.5, 0.0]]
    pair = (np.array([1.0, 2.0]), np.array([1.0, 3.0]))
    graph = gradient_graph(Case("ties", "maximum", pair))
    outputs = evaluate_graph(graph, {"x0": pair[0], "x1": pair[1], "weights": np.ones(2)})
    assert outputs["gradient:x0"].tolist() == [0.5, 0.0]
    assert outputs["gradient:x1"].tolist() == [0.5, 1.0]


def softmax_body() -> Graph:
    body = Graph("softmax")
    x = field(body, "x", np.zeros((3, 5)), "argument")
    spread = lambda n: body.add("broadcast", (n,), {"shape": (3, 5), "dims": (0,)})  # noqa: E731
    top = body.add("stop_gradient", (body.add("max", (x,), {"axes": (1,)}),))
    e = body.add("exp", (x - spread(top),))
    total = body.add("sum", (e,), {"axes": (1,)})
    body.outputs = {"y": e / spread(total), "total": total}
    return body


def region_graph(outputs: tuple[int, ...]) -> Graph:
    graph = Graph("t")
    x, w = (field(graph, name, np.zeros((3, 5)), "parameter") for name in "xw")
    made = graph.add("region", (x * 2.0,), {"body": softmax_body()})
    y, total = (graph.add("get", (made,), {"index": k}) for k in (0, 1))
    terms = {0: y * w, 1: graph.add("broadcast", (total,), {"shape": (3, 5), "dims": (0,)}) * w}
    picked = [terms[k] for k in outputs]
    value = picked[0] if len(picked) == 1 else picked[0] + picked[1]
    graph.outputs["loss"] = graph.add("sum", (value,), {"axes": (0, 1)})
    return differentiate(graph, {"loss": ("number", 1.0)}, {"x": x, "w": w})


@pytest.mark.parametrize("outputs", [(0,), (1,), (0, 1)])
def test_a_region_is_differentiated_through_its_body(outputs: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 5))

    def loss(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        z = 2 * x
        e = np.exp(z - z.max(1, keepdims=True))
        total = e.sum(1, keepdims=True)
        return sum((e / total * w, np.broadcast_to(total, e.shape) * w)[k] for k in outputs)  # type: ignore[return-value]

    # `total` is relative to the maximum, through which no gradient is asked to flow: only y is a true function of x.
    graph = verify(region_graph(outputs))
    made = evaluate_graph(verify(simplify(graph)), {"x": x, "w": w})
    assert np.allclose(made["loss"], loss(x, w).sum(), rtol=1e-12)
    assert np.allclose(made["gradient:w"], central_difference(loss, (x, w), 1, np.ones((3, 5))), atol=1e-7)
    if outputs == (0,):
        assert np.allclose(made["gradient:x"], central_difference(loss, (x, w), 0, np.ones((3, 5))), atol=1e-7)


def test_a_backward_region_reads_saved_reductions_and_no_second_product() -> None:
    graph = simplify(region_graph((0,)))
    backward = [n for n in graph.nodes if n.op == "region" and n.attributes["body"].name.endswith("-backward")]
    assert len(backward) == 1
    saved = [i for i in backward[0].inputs if i.op == "get"]
    assert {i.shape for i in saved} == {(3,), (3, 5)}


def test_what_no_loss_depends_on_has_gradient_zero() -> None:
    graph = Graph("t")
    x, w = (field(graph, name, np.zeros(3), "parameter") for name in "xw")
    graph.outputs["loss"] = graph.add("sum", (x,), {"axes": (0,)})
    made = differentiate(graph, {"loss": ("number", 1.0)}, {"x": x, "w": w})
    outputs = evaluate_graph(made, {"x": np.ones(3), "w": np.ones(3)})
    assert outputs["gradient:w"].tolist() == [0.0, 0.0, 0.0]
    assert outputs["gradient:x"].tolist() == [1.0, 1.0, 1.0]


def test_a_small_derivative_of_expm1_keeps_its_digits() -> None:
    graph = Graph("g")
    x = field(graph, "x", np.zeros(()))
    graph.outputs = {"loss": graph.add("expm1", (x,))}
    made = differentiate(graph, {"loss": ("number", 1.0)}, {"x": x})
    slope = evaluate_graph(made, {"x": np.float32(-12)}, wide=False)["gradient:x"]
    # e^-12; expm1(−12) + 1 has only three of its digits in float32.
    np.testing.assert_allclose(slope, 6.14421235332821e-06, rtol=2e-7)
