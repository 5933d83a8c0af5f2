"""Tensors without elements: sums over nothing are 0, and what is computed of nothing is planned."""

from __future__ import annotations

import numpy as np

from sexpgpu.ir.graph import Graph
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.pipeline import training_graph
from tests.elaborating import elaborated, run_of
from tests.on_cpu import run_graph

X = np.arange(8 * 64, dtype=np.float32).reshape(8, 64)


def loss_of(expression: str) -> float:
    graph = training_graph(elaborated(run_of(f'(+ {expression} (* 0 (sum (param "w" [3] ones))) (* 0 (mean x)))')))
    values = {"x": X, "w": np.ones(3, np.float32)}
    given = {name: values[name] for name in (node.attributes["name"] for node in graph.inputs)}
    outputs = run_graph(graph, given, {"step": 1.0, "gradient-scale": 1.0, "loss-scale": 1.0, "microbatches": 1.0})
    return float(outputs["loss"])


def test_a_product_over_an_axis_without_elements_is_0() -> None:
    assert loss_of("(sum (matmul (slice x [0 0] [8 0]) (reshape (slice x [0 0] [8 0]) [0 4])))") == 0


def test_a_row_of_several_axes_may_be_without_elements() -> None:
    assert loss_of("(sum (softmax (reshape (slice x [0 0] [8 0]) [0 5])))") == 0


def test_a_product_of_no_factors_is_1() -> None:
    assert loss_of("(sum (prod (slice x [0 0] [8 0]) :axis 1))") == 8


def test_nothing_is_sorted_to_nothing() -> None:
    assert loss_of("(sum (sort (slice x [0 0] [8 0])))") == 0


def test_the_greatest_of_no_element_is_asked_of_no_row() -> None:
    assert loss_of("(sum (softmax (reshape (slice x [0 0] [8 0]) [8 0 0])))") == 0


def test_a_sum_over_nothing_backward_is_planned() -> None:
    x = "(reshape (slice x [0 0] [8 0]) [4 0 2])"
    assert loss_of(f"(sum (* (flip {x} :axis 0) {x}))") == 0


def test_a_pool_of_no_rows_has_none() -> None:
    assert loss_of("(sum (avg-pool (reshape (slice x [0 0] [8 0]) [0 1 4 4]) 2))") == 0


def test_a_gradient_without_elements_writes_nothing() -> None:
    graph = Graph("g")
    x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (3, 0)})
    graph.outputs = {"y": graph.add("prod", (x,), {"axes": (1,)})}
    graph.outputs["loss"] = graph.add("sum", (graph.outputs["y"],), {"axes": (0,)})
    made = differentiate(graph, {"loss": ("number", 1.0)}, {"x": x})
    assert run_graph(made, {"x": np.ones((3, 0))})["y"].tolist() == [1, 1, 1]
