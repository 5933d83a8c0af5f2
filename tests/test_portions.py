"""`:global-batch`, `:epochs`, `weighted` and `real`: a step is the mean over its real examples, whoever computes which part.

Expected values are least squares by hand in float64: x · w against y, w ← w − rate · gradient.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from resumed import kept, records, run_folder
from safetensors.numpy import load_file
from test_ranks import environment, mpirun

from sexpgpu.errors import Diagnostics
from sexpgpu.train.launch import run
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request, early_settings
from sexpgpu.train.start import fresh
from sexpgpu.train.stopping import Stopped, StopRequest

COUNT, RATE = 20, 0.1
RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(COUNT, 3)).astype(np.float32)
Y = RANDOM.normal(size=COUNT).astype(np.float32)
V = RANDOM.uniform(0.5, 2, size=COUNT).astype(np.float32)
SQUARES = '(mse (dot x (param "w" [3] ones)) y)'


def example(folder: Path, options: str, loss: str = SQUARES, batch: str = ":batch 4", rest: str = "") -> Path:
    np.savez(folder / "d.npz", x=X, y=Y, v=V)
    path = folder / "fit.sexp"
    path.write_text(
        f'(defloader d (arrays "d.npz" {batch} :order file))\n{rest}'
        f"(defrun fit :data d :loss {loss} :optimizer (sgd :lr {RATE})\n  {options})\n"
    )
    return path


def rows(*sizes: int, first: int = 0) -> list[np.ndarray]:
    """The examples of steps of these sizes, one after the other, beginning again at the end."""
    ends = first + np.cumsum(sizes)
    return [np.arange(end - size, end) % COUNT for end, size in zip(ends, sizes, strict=True)]


def reference(steps: Sequence[np.ndarray], weights: np.ndarray | None = None) -> tuple[list[float], np.ndarray]:
    """The loss of each step, and w after the last."""
    w, losses = np.ones(3), []
    v = np.ones(COUNT) if weights is None else weights.astype(np.float64)
    for index in steps:
        x, error = X[index].astype(np.float64), X[index].astype(np.float64) @ w - Y[index]
        losses.append(float(np.sum(v[index] * error**2) / np.sum(v[index])))
        w = w - RATE * 2 * (v[index] * error) @ x / np.sum(v[index])
    return losses, w


def outcome(folder: Path) -> tuple[list[float], np.ndarray]:
    (path,) = sorted(folder.glob("checkpoints/*"))[-1:]
    losses = [record["train/loss"] for record in records(folder) if record["kind"] == "step"]
    return losses, load_file(path / "params.safetensors")["w"]


def assert_same(made: tuple[list[float], np.ndarray], expected: tuple[list[float], np.ndarray]) -> None:
    np.testing.assert_allclose(made[0], expected[0], rtol=2e-6)
    np.testing.assert_allclose(made[1], expected[1], rtol=0, atol=2e-6)


def in_process(file: Path) -> tuple[list[float], np.ndarray]:
    return outcome(run(Request(file, flags={"out": str(file.parent / "runs")}), Progress(quiet=True)).path)


def by_ranks(ranks: int, file: Path, *words: str) -> tuple[Path, str]:
    """The run's folder and what it said."""
    out = file.parent / f"ranks-{ranks}"
    command = [sys.executable, "-m", "sexpgpu", "run", str(file), "--out", str(out), *words]
    done = subprocess.run(
        [mpirun(), "-n", str(ranks), *command], env=environment(), capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip()), done.stderr


def test_a_global_batch_is_cut_into_microbatches_of_which_the_last_is_short(tmp_path: Path) -> None:
    assert_same(in_process(example(tmp_path, ":global-batch 10 :steps 3")), reference(rows(10, 10, 10)))


def test_epochs_end_with_a_short_step_whose_last_batch_is_short(tmp_path: Path) -> None:
    file = example(tmp_path, ":microbatches 2 :epochs 2", batch=":batch 3")
    assert_same(in_process(file), reference(rows(6, 6, 6, 2, 6, 6, 6, 2)))


def test_epochs_of_a_global_batch(tmp_path: Path) -> None:
    assert_same(in_process(example(tmp_path, ":global-batch 7 :epochs 2")), reference(rows(7, 7, 6, 7, 7, 6)))


def test_steps_of_the_command_line_win_over_epochs_and_are_full(tmp_path: Path) -> None:
    file = example(tmp_path, ":microbatches 2 :epochs 9", batch=":batch 3")
    assert_same(outcome(run_folder(file, tmp_path / "runs", 5)), reference(rows(6, 6, 6, 6, 6)))


def test_a_weighted_loss_is_divided_by_the_weights_of_the_whole_step(tmp_path: Path) -> None:
    file = example(tmp_path, ":global-batch 10 :epochs 1", f"(weighted {SQUARES} v)")
    assert_same(in_process(file), reference(rows(10, 10), V))


def test_weights_may_be_counted_out_and_broadcast(tmp_path: Path) -> None:
    file = example(tmp_path, ":microbatches 2 :epochs 1", f"(weighted {SQUARES} (> v 1))", ":batch 3")
    assert_same(in_process(file), reference(rows(6, 6, 6, 2), V > 1))


def test_real_says_which_rows_are_not_padding(tmp_path: Path) -> None:
    """The number of real rows of a microbatch, as a factor of its loss: 4, 4 and 2 of a step of 10."""
    file = example(tmp_path, ":global-batch 10 :steps 1", f"(* {SQUARES} (sum (cast real f32)))")
    index = rows(10)[0]
    factor = np.array([4.0] * 8 + [2.0] * 2)
    x, error = X[index].astype(np.float64), X[index].astype(np.float64) @ np.ones(3) - Y[index]
    w = np.ones(3) - RATE * 2 * (factor * error) @ x / 10
    assert_same(in_process(file), ([float(np.mean(factor * error**2))], w))


def test_evaluation_is_the_mean_over_what_is_real(tmp_path: Path) -> None:
    metric = '(defmetric far :reduce max (abs (- (dot x (param "w" [3] ones)) y)))\n'
    options = ":microbatches 1 :steps 1 :eval (every 1 held-out :metrics [far])"
    held_out = '(defloader held-out (arrays "d.npz" :batch 7))\n'
    file = example(tmp_path, options, rest=metric + held_out)
    folder = run(Request(file, flags={"out": str(tmp_path / "runs")}), Progress(quiet=True)).path
    (found,) = [record for record in records(folder) if record["kind"] == "eval"]
    _, w = reference(rows(4))
    error = X @ w - Y
    assert found["held-out/loss"] == pytest.approx(np.mean(error**2), rel=2e-6)
    assert found["held-out/far"] == pytest.approx(np.max(np.abs(error)), rel=2e-6)


class AfterStep(StopRequest):
    """Asks to stop after so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def asked(self) -> bool:
        self.steps -= 1
        return self.steps <= 0


@pytest.mark.parametrize("step", [4, 6])
def test_a_run_of_epochs_goes_on_exactly_in_an_epoch_and_at_its_end(step: int, tmp_path: Path) -> None:
    file = example(tmp_path, ":microbatches 2 :epochs 2 :checkpoint (every 3)", batch=":batch 3").read_text()
    (tmp_path / "fit.sexp").write_text(file.replace(":order file", ":order shuffled"))
    request = Request(tmp_path / "fit.sexp", flags={"out": str(tmp_path / "whole")})
    whole = run(request, Progress(quiet=True)).path
    stopped = replace(request, flags={"out": str(tmp_path / "stopped")})
    with pytest.raises(Stopped):
        run(stopped, Progress(quiet=True), AfterStep(step))
    gone_on = run(replace(stopped, resume="latest"), Progress(quiet=True)).path
    assert kept(gone_on, 8) == kept(whole, 8)
    assert records(gone_on) == records(whole)


# Ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_shares_of_a_global_batch_have_the_bits_of_one_rank(ranks: int, tmp_path: Path) -> None:
    """M = 5 microbatches, the last short; 2 and 3 of two ranks, 1, 2 and 2 of three; the epoch ends with 2."""
    file = example(tmp_path, ":global-batch 14 :epochs 2 :eval (every 1 d)", f"(weighted {SQUARES} v)", ":batch 3")
    alone = run(Request(file, flags={"out": str(tmp_path / "runs")}), Progress(quiet=True)).path
    assert_same(outcome(alone), reference(rows(14, 6, 14, 6), V))
    folder, _ = by_ranks(ranks, file)
    assert kept(folder, 4) == kept(alone, 4)
    assert records(folder) == records(alone)


@pytest.mark.parametrize(("ranks", "batch"), [(2, 5), (3, 4)])
def test_without_a_batch_it_is_each_ranks_share_and_the_header_says_so(ranks: int, batch: int, tmp_path: Path) -> None:
    file = example(tmp_path, ":global-batch 10 :epochs 2", batch="")
    folder, said = by_ranks(ranks, file)
    assert f"batch       {batch} = :global-batch 10 / {ranks} ranks: another rank count gives other bits\n" in said
    assert f"10 examples ({-(-10 // batch)} × {batch})" in said
    assert_same(outcome(folder), reference(rows(10, 10, 10, 10)))


def test_a_rank_may_have_no_microbatch(tmp_path: Path) -> None:
    """G = 5 over four ranks: B = 2, M = 3, and the first has none."""
    folder, _ = by_ranks(4, example(tmp_path, ":global-batch 5 :steps 3", batch=""))
    assert_same(outcome(folder), reference(rows(5, 5, 5)))


def test_a_loader_that_says_its_batch_has_no_such_line(tmp_path: Path) -> None:
    _, said = by_ranks(2, example(tmp_path, ":global-batch 10 :steps 1"))
    assert "another rank count" not in said


def test_a_scalar_loss_is_refused_where_the_ranks_shares_are_short(tmp_path: Path) -> None:
    file = example(tmp_path, ":global-batch 10 :steps 1", f"(mean {SQUARES})", batch="")
    in_process(file)
    with pytest.raises(Diagnostics, match="a batch can have fewer than 4 real examples"):
        fresh(Request(file), early_settings(Request(file)), ranks=3)


# Stopping by patience


STILL = ":optimizer (sgd :lr 0) :eval (every 2 d) :stop (patience 2 d/loss) :checkpoint (every 1) :steps 50"


def still(folder: Path) -> Path:
    """A run that learns nothing: its second and third evaluation are no lower than the first, so it ends after step 6."""
    path = example(folder, "OPTIONS")
    path.write_text(path.read_text().replace(f":optimizer (sgd :lr {RATE})\n  OPTIONS", STILL))
    return path


def test_a_run_ends_when_its_patience_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = run(Request(still(tmp_path), flags={"out": str(tmp_path / "runs")}), Progress()).path
    assert [record["step"] for record in records(folder) if record["kind"] == "eval"] == [2, 4, 6]
    assert "ends after step 6: d/loss has not fallen in 2 evaluations (:stop)" in capfd.readouterr().err
    assert (folder / "checkpoints" / "step-00000006").is_dir()


def test_patience_goes_on_where_a_run_was_interrupted(tmp_path: Path) -> None:
    """After step 5 one evaluation has not fallen; the next one, after step 6, is the second."""
    file = still(tmp_path)
    with pytest.raises(Stopped):
        run(Request(file, flags={"out": str(tmp_path / "runs")}), Progress(quiet=True), AfterStep(5))
    gone_on = run_folder(file, tmp_path / "runs", 50, resume="latest")
    assert max(path.name for path in gone_on.glob("checkpoints/*")) == "step-00000006"


def test_patience_ends_all_ranks_alike(tmp_path: Path) -> None:
    folder, said = by_ranks(2, still(tmp_path), "run.microbatches=2")
    assert said.count("ends after step 6: d/loss has not fallen in 2 evaluations (:stop)") == 1
    assert max(path.name for path in folder.glob("checkpoints/*")) == "step-00000006"
