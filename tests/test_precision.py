"""`:precision bfloat16` and `float16`: which values are rounded, once each, to nearest even; everything else is f32."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from elaborated import SCALES, experiment, parameter
from elaborating import elaborated, run_of
from on_cpu import run_graph
from test_pytorch import starting
from test_pytorch_float64 import FIGURES, HERE

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.text import print_graph
from sexpgpu.ops.transcendental import k_erf
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.experiment import Experiment, in_precision
from sexpgpu.passes.pipeline import evaluation_graphs, training_graph
from sexpgpu.passes.precision import Precision, rounded
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Product
from sexpgpu.train.identity import experiment_hash, graph_text, training_hash
from sexpgpu.train.launch import run as run_request
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request

RNG = np.random.default_rng(2)
X = RNG.normal(size=(8, 64)).astype(np.float32)
Y = np.arange(8, dtype=np.int32)
# Half a unit in the last place of a bf16 number, relative to it: no more than rounding the loss itself would do.
HALF_ULP = 2.0**-8


def bf16(x: np.ndarray) -> np.ndarray:
    """The nearest bf16, as f32, by ml_dtypes."""
    return np.asarray(x, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def f16(x: np.ndarray) -> np.ndarray:
    """The nearest f16, as f32, by NumPy."""
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


Nearest = Callable[[np.ndarray], np.ndarray]
BOTH = pytest.mark.parametrize(("precision", "nearest"), [("bfloat16", bf16), ("float16", f16)], ids=["bfloat16", "float16"])


def predicted(expression: str, definitions: str = "", precision: Precision = "bfloat16") -> Graph:
    """The graph of an expression of x f32[8 64] and y i32[8], rounded."""
    made = elaborated(run_of("(mean x)", definitions, f":steps 1 :predict {expression}"))
    assert made.predict is not None
    return rounded(made.predict, precision)


def value(expression: str, definitions: str = "", x: np.ndarray = X, precision: Precision = "bfloat16") -> np.ndarray:
    """The expression's value by the CPU's kernels."""
    return run_graph(predicted(expression, definitions, precision), {"x": x, "y": Y})["predict"]


def roundings(graph: Graph) -> list[Node]:
    """Roundings to bf16 or f16, those in regions included."""
    bodies = [roundings(n.attributes["body"]) for n in graph.nodes if n.op == "region"]
    here = [n for n in graph.nodes if (n.op == "cast" and n.dtype in ("bf16", "f16")) or n.op.startswith("round_")]
    return [*here, *(n for body in bodies for n in body)]


# Values


@BOTH
def test_each_operation_is_rounded_once_to_nearest_even(precision: Precision, nearest: Nearest) -> None:
    made = value("(+ (* x x) (sqrt (square x)))", precision=precision)
    np.testing.assert_array_equal(made, nearest(nearest(X * X) + nearest(np.sqrt(nearest(X * X)))))


def test_ties_go_to_even_and_nan_and_infinities_stay() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00001, 0x00008000], np.uint32)
    x = np.resize(bits.view(np.float32), (8, 64))
    made = value("(+ x 0.0)", x=x)
    np.testing.assert_array_equal(made[0, :5], np.array([1.0, 1.015625, np.inf, np.inf, -np.inf], np.float32))
    assert np.isnan(made[0, 5:7]).all() and made[0, 7] == 0


def test_f16_ends_at_65504_and_keeps_its_subnormal_numbers() -> None:
    given = [65519.0, 65520.0, -65520.0, np.inf, np.nan, 1.5 * 2**-24, 2.0**-25, 2.5 * 2**-24]
    made = value("(+ x 0.0)", x=np.resize(np.array(given, np.float32), (8, 64)), precision="float16")[0, :8]
    expected = [65504.0, np.inf, -np.inf, np.inf, np.nan, 2.0**-23, 0.0, 2.0**-23]
    np.testing.assert_array_equal(made, np.array(expected, np.float32))


def test_a_number_of_the_file_is_not_rounded() -> None:
    np.testing.assert_array_equal(value("(* x 0.1)"), bf16(X * np.float32(0.1)))


def test_a_prelude_function_is_rounded_as_a_whole() -> None:
    half, root = np.float32(0.5), np.float32(np.sqrt(0.5))
    expected = half * X * (1 + k_erf(X * root))
    np.testing.assert_array_equal(value("(gelu x)"), bf16(expected))
    assert len(roundings(predicted("(gelu x)"))) == 1


def test_a_layer_of_the_prelude_is_rounded_as_a_whole() -> None:
    made = elaborated(run_of("(mean (layernorm x))", "", ":steps 1 :predict (layernorm x)")).predict
    assert made is not None
    values = {"layernorm.gain": np.linspace(1, 2, 64), "layernorm.bias": np.full(64, 0.3), "x": X}
    centred = X - X.mean(-1, keepdims=True, dtype=np.float64)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * values["layernorm.gain"] + 0.3
    found = run_graph(rounded(made, "bfloat16"), values)["predict"]
    np.testing.assert_array_equal(found, bf16(found))
    np.testing.assert_allclose(found, expected, rtol=HALF_ULP + 1e-5, atol=1e-5)
    assert len(roundings(rounded(made, "bfloat16"))) == 1


def test_a_users_function_is_rounded_operation_by_operation() -> None:
    mine = "(defun mine (x) (* x (+ 1 (square x))))"
    np.testing.assert_array_equal(value("(mine x)", mine), bf16(X * bf16(1 + bf16(X * X))))


def test_moving_elements_rounds_nothing() -> None:
    assert roundings(predicted("(concat [(transpose x) (reshape x [64 8])] :axis 1)")) == []


def test_a_moved_result_is_rounded_before_it_moves() -> None:
    (node,) = roundings(predicted("(mean x :axis -1 :keep true)"))
    assert node.inputs[0].op == "div"


@pytest.mark.parametrize("expression", ["(cast y f32)", "(cross-entropy x y)", "(random-normal [8])", "(zeros [8])"])
def test_casts_cross_entropy_and_random_fields_are_not_rounded(expression: str) -> None:
    assert roundings(predicted(expression)) == []


@BOTH
def test_a_product_reads_parameters_and_fields_rounded_and_sums_in_f32(
    precision: Precision, nearest: Nearest, tmp_path: Path
) -> None:
    w = RNG.normal(size=(64, 5)).astype(np.float32)
    made = in_precision(experiment(tmp_path, {"x": X}, f"(square (matmul x {parameter('w', w)}))"), precision)
    found = evaluate_graph(training_graph(made), {"x": X, "w": w}, SCALES, wide=False)
    product = nearest(nearest(X).astype(np.float64) @ nearest(w))
    # The square is the loss and f32; its derivative, 2 product, is exact.
    np.testing.assert_allclose(found["loss"], np.sum(product.astype(np.float64) ** 2), rtol=1e-6)
    gradient = nearest(X).T.astype(np.float64) @ (2 * product)
    np.testing.assert_allclose(found["gradient:w"], gradient, rtol=1e-5, atol=1e-4)
    assert not np.array_equal(found["gradient:w"], nearest(found["gradient:w"]))


def test_what_a_file_casts_to_bf16_is_computed_in_f32_and_rounded_in_every_precision() -> None:
    made = elaborated(run_of("(mean x)", "", ":steps 1 :predict (cast (+ (* (cast x bf16) 3) 1) f32)")).predict
    assert made is not None
    found = run_graph(rounded(made, "off"), {"x": X})["predict"]
    np.testing.assert_array_equal(found, bf16(bf16(bf16(X) * 3) + 1))


# Graphs


def gpt(precision: str = "bfloat16") -> Experiment:
    return in_precision(sexpgpu.load(HERE / "experiments" / "gpt.sexp").elaborated, precision)


def test_rounding_twice_is_rounding_once() -> None:
    once = rounded(gpt().training, "bfloat16")
    assert print_graph(rounded(once, "bfloat16")) == print_graph(once)


def test_without_precision_the_graph_stays_itself() -> None:
    graph = gpt("off").training
    assert rounded(graph, "off") is graph


def test_the_loss_metrics_gradients_and_what_buffers_become_are_not_rounded() -> None:
    loss = '(let ((b (buffer "seen" [] zeros))) (update b (+ b 0.1)) (* x (param "w" [64] zeros)))'
    text = run_of(loss, "(defmetric size (* x x))", ":steps 1 :eval (every 1 d :batches 2 :metrics [size])")
    made = in_precision(elaborated(text), "bfloat16")
    for graph in (training_graph(made), evaluation_graphs(made)["d"]):
        assert roundings(graph) == []
        assert {node.dtype for node in graph.outputs.values()} == {"f32"}


def test_fused_kernels_round_where_the_graph_does_and_nowhere_else() -> None:
    graph = predicted("(* (gelu (+ x (silu x))) (softmax (* x 3)))")
    fused, single = (run_graph(graph, {"x": X}, keep_values=keep)["predict"] for keep in (False, True))
    np.testing.assert_array_equal(fused, single)
    np.testing.assert_array_equal(fused, bf16(fused))


# Runs


def losses(precision: str, keep_values: bool = False) -> list[float]:
    trainer = sexpgpu.load(HERE / "experiments" / "gpt.sexp").trainer(precision=precision)
    trainer.parameters = starting("gpt")
    return [trainer.step().loss for _ in range(20)]


def test_twenty_steps_in_bfloat16_have_losses_close_to_those_of_pytorch_in_float32() -> None:
    made = losses("bfloat16")
    expected = FIGURES["gpt"]["loss"]
    assert made != losses("off")
    assert max(abs(a - b) / b for a, b in zip(made, expected, strict=True)) <= HALF_ULP


def test_another_precision_is_another_experiment() -> None:
    off, narrow = gpt("off"), gpt("bfloat16")
    text = graph_text(off)
    assert experiment_hash(off, text) != experiment_hash(narrow, text)
    assert training_hash(off, 0) != training_hash(narrow, 0)


def test_a_run_resumes_in_its_own_precision_alone(tmp_path: Path) -> None:
    def run(steps: int, **flags: object) -> Path:
        asked = {"steps": steps, "out": str(tmp_path), **flags}
        return run_request(Request(HERE / "experiments" / "gpt.sexp", flags=asked, resume="latest"), Progress(quiet=True)).path

    folder = run(2, precision="bfloat16")
    assert run(3, precision="bfloat16") == folder
    with pytest.raises(Error) as caught:
        run(4)
    assert caught.value.code == "E-CKPT-001"
    assert "precision: bfloat16 in the checkpoint, off now" in caught.value.notes


# Products and memory


def product_graph(narrow_result: bool) -> Graph:
    """a · b of bf16[40 70] and bf16[70 24], to bf16 or f32."""
    graph = Graph("product")
    wide = []
    for name, shape in (("a", (40, 70)), ("b", (70, 24))):
        given = graph.add("input", (), {"kind": "field", "name": name, "dtype": "bf16", "shape": shape})
        wide.append(graph.add("cast", (given,), {"dtype": "f32"}))
    made = graph.add("contract", wide, {"batch": ((), ()), "contracted": ((1,), (0,))})
    graph.outputs = {"c": graph.add("cast", (made,), {"dtype": "bf16"}) if narrow_result else made}
    return graph


@pytest.mark.parametrize("narrow_result", [True, False])
def test_a_product_of_bf16_sums_in_f32_and_rounds_at_most_its_sums(narrow_result: bool) -> None:
    a, b = (RNG.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((40, 70), (70, 24)))
    graph = product_graph(narrow_result)
    (launch,) = [x for x in plan(graph).launches if isinstance(x, Product)]
    assert (launch.dtype, launch.c_dtype) == ("bf16", "bf16" if narrow_result else "f32")
    exact = a.astype(np.float64) @ b.astype(np.float64)
    # Sums of 70 products in f32; a narrow result may be the neighbour where the sum is next to a tie.
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    bound = 70 * np.finfo(np.float32).eps * scale + (HALF_ULP * np.abs(exact) if narrow_result else 0)
    found = run_graph(graph, {"a": a, "b": b})["c"].astype(np.float64)
    assert (np.abs(found - exact) <= bound).all()
    assert narrow_result == np.array_equal(found, bf16(found))


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", "bf16"), ("float16", "f16")])
def test_every_product_of_a_gpt_reads_narrow_numbers_and_a_parameters_gradient_is_f32(precision: str, dtype: str) -> None:
    graph = training_graph(gpt(precision))
    made = plan(graph, aliases=bound_outputs(graph))
    products = [launch for launch in made.launches if isinstance(launch, Product)]
    assert {launch.dtype for launch in products} == {dtype}
    gradients = {number for number, buffer in enumerate(made.buffers) if buffer.name.startswith("gradient:")}
    assert {launch.c_dtype for launch in products if launch.c.place.buffer in gradients} == {"f32"}


def test_activations_in_bf16_need_less_memory() -> None:
    made = sexpgpu.load(HERE / "experiments" / "gpt.sexp", set={"width": 192, "layers": 6}).elaborated
    off, narrow = (plan(training_graph(in_precision(made, p))).arena_bytes for p in ("off", "bfloat16"))
    copies = 2 * sum(prod(p.shape) for p in made.parameters)
    assert narrow - copies < 0.7 * off


@pytest.mark.parametrize(("operation", "nearest"), [("round_bf16", bf16), ("round_f16", f16)])
def test_a_rounded_value_is_the_nearest_and_its_gradient_that_of_the_identity(operation: str, nearest: Nearest) -> None:
    x = np.concatenate([RNG.normal(size=1000), [np.nan, np.inf, -np.inf, -0.0, 3.39e38, 1 + HALF_ULP]]).astype(np.float32)
    graph = Graph("rounded")
    node = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": x.shape})
    graph.outputs["y"] = graph.add(operation, (node,))
    for found in (run_graph(graph, {"x": x})["y"], evaluate_graph(graph, {"x": x}, wide=False)["y"]):
        assert np.array_equal(found, nearest(x), equal_nan=True)
    graph.outputs["loss"] = graph.add("sum", (graph.outputs["y"],), {"axes": (0,)})
    gradients = differentiate(graph, {"loss": ("number", 1.0)}, {"x": node})
    assert np.array_equal(evaluate_graph(gradients, {"x": x})["gradient:x"], np.ones_like(x))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_widened_value_is_the_same_number(dtype: str) -> None:
    x = RNG.normal(size=500).astype(np.float16 if dtype == "f16" else ml_dtypes.bfloat16)
    graph = Graph("widened")
    node = graph.add("input", (), {"kind": "field", "name": "x", "dtype": dtype, "shape": x.shape})
    graph.outputs["y"] = graph.add("widen", (node,))
    found = run_graph(graph, {"x": x})["y"]
    assert found.dtype == np.float32
    assert np.array_equal(found, x.astype(np.float32))


def test_a_gradient_in_the_file_is_one_of_the_rounded_values_and_is_rounded_itself() -> None:
    made = elaborated(run_of("(mean x)", "", ":steps 1 :predict (grad (fn (a) (sum (square (sin a)))) x)")).predict
    assert made is not None
    found = run_graph(rounded(made, "bfloat16"), {"x": X})["predict"]
    x = X.astype(np.float64)
    expected = bf16(2 * bf16(np.sin(x)).astype(np.float64) * np.cos(x))
    # In f32 a few of the products lie on the other side of a tie.
    assert np.mean(found == expected) > 0.98
    assert np.mean(bf16(2 * np.sin(x) * np.cos(x)) == expected) < 0.9
