"""The three models of scripts/record_pytorch, elaborated, differentiated and updated in float64: PyTorch's twenty steps.

Nothing is compiled here, so what differs is meaning, not rounding; the same figures in f32 are compared per device.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elaborated import gradients, updated
from safetensors.numpy import load_file

from sexpgpu.lang.program import load_program
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.train.loader import header

HERE = Path(__file__).parent
FIGURES: dict[str, Any] = json.loads((HERE / "data" / "pytorch" / "figures.json").read_text())["models"]


def recorded(model: str, kind: str) -> dict[str, np.ndarray]:
    return load_file(HERE / "data" / "pytorch" / f"{model}.{kind}.safetensors")


def experiment(model: str) -> Experiment:
    return elaborate(load_program(HERE / "experiments" / f"{model}.sexp"), header)


@pytest.mark.parametrize("model", FIGURES)
def test_parameters_have_the_recorded_names_and_shapes(model: str) -> None:
    made = {p.name: list(p.shape) for p in experiment(model).parameters}
    assert made == FIGURES[model]["parameters"]


@pytest.mark.parametrize("model", FIGURES)
def test_twenty_steps_have_the_losses_of_pytorch_in_float64(model: str) -> None:
    made, figures = experiment(model), FIGURES[model]
    fields, rows = recorded(model, "batches"), figures["batch"]
    parameters = {name: value.astype(np.float64) for name, value in recorded(model, "initial").items()}
    states: dict[str, np.ndarray] = {}
    losses = []
    for step in range(1, len(figures["loss_float64"]) + 1):
        batch = {name: field[(step - 1) * rows : step * rows] for name, field in fields.items()}
        outputs = gradients(made, {**batch, **parameters}, {"loss-scale": 1.0, "step": step})
        weight = float(outputs.pop("weight"))
        losses.append(float(outputs.pop("loss")) / weight)
        mean = {name: gradient / weight for name, gradient in outputs.items()}
        norm = math.sqrt(sum(float(np.sum(g * g)) for g in mean.values()))
        clip = figures["clip_grad_norm"]
        # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm that it divides by.
        scale = 1.0 if clip is None else min(1.0, clip / (norm + 1e-6))
        given = {f"parameter:{name}": value for name, value in parameters.items()}
        changed = updated(made, {**given, **states, **mean}, {"gradient-scale": scale, "updates": step, "step": step})
        states = {name: value for name, value in changed.items() if name.startswith("state:")}
        parameters = {name: changed[f"parameter:{name}"] for name in parameters}
    np.testing.assert_allclose(losses, figures["loss_float64"], rtol=1e-10)


@pytest.mark.parametrize("model", FIGURES)
def test_first_gradients_are_those_of_pytorch(model: str) -> None:
    made, figures = experiment(model), FIGURES[model]
    batch = {name: field[: figures["batch"]] for name, field in recorded(model, "batches").items()}
    outputs = gradients(made, {**batch, **recorded(model, "initial")})
    for name, expected in recorded(model, "gradients").items():
        if name not in figures["gradient_vanishes"]:
            gradient = outputs[f"gradient:{name}"] / outputs["weight"]
            # The recorded ones are PyTorch's in float32.
            allowed = 2 * figures["gradient_largest_relative_difference"] * np.max(np.abs(expected))
            np.testing.assert_allclose(gradient, expected, rtol=0, atol=allowed, err_msg=name)
