"""`:ema D`: averages of the trained parameters, kept with them and used where nothing is trained."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from resumed import assert_a_resume_is_exact, kept, records, run_folder
from safetensors.numpy import load_file
from test_ranks import environment, mpirun

import sexpgpu
from sexpgpu.device import choose, open_device
from sexpgpu.errors import Error
from sexpgpu.train import checkpoint
from sexpgpu.train.request import Request, early_settings, final_settings, read_experiment
from sexpgpu.train.session import header, memory_annotation, prepare
from tests.fake_cuda import A100, FakeCuda
from tests.on_fake_cuda import install, nothing_wrong

DECAY, RATE, STEPS = 0.75, 0.05, 5
X = np.random.default_rng(2).normal(size=(16, 3)).astype(np.float32)
Y = (X @ np.array([1, -2, 3], np.float32)).astype(np.float32)


def example(folder: Path) -> Path:
    """Squared error of x · (w + fixed), whole data in every step."""
    np.savez(folder / "d.npz", x=X, y=Y)
    path = folder / "fit.sexp"
    path.write_text(
        '(defloader d (arrays "d.npz" :batch 8))\n'
        "(defun predicted (x)\n"
        '  (dot x (+ (param "w" [3] (normal 1)) (param "fixed" [3] (normal 1) :trainable false))))\n'
        "(defmetric error :reduce max (abs (- (predicted x) y)))\n"
        "(defrun fit :data d :loss (mse (predicted x) y) :predict (predicted x)\n"
        f"  :optimizer (sgd :lr {RATE}) :microbatches 2 :steps {STEPS} :ema {DECAY} :seed 4\n"
        "  :eval (every 2 d :metrics [error]) :checkpoint (every 1))\n"
    )
    return path


def reference(start: np.ndarray, fixed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """(parameter, average) after every step, in float64: the average begins as the parameter does."""
    x, y = X.astype(np.float64), Y.astype(np.float64)
    w, average, made = start.astype(np.float64), start.astype(np.float64), []
    for _ in range(STEPS):
        w = w - RATE * 2 * (x @ (w + fixed) - y) @ x / len(x)
        average = DECAY * average + (1 - DECAY) * w
        made.append((w, average))
    return made


def test_an_average_is_what_is_left_of_it_and_the_rest_of_the_new_parameter(tmp_path: Path) -> None:
    trainer = sexpgpu.load(example(tmp_path)).trainer(device="cpu")
    start = trainer.parameters
    assert set(trainer.averages) == {"w"}
    np.testing.assert_array_equal(trainer.averages["w"], start["w"])
    for parameter, average in reference(start["w"], start["fixed"]):
        trainer.step()
        np.testing.assert_allclose(trainer.parameters["w"], parameter, rtol=2e-6)
        np.testing.assert_allclose(trainer.averages["w"], average, rtol=2e-6)


def test_evaluation_and_metrics_are_of_the_averages(tmp_path: Path) -> None:
    folder = run_folder(example(tmp_path), tmp_path / "runs", STEPS)
    start = sexpgpu.load(example(tmp_path)).init()
    made = reference(start["w"], start["fixed"])
    evaluations = {record["step"]: record for record in records(folder) if record["kind"] == "eval"}
    assert set(evaluations) == {2, 4, 5}
    for step, record in evaluations.items():
        w, average = made[step - 1]
        errors = [np.abs(X @ (v + start["fixed"]) - Y) for v in (average, w)]
        assert record["d/loss"] == pytest.approx(np.mean(errors[0] ** 2), rel=1e-5)
        assert record["d/error"] == pytest.approx(np.max(errors[0]), rel=1e-5)
        assert record["d/loss"] != pytest.approx(np.mean(errors[1] ** 2), rel=1e-2)


def test_a_checkpoint_has_them_in_a_file_of_their_own_and_a_resume_is_exact(tmp_path: Path) -> None:
    whole = assert_a_resume_is_exact(example(tmp_path), tmp_path, STEPS, (0, 1, 4))
    assert set(kept(whole, STEPS)) == {"params.safetensors", "optimizer.safetensors", "ema.safetensors"}
    path = whole / "checkpoints" / checkpoint.folder_name(STEPS)
    averages = load_file(path / "ema.safetensors")
    made = checkpoint.load(path)
    assert set(averages) == {"w"}
    np.testing.assert_array_equal(made.trained()["w"], averages["w"])
    np.testing.assert_array_equal(made.trained(raw=True)["w"], load_file(path / "params.safetensors")["w"])
    assert not np.array_equal(made.trained()["w"], made.trained(raw=True)["w"])
    np.testing.assert_array_equal(made.trained()["fixed"], made.trained(raw=True)["fixed"])


def test_another_decay_is_another_experiment(tmp_path: Path) -> None:
    run_folder(example(tmp_path), tmp_path / "runs", 2)
    with pytest.raises(Error, match="of another experiment"):
        run_folder(example(tmp_path), tmp_path / "runs", 4, sets=("run.ema=0.5",), resume="latest")


def test_two_ranks_have_the_bits_of_one(tmp_path: Path) -> None:
    path = example(tmp_path)
    one = run_folder(path, tmp_path / "one", STEPS)
    command = [mpirun(), "-n", "2", sys.executable, "-m", "sexpgpu", "run", str(path), "--out", str(tmp_path / "two")]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    (two,) = (tmp_path / "two").glob("*/*")
    assert kept(two, STEPS) == kept(one, STEPS)
    assert records(two) == records(one)


def test_a_step_that_float16_skips_changes_no_average(tmp_path: Path) -> None:
    """The first loss scales overflow; the steps after them are applied."""
    trainer = sexpgpu.load(example(tmp_path)).trainer(device="cpu", precision="float16")
    applied, averages = [], [trainer.averages["w"]]
    for _ in range(8):
        applied.append(trainer.step().applied)
        averages.append(trainer.averages["w"])
    assert applied == sorted(applied) and {False, True} == set(applied)
    assert [not np.array_equal(before, after) for before, after in pairwise(averages)] == applied


def test_on_the_simulated_card_they_have_the_bits_of_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_PRODUCTS", "own")
    driver = FakeCuda(A100, order="lazy")
    install(driver, monkeypatch)
    file = sexpgpu.load(example(tmp_path))
    theirs, ours = file.trainer(device="cpu"), file.trainer(device="cuda")
    for _ in range(2):
        theirs.step()
        ours.step()
    assert {n: v.tobytes() for n, v in ours.averages.items()} == {n: v.tobytes() for n, v in theirs.averages.items()}
    ours._session.device.close()
    assert nothing_wrong(driver)


def test_the_header_says_what_evaluates_and_the_plan_counts_them(tmp_path: Path) -> None:
    request = Request(example(tmp_path))
    _, made = read_experiment(request, early_settings(request))
    settings = final_settings(request, made)
    session = prepare(made, settings, open_device(choose(settings), settings))
    assert "averages    :ema 0.75: evaluation uses them in place of the parameters" in header(session, "", "")
    assert memory_annotation(session)["parameters"] == 4 * (3 + 3 + 3)
