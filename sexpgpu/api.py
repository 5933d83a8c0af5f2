"""The Python face: `load`, `Experiment`, `Run`, and a compiled step for a loop of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.device import Counter, choose, open_device
from sexpgpu.errors import Error, nearest
from sexpgpu.lang.program import Program
from sexpgpu.passes import experiment as elaborated
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.settings import Settings
from sexpgpu.train.launch import Request, early_settings, final_settings, read_experiment, run
from sexpgpu.train.metrics import Record, read_metrics
from sexpgpu.train.model import Model, initial_parameters
from sexpgpu.train.progress import Progress
from sexpgpu.train.step import bind_fields, nominal_weight, out_of_range

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
        """The initial parameters, {name: float32 array}; by default with the run's seed."""
        return initial_parameters(self.elaborated, self.elaborated.options.seed if seed is None else seed)

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

    def _asking(self, flags: Mapping[str, Any]) -> Request:
        r = self.request
        return Request(r.file, r.variants, r.sets, r.run, {**r.flags, **flags}, r.name, r.allow_outside)


class CompiledStep:
    """`step(params, batch, step=1, seed=0, microbatch=0)` gives (loss, grads) of that microbatch, before clipping."""

    def __init__(self, experiment: elaborated.Experiment, settings: Settings) -> None:
        self._experiment = experiment
        self._settings = settings
        self._device = open_device(choose(settings), settings)
        self._graph = training_graph(experiment)
        self._model = Model(self._device, experiment)
        self._nominal = nominal_weight(experiment.training)
        self._seed: int | None = None
        self._gradients: dict[str, Any] = {}

    def __call__(
        self, params: Arrays, batch: Arrays, step: int = 1, seed: int = 0, microbatch: int = 0
    ) -> tuple[float, dict[str, NDArray[np.float32]]]:
        """The mean loss Σ L·W / Σ W of the microbatch and its gradient by every trainable parameter."""
        self._prepare(seed)
        for name, memory in self._model.parameters.items():
            self._device.write(memory, _fitting(params, name, memory.type.shape, np.float32, "parameter"))
        for name, memory in self._fields.items():
            self._device.write(memory, self._field(batch, name, memory.type.shape))
        total = self._experiment.options.steps or 0
        hosts = {"step": step, "updates": step, "total-steps": total, "loss-scale": 1.0 / self._nominal}
        self._executable.run(hosts, Counter(microbatch, step))
        for problem in self._executable.out_of_range():
            raise out_of_range(self._graph, problem, step)
        weight = float(self._executable.output("weight"))
        scale = np.float32(self._nominal / weight) if weight else np.float32(np.nan)
        gradients = {name: self._device.read(memory) * scale for name, memory in self._gradients.items()}
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
            if kind == "gradient":
                self._gradients[parameter] = self._device.allocate(type_)
                self._executable.bind(name, self._gradients[parameter])
        self._seed = seed

    def _field(self, batch: Arrays, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        if name == "real" and name not in batch:
            return np.ones(shape, bool)
        return _fitting(batch, name, shape, None, "field")


def _fitting(arrays: Arrays, name: str, shape: tuple[int, ...], dtype: Any, what: str) -> NDArray[Any]:
    """The array of a name, checked to have the shape the graph was made for."""
    if name not in arrays:
        close = nearest(name, list(arrays))
        raise Error("E-RUN-004", f"{what} {name} is missing", notes=[f"there is {close}"] if close else [])
    array = np.asarray(arrays[name], dtype)
    if array.shape != shape:
        raise Error("E-RUN-004", f"{what} {name} has shape {list(array.shape)}, {list(shape)} is needed")
    return array
