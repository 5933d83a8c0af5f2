"""`:precision float16`: the loss is scaled, a step that overflows is skipped, and the others are as if it had not been."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_pytorch import starting
from test_pytorch_float64 import FIGURES, HERE
from test_ranks import environment, mpirun

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.train import scaling
from sexpgpu.train.checkpoint import load
from sexpgpu.train.launch import run as run_request
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.progress import Progress, step_words
from sexpgpu.train.request import Request
from sexpgpu.train.scaling import LossScale
from tests.fake_cuda import FakeCuda
from tests.on_fake_cuda import install, nothing_wrong

STEPS, MICROBATCHES, BATCH = 12, 2, 4
ROWS = MICROBATCHES * BATCH
# Of a number of f16, relative to it.
HALF_ULP = 2.0**-11
CLIP, RATE = 50.0, 0.5
FILE = f"""
(defloader data (arrays "data.npz" :batch {BATCH} :order file))
(defrun fit :data data :precision float16 :microbatches {MICROBATCHES} :steps {STEPS}
  :optimizer (adam :lr {RATE}) :clip-grad-norm {CLIP} :checkpoint (every 1)
  :loss (square (- (matmul x (param "w" [2] zeros)) y)))
"""


def data() -> tuple[np.ndarray, np.ndarray]:
    """Only the second microbatch of a step has targets that overflow the scaled cotangents, in step 9 more than elsewhere."""
    x = np.random.default_rng(1).normal(size=(STEPS * ROWS, 2)).astype(np.float32)
    y = np.where(np.arange(STEPS * ROWS) % ROWS < BATCH, 0.1, 100.0)
    y[9 * ROWS - 1] = 1000.0
    return x, y.astype(np.float32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    x, y = data()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    (tmp_path / "fit.sexp").write_text(FILE)
    return tmp_path / "fit.sexp"


def f16(x: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float64).astype(np.float16).astype(np.float64)


@dataclass
class Reference:
    """The same training in float64 and NumPy's float16; a row a step of loss, gradient norm, scale, whether applied."""

    growth: int
    w: np.ndarray = field(default_factory=lambda: np.zeros(2))
    rows: list[tuple[float, float, float, bool]] = field(default_factory=list)

    def gradient(self, step: int, scale: float) -> tuple[float, np.ndarray]:
        x, y = (part[(step - 1) * ROWS : step * ROWS].astype(np.float64) for part in data())
        error = f16(f16(f16(x) @ f16(self.w)) - y)
        with np.errstate(invalid="ignore"):
            return float(np.mean(error**2)), f16(x).T @ f16(2 * error * scale / ROWS) / scale

    def run(self) -> Reference:
        m, v, updates, scale, standing = np.zeros(2), np.zeros(2), 0, 2.0**16, 0
        for step in range(1, STEPS + 1):
            loss, gradient = self.gradient(step, scale)
            norm = float(np.sqrt(gradient @ gradient))
            applied = bool(np.isfinite(norm))
            self.rows.append((loss, norm, scale, applied))
            if not applied:
                scale, standing = scale / 2, 0
                continue
            gradient, updates, standing = gradient * min(1, CLIP / norm), updates + 1, standing + 1
            m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
            self.w = self.w - RATE * (m / (1 - 0.9**updates)) / (np.sqrt(v / (1 - 0.999**updates)) + 1e-8)
            if standing == self.growth:
                scale, standing = scale * 2, 0
        return self


def ran(file: Path, out: str, resume: str | None = None, **flags: Any) -> Path:
    asked = {"out": str(file.parent / out), **flags}
    return run_request(Request(file, flags=asked, resume=resume), Progress(quiet=True)).path


# The law


def test_the_scale_halves_at_every_skip_and_doubles_after_2000_steps_in_a_row() -> None:
    made = LossScale("float16")
    stretches = [0, 0, 1999, 2000, 4001, 5]
    for stretch in stretches:
        for _ in range(stretch):
            made.apply()
        made.skip()
    doublings = sum(stretch // 2000 for stretch in stretches)
    assert made.value == 2.0 ** (16 + doublings - len(stretches))
    assert made.skipped == len(stretches)


def test_the_scale_ends_at_one_and_other_precisions_have_none() -> None:
    made = LossScale("float16")
    while made.may_skip:
        made.skip()
    assert (made.value, made.skipped) == (1.0, 16)
    other = LossScale("bfloat16")
    for _ in range(5000):
        other.apply()
    assert (other.value, other.may_skip, other.state()) == (1.0, False, {})


# Training


@pytest.mark.parametrize(("growth", "skipped"), [(2000, [1, 2, 3, 4, 5, 9]), (2, [1, 2, 3, 4, 5, 8, 9])])
def test_training_is_that_of_numpy_with_the_steps_that_overflow_left_out(
    growth: int, skipped: list[int], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "GROWTH_STEPS", growth)
    expected = Reference(growth).run()
    assert [number for number, row in enumerate(expected.rows, 1) if not row[3]] == skipped
    trainer = sexpgpu.load(file).trainer()
    for number, (loss, norm, scale, applied) in enumerate(expected.rows, 1):
        before = trainer.parameters["w"]
        made = trainer.step()
        assert (made.loss_scale, made.applied) == (scale, applied), number
        assert made.loss == pytest.approx(loss, rel=2 * HALF_ULP)
        if applied:
            assert made.gradient_norm == pytest.approx(norm, rel=2 * HALF_ULP)
        assert np.array_equal(before, trainer.parameters["w"]) != applied
    np.testing.assert_allclose(trainer.parameters["w"], expected.w, rtol=2 * HALF_ULP)


def test_a_run_says_what_it_skipped(file: Path) -> None:
    said = io.StringIO()
    path = run_request(Request(file, flags={"out": str(file.parent / "runs")}), Progress(stream=said)).path
    records = read_metrics(path / "metrics.jsonl")
    skips = [record for record in records if record.get("name") == "loss-scale"]
    assert [(r["step"], r["applied"], r["from"], r["to"]) for r in skips] == [
        *((step, False, 2.0 ** (17 - step), 2.0 ** (16 - step)) for step in range(1, 6)),
        (9, False, 2048.0, 1024.0),
    ]
    scales = [record["train/loss_scale"] for record in records if record["kind"] == "step"]
    assert scales == [2.0**16, 2.0**15, 2.0**14, 2.0**13, 2.0**12, *[2.0**11] * 4, *[2.0**10] * 3]
    assert "step 9/12 is skipped: the gradient's norm is inf; loss scale 2048 → 1024" in said.getvalue()
    assert "  loss scale                from 65,536: halved by" in said.getvalue()


def test_the_scale_stands_in_a_step_s_words() -> None:
    record = {"train/loss": 1.0, "train/grad_norm": 2.0, "throughput/tokens_per_s": 3.0, "runtime/step_ms": 4.0}
    assert (
        step_words({**record, "train/loss_scale": 131072.0})
        == "loss 1.0000  scale 131072  norm 2.000  3 tokens/s  4.0 ms"
    )


def test_a_skipped_step_leaves_parameters_and_states_and_the_scale_is_in_the_checkpoint(file: Path) -> None:
    folder = ran(file, "runs") / "checkpoints"
    first = load(folder / "step-00000005")
    assert not any(value.any() for value in (*first.parameters.values(), *first.states.values()))
    for name in ("params.safetensors", "optimizer.safetensors"):
        assert (folder / "step-00000008" / name).read_bytes() == (folder / "step-00000009" / name).read_bytes()
    assert load(folder / "step-00000008").state["loss-scale"] == {"value": 2048.0, "applied": 3, "skipped": 5}
    assert load(folder / "step-00000012").state["loss-scale"] == {"value": 1024.0, "applied": 3, "skipped": 6}


@pytest.mark.parametrize("step", [3, 7])
def test_a_resumed_run_goes_on_bit_for_bit(step: int, file: Path) -> None:
    unbroken = ran(file, "unbroken")
    assert ran(file, "stopped", steps=step, resume="latest") == ran(file, "stopped", resume="latest")
    (stopped,) = (file.parent / "stopped").glob("*/*")
    for name in ("params.safetensors", "optimizer.safetensors"):
        one, other = (path / "checkpoints" / f"step-{STEPS:08d}" / name for path in (unbroken, stopped))
        assert one.read_bytes() == other.read_bytes()
    assert told(stopped) == told(unbroken)


def told(folder: Path) -> list[tuple[float, ...]]:
    """Loss and scale of every step that stands."""
    records = read_metrics(folder / "metrics.jsonl")
    return [(r["step"], r["train/loss"], r["train/loss_scale"]) for r in records if r["kind"] == "step"]


def test_ranks_skip_together_what_one_of_them_overflowed(file: Path) -> None:
    """The second rank's microbatch overflows, the first one's does not."""
    unbroken = ran(file, "one")
    words = [mpirun(), "-n", "2", sys.executable, "-m", "sexpgpu", "run", str(file), "--out", str(file.parent / "two")]
    done = subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=200, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (file.parent / "two").glob("*/*")
    assert told(folder) == told(unbroken)
    one, two = (path / "checkpoints" / f"step-{STEPS:08d}" / "params.safetensors" for path in (unbroken, folder))
    assert one.read_bytes() == two.read_bytes()
    assert done.stderr.count(" is skipped: ") == 6


def test_what_no_scale_helps_stops_once_the_scale_is_at_one(file: Path) -> None:
    x, y = data()
    np.savez(file.parent / "data.npz", x=x, y=y * 1e4)
    trainer = sexpgpu.load(file).trainer(steps=30)
    assert [trainer.step().applied for _ in range(16)] == [False] * 16
    with pytest.raises(Error) as caught:
        trainer.step()
    assert caught.value.code == "E-NUM-001"
    assert "at step 17" in caught.value.message
    assert "the loss scale is at 1: no smaller one helps" in caught.value.notes
    assert caught.value.span is not None
    assert not trainer.parameters["w"].any()


def test_a_card_skips_the_steps_that_the_cpu_skips(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    trainers = {kind: sexpgpu.load(file).trainer(device=kind) for kind in ("cpu", "cuda")}
    for _ in range(STEPS):
        theirs, ours = (trainer.step() for trainer in trainers.values())
        assert (ours.loss_scale, ours.applied) == (theirs.loss_scale, theirs.applied)
        assert ours.loss == pytest.approx(theirs.loss, rel=HALF_ULP)
    theirs_w, ours_w = (trainer.parameters["w"] for trainer in trainers.values())
    np.testing.assert_allclose(ours_w, theirs_w, rtol=2 * HALF_ULP)
    trainers["cuda"]._session.device.close()
    assert nothing_wrong(driver)


# Agreement


def losses(precision: str) -> Sequence[float]:
    trainer = sexpgpu.load(HERE / "experiments" / "gpt.sexp").trainer(precision=precision)
    trainer.parameters = starting("gpt")
    return [trainer.step().loss for _ in range(20)]


def test_twenty_steps_have_losses_as_close_to_float32_s_as_rounding_the_loss_would_be() -> None:
    expected = FIGURES["gpt"]["loss"]
    made = losses("float16")
    assert max(abs(a - b) / b for a, b in zip(made, expected, strict=True)) <= HALF_ULP


def test_a_compiled_step_gives_finite_unscaled_gradients(file: Path) -> None:
    x, y = (part[:BATCH] for part in data())
    made = sexpgpu.load(file).compile()
    w = np.array([1.0, -2.0], np.float32)
    loss, gradients = made({"w": w}, {"x": x, "y": y + 1000})
    error = x.astype(np.float64) @ w - (y + 1000)
    assert loss == pytest.approx(np.mean(error**2), rel=4 * HALF_ULP)
    np.testing.assert_allclose(gradients["w"], 2 * error @ x / BATCH, rtol=8 * HALF_ULP)
