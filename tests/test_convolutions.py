"""Convolutions and pools on the CPU: values against loops in NumPy float64, gradients against the graph's own NumPy
meaning (which test_meaning holds against central differences), and the same bits for every number of threads."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from elaborated import SCALES, experiment, gradients, parameter
from on_cpu import run_graph
from reference_convolution import TIES, convolutions, max_pool, pools

from sexpgpu.errors import Diagnostics
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.inline import inline
from sexpgpu.passes.lower import lower
from sexpgpu.passes.pipeline import training_graph

UNIT = 2.0**-24
# The longest sums here are over fewer products; each adds at most one rounding of what is summed so far.
TERMS = 256
CASES = (*convolutions(), *pools())
Arrays = dict[str, np.ndarray]


@cache
def everything(folder: Path) -> tuple[Graph, Arrays, Arrays]:
    """One graph of all cases, the values of its inputs, and its outputs in float64. The loss is Σ weights · case, and
    weights are parameters: the gradient by them is the case's value."""
    values: Arrays = {}
    terms: list[str] = []
    opened: dict[str, int] = {}
    for k, case in enumerate(CASES):
        x = case.inputs["x"]
        layers = list(dict.fromkeys(name.split(".")[0] for name in case.parameters))
        base = {layer: layer.split("_")[0] for layer in layers}
        names = {layer: _scope(base[layer], opened) for layer in layers}
        values |= {f"{names[name.split('.')[0]]}.{name.split('.')[1]}": value for name, value in case.parameters.items()}
        values |= {f"x{k}": x, f"w{k}": np.random.default_rng(k).normal(size=case.expected().shape).astype(np.float32)}
        expression = of_parameter(case.expression, f"x{k}", x)
        terms.append(f"(sum (* {parameter(f'w{k}', values[f'w{k}'])} {expression}))")
    made = experiment(folder, {"other": np.zeros(1)}, f"(+ {' '.join(terms)})")
    return training_graph(made), values, gradients(made, values)


def of_parameter(expression: str, name: str, value: np.ndarray) -> str:
    """The expression with x as a parameter."""
    return re.sub(r"\bx\b", parameter(name, value), expression)


def _scope(layer: str, opened: dict[str, int]) -> str:
    opened[layer] = opened.get(layer, 0) + 1
    return layer if opened[layer] == 1 else f"{layer}_{opened[layer]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("convolutions")


@pytest.mark.parametrize("keep_values", [False, True], ids=["fused", "keep-values"])
def test_values_and_gradients_are_those_of_numpy(folder: Path, keep_values: bool) -> None:
    graph, values, expected = everything(folder)
    made = run_graph(graph, values, SCALES, keep_values=keep_values)
    for k, case in enumerate(CASES):
        largest = max(1.0, float(np.abs(case.expected()).max()))
        error = np.abs(made[f"gradient:w{k}"] - case.expected()).max()
        assert error <= TERMS * UNIT * largest, (case.name, error)
    for name in values:
        value = expected[f"gradient:{name}"]
        error = np.abs(made[f"gradient:{name}"] - value).max()
        assert error <= TERMS * UNIT * max(1.0, float(np.abs(value).max())), (name, error)


def test_bits_do_not_depend_on_the_number_of_threads(folder: Path) -> None:
    graph, values, _ = everything(folder)
    first = run_graph(graph, values, SCALES, threads=1)
    for threads in (2, 3, 4):
        made = run_graph(graph, values, SCALES, threads=threads)
        assert all(np.array_equal(first[name], made[name]) for name in first)


def test_an_input_gradient_is_a_convolution_of_the_padded_cotangent(folder: Path) -> None:
    lowered = lower(inline(everything(folder)[0])).graph
    left = [node for node in lowered.nodes if node.op == "overlap_add" and node.inputs[0].op in ("permute", "contract")]
    # Those whose padding is as wide as the kernel: nothing of the cotangent reaches there.
    assert [node.attributes["low"] for node in left] == [(3, 3), (2, 2)]


@pytest.mark.parametrize("keep_values", [False, True], ids=["fused", "keep-values"])
def test_the_first_of_equal_elements_takes_the_gradient(tmp_path: Path, keep_values: bool) -> None:
    terms, values = [], {}
    for k, tie in enumerate(TIES):
        values[f"x{k}"] = np.array(tie.x)
        terms.append(f"(sum {of_parameter(tie.expression, f'x{k}', values[f'x{k}'])})")
    graph = training_graph(experiment(tmp_path, {"other": np.zeros(1)}, f"(+ {' '.join(terms)})"))
    made = run_graph(graph, values, SCALES, keep_values=keep_values)
    for k, tie in enumerate(TIES):
        assert made[f"gradient:x{k}"].tolist() == list(tie.gradient), tie.expression


def test_nan_and_infinity_pass_a_max_pool(tmp_path: Path) -> None:
    x = np.array([[[1.0, np.nan, 2.0, np.inf, -np.inf, -np.inf, 3.0, 4.0]]])
    weights = parameter("w", np.zeros((1, 1, 4)))
    loss = f"(sum (* {weights} (max-pool {parameter('x', x)} 2)))"
    graph = training_graph(experiment(tmp_path, {"other": np.zeros(1)}, loss))
    made = run_graph(graph, {"x": x, "w": np.zeros((1, 1, 4))}, SCALES)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(made["gradient:w"], max_pool(x, 2))


@pytest.mark.parametrize(
    ("expression", "code", "message"),
    [
        ("(conv2d x 4 9 :padding 1)", "E-SHAPE-001", "a window of 9 is larger than axis 3, which has 8 with its padding"),
        ("(conv2d x 4 3 :dilation 4)", "E-SHAPE-001", "a window of 3 with dilation 4, so 9 long, is larger than axis 2"),
        ("(conv2d x 4 3 :groups 4)", "E-SHAPE-001", "the channels of a convolution do not divide by its groups"),
        ("(conv2d x 4 3 :groups 3)", "E-SHAPE-001", "the output channels of a convolution do not divide by its groups"),
        ("(conv1d x 4 3)", "E-SHAPE-001", "a convolution takes [b c h w], conv1d takes [b c t]"),
        ("(conv2d x 4 [3 3 3])", "E-SHAPE-001", "one number for all or a list of 2, one an axis, not a list of 3"),
        ("(conv2d x 4 3 :stride 0)", "E-SHAPE-001", "windows: :stride is at least 1, not 0"),
        ("(conv2d x 4 1.5)", "E-SHAPE-003", "1.5 is a float, a size is an integer"),
        ("(max-pool x 2 :padding 2)", "E-SHAPE-001", "the padding of a pool is more than half its kernel"),
        ("(avg-pool (sum x :axis [2 3]) 2)", "E-SHAPE-001", "a pool takes [b c …]"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, expression: str, code: str, message: str) -> None:
    x = np.zeros((2, 3, 7, 6))
    with pytest.raises(Diagnostics) as raised:
        experiment(tmp_path, {"other": np.zeros(1)}, f"(sum {of_parameter(expression, 'x', x)})")
    first = raised.value.errors[0]
    assert first.code == code
    assert message in first.message
