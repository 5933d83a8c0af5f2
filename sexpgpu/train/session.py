"""A run from its experiment to its folder: everything that is made ready before the first step, and the first words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import msgspec

from sexpgpu.device import Device, Lowering
from sexpgpu.dist.exchange import Exchange, SingleRank
from sexpgpu.dist.gradients import lanes_line
from sexpgpu.dist.reduction import MOST_LANES
from sexpgpu.errors import Error
from sexpgpu.passes.experiment import Experiment, Parameter, State, averaged, in_precision
from sexpgpu.settings import Settings
from sexpgpu.train.evaluation import Evaluator
from sexpgpu.train.feed import Feed, GivenBatches, given_feed, passing_feed, training_feed
from sexpgpu.train.inherit import from_files
from sexpgpu.train.model import Model, parameter_count
from sexpgpu.train.progress import size_words
from sexpgpu.train.step import Graphs, Step, compile_together

# Width of the names in the lowering report.
NAME_WIDTH = 26


class MemoryPlan(msgspec.Struct, frozen=True):
    """Bytes that the run holds at once, by what they are for; averages are `parameters`, too. `peak_at` is the graph whose
    values need most."""

    parameters: int
    optimizer: int
    gradients: int
    constants: int
    cached: int
    workspaces: int
    live: int
    peak_at: str

    @property
    def planned(self) -> int:
        parts = (
            self.parameters,
            self.optimizer,
            self.gradients,
            self.constants,
            self.cached,
            self.workspaces,
            self.live,
        )
        return sum(parts)


class Session(msgspec.Struct, frozen=True):
    """A run that is ready for its first step. `tokens_per_step`: examples where the data has no sequences."""

    experiment: Experiment
    settings: Settings
    device: Device
    model: Model
    step: Step
    evaluators: tuple[Evaluator, ...]
    total_steps: int
    tokens_per_example: int
    microbatches: int
    lowerings: Mapping[str, Lowering]
    memory: MemoryPlan
    exchange: Exchange


def prepare(
    experiment: Experiment,
    settings: Settings,
    device: Device,
    exchange: Exchange | None = None,
    batches: GivenBatches | None = None,
    graphs: Graphs | None = None,
) -> Session:
    """Plan and lower every graph of the run, evaluations included; no parameter has a value yet.

    `batches` replace those of the run's loader; `graphs` are the experiment's where they are known already.
    """
    exchange = exchange or SingleRank()
    experiment = in_precision(experiment, settings.precision)
    refuse_unready(experiment, settings)
    refuse_indivisible(experiment, exchange.world.size)
    options = experiment.options
    whole_epochs = options.epochs is not None and settings.steps is None
    spec = experiment.loaders[options.data]
    graphs = graphs or graphs_of(experiment)
    counts = options.microbatches, options.global_batch
    if batches is None:
        feed = training_feed(spec, graphs.training, settings.seed, settings.cache, *counts, whole_epochs)
    else:
        feed = given_feed(batches, experiment.headers[options.data], graphs.training, *counts)
    total = total_steps(experiment, settings, feed)
    # Before anything is allocated: what the parameters, states and averages alone need.
    held: tuple[Parameter | State, ...] = (*experiment.parameters, *experiment.states, *averaged(experiment))
    refuse_beyond_memory(bytes_of(held), device)
    model = Model(device, experiment)
    step = Step(device, experiment, graphs, model, feed, settings.seed, total, exchange)
    evaluators = tuple(_evaluators(experiment, settings, graphs, model, exchange))
    lowerings = {"train": step.training.lowering, "update": step.update.lowering}
    lowerings |= {e.evaluation.loader: e.executable.lowering for e in evaluators}
    memory = memory_plan(model, step, evaluators, lowerings)
    refuse_beyond_memory(memory.planned, device)
    compile_together(device, exchange)
    microbatches = feed.microbatches(1)
    tokens = spec.seq or 1
    return Session(
        experiment, settings, device, model, step, evaluators, total, tokens, microbatches, lowerings, memory, exchange
    )  # fmt: skip


def graphs_of(experiment: Experiment) -> Graphs:
    """The experiment's graphs after all passes."""
    from sexpgpu.passes.pipeline import evaluation_graphs, training_graph, update_graph

    return Graphs(training_graph(experiment), update_graph(experiment), evaluation_graphs(experiment))


def bytes_of(held: Iterable[Parameter | State]) -> int:
    """Of f32 tensors."""
    return sum(4 * prod(tensor.shape) for tensor in held)


def refuse_beyond_memory(needed: int, device: Device) -> None:
    if needed > device.free_bytes():
        message = f"the run needs {size_words(needed)}, {size_words(device.free_bytes())} are free"
        raise Error("E-MEM-001", message, notes=["a smaller :batch, or a smaller model"])


def refuse_indivisible(experiment: Experiment, ranks: int) -> None:
    """E-DP-003: `:microbatches` are shared out evenly; uneven shares exist only under `:global-batch`."""
    microbatches = experiment.options.microbatches
    if experiment.options.global_batch is None and microbatches is not None and microbatches % ranks:
        counts = ", ".join(str(n) for n in range(1, microbatches + 1) if microbatches % n == 0)
        raise Error(
            "E-DP-003",
            f"{microbatches} microbatches do not divide over {ranks} ranks",
            notes=[f"pick a device count that divides :microbatches: {counts}"],
        )


def refuse_unready(experiment: Experiment, settings: Settings) -> None:
    """What the language has and this version does not run is an error, never something else instead; so is a tensor that
    a parameter cannot begin with."""
    if settings.checkpoints is not None:
        notes = ["leave SEXPGPU_CHECKPOINTS unset: checkpoints go into the run folder"]
        raise Error("E-RUN-007", "checkpoints outside the run folder are not available yet", notes=notes)
    if settings.parallel == "jobs":
        raise Error("E-RUN-007", "parallel jobs are not available yet", notes=["leave it out, or take parallel = ddp"])
    dict(from_files(experiment))
    if not any(p.trainable for p in experiment.parameters):
        raise Error("E-RUN-007", "the loss has no parameter to train", notes=["see :loss and :freeze"])


def total_steps(experiment: Experiment, settings: Settings, feed: Feed) -> int:
    """`--steps`, else the run's steps, else those of its epochs."""
    if settings.steps is not None:
        return settings.steps
    assert experiment.options.epochs is not None
    return experiment.options.epochs * feed.portions.steps_per_epoch


def _evaluators(
    experiment: Experiment, settings: Settings, graphs: Graphs, model: Model, exchange: Exchange
) -> list[Evaluator]:
    made = []
    for evaluation in experiment.options.evaluations:
        graph = graphs.evaluations[evaluation.loader]
        feed = passing_feed(experiment.loaders[evaluation.loader], graph, settings.seed, settings.cache)
        made.append(Evaluator(model.device, model, evaluation, graph, feed, settings.seed, exchange))
    return made


def memory_plan(
    model: Model, step: Step, evaluators: tuple[Evaluator, ...], lowerings: Mapping[str, Lowering]
) -> MemoryPlan:
    """What the run holds. Graphs share one arena, as they never run at once: the largest counts."""
    peak_at = max(lowerings, key=lambda name: lowerings[name].arena_bytes)
    fields = [memory.type.size_bytes for memory in step.fields.values()]
    fields += [memory.type.size_bytes for evaluator in evaluators for memory in evaluator.fields.values()]
    return MemoryPlan(
        parameters=bytes_of((*model.experiment.parameters, *averaged(model.experiment))),
        optimizer=bytes_of(model.experiment.states),
        gradients=step.gradients.size_bytes,
        constants=0,
        cached=0,
        workspaces=sum(fields) + max(lowering.workspace_bytes for lowering in lowerings.values()),
        # Gradients land in the arena.
        live=max(lowerings[peak_at].arena_bytes - step.gradients.type.size_bytes, 0),
        peak_at=peak_at,
    )


def unit_of(session: Session) -> str:
    """What a step counts: tokens where the data has sequences, else examples."""
    return "tokens" if session.tokens_per_example > 1 else "examples"


def header(session: Session, source: str, digest: str) -> str:
    """The first words of a run: experiment, device, parameters, step."""
    experiment, feed = session.experiment, session.step.feed
    count = parameter_count(experiment)
    parameters = [p for p in experiment.parameters if not p.buffer]
    buffered = sum(prod(p.shape) for p in experiment.parameters if p.buffer)
    fixed = sum(prod(p.shape) for p in parameters if not p.trainable)
    trained = (f", {fixed:,} not trained" if fixed else "") + (f", {buffered:,} in buffers" if buffered else "")
    tokens = feed.portions.step_examples * session.tokens_per_example
    shape = f"{session.microbatches} × {feed.portions.batch}" + (
        f" × {session.tokens_per_example}" if session.tokens_per_example > 1 else ""
    )
    rows = {
        "experiment": f"{experiment.name} ({source}), hash {digest[:8]}",
        "device": f"{session.device.description}, {counted(session.exchange.world.size, 'rank')}",
        "parameters": f"{count:,} in {counted(len(parameters), 'tensor')}{trained}",
        "a step": f"{tokens:,} {unit_of(session)} ({shape}), {counted(session.total_steps, 'step')}",
    }
    if experiment.options.batch_by_ranks:
        share = f":global-batch {experiment.options.global_batch} / {counted(session.exchange.world.size, 'rank')}"
        rows["batch"] = f"{feed.portions.batch} = {share}: another rank count gives other bits"
    if experiment.options.ema is not None:
        rows["averages"] = f":ema {experiment.options.ema:g}: evaluation uses them in place of the parameters"
    lanes = lanes_line(session.microbatches, session.exchange.world.size, experiment.options.sum_lanes or MOST_LANES)
    if lanes:
        rows["lanes"] = lanes
    return "\n".join(f"{name:<12}{words}" for name, words in rows.items())


def counted(number: int, word: str) -> str:
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def lowering_report(session: Session) -> str:
    """The report of the devices page."""
    lines = [f"lowering: {session.device.description}"]
    for name, lowering in session.lowerings.items():
        lines.append(report_row(name, lowering_words(lowering)))
        lines += [report_row("", note) for note in lowering.notes]
    if session.step.scale.dynamic:
        lines.append(report_row("loss scale", session.step.scale.words()))
    memory = f"{size_words(session.memory.planned)} of {size_words(session.device.free_bytes())} free"
    return "\n".join(
        [*lines, report_row("memory", memory), report_row("stacking", "1: a call of the graph is one microbatch")]
    )


def report_row(name: str, words: str) -> str:
    return f"  {name:<{NAME_WIDTH - 2}}  {words}".rstrip()


def lowering_words(lowering: Lowering) -> str:
    words = f"{lowering.nodes} nodes, {lowering.kernels} kernels ({lowering.fused} fused)"
    if lowering.products:
        words += f", {lowering.products} products ({lowering.product_engine})"
    return words


def memory_line(peak: int, planned: int) -> str:
    """The last line of a run."""
    change = (peak / planned - 1) * 100 if planned else 0.0
    return f"memory: peak {size_words(peak)} of {size_words(planned)} planned ({change:+.1f}%)"


def memory_annotation(session: Session) -> dict[str, Any]:
    memory = session.memory
    return {
        "kind": "annotation",
        "name": "memory",
        "parameters": memory.parameters,
        "optimizer": memory.optimizer,
        "gradients": memory.gradients,
        "constants": memory.constants,
        "cached": memory.cached,
        "workspaces": memory.workspaces,
        "live": memory.live,
        "planned": memory.planned,
        "free": session.device.free_bytes(),
        "peak_at": memory.peak_at,
    }
