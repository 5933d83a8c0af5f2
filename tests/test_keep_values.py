"""The fused executor against the reference that keeps every value: loss and gradients of every example.

Both are float32; float64 evaluation of the same graph says how far each is off. What the reference is off by comes from
rounding alone, so it measures how much rounding the graph's numbers feel; fusing may order sums otherwise and skip
roundings, and stays within a small multiple of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_cpu import run_graph
from test_plan_random import draw
from test_special_values import RUNS, SMALL, folder

from sexpgpu import load
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.train.feed import training_feed
from sexpgpu.train.model import initial_parameters

__all__ = ["folder"]

UNIT = 2.0**-24
# Orders of the same sum differ by no more than both differ from the exact one; a few roundings where that is 0.
MULTIPLE, ROUNDINGS = 4, 8
HOSTS = {"step": 1, "updates": 1, "total-steps": 10, "loss-scale": 1e-3, "gradient-scale": 1.0}


def compare(graph: Graph, values: dict[str, Any]) -> None:
    exact = evaluate_graph(graph, values, HOSTS, wide=True, draw=draw)
    kept, fused = (run_graph(graph, values, HOSTS, keep_values=keep) for keep in (True, False))
    largest = max(float(np.abs(wide).max(initial=0.0)) for name, wide in exact.items() if name.startswith("gradient:"))
    for name, wide in exact.items():
        scale = float(np.abs(wide).max(initial=0.0))
        off_kept, off_fused = (float(np.abs(found[name] - wide).max(initial=0.0)) for found in (kept, fused))
        # A gradient that is 0 (a key's bias) is a sum of terms as large as other gradients are.
        assert off_kept <= 1e-4 * scale + ROUNDINGS * UNIT * largest, name
        assert off_fused <= MULTIPLE * off_kept + ROUNDINGS * UNIT * scale, name


@pytest.mark.parametrize("name", SMALL)
def test_the_fused_executor_stays_within_the_reference_s_rounding(name: str, folder: Path) -> None:
    experiment = load(folder / f"{name}.sexp", set=SMALL[name], run=RUNS.get(name)).elaborated
    graph = training_graph(experiment)
    options = experiment.options
    feed = training_feed(experiment.loaders[options.data], graph, 0, folder, options.microbatches, None, False)
    parameters = dict(initial_parameters(experiment, 5))
    compare(graph, {**parameters, **feed.take(1, 0)})
