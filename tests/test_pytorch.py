"""Exactness on the CPU: twenty AdamW steps of three models against figures that PyTorch gave (scripts/record_pytorch)."""

from __future__ import annotations

import numpy as np
import pytest
from test_pytorch_float64 import FIGURES, HERE, recorded

import sexpgpu
from sexpgpu.device import choose, open_device
from sexpgpu.train.request import Request, early_settings, final_settings, read_experiment
from sexpgpu.train.session import prepare

LOSS, GRADIENT = 2e-5, 1e-5


def starting(model: str) -> dict[str, np.ndarray]:
    return {name: value.astype(np.float32) for name, value in recorded(model, "initial").items()}


@pytest.mark.parametrize("model", FIGURES)
def test_the_first_gradients_are_those_of_pytorch(model: str) -> None:
    figures, rows = FIGURES[model], FIGURES[model]["batch"]
    batch = {name: field[:rows] for name, field in recorded(model, "batches").items()}
    step = sexpgpu.load(HERE / "experiments" / f"{model}.sexp").compile(device="cpu")
    loss, gradients = step(starting(model), batch)
    assert abs(loss - figures["loss"][0]) <= LOSS * abs(figures["loss"][0])
    expected = recorded(model, "gradients")
    assert set(gradients) == set(expected)
    for name, value in expected.items():
        # The true gradient of an attention's key bias is 0: what is left is rounding on both sides.
        if name in figures["gradient_vanishes"]:
            assert np.abs(gradients[name]).max() <= 1e-6
        else:
            assert np.abs(gradients[name] - value).max() <= GRADIENT * np.abs(value).max(), name


@pytest.mark.parametrize("keep_values", [False, True], ids=["fused", "keep-values"])
@pytest.mark.parametrize("model", FIGURES)
def test_twenty_steps_have_the_losses_of_pytorch(model: str, keep_values: bool) -> None:
    request = Request(HERE / "experiments" / f"{model}.sexp", flags={"device": "cpu", "keep-values": keep_values})
    _, experiment = read_experiment(request, early_settings(request))
    settings = final_settings(request, experiment)
    session = prepare(experiment, settings, open_device(choose(settings), settings))
    session.model.start(starting(model).items())
    losses = [session.step.run(step).loss for step in range(1, session.total_steps + 1)]
    expected = FIGURES[model]["loss"]
    assert len(losses) == len(expected) == 20
    assert max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)) <= LOSS
