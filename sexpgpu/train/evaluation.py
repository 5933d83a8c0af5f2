"""Evaluation: loss and metrics of a loader, read in file order, with `training` false, of the averages of `:ema`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from sexpgpu.device import Counter, Device
from sexpgpu.dist.exchange import Exchange, SingleRank
from sexpgpu.dist.reduction import share_of, tree_sum_f64
from sexpgpu.ir.facts import output_names
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.experiment import Evaluation, Metric
from sexpgpu.train.feed import Feed
from sexpgpu.train.model import Model
from sexpgpu.train.step import bind_fields, out_of_range, prepared

FOLDS: dict[str, Callable[[float, float], float]] = {
    "sum": lambda a, b: a + b,
    # A NaN in one batch is a NaN of the whole, on either side.
    "max": lambda a, b: a if a > b or math.isnan(a) else b,
    "min": lambda a, b: a if a < b or math.isnan(a) else b,
}


class Evaluator:
    """One `:eval` of a run, planned before training starts."""

    def __init__(
        self, device: Device, model: Model, evaluation: Evaluation, graph: Graph, feed: Feed, seed: int,
        exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        self.exchange: Exchange = exchange or SingleRank()
        self.device, self.evaluation, self.graph, self.feed = device, evaluation, graph, feed
        self.executable = prepared(device, graph, seed, self.exchange)
        model.bind(self.executable, average=True)
        self.fields: dict[str, Any] = bind_fields(device, self.executable)
        whole = feed.microbatches(1)
        self.batches = whole if evaluation.batches is None else min(evaluation.batches, whole)

    def due(self, step: int, last: int) -> bool:
        return step % self.evaluation.every == 0 or step == last

    def run(self, step: int, total_steps: int, updates: int) -> dict[str, float]:
        """The records of one evaluation: `held-out/loss`, `held-out/accuracy`."""
        names = output_names(self.graph)
        series: dict[str, list[float]] = {name: [] for name in names}
        hosts = {"step": step, "updates": updates, "total-steps": total_steps}
        # Batches are shared out like microbatches; end to end, in order of ranks, the series are those of one rank.
        world = self.exchange.world
        low, high = share_of(world.rank, world.size, self.batches)
        for batch in range(low, high):
            for name, array in self.feed.take(1, batch).items():
                self.device.write(self.fields[name], array)
            self.executable.run(hosts, Counter(batch, 0))
            for problem in self.executable.out_of_range():
                raise out_of_range(self.graph, problem, step)
            for name in names:
                series[name].append(float(self.executable.output(name)))
        series = {name: self.exchange.gather(values) for name, values in series.items()}
        made = {"loss": _mean(series["loss"], series["weight"])}
        made |= {metric.name: _metric(metric, series) for metric in self.evaluation.metrics}
        return {f"{self.evaluation.loader}/{name}": value for name, value in made.items()}


def _metric(metric: Metric, series: dict[str, list[float]]) -> float:
    values = series[f"metric:{metric.name}"]
    if metric.reduce == "mean":
        return _mean(values, series[f"metric-weight:{metric.name}"])
    return reduce(FOLDS[metric.reduce], values)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    weight = tree_sum_f64(weights)
    return tree_sum_f64(values) / weight if weight else math.nan
