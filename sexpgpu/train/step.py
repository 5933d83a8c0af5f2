"""One optimizer step: gradients of every microbatch, the checks, then the update that nothing can half apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from sexpgpu.device import CompilesTogether, Counter, Device, Executable, OutOfRange
from sexpgpu.dist.exchange import Exchange, SingleRank
from sexpgpu.dist.reduction import tree_sum_f64
from sexpgpu.errors import Error
from sexpgpu.ir.facts import nominal_weight, output_names
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import Expression, evaluate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.train.feed import Feed
from sexpgpu.train.gradients import GradientSum
from sexpgpu.train.model import Model
from sexpgpu.train.scaling import LossScale

Made = TypeVar("Made")


class StepResult(msgspec.Struct, frozen=True):
    """`gradient_norm` is of the mean gradient before clipping; `weight` the step's Σ W, a count of elements without W.

    `loss_scale`: under `:precision float16`, that of the step; then a step that was not finite is not `applied`.
    """

    loss: float
    weight: float
    gradient_norm: float
    learning_rate: float | None
    loss_scale: float | None = None
    applied: bool = True


class Graphs(msgspec.Struct, frozen=True):
    """The graphs that are planned, evaluations by loader."""

    training: Graph
    update: Graph
    evaluations: Mapping[str, Graph] = msgspec.field(default_factory=dict)


class Step:
    """Runs steps of an experiment on a device."""

    def __init__(
        self,
        device: Device,
        experiment: Experiment,
        graphs: Graphs,
        model: Model,
        feed: Feed,
        seed: int,
        total_steps: int,
        exchange: Exchange | None = None,
    ) -> None:
        self.exchange: Exchange = exchange or SingleRank()
        self.device, self.experiment, self.graphs, self.model, self.feed = device, experiment, graphs, model, feed
        self.seed, self.total_steps = seed, total_steps
        self.scale = LossScale(experiment.options.precision)
        trained = tuple(p for p in experiment.parameters if p.trainable)
        updated = tuple(p for p in experiment.parameters if f"update:{p.name}" in output_names(graphs.training))
        options = experiment.options
        self.gradients = GradientSum(
            device, trained, feed.microbatches(1), options.sum_lanes, self.exchange, options.short, updated
        )
        landing = self.gradients.landing
        self.training: Executable = prepared(
            device, graphs.training, seed, self.exchange, lands=self.gradients.parts(landing)
        )
        self.update: Executable = prepared(device, graphs.update, seed, self.exchange, keeps=landing)
        model.bind(self.training)
        model.bind(self.update)
        self.gradients.bind(self.update, self.gradients.total)
        self.nominal = nominal_weight(experiment.training) * feed.microbatches(1)
        self.fields: dict[str, Any] = bind_fields(device, self.training)

    def hosts(self, step: int) -> dict[str, float]:
        """The host scalars of a step."""
        return {
            "step": step,
            "updates": self.updates(step),
            "total-steps": self.total_steps,
            "loss-scale": self.scale.value / self.nominal,
        }

    def updates(self, step: int) -> int:
        """Which update step `step` is, counted from 1: skipped ones are none."""
        return step - self.scale.skipped

    def run(self, step: int) -> StepResult:
        """Step `step`, counted from 1. Raises E-NUM-001, E-NUM-002 before the update: all is then as before the step.

        Ranks decide alike what is not finite: they have the same losses and the same sum of gradients.
        """
        losses, weights = self._gradients(step)
        total, weight = tree_sum_f64(losses), tree_sum_f64(weights)
        loss = total / weight if weight else math.nan
        # Every backward pass was scaled by the nominal weight; this makes the sum the mean over what was real.
        correction = self.nominal / weight if weight else math.nan
        correction /= self.scale.value
        norm = math.sqrt(self.gradients.square_sum()) * correction
        finite = math.isfinite(loss) and math.isfinite(norm)
        # Without any weight a loss is NaN in every scale.
        if not finite and not (weight and self.scale.may_skip):
            raise self._not_finite(step, losses, loss, norm)
        hosts = self.hosts(step)
        scale = self.scale.value if self.scale.dynamic else None
        if finite:
            hosts["gradient-scale"] = correction * self._clip(norm, hosts)
            hosts["microbatches"] = self.feed.microbatches(step)
            self.update.run(hosts, Counter(0, step))
            self.scale.apply()
        else:
            self.scale.skip()
        rate = self.experiment.learning_rate
        return StepResult(loss, weight, norm, None if rate is None else float(evaluate(rate, hosts)), scale, finite)

    def _gradients(self, step: int) -> tuple[list[float], list[float]]:
        """Losses and weights of all ranks' microbatches, each a sum over its elements; the gradients' sum is in `total`."""
        calls = self.feed.microbatches(step)
        losses: dict[int, float] = {}
        weights: dict[int, float] = {}
        hosts = self.hosts(step)

        def call(microbatch: int) -> None:
            for name, array in self.feed.take(step, microbatch).items():
                self.device.write(self.fields[name], array)
            self.training.run(hosts, Counter(microbatch, step))
            for problem in self.training.out_of_range():
                raise out_of_range(self.graphs.training, problem, step)
            losses[microbatch] = float(self.training.output("loss"))
            weights[microbatch] = float(self.training.output("weight"))

        self.gradients.sum(calls, call)
        # Ranks hold consecutive microbatches: end to end, in order of ranks, they are those of one rank.
        mine = sorted(losses)
        gather = self.exchange.gather
        return gather([losses[m] for m in mine]), gather([weights[m] for m in mine])

    def _clip(self, norm: float, hosts: Mapping[str, float]) -> float:
        limit: Expression | None = self.experiment.options.clip_grad_norm
        return 1.0 if limit is None or norm == 0 else min(1.0, float(evaluate(limit, hosts)) / norm)

    def _not_finite(self, step: int, losses: list[float], loss: float, norm: float) -> Error:
        """E-NUM-001 with the first bad node of the first bad microbatch, found by running it again in NumPy."""
        error = not_finite(f"{not_finite_words(loss, norm)} at step {step}", self._first_bad_node(step, losses))
        if self.scale.dynamic:
            error.notes.append(f"the loss scale is at {self.scale.value:.0f}: no smaller one helps")
        return error

    def _first_bad_node(self, step: int, losses: list[float]) -> Node | None:
        from sexpgpu.train.suspect import first_bad_node

        bad = [index for index, value in enumerate(losses) if not math.isfinite(value)]
        microbatches = bad[:1] or list(range(len(losses)))
        values = self.model.read_parameters()
        for microbatch in microbatches:
            inputs = {**values, **self.feed.take(step, microbatch)}
            node = first_bad_node(self.graphs.training, inputs, self.hosts(step), self.seed, Counter(microbatch, step))
            if node is not None:
                return node
        return None


def prepared(device: Device, graph: Graph, seed: int, exchange: Exchange, **memory: Any) -> Executable:
    """The graph on this rank's device. The first rank of a node plans, the others find its plan in the cache."""
    return first_rank_first(exchange, partial(device.prepare, graph, seed, **memory))


def compile_together(device: Device, exchange: Exchange) -> None:
    """The kernels of all graphs that were prepared, where the device leaves them to the end."""
    if isinstance(device, CompilesTogether):
        first_rank_first(exchange, device.compile)


def first_rank_first(exchange: Exchange, make: Callable[[], Made]) -> Made:
    """The first rank of a node fills the cache, in which the others then find what they need."""
    made = [make()] if exchange.world.local_rank == 0 else []
    # Compiling takes as long as it takes: only the death of a rank ends the wait.
    exchange.barrier("compiling", None)
    return made[0] if made else make()


def bind_fields(device: Device, executable: Executable) -> dict[str, Any]:
    """Memory for every field that an executable reads, bound; by the field's name."""
    made = {}
    for external, type_ in executable.externals.items():
        kind, _, name = external.partition(":")
        if kind == "field":
            made[name] = device.allocate(type_)
            executable.bind(external, made[name])
    return made


def not_finite_words(loss: float, norm: float) -> str:
    return f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"


def not_finite(message: str, node: Node | None) -> Error:
    notes = ["the update was not applied: parameters are those before the step"]
    if node is not None and node.op == "input":
        kind, name = node.attributes["kind"], node.attributes["name"]
        where = f"the data's field {name}" if kind == "field" else f"{kind} {name}"
        return Error("E-NUM-001", f"{message}: {where} holds a number that is not finite", notes=notes)
    if node is None or not node.origins:
        return Error("E-NUM-001", message, notes=notes)
    origin = node.origins[0]
    notes = [*origin.frames, *notes]
    return Error("E-NUM-001", message, origin.span, label=f"first becomes non-finite here ({node.op})", notes=notes)


def out_of_range(graph: Graph, problem: OutOfRange, step: int) -> Error:
    node = graph.nodes[problem.node]
    origin = node.origins[0] if node.origins else None
    message = f"index {problem.index} at step {step} is outside an axis of {problem.limit}"
    notes = [*(origin.frames if origin else ()), "the update was not applied"]
    span = origin.span if origin else None
    name = node.attributes["body"].name if "body" in node.attributes else node.op
    return Error("E-NUM-002", message, span, label=f"{name} reads an axis of {problem.limit}", notes=notes)
