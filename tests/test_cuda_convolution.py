"""Convolutions by the CUDA products, which read windows where they lie: values and gradients against NumPy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.kernel import Product, flattened
from tests.cases import Case
from tests.elaborated import SCALES, experiment, gradients, parameter
from tests.on_simulator import run_graph
from tests.reference_convolution import convolutions
from tests.test_convolutions import TERMS, UNIT, of_parameter

CHOSEN = (
    "(conv2d x 3 4 :stride [2 1] :padding [1 0]) of [2, 4, 7, 6]",
    "(conv2d x 6 3 :groups 2 :padding 1) of [2, 4, 7, 6]",
    "(conv2d x 2 2 :dilation 2 :stride 2 :padding 2) of [2, 3, 9, 8]",
    "(conv2d x 8 3 :padding 1) of [1, 8, 8, 8]",
    "(conv1d x 4 4 :stride 2 :padding 1) of [2, 3, 9]",
)
CASES = [case for case in convolutions() if case.name in CHOSEN]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_and_gradients_are_those_of_numpy(tmp_path: Path, case: Case) -> None:
    x, expected = case.inputs["x"], case.expected()
    weights = np.random.default_rng(1).normal(size=expected.shape)
    # The gradient by the weights of a sum is what is summed.
    loss = f"(sum (* {parameter('w', weights)} {of_parameter(case.expression, 'x', x)}))"
    made = experiment(tmp_path, {"other": np.zeros(1)}, loss)
    values = {"x": x, "w": weights, **case.parameters}
    exact = {**gradients(made, values), "gradient:w": expected}
    found, simulated = run_graph(training_graph(made), values, SCALES)
    assert simulated.findings == []
    assert any(isinstance(launch, Product) and launch.b.has_loops for launch in flattened(simulated.plan.launches))
    for name in values:
        value = exact[f"gradient:{name}"]
        error = np.abs(found[f"gradient:{name}"] - value).max()
        assert error <= TERMS * UNIT * max(1.0, float(np.abs(value).max())), (name, error)


def test_every_chosen_case_is_there() -> None:
    assert len(CASES) == len(CHOSEN)
