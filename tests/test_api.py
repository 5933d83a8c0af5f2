"""The Python face: load, init, train, and a trainer and a compiled step for a loop of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import sexpgpu
from sexpgpu.errors import Diagnostics, Error

FILE = """
(defhyper width 4)
(defhyper batch 8)
(defloader digits (builtin "digits" :batch batch))
(defrun fit
  :data      digits
  :loss      (square (- (matmul (/ x 16) (param "w" [64] (normal 0.5))) 1))
  :optimizer (sgd :lr 0.01)
  :steps     3
  :seed      5)
(defvariant small (batch 2))
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEXPGPU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SEXPGPU_OUT", str(tmp_path / "runs"))
    (tmp_path / "fit.sexp").write_text(FILE)
    return tmp_path / "fit.sexp"


def test_load_takes_variants_and_values(file: Path) -> None:
    made = sexpgpu.load(file, variant="small", set={"width": 5})
    assert made.name == "fit"
    assert made.elaborated.headers["digits"].fields["x"].shape == (2, 64)


def test_load_raises_every_problem(file: Path) -> None:
    file.write_text(FILE.replace("matmul", "matmull").replace(":steps", ":stepps"))
    with pytest.raises(Diagnostics) as caught:
        sexpgpu.load(file)
    assert {error.code for error in caught.value.errors} >= {"E-NAME-001", "E-RUN-002"}


def test_init_follows_the_seed_and_the_runs_own_by_default(file: Path) -> None:
    made = sexpgpu.load(file)
    np.testing.assert_array_equal(made.init()["w"], made.init(seed=5)["w"])
    assert not np.array_equal(made.init(seed=6)["w"], made.init(seed=5)["w"])
    assert made.init()["w"].dtype == np.float32


def test_a_compiled_step_gives_the_mean_loss_and_its_gradient(file: Path) -> None:
    made = sexpgpu.load(file)
    step = made.compile(device="cpu")
    generator = np.random.default_rng(0)
    batch = {"x": generator.normal(size=(8, 64)).astype(np.float32), "y": np.zeros(8, np.int32)}
    params = made.init(seed=1)
    loss, grads = step(params, batch, step=1, seed=0, microbatch=0)
    x, w = batch["x"].astype(np.float64) / 16, params["w"].astype(np.float64)
    error = x @ w - 1
    assert loss == pytest.approx(float(np.mean(error**2)), rel=1e-5)
    assert set(grads) == {"w"}
    np.testing.assert_allclose(grads["w"], 2 * error @ x / 8, rtol=1e-4, atol=1e-6)
    again, _ = step(params, batch, step=1, seed=3)
    assert again == loss


@pytest.mark.parametrize(
    ("params", "batch", "words"),
    [
        ({}, {"x": np.zeros((8, 64))}, "parameter w is missing"),
        ({"w": np.zeros(3)}, {"x": np.zeros((8, 64))}, "parameter w has shape [3], [64] is needed"),
        ({"w": np.zeros(64)}, {"z": np.zeros((8, 64))}, "field x is missing"),
        ({"w": np.zeros(64)}, {"x": np.zeros((4, 64))}, "field x has shape [4, 64], [8, 64] is needed"),
    ],
)
def test_what_does_not_fit_a_compiled_step_is_named(
    file: Path, params: dict[str, np.ndarray], batch: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(Error) as caught:
        sexpgpu.load(file).compile(device="cpu")(params, batch)
    assert caught.value.message == words


def test_train_gives_the_records_of_its_run_folder(file: Path) -> None:
    run = sexpgpu.load(file).train(device="cpu", steps=2)
    steps = [record for record in run.metrics if record["kind"] == "step"]
    assert [record["step"] for record in steps] == [1, 2]
    assert run.loss == steps[-1]["train/loss"]
    assert (run.path / "checkpoints" / "step-00000002").is_dir()


def test_a_run_is_planned_against_the_memory_that_is_set(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_MEMORY", "1KiB")
    with pytest.raises(Error) as caught:
        sexpgpu.load(file).train(device="cpu")
    assert caught.value.code == "E-MEM-001"
    assert "1.0 KiB are free" in caught.value.message
    assert not (file.parent / "runs").exists()


def test_a_trainer_takes_the_steps_of_a_run(file: Path) -> None:
    made = sexpgpu.load(file)
    run = made.train(device="cpu")
    trainer = made.trainer(device="cpu")
    results = [trainer.step() for _ in range(3)]
    records = [record for record in run.metrics if record["kind"] == "step"]
    assert [r.loss for r in results] == [record["train/loss"] for record in records]
    assert [r.gradient_norm for r in results] == [record["train/grad_norm"] for record in records]
    assert trainer.steps_done == 3
    saved = load_file(run.path / "checkpoints" / "step-00000003" / "params.safetensors")
    np.testing.assert_array_equal(trainer.parameters["w"], saved["w"])


def test_a_trainer_starts_from_its_seed_and_from_parameters_that_are_set(file: Path) -> None:
    made = sexpgpu.load(file)
    trainer = made.trainer(device="cpu", seed=6)
    np.testing.assert_array_equal(trainer.parameters["w"], made.init(seed=6)["w"])
    trainer = made.trainer(device="cpu", parameters={"w": np.zeros(64)})
    np.testing.assert_array_equal(trainer.parameters["w"], np.zeros(64))
    trainer.parameters = {"w": np.arange(64, dtype=np.float32)}
    np.testing.assert_array_equal(trainer.parameters["w"], np.arange(64))


def given(step: int, microbatch: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng([step, microbatch])
    return {"x": generator.normal(size=(8, 64)).astype(np.float32)}


def steps_by_hand(w: np.ndarray, count: int) -> tuple[list[float], np.ndarray]:
    """Steps of FILE's run with two microbatches, in float64."""
    losses = []
    for step in range(1, count + 1):
        x = np.concatenate([given(step, m)["x"] for m in (0, 1)]).astype(np.float64) / 16
        error = x @ w - 1
        losses.append(float(np.mean(error**2)))
        w = w - 0.01 * 2 * error @ x / 16
    return losses, w


@pytest.mark.parametrize("how", ["function", "iterable"])
def test_a_trainer_trains_on_the_batches_it_is_given(file: Path, how: str) -> None:
    made = sexpgpu.load(file, set={"run.microbatches": 2})
    batches = given if how == "function" else [given(step, m) for step in (1, 2, 3) for m in (0, 1)]
    trainer = made.trainer(device="cpu", batches=batches)
    losses, w = steps_by_hand(made.init()["w"].astype(np.float64), 3)
    # f32 sums of 64 and 16 terms: a few units in the last place of 2^-24.
    np.testing.assert_allclose([trainer.step().loss for _ in range(3)], losses, rtol=1e-5)
    np.testing.assert_allclose(trainer.parameters["w"], w, rtol=1e-5, atol=1e-6)


def test_batches_that_end_are_named_and_leave_the_parameters(file: Path) -> None:
    trainer = sexpgpu.load(file).trainer(device="cpu", batches=[given(1, 0)])
    trainer.step()
    before = trainer.parameters["w"]
    with pytest.raises(Error) as caught:
        trainer.step()
    assert caught.value.message == "the batches end before microbatch 0 of step 2"
    np.testing.assert_array_equal(trainer.parameters["w"], before)
    assert trainer.steps_done == 1


def test_a_step_that_is_not_finite_names_the_field_of_a_given_batch(file: Path) -> None:
    bad = {"x": np.full((8, 64), np.nan, np.float32)}
    with pytest.raises(Error) as caught:
        sexpgpu.load(file).trainer(device="cpu", batches=iter([bad])).step()
    assert caught.value.code == "E-NUM-001"
    assert "the data's field x" in caught.value.message


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"z": np.zeros((8, 64))}, "field x is missing"),
        ({"x": np.zeros((4, 64))}, "field x has shape [4, 64], [8, 64] is needed"),
        ({"x": np.zeros((8, 64), np.complex64)}, "field x has dtype complex64, f32 is needed"),
    ],
)
def test_what_does_not_fit_a_trainer_is_named(file: Path, batch: dict[str, np.ndarray], words: str) -> None:
    trainer = sexpgpu.load(file).trainer(device="cpu", batches=[batch])
    with pytest.raises(Error) as caught:
        trainer.step()
    assert caught.value.message == words
    with pytest.raises(Error) as caught:
        trainer.parameters = {"v": np.zeros(64)}
    assert caught.value.message == "there is no parameter v"


def test_a_trainer_says_its_lowering_and_memory(file: Path) -> None:
    trainer = sexpgpu.load(file).trainer(device="cpu", threads=1)
    trainer.step()
    assert trainer.lowering.startswith("lowering: cpu 1 thread, ")
    assert re.fullmatch(r"memory: peak [\d.]+ KiB of [\d.]+ KiB planned \([+-]\d+\.\d%\)", trainer.memory)
