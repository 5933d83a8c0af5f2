"""The Python face: `load`, `Experiment`, `Run`; a trainer and a compiled gradient for a loop of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sexpgpu.device import Counter, Device, choose, open_device
from sexpgpu.errors import Error, nearest
from sexpgpu.ir.facts import nominal_weight
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.program import Program
from sexpgpu.passes import experiment as elaborated
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.settings import Settings
from sexpgpu.train.feed import REAL, GivenBatches, fitting
from sexpgpu.train.inherit import Reading, begun, inherited, located
from sexpgpu.train.launch import run
from sexpgpu.train.metrics import Record, read_metrics
from sexpgpu.train.model import Model
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request, early_settings, final_settings, read_experiment
from sexpgpu.train.scaling import LossScale
from sexpgpu.train.session import lowering_report, memory_line, prepare
from sexpgpu.train.step import StepResult, bind_fields, out_of_range

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, last loss and records."""

    path: Path
    loss: float | None
    metrics: list[Record]


def load(
    path: str | os.PathLike[str],
    variant: str | tuple[str, ...] = (),
    set: Mapping[str, Any] | None = None,
    run: str | None = None,
) -> Experiment:
    """Read and elaborate a file. Raises sexpgpu.Diagnostics with every problem found."""
    variants = (variant,) if isinstance(variant, str) else tuple(variant)
    sets = tuple(f"{key}={_written(value)}" for key, value in (set or {}).items())
    request = Request(Path(path), variants, sets, run)
    program, experiment = read_experiment(request, early_settings(request))
    return Experiment(request, program, experiment)


def _written(value: Any) -> str:
    """A Python value as the language writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(_written, value))}]"
    return str(value)


@dataclass(frozen=True)
class Experiment:
    """An experiment that was loaded. `elaborated` holds its graphs, parameters and options."""

    request: Request
    program: Program
    elaborated: elaborated.Experiment

    @property
    def name(self) -> str:
        return self.elaborated.name

    def init(self, seed: int | None = None) -> dict[str, NDArray[np.float32]]:
        """The initial parameters and buffers, {name: float32 array}; by default with the run's seed. What `:init` says
        begins as there."""
        settings = final_settings(self._asking({"seed": seed}), self.elaborated)
        return dict(begun(self.elaborated, settings.seed, settings.threads, given_by_init(self.elaborated, settings)))

    def train(
        self,
        device: str | None = None,
        steps: int | None = None,
        seed: int | None = None,
        out: str | os.PathLike[str] | None = None,
        quiet: bool = True,
    ) -> Run:
        """Train as `sexpgpu run` does, into a new run folder."""
        flags = {"device": device, "steps": steps, "seed": seed, "out": None if out is None else os.fspath(out)}
        outcome = run(self._asking(flags), Progress(quiet))
        return Run(outcome.path, outcome.loss, read_metrics(outcome.path / "metrics.jsonl"))

    def compile(self, device: str | None = None) -> CompiledStep:
        """The gradient of one microbatch as a function, for a loop of one's own."""
        request = self._asking({"device": device})
        return CompiledStep(self.elaborated, final_settings(request, self.elaborated))

    def trainer(
        self,
        device: str | None = None,
        seed: int | None = None,
        steps: int | None = None,
        threads: int | None = None,
        precision: str | None = None,
        batches: GivenBatches | None = None,
        parameters: Arrays | None = None,
    ) -> Trainer:
        """The run's own steps for a loop of one's own: what `sexpgpu run` does a step, and no folder.

        `batches` replace those of `:data`: an iterable of {field: array}, one a microbatch, or a function of (step,
        microbatch) that gives one. A short microbatch says with the field `real`, bool[batch], which rows count.
        `parameters` are initial values by name; the seed gives the others.
        """
        flags = {"device": device, "seed": seed, "steps": steps, "threads": threads, "precision": precision}
        return Trainer(self.elaborated, final_settings(self._asking(flags), self.elaborated), batches, parameters or {})

    def _asking(self, flags: Mapping[str, Any]) -> Request:
        r = self.request
        return Request(r.file, r.variants, r.sets, r.run, {**r.flags, **flags}, r.name, r.allow_outside)


def open_untimed(settings: Settings) -> Device:
    """The settings' device. Times are gathered for a run's report alone."""
    return open_device(choose(settings), replace(settings, timings=False))


def given_by_init(experiment: elaborated.Experiment, settings: Settings) -> Mapping[str, Reading]:
    """The values that the run's `:init` gives."""
    init = experiment.options.init
    if init is None:
        return {}
    return inherited(experiment, init, located(init, settings.out, lambda line: None)).taken


class Trainer:
    """A run that is ready for its first step, and then for each next one, with the initial values of its seed.

    It is one process's: under a launcher the caller owns what the ranks do together.
    """

    def __init__(
        self, experiment: elaborated.Experiment, settings: Settings, batches: GivenBatches | None, parameters: Arrays
    ) -> None:
        device = open_untimed(settings)
        self._session = prepare(experiment, settings, device, batches=batches)
        given = dict(given_by_init(experiment, settings))
        given |= {name: partial(np.asarray, value) for name, value in self._fitting(parameters).items()}
        self._session.model.start(begun(experiment, settings.seed, settings.threads, given, device.normals))
        self.steps_done = 0

    def step(self) -> StepResult:
        """Train one step: loss, weight, gradient norm and learning rate. Raises E-NUM-001 and E-NUM-002 before the
        update; the parameters are then those before the step, which is not counted. Under float16 a step that is not
        `applied` was skipped, and counts."""
        result = self._session.step.run(self.steps_done + 1)
        self.steps_done += 1
        return result

    @property
    def parameters(self) -> dict[str, NDArray[np.float32]]:
        """{name: float32 array}, copies. Set to such a mapping, it writes the parameters named in it and no others."""
        return self._session.model.read_parameters()

    @parameters.setter
    def parameters(self, values: Arrays) -> None:
        model = self._session.model
        for name, value in self._fitting(values).items():
            model.device.write(model.parameters[name], value)

    @property
    def averages(self) -> dict[str, NDArray[np.float32]]:
        """{name: float32 array} of the parameters that `:ema` averages, copies; empty without it. They begin as the
        initial values do, and only steps change them."""
        return self._session.model.read_averages()

    def _fitting(self, values: Arrays) -> dict[str, NDArray[Any]]:
        """The values, each checked to be one of the run's parameters and to have its shape."""
        held = self._session.model.parameters
        for name in values:
            if name not in held:
                close = nearest(name, list(held))
                notes = [f"did you mean {close}?"] if close else []
                raise Error("E-RUN-004", f"there is no parameter {name}", notes=notes)
        return {name: fitting(values, name, held[name].type, "parameter") for name in values}

    @property
    def lowering(self) -> str:
        """The lowering report, as a run prints it before its first step."""
        return lowering_report(self._session)

    @property
    def memory(self) -> str:
        """The peak so far against the plan, as a run prints it at its end."""
        return memory_line(self._session.device.peak_bytes(), self._session.memory.planned)


class CompiledStep:
    """`step(params, batch, step=1, seed=0, microbatch=0)` gives (loss, grads) of that microbatch, before clipping.

    Buffers are read from `params`, too. `updates` then holds what the call's `(update B V)` gave, {name of B: V}: the
    caller takes their mean over a step's microbatches.
    """

    def __init__(self, experiment: elaborated.Experiment, settings: Settings) -> None:
        self._experiment = experiment = elaborated.in_precision(experiment, settings.precision)
        self._settings = settings
        self._device = open_untimed(settings)
        self._graph = training_graph(experiment)
        self._model = Model(self._device, experiment)
        self._nominal = nominal_weight(experiment.training)
        self._seed: int | None = None
        self._gradients: dict[str, Any] = {}
        self._updates: dict[str, Any] = {}

    @property
    def updates(self) -> dict[str, NDArray[np.float32]]:
        """What the last call gave for buffers."""
        return {name: self._device.read(memory) for name, memory in self._updates.items()}

    def __call__(
        self, params: Arrays, batch: Arrays, step: int = 1, seed: int = 0, microbatch: int = 0
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """The mean loss Σ L·W / Σ W of the microbatch and its gradient by every trainable parameter.

        Under float16 the loss is scaled as in the first steps of a run: by the largest power of two, 2¹⁶ to 1, with which
        all is finite; what is given is unscaled.
        """
        self._prepare(seed)
        for name, memory in self._model.parameters.items():
            self._device.write(memory, fitting(params, name, memory.type, "parameter"))
        for name, memory in self._fields.items():
            self._device.write(memory, self._field(batch, name, memory.type))
        scale = LossScale(self._experiment.options.precision)
        loss, gradients = self._run(scale.value, step, microbatch)
        while scale.may_skip and not (np.isfinite(loss) and all(np.isfinite(g).all() for g in gradients.values())):
            scale.skip()
            loss, gradients = self._run(scale.value, step, microbatch)
        return loss, gradients

    def _run(self, scale: float, step: int, microbatch: int) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """The loss and its gradients, computed with the loss scaled."""
        total = self._experiment.options.steps or 0
        hosts = {"step": step, "updates": step, "total-steps": total, "loss-scale": scale / self._nominal}
        self._executable.run(hosts, Counter(microbatch, step))
        for problem in self._executable.out_of_range():
            raise out_of_range(self._graph, problem, step)
        weight = float(self._executable.output("weight"))
        correction = np.float32(self._nominal / weight / scale) if weight else np.float32(np.nan)
        gradients = {name: self._device.read(memory) * correction for name, memory in self._gradients.items()}
        loss = float(self._executable.output("loss")) / weight if weight else float("nan")
        return loss, gradients

    def _prepare(self, seed: int) -> None:
        """Load the graph, again only for another seed: draws are keyed when a graph is loaded."""
        if seed == self._seed:
            return
        self._executable = self._device.prepare(self._graph, seed)
        self._model.bind(self._executable)
        self._fields = bind_fields(self._device, self._executable)
        for name, type_ in self._executable.externals.items():
            kind, _, parameter = name.partition(":")
            into = {"gradient": self._gradients, "update": self._updates}.get(kind)
            if into is not None:
                into[parameter] = self._device.allocate(type_)
                self._executable.bind(name, into[parameter])
        self._seed = seed

    def _field(self, batch: Arrays, name: str, type: TensorType) -> NDArray[Any]:
        if name == REAL and name not in batch:
            return np.ones(type.shape, bool)
        return fitting(batch, name, type, "field")
