"""Buffers: state that `(update B V)` sets after a step, and batchnorm, which is written with them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from elaborating import elaborated, errors_of, names, run_of
from test_ranks import environment, mpirun

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.train.checkpoint import Checkpoint, found, load
from sexpgpu.train.identity import experiment_hash, graph_text

COUNT = '(let ((b (buffer "seen" [] zeros))) (update b (+ b 2)) (+ (mean x) (* b (param "w" [] zeros))))'
# A few roundings of float32 beside float64.
CLOSE = {"rtol": 4 * np.finfo(np.float32).eps, "atol": 1e-6}

# torch 2.13, float64: BatchNorm1d(2) on x = (arange(24).reshape(4, 2, 3) % 7) ** 2, then on 2 x; then in evaluation on x.
X = (np.arange(24).reshape(4, 2, 3) % 7) ** 2
TORCH_FIRST = [-0.9977851357817168, -0.9312661267296023, -0.7317090995732589]
TORCH_MEANS = [[1.5, 0.8166666666666667], [4.35, 2.368333333333333]]
TORCH_VARIANCES = [[25.554545454545455, 6.624242424242425], [121.61727272727273, 28.85878787878788]]
TORCH_EVALUATED = [-0.39444968088199117, -0.3037715933229127, -0.03173733064567741]

NORM = """
(defloader d (arrays "d.npz" :batch BATCH :order file))
(deflayer net (x) (linear (batchnorm x) 2))
(defrun r :data d :loss (square (net x)) :predict (net x) :optimizer (adamw :lr 0.01) KEYS
  :eval (every 2 d) :checkpoint (every 1))
"""


def norm_file(folder: Path, keys: str, batch: int = 4, examples: int = 16) -> tuple[Path, np.ndarray]:
    x = np.random.default_rng(1).normal(1, 2, (examples, 3)).astype(np.float32)
    np.savez(folder / "d.npz", x=x)
    path = folder / "norm.sexp"
    path.write_text(NORM.replace("BATCH", str(batch)).replace("KEYS", keys))
    return path, x.astype(np.float64)


def run(path: Path, out: Path, *options: str, ranks: int = 1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sexpgpu", "run", str(path), "--out", str(out), *options]
    launch = [mpirun(), "-n", str(ranks), *command] if ranks > 1 else command
    return subprocess.run(
        launch, env=environment(), capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL, check=False
    )


def last(out: Path) -> Checkpoint:
    (folder,) = out.glob("*/*")
    return load(found(folder / "checkpoints")[0][1])


def moved(batches: list[list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The buffers after steps of microbatches x[b c], by PyTorch's rule and the mean over each step's microbatches."""
    mean, variance = np.zeros(3), np.ones(3)
    for step in batches:
        mean = 0.9 * mean + 0.1 * np.mean([x.mean(0) for x in step], 0)
        variance = 0.9 * variance + 0.1 * np.mean([x.var(0, ddof=1) for x in step], 0)
    return mean, variance


# The forms


def test_a_buffer_has_a_path_like_a_parameter_and_is_not_trained() -> None:
    made = elaborated(run_of("(+ (mean x) (mean (count x)))", f"(deflayer count (x) {COUNT})"))
    assert names(made) == ["count.seen", "count.w"]
    assert [(p.buffer, p.trainable) for p in made.parameters] == [(True, False), (False, True)]
    assert set(made.training.outputs) == {"loss", "weight", "update:count.seen"}
    assert set(made.update.outputs) == {"parameter:count.w", "buffer:count.seen"}


def test_an_update_divides_the_sum_by_the_microbatches() -> None:
    made = elaborated(run_of(COUNT))
    value = evaluate_graph(made.update, {"seen": 6.0, "w": 0.0}, {"gradient-scale": 1, "microbatches": 4})
    assert value["buffer:seen"] == 1.5


def test_nothing_is_updated_where_training_is_false() -> None:
    made = elaborated(run_of(COUNT, rest=f":steps 1 :predict {COUNT} :eval (every 1 d :batches 2)"))
    assert "update:seen" in made.training.outputs
    assert made.predict is not None
    assert [*made.predict.outputs, *made.evaluations["d"].outputs] == ["predict", "loss", "weight"]


@pytest.mark.parametrize(
    ("loss", "code", "message"),
    [
        ('(let ((p (param "p" [64] zeros))) (update p x) x)', "E-TYPE-001", "update takes a buffer, not f32[64]"),
        ('(let ((b (buffer "b" [] zeros))) (update b 1) (update b 2) x)', "E-NAME-003", "the buffer b is updated twice"),
        ('(let ((b (buffer "b" [3] zeros))) (update b x) x)', "E-SHAPE-001", "b must become f32[3], not f32[batch=8 64]"),
        ('(let ((b (buffer "b" [8] zeros))) (update b (= y 1)) x)', "E-TYPE-001", "become a tensor f32[8], not bool[batch=8]"),
        ('(+ (buffer "b" [64] zeros) (param "b" [64] zeros))', "E-NAME-003", "the parameter b stands twice"),
        (
            '(+ (buffer "b" [64] zeros) (param "b" [64] zeros :share true))',
            "E-NAME-004",
            "the buffer b was declared with another kind: it is a buffer, here a parameter",
        ),
        ('(* x (buffer "" [] zeros))', "E-TYPE-001", 'buffer: the name is a text, not the text ""'),
    ],
)
def test_a_wrong_buffer_or_update_is_an_error(loss: str, code: str, message: str) -> None:
    (error,) = errors_of(run_of(loss))
    assert error.code == code and message in error.message


def test_an_update_outside_the_expressions_of_a_run_is_an_error() -> None:
    (error,) = errors_of(run_of("(+ x a)", '(def a (update 1 2))'))
    assert error.code == "E-TYPE-001" and "update stands outside the expressions of a run" in error.message


def test_a_buffer_that_only_another_expression_reaches_is_an_error() -> None:
    (error,) = errors_of(run_of("x", rest=':steps 1 :predict (+ x (buffer "b" [] zeros))'))
    assert error.code == "E-NAME-007" and "the buffer b is not reached by :loss" in error.message


def test_freeze_is_about_parameters_alone() -> None:
    (error,) = errors_of(run_of(COUNT, rest=':steps 1 :freeze ["seen"]'))
    assert error.code == "E-NAME-001" and "no parameter matches seen" in error.message


def test_another_initial_value_of_a_buffer_is_another_experiment() -> None:
    one, other = (elaborated(run_of(COUNT.replace("zeros", start, 1))) for start in ("zeros", "ones"))
    assert experiment_hash(one, graph_text(one)) != experiment_hash(other, graph_text(other))


# batchnorm


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[sexpgpu.Experiment, sexpgpu.api.CompiledStep]:
    folder = tmp_path_factory.mktemp("norm")
    np.savez(folder / "d.npz", x=np.zeros((4, 2, 3), np.float32))
    path = folder / "norm.sexp"
    path.write_text(NORM.replace("BATCH", "4").replace("KEYS", ":steps 1").replace("(linear (batchnorm x) 2)", "(batchnorm x)"))
    made = sexpgpu.load(path)
    return made, made.compile(device="cpu")


def test_batchnorm_updates_its_buffers_as_pytorch_does(
    compiled: tuple[sexpgpu.Experiment, sexpgpu.api.CompiledStep],
) -> None:
    made, step = compiled
    params = made.init(seed=0)
    for k, x in enumerate((X, 2 * X)):
        step(params, {"x": x})
        np.testing.assert_allclose(step.updates["net.batchnorm.mean"], TORCH_MEANS[k], **CLOSE)
        np.testing.assert_allclose(step.updates["net.batchnorm.var"], TORCH_VARIANCES[k], **CLOSE)
        params |= step.updates


def test_batchnorm_normalizes_by_the_batch_in_training_and_by_its_buffers_in_evaluation(
    compiled: tuple[sexpgpu.Experiment, sexpgpu.api.CompiledStep],
) -> None:
    made = compiled[0].elaborated
    assert made.predict is not None
    ones = {"net.batchnorm.gain": np.ones(2), "net.batchnorm.bias": np.zeros(2), "x": X}
    buffers = {"net.batchnorm.mean": TORCH_MEANS[1], "net.batchnorm.var": TORCH_VARIANCES[1]}
    evaluated = evaluate_graph(made.predict, {**ones, **buffers})["predict"]
    np.testing.assert_allclose(evaluated[0, 0], TORCH_EVALUATED, rtol=1e-12)
    # Σ y² of normalized numbers is var / (var + eps) times how many they are; the first row by PyTorch.
    total = evaluate_graph(made.training, {**ones, **buffers})["loss"]
    variances = X.var(axis=(0, 2))
    assert total == pytest.approx(float(np.sum(12 * variances / (variances + 1e-5))), rel=1e-12)
    deviation = (X[0, 0] - X[:, 0].mean()) / np.sqrt(variances[0] + 1e-5)
    np.testing.assert_allclose(deviation, TORCH_FIRST, rtol=1e-12)


def test_a_compiled_step_needs_the_buffers(compiled: tuple[sexpgpu.Experiment, sexpgpu.api.CompiledStep]) -> None:
    made, step = compiled
    params = made.init(seed=0)
    del params["net.batchnorm.var"]
    with pytest.raises(Error, match=r"parameter net\.batchnorm\.var is missing"):
        step(params, {"x": X})


# Runs


def test_a_run_sets_buffers_to_the_mean_over_the_microbatches(tmp_path: Path) -> None:
    path, x = norm_file(tmp_path, ":microbatches 2 :steps 3")
    done = run(path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "14 in 4 tensors, 6 in buffers" in done.stderr
    mean, variance = moved([[x[:4], x[4:8]], [x[8:12], x[12:]], [x[:4], x[4:8]]])
    parameters = last(tmp_path / "out").parameters
    np.testing.assert_allclose(parameters["net.batchnorm.mean"], mean, **CLOSE)
    np.testing.assert_allclose(parameters["net.batchnorm.var"], variance, **CLOSE)


def test_rows_that_fill_up_a_short_batch_are_no_part_of_the_statistics(tmp_path: Path) -> None:
    path, x = norm_file(tmp_path, ":global-batch 6 :steps 2")
    done = run(path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    mean, variance = moved([[x[:4], x[4:6]], [x[6:10], x[10:12]]])
    parameters = last(tmp_path / "out").parameters
    np.testing.assert_allclose(parameters["net.batchnorm.mean"], mean, **CLOSE)
    np.testing.assert_allclose(parameters["net.batchnorm.var"], variance, **CLOSE)


def test_buffers_of_a_resumed_run_and_of_two_ranks_are_those_of_one_unbroken_run(tmp_path: Path) -> None:
    path, _ = norm_file(tmp_path, ":microbatches 2 :steps 4")
    assert run(path, tmp_path / "one").returncode == 0
    assert run(path, tmp_path / "two", ranks=2).returncode == 0
    assert run(path, tmp_path / "resumed", "--steps", "2").returncode == 0
    resumed = run(path, tmp_path / "resumed", "--steps", "4", "--resume", "latest")
    assert "resumed from step 2" in resumed.stderr, resumed.stderr
    expected = last(tmp_path / "one")
    for other in ("two", "resumed"):
        made = last(tmp_path / other)
        for tensors, values in ((expected.parameters, made.parameters), (expected.states, made.states)):
            assert tensors.keys() == values.keys()
            assert [name for name in tensors if tensors[name].tobytes() != values[name].tobytes()] == []


def test_a_refused_step_leaves_the_buffers_as_they_were(tmp_path: Path) -> None:
    path, x = norm_file(tmp_path, ":steps 3", batch=8)
    bad = x.astype(np.float32)
    bad[8] = np.inf
    np.savez(tmp_path / "d.npz", x=bad)
    done = run(path, tmp_path / "out")
    assert done.returncode == 1 and "E-NUM-001" in done.stderr
    made = last(tmp_path / "out")
    assert made.path.name == "step-00000001"
    np.testing.assert_allclose(made.parameters["net.batchnorm.mean"], moved([[x[:8]]])[0], **CLOSE)
