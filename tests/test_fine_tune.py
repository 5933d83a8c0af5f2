"""The two runs of examples/fine-tune.sexp against figures that PyTorch gave (scripts/record_fine_tune)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import sexpgpu
from sexpgpu.train import checkpoint

EXAMPLE = Path(sexpgpu.__file__).parent / "examples" / "fine-tune.sexp"
RECORDED = dict(np.load(Path(__file__).parent / "data" / "pytorch" / "fine-tune.npz", allow_pickle=False).items())
BATCH, FIRST = 8, len(RECORDED["pretrain loss"])
# Of losses and parameters, after some steps in f32 on both sides.
LOSS, PARAMETER = 2e-5, 2e-5


def batches(begin: int) -> Callable[[int, int], dict[str, np.ndarray]]:
    """The recorded batches from one on, by step."""

    def batch(step: int, microbatch: int) -> dict[str, np.ndarray]:
        rows = slice((begin + step - 1) * BATCH, (begin + step) * BATCH)
        return {"x": RECORDED["x"][rows], "y": RECORDED["y"][rows]}

    return batch


def initial(*heads: str) -> dict[str, np.ndarray]:
    made = {name.removeprefix("initial "): array for name, array in RECORDED.items() if name.startswith("initial ")}
    return {name: array for name, array in made.items() if name.startswith(heads)}


def example(run: str) -> sexpgpu.api.Experiment:
    return sexpgpu.load(EXAMPLE, set={"hidden": 16, "batch": BATCH}, run=run)


def assert_trained_as_recorded(run: str, trainer: sexpgpu.api.Trainer) -> None:
    losses = [trainer.step().loss for _ in RECORDED[f"{run} loss"]]
    np.testing.assert_allclose(losses, RECORDED[f"{run} loss64"], rtol=LOSS)
    np.testing.assert_allclose(losses, RECORDED[f"{run} loss"], rtol=LOSS)
    for name, value in trainer.parameters.items():
        np.testing.assert_allclose(value, RECORDED[f"{run} {name}"], rtol=0, atol=PARAMETER, err_msg=name)


def test_pretraining_and_tuning_have_the_losses_and_parameters_of_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = example("pretrain").trainer(device="cpu", batches=batches(0), parameters=initial("body.", "digits."))
    assert_trained_as_recorded("pretrain", before)
    # What the second run's (from pretrain) finds under runs.
    folder = tmp_path / "runs" / "pretrain" / "20260101-000000-00000000" / "checkpoints"
    folder.mkdir(parents=True)
    checkpoint.save(folder, FIRST, before.parameters, {}, {"step": FIRST})
    after = example("tune").trainer(device="cpu", batches=batches(FIRST), parameters=initial("odd."))
    assert_trained_as_recorded("tune", after)
    for name in ("body.first.weight", "body.first.bias"):
        np.testing.assert_array_equal(after.parameters[name], before.parameters[name])
