"""What a file says of a parameter beside its shape: its first values, `:decay`, `:trainable`, `:share`, `:convolution`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from elaborating import elaborated, errors_of, run_of

from sexpgpu.initial import Initializer
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.passes.experiment import Parameter
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.train.model import initial_parameters


def parameters(loss: str, definitions: str = "") -> Mapping[str, Parameter]:
    return {p.name: p for p in elaborated(run_of(loss, definitions)).parameters}


def first_values(loss: str, definitions: str = "", seed: int = 0) -> Mapping[str, np.ndarray]:
    return dict(initial_parameters(elaborated(run_of(loss, definitions)), seed))


def of(law: str, shape: str = "[64 32]", options: str = "") -> str:
    return f'(+ (mean x) (sum (param "w" {shape} {law} {options})))'


@pytest.mark.parametrize(
    ("law", "made"),
    [
        ("(normal 0.02)", Initializer("normal", (0.02,))),
        ("(normal std)", Initializer("normal", (0.25,))),
        ("(trunc-normal 0.5)", Initializer("trunc-normal", (0.5,))),
        ("(uniform -1 2)", Initializer("uniform", (-1.0, 2.0))),
        ("(constant (/ 1 4))", Initializer("constant", (0.25,))),
        ("zeros", Initializer("zeros")),
        ("ones", Initializer("ones")),
        ("(kaiming)", Initializer("kaiming")),
        ("xavier", Initializer("xavier")),
        ("(orthogonal)", Initializer("orthogonal")),
    ],
)
def test_an_initializer_of_the_language_is_its_law(law: str, made: Initializer) -> None:
    assert parameters(of(law), "(defhyper std 0.25)")["w"].initializer == made


@pytest.mark.parametrize(
    ("law", "mean", "deviation", "largest"),
    [
        ("(normal 0.5)", 0.0, 0.5, math.inf),
        # The deviation of a normal law cut at two of its deviations is 0.8796 of it.
        ("(trunc-normal 0.5)", 0.0, 0.5 * 0.8796, 1.0),
        ("(uniform -1 2)", 0.5, 3 / math.sqrt(12), 2.0),
        ("(kaiming)", 0.0, math.sqrt(2 / 64), math.inf),
        ("(xavier)", 0.0, math.sqrt(2 / (64 + 128)), math.sqrt(6 / (64 + 128))),
        # Of a matrix with orthonormal rows of 128 numbers each.
        ("(orthogonal)", 0.0, 1 / math.sqrt(128), math.inf),
        ("(constant 3)", 3.0, 0.0, 3.0),
    ],
)
def test_first_values_have_the_mean_and_deviation_of_their_law(
    law: str, mean: float, deviation: float, largest: float
) -> None:
    """A matrix [in out] of 64 inputs and 128 outputs: five standard errors of 8,192 draws."""
    drawn = first_values(of(law, "[64 128]"))["w"].astype(np.float64)
    assert abs(drawn.mean() - mean) <= 5 * deviation / math.sqrt(drawn.size)
    assert abs(drawn.std() - deviation) <= 5 * deviation / math.sqrt(drawn.size)
    assert np.max(np.abs(drawn)) <= largest * (1 + 1e-6)


@pytest.mark.parametrize(
    ("law", "deviation"), [("(kaiming)", math.sqrt(2 / 60)), ("xavier", math.sqrt(2 / (60 + 1440)))]
)
def test_a_convolutions_fans_count_its_window_and_its_first_axis(law: str, deviation: float) -> None:
    """[96 4 3 5]: 60 inputs of one output, 1,440 outputs of one input."""
    drawn = first_values(f"(+ (mean x) (mean (conv2d (reshape x [2 4 8 8]) 96 [3 5] :init {law})))")
    weight = drawn["conv2d.weight"]
    assert weight.shape == (96, 4, 3, 5)
    assert abs(weight.std() - deviation) <= 5 * deviation / math.sqrt(weight.size)
    # The bias keeps its own law, ±1/√60.
    assert np.max(np.abs(drawn["conv2d.bias"])) <= 1 / math.sqrt(60)


def test_an_orthogonal_convolution_has_orthonormal_filters() -> None:
    filters = first_values(of("(orthogonal)", "[8 4 3 3]", ":convolution true"))["w"].reshape(8, 36).astype(np.float64)
    assert np.max(np.abs(filters @ filters.T - np.eye(8))) < 1e-6


def test_a_layer_takes_an_initializer() -> None:
    made = parameters("(linear x 3 :init (constant 2))")
    assert made["linear.weight"].initializer == Initializer("constant", (2.0,))
    assert made["linear.bias"].initializer.kind == "uniform"


def test_first_values_depend_on_the_seed_and_the_name_alone() -> None:
    two = '(+ (mean x) (sum (param "v" [3] ones)) (sum (param "w" [64 32] (normal 1))))'
    one, other = first_values(of("(normal 1)")), first_values(two)
    np.testing.assert_array_equal(one["w"], other["w"])
    assert not np.array_equal(one["w"], first_values(of("(normal 1)"), seed=1)["w"])
    renamed = first_values(of("(normal 1)").replace('"w"', '"u"'))
    assert not np.array_equal(one["w"], renamed["u"])


@pytest.mark.parametrize("law", ["(kaiming)", "(xavier)", "(orthogonal)", "(normal 1)"])
@pytest.mark.parametrize("shape", ["[0 4]", "[4 0]", "[0]"])
def test_a_parameter_without_elements_begins_as_nothing(law: str, shape: str) -> None:
    assert first_values(of(law, shape))["w"].size == 0


@pytest.mark.parametrize("law", ["(normal)", "(uniform 1)", "(kaiming 2)", "normal", "(normall 1)", "3", '"ones"'])
def test_what_is_no_initializer_is_refused(law: str) -> None:
    assert errors_of(run_of(of(law)))[0].code in ("E-SYN-002", "E-NAME-008", "E-NAME-001")


@pytest.mark.parametrize(
    ("shape", "options", "decays"),
    [("[2 3]", "", True), ("[3]", "", False), ("[2 3]", ":decay false", False), ("[3]", ":decay true", True)],
)
def test_decay_is_for_matrices_unless_the_parameter_says_otherwise(shape: str, options: str, decays: bool) -> None:
    made = elaborated(run_of(of("ones", shape, options), optimizer="(adamw :decay 0.125)"))
    assert made.parameters[0].decay == decays
    numbers = [n.attributes["value"] for n in made.update.nodes if n.op == "constant"]
    assert (0.125 in numbers) == decays


def test_what_is_not_trainable_has_no_gradient_and_no_state() -> None:
    loss = '(* (linear x 3) (param "fixed" [3] ones :trainable false))'
    made = elaborated(run_of(loss, optimizer="(adam)"))
    assert [p.name for p in made.parameters if not p.trainable] == ["fixed"]
    assert {state.parameter for state in made.states} == {"linear.weight", "linear.bias"}
    gradients = {name for name in training_graph(made).outputs if name.startswith("gradient:")}
    assert gradients == {"gradient:linear.weight", "gradient:linear.bias"}


@pytest.mark.parametrize("other", [":decay false", ":trainable false", ":convolution true"])
def test_shared_parameters_have_equal_options(other: str) -> None:
    loss = f'(+ (mean x) (sum (param "w" [4 4] ones)) (sum (param "w" [4 4] ones :share true {other})))'
    (error,) = errors_of(run_of(loss))
    assert error.code == "E-NAME-004"


def test_a_shared_parameter_has_the_sum_of_its_gradients() -> None:
    """d/dw of w · w, of which each factor gives w."""
    w = np.array([1.0, -2.0, 3.0])
    made = elaborated(run_of('(+ x (sum (* (param "w" [3] ones) (param "w" [3] ones :share true))))'))
    assert [p.name for p in made.parameters] == ["w"]
    x = np.zeros((8, 64))
    gradient = evaluate_graph(training_graph(made), {"x": x, "w": w}, {"loss-scale": 1.0})["gradient:w"]
    np.testing.assert_allclose(gradient, x.size * 2 * w)
