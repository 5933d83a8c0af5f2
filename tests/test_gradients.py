"""`grad` and `grad-params`: derivatives by hand and central differences in float64, through everything and again."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from elaborating import elaborated, errors_of, run_of, value_of
from operations import Case
from test_differentiate import SMOOTH, field

from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.pipeline import training_graph

Array = np.ndarray
X = np.random.default_rng(3).normal(size=(8, 64))
# A central difference of step 1e-5 in float64 keeps about ten digits of the second derivative's terms.
DIFFERENCE = 1e-6


def central(f: Callable[[Array], Array], x: Array, step: float = 1e-5) -> Array:
    """∂f/∂x, element by element, in float64."""
    made = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        made[place] = float(f(x + moved) - f(x - moved)) / (2 * step)
    return made


def test_the_first_second_and_third_derivatives_of_a_cube_are_those_by_hand() -> None:
    first = "(grad (fn (a) (sum (pow a 3))) {})"
    second = f"(grad (fn (b) (sum {first.format('b')})) {{}})"
    third = f"(grad (fn (c) (sum {second.format('c')})) x)"
    np.testing.assert_allclose(value_of(first.format("x"), x=X), 3 * X**2, rtol=1e-12)
    np.testing.assert_allclose(value_of(second.format("x"), x=X), 6 * X, rtol=1e-12)
    np.testing.assert_allclose(value_of(third, x=X), np.full_like(X, 6.0), rtol=1e-12)


def test_several_points_give_several_values_each_with_the_others_held() -> None:
    made = value_of("(let (((da db) (grad (fn (a b) (sum (* a a b))) x (* 2 x)))) (+ da (* 100 db)))", x=X)
    np.testing.assert_allclose(made, 2 * X * (2 * X) + 100 * X**2, rtol=1e-12)


def test_what_the_function_takes_from_outside_is_a_constant() -> None:
    np.testing.assert_allclose(value_of("(let ((c (square x))) (grad (fn (a) (sum (* a c))) x))", x=X), X**2, rtol=1e-12)


def test_an_outer_gradient_goes_through_what_the_inner_one_took_from_outside() -> None:
    text = "(grad (fn (a) (let ((c (square a))) (sum (grad (fn (b) (sum (* b c))) a)))) x)"
    np.testing.assert_allclose(value_of(text, x=X), 2 * X, rtol=1e-12)


def test_a_point_that_does_not_matter_has_the_gradient_zero() -> None:
    assert not value_of("(grad (fn (a) (sum (stop-gradient (square a)))) x)", x=X).any()
    assert not value_of("(grad (fn (a) (sum x)) x)", x=X).any()


def test_a_stopped_factor_is_a_constant_of_the_gradient_and_of_its_gradient() -> None:
    once = "(grad (fn (a) (sum (* a (stop-gradient (square a))))) {})"
    np.testing.assert_allclose(value_of(once.format("x"), x=X), X**2, rtol=1e-12)
    # The factor stays stopped where the gradient is differentiated again.
    assert not value_of(f"(grad (fn (b) (sum {once.format('b')})) x)", x=X).any()


SCALARS = {
    "a region": "(sum (* (softmax {0}) (sin {0})))",
    "a norm and a product": "(sum (square (matmul (normed {0}) (permute {0} [1 0]))))",
    "a scan": "(let (((last ys) (scan (fn (h e) (let ((n (tanh (+ (* 0.5 h) e)))) (values n (* n e)))) (first-row {0}) {0})))"
    " (+ (sum (square last)) (sum ys)))",
    "a gradient in a scan": "(let (((last ys) (scan (fn (h e) (let ((g (grad (fn (z) (sum (sin (* z h)))) e))) (values g g)))"
    " (first-row {0}) {0}))) (+ (sum (square last)) (sum ys)))",
    "a repeat": "(sum (repeat (i 3) (h {0}) (tanh (* h {0}))))",
    "a convolution": "(sum (tanh (einsum \"c i j, c y x i j -> y x\" (reshape (slice {0} [0 0] [2 2]) [1 2 2])"
    " (windows (reshape {0} [1 3 4]) [2 2]))))",
    "an attention": "(sum (sin (attention (reshape {0} [1 1 3 4]) (reshape (sin {0}) [1 1 3 4]) (reshape {0} [1 1 3 4]))))",
    "a cross-entropy": "(sum (square (cross-entropy {0} (slice y [0] [3]))))",
}
LOCAL = """
(defun normed (a) (/ (- a (mean a :axis -1 :keep true)) (sqrt (+ 0.1 (var a :axis -1 :keep true)))))
(defun first-row (a) (reshape (slice a [0] [1]) [4]))
"""


def at_points(text: str) -> Callable[[Array], Array]:
    """What an expression of `p`, the first three rows and four columns of x, gives at each point in float64."""
    made = elaborated(run_of("(mean x)", LOCAL, f":steps 1 :predict (let ((p (slice x [0 0] [3 4]))) {text})")).predict
    assert made is not None
    y = np.array([1, 0, 3, 0, 0, 0, 0, 0], np.int32)

    def run(point: Array) -> Array:
        x = np.zeros((8, 64))
        x[:3, :4] = point
        return evaluate_graph(made, {"x": x, "y": y})["predict"]

    return run


@pytest.mark.parametrize("name", SCALARS)
def test_first_and_second_derivatives_are_central_differences_through(name: str) -> None:
    point = np.random.default_rng(5).normal(size=(3, 4))
    first = f"(grad (fn (a) {SCALARS[name].format('a')}) {{}})"
    turned = f"(sum (* (cos (* 3 {{0}})) {first.format('{0}')}))"
    for scalar in (SCALARS[name], turned):
        expected = central(at_points(scalar.format("p")), point)
        made = at_points(f"(grad (fn (b) {scalar.format('b')}) p)")(point)
        np.testing.assert_allclose(made, expected, rtol=0, atol=DIFFERENCE * (1 + np.abs(expected).max()))


# The derivative of a product takes a factor that is 0 as a constant: docs/language.md says so.
TWICE = [c for c in SMOOTH if c.name != "prod-zeros"]


@pytest.mark.parametrize("case", TWICE, ids=[c.name for c in TWICE])
def test_the_second_derivative_of_every_operation_is_the_central_difference_of_its_first(case: Case) -> None:
    """Σ u · ∂(Σ weights · op(x)) differentiated again, along one random direction."""
    random = np.random.default_rng(2)
    graph = Graph(case.name)
    inputs = [field(graph, f"x{k}", x) for k, x in enumerate(case.inputs)]
    y = graph.add(case.op, inputs, case.attributes)
    weights = field(graph, "weights", np.zeros(y.shape))
    graph.outputs["y"] = graph.add("sum", (y * weights,), {"axes": tuple(range(y.tensor.rank))})
    wanted = {f"x{k}": node for k, node in enumerate(inputs) if k not in case.fixed}
    once = differentiate(graph, {"y": ("number", 1.0)}, wanted)
    places = {node.attributes["name"]: node for node in once.inputs}
    terms = []
    for name in wanted:
        gradient = once.outputs[f"gradient:{name}"]
        u = field(once, f"u {name}", np.zeros(gradient.shape))
        terms.append(once.add("sum", (gradient * u,), {"axes": tuple(range(gradient.tensor.rank))}))
    once.outputs = {"turned": sum(terms[1:], terms[0])}
    twice = differentiate(once, {"turned": ("number", 1.0)}, {name: places[name] for name in wanted})
    given = {f"x{k}": x for k, x in enumerate(case.inputs)} | {"weights": random.normal(size=y.shape)}
    given |= {f"u {name}": random.normal(size=places[name].shape) for name in wanted}
    along = {name: random.normal(size=places[name].shape) for name in wanted}
    made = evaluate_graph(twice, given)
    slope = sum(float(np.sum(made[f"gradient:{name}"] * along[name])) for name in wanted)

    def at(step: float) -> float:
        return float(evaluate_graph(once, given | {n: given[n] + step * d for n, d in along.items()})["turned"])

    expected = (at(1e-6) - at(-1e-6)) / 2e-6
    assert slope == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_training_gradient_goes_through_a_gradient() -> None:
    # L = mean over 512 of x²w⁴ + (∂ mean x²w⁴ / ∂w)² summed; by hand with m = mean of x² over rows, over 64.
    loss = '(let ((l (mean (* (square x) (pow (param "w" [64] ones) 4))))) (+ l (sum (square (nth (grad-params l "w") 0)))))'
    graph = training_graph(elaborated(run_of(loss)))
    w = np.random.default_rng(4).normal(size=64)
    made = evaluate_graph(graph, {"x": X, "w": w}, {"loss-scale": 1.0})
    m = (X**2).mean(axis=0) / 64
    np.testing.assert_allclose(made["loss"], (m * w**4).sum() + ((4 * m * w**3) ** 2).sum(), rtol=1e-12)
    np.testing.assert_allclose(made["gradient:w"], 4 * m * w**3 + 2 * 4 * m * w**3 * 12 * m * w**2, rtol=1e-12)


WRONG = {
    "(mean (grad (fn (a) (tanh a)) x))": ("E-SHAPE-001", "the gradient of a scalar, not of f32[batch=8 64]"),
    "(mean (grad (fn (a) 1) x))": ("E-TYPE-001", "the gradient of a float scalar, not of the number 1"),
    "(mean (grad (fn (a) (sum x)) y))": ("E-TYPE-001", "only float tensors have a gradient, and this one is i32[batch=8]"),
    "(mean (grad (fn (a) (sum a))))": ("E-TYPE-001", "grad takes the function and where"),
    '(sum (nth (grad-params (mean (* x (param "weight" [64] ones))) "wieght") 0))': ("E-NAME-001", "wieght matches no parameter"),
    '(sum (nth (grad-params (* x (param "w" [64] ones)) "w") 0))': ("E-SHAPE-001", "the gradient of a scalar, not of"),
    '(let ((l (* x (param "w" [64] ones)))) (sum (grad (fn (a) (sum (nth (grad-params (sum (* a l)) "w") 0))) x)))': (
        "E-TYPE-001", "takes a value from outside that depends on the parameters",
    ),
}  # fmt: skip


@pytest.mark.parametrize("loss", WRONG)
def test_a_wrong_gradient_is_reported(loss: str) -> None:
    code, message = WRONG[loss]
    (error,) = errors_of(run_of(loss))
    assert error.code == code and message in error.message and error.span is not None


def test_the_nearest_parameter_is_suggested_for_a_glob_that_matches_none() -> None:
    (error,) = errors_of(run_of('(sum (nth (grad-params (mean (* x (param "weight" [64] ones))) "wieght") 0))'))
    assert "did you mean weight?" in error.notes
