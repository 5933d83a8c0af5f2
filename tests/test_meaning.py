"""Every operation of the language means what NumPy says, and so does its gradient; here in float64, before any kernel."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from elaborated import experiment, gradients, parameter, prediction, updated
from reference import CASES, KINKS, OPTIMIZERS, SCHEDULES, Case, central_difference

from sexpgpu.ir.host import evaluate
from sexpgpu.lang.program import PRELUDE_FOLDER
from sexpgpu.passes.elaboration.operations import BUILTINS

# Float64 on both sides: sums in another order. A central difference is good to half the digits.
VALUE = 1e-12
GRADIENT = 1e-7

# What has no case: no value, or one that needs a context.
ELSEWHERE = {
    *"append fold length list map range str values".split(),  # lists, at elaboration
    *"dim dtype rank shape size vocab-size".split(),  # facts of tensors and loaders, at elaboration
    *"param constant from-file kaiming normal orthogonal trunc-normal uniform xavier".split(),  # initializers
    *"random random-bernoulli random-normal random-uniform dropout".split(),  # draws
    *"batchnorm buffer real-rows update".split(),  # test_buffers.py
    *"decays? probe weighted".split(),  # what surrounds a value
    *"adafactor convolution? muon".split(),  # test_optimizers.py
    "scan",  # test_scan
    *"grad grad-params".split(),  # test_gradients.py
}
# Functions of the prelude that are parts of others.
PARTS = {
    *"alike as-channels attended below-diagonal channel-statistics convolution every integer? largest pad-around".split(),
    *"pool-windows progress spatial-shape orthogonalized rms swap-last".split(),
}


def test_every_operation_has_a_case() -> None:
    text = "\n".join(path.read_text() for path in PRELUDE_FOLDER.glob("*.sexp"))
    functions = set(re.findall(r"^\((?:defun|deflayer|defoptimizer) (\S+)", text, re.MULTILINE))
    expressions = [case.expression for table in (CASES, KINKS, OPTIMIZERS, SCHEDULES) for case in table]
    used = {name for expression in expressions for name in re.findall(r"\(([^\s()\[\]]+)", expression)}
    assert (functions | set(BUILTINS)) - used == ELSEWHERE | PARTS


def bound(case: Case) -> str:
    """The expression with what is differentiated as parameters."""
    names = [name for name in case.inputs if name in case.differentiable]
    return f"(let ({' '.join(f'({name} {parameter(name, case.inputs[name])})' for name in names)}) {case.expression})"


def weights_of(case: Case) -> np.ndarray:
    return np.random.default_rng(1).normal(size=case.expected().shape)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_operation_has_the_value_of_its_numpy_meaning(case: Case, tmp_path: Path) -> None:
    fields = {name: value for name, value in case.inputs.items() if name not in case.differentiable}
    expression = bound(case)
    made = experiment(tmp_path, {**fields, "other": np.zeros(1)}, f"(sum (cast {expression} f32))", expression)
    expected = case.expected()
    value = prediction(made, {**case.inputs, **case.parameters})
    assert value.shape == expected.shape
    largest = np.max(np.abs(expected), where=np.isfinite(expected), initial=1.0)
    np.testing.assert_allclose(value, expected, rtol=0, atol=VALUE * largest)


@pytest.mark.parametrize("case", [c for c in CASES if c.differentiable], ids=lambda case: case.name)
def test_a_gradient_is_the_central_difference_of_the_numpy_meaning(case: Case, tmp_path: Path) -> None:
    weights = weights_of(case)
    fields = {name: value for name, value in case.inputs.items() if name not in case.differentiable}
    made = experiment(tmp_path, {**fields, "weights": weights}, f"(sum (* weights {bound(case)}))")
    outputs = gradients(made, {**case.inputs, **case.parameters, "weights": weights})
    names = [*case.inputs, *case.parameters]
    for name in case.differentiable:
        expected = central_difference(case.reference, case.operands, names.index(name), weights)
        bound_on_error = GRADIENT * max(1.0, np.max(np.abs(expected)))
        np.testing.assert_allclose(outputs[f"gradient:{name}"], expected, rtol=0, atol=bound_on_error, err_msg=name)


@pytest.mark.parametrize("kink", KINKS, ids=lambda kink: f"{kink.expression} at {kink.x}")
def test_a_derivative_at_a_kink_is_that_of_pytorch(kink, tmp_path: Path) -> None:
    x = np.array(kink.x)
    loss = f"(let ((x {parameter('x', x)})) (sum {kink.expression}))"
    outputs = gradients(experiment(tmp_path, {"other": np.zeros(1)}, loss), {"x": x})
    np.testing.assert_allclose(outputs["gradient:x"], kink.gradient, rtol=1e-12, atol=0)


@pytest.mark.parametrize("case", OPTIMIZERS, ids=lambda case: f"{case.expression} of {case.parameter.shape}")
def test_an_optimizer_makes_the_steps_of_its_numpy_meaning(case, tmp_path: Path) -> None:
    made = experiment(
        tmp_path, {"other": np.zeros(1)}, f"(sum {parameter('p', case.parameter)})", optimizer=case.expression
    )
    values = {"parameter:p": case.parameter}
    for update, (gradient, expected) in enumerate(zip(case.gradients, case.expected(), strict=True), 1):
        values = updated(made, {**values, "gradient:p": gradient}, {"updates": update})
        np.testing.assert_allclose(values["parameter:p"], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.expression)
def test_a_schedule_has_its_value_at_every_step(schedule, tmp_path: Path) -> None:
    optimizer = f"(sgd :lr {schedule.expression})"
    made = experiment(tmp_path, {"other": np.zeros(1)}, '(sum (param "p" [1] zeros))', optimizer=optimizer)
    assert made.learning_rate is not None
    for step, expected in schedule.values.items():
        value = evaluate(made.learning_rate, {"step": step, "total-steps": schedule.total})
        assert value == pytest.approx(expected, rel=1e-12, abs=1e-18)
