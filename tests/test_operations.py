"""The whole table of operations on the CPU: values against NumPy float64, gradients against central differences.

All cases of one kind are one graph with one kernel a node, so that kernels are compiled together.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from on_cpu import run_graph
from operations import CASES, Case, central_difference
from test_differentiate import DTYPES, SMOOTH

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.record import TypeMismatch
from sexpgpu.ops.table import OPS
from sexpgpu.passes.differentiate import differentiate

UNIT = 2.0**-24


def field(graph: Graph, name: str, like: np.ndarray) -> Node:
    attributes = {"kind": "field", "name": name, "dtype": DTYPES[like.dtype.kind], "shape": like.shape}
    return graph.add("input", (), attributes)


def called(graph: Graph, case: Case) -> Node:
    inputs = [field(graph, f"{case.name}/x{k}", x) for k, x in enumerate(case.inputs)]
    return graph.add(case.op, inputs, case.attributes)


def given(cases: list[Case]) -> dict[str, np.ndarray]:
    return {f"{c.name}/x{k}": x for c in cases for k, x in enumerate(c.inputs)}


@cache
def values() -> dict[str, np.ndarray]:
    graph = Graph("values")
    for case in CASES:
        graph.outputs[case.name] = called(graph, case)
    return run_graph(graph, given(list(CASES)), keep_values=True)


def weights(case: Case) -> np.ndarray:
    shape = np.shape(OPS[case.op].run(*case.inputs, **case.attributes))
    return np.random.default_rng(1).normal(size=shape).astype(np.float32).astype(np.float64)


@cache
def gradients() -> dict[str, np.ndarray]:
    graph = Graph("gradients")
    losses, targets = [], {}
    for case in SMOOTH:
        made = called(graph, case)
        scaled = made * field(graph, f"{case.name}/weights", weights(case))
        losses.append(graph.add("sum", (scaled,), {"axes": tuple(range(scaled.tensor.rank))}))
        inputs = {n.attributes["name"]: n for n in graph.inputs}
        targets |= {
            f"{case.name}/x{k}": inputs[f"{case.name}/x{k}"] for k in range(len(case.inputs)) if k not in case.fixed
        }
    total = losses[0]
    for loss in losses[1:]:
        total = total + loss
    graph.outputs["loss"] = total
    made = differentiate(graph, {"loss": ("number", 1.0)}, targets)
    filled = given(SMOOTH) | {f"{c.name}/weights": weights(c) for c in SMOOTH}
    return run_graph(made, filled, keep_values=True)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_the_value_is_that_of_numpy_in_float64(case: Case) -> None:
    expected = np.asarray(OPS[case.op].run(*case.inputs, **case.attributes))
    made = values()[case.name]
    assert made.shape == expected.shape
    if made.dtype.kind != "f":
        assert np.array_equal(made, expected)
        return
    # A sum's error grows with the sum of the magnitudes, of which the largest operand times the terms is a bound.
    largest = max([float(np.abs(x).max(initial=0)) for x in case.inputs if x.dtype.kind == "f"], default=1.0)
    scale = np.maximum(np.abs(expected), largest if case.ulps > 8 else 0.0)
    assert np.all(np.abs(made - expected) <= 2 * case.ulps * UNIT * scale + 1e-37)


@pytest.mark.parametrize("case", SMOOTH, ids=[c.name for c in SMOOTH])
def test_the_gradient_is_the_central_difference_of_the_numpy_meaning(case: Case) -> None:
    for k in range(len(case.inputs)):
        if k in case.fixed:
            continue
        expected = central_difference(lambda *a: OPS[case.op].run(*a, **case.attributes), case.inputs, k, weights(case))
        made = gradients()[f"gradient:{case.name}/x{k}"]
        bound = 64 * UNIT * case.ulps * max(1.0, float(np.abs(expected).max())) + 1e-6
        assert np.abs(made - expected).max() <= bound, (k, float(np.abs(made - expected).max()), bound)


def test_fills() -> None:
    graph = Graph("fills")
    graph.outputs["half"] = graph.constant(0.5, "f32", (3, 5))
    graph.outputs["negative zero"] = graph.constant(-0.0, "f32", (2,))
    graph.outputs["most"] = graph.constant(2**62 + 1, "i64", (2,))
    graph.outputs["rows"] = graph.add("iota", (), {"dtype": "i32", "shape": (3, 5), "axis": 0})
    graph.outputs["columns"] = graph.add("iota", (), {"dtype": "f32", "shape": (3, 5), "axis": 1})
    made = run_graph(graph, {})
    assert made["half"].tolist() == [[0.5] * 5] * 3
    assert np.signbit(made["negative zero"]).all()
    assert made["most"].tolist() == [2**62 + 1] * 2
    assert made["rows"].tolist() == [[i] * 5 for i in range(3)]
    assert made["columns"].tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0]] * 3


@pytest.mark.parametrize(("op", "updates"), [("scatter_add", (3, 4)), ("gather_add", (3, 1))])
def test_nothing_is_added_to_an_empty_axis(op: str, updates: tuple[int, int]) -> None:
    table, values = TensorType("f32", (0, updates[1])), TensorType("f32", updates)
    indices = TensorType("i32", updates if op == "gather_add" else updates[:1])
    with pytest.raises(TypeMismatch, match="to an empty axis"):
        OPS[op].infer(table, indices, values, axis=0)
    none = TensorType("i32", (0, *indices.shape[1:]))
    assert OPS[op].infer(table, none, TensorType("f32", (0, updates[1])), axis=0) == table
