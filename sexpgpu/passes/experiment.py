"""What elaboration gives: an experiment's graphs, its parameters and states, and the evaluated options of its run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from sexpgpu.initial import Initializer
from sexpgpu.ir.graph import Graph, Origin
from sexpgpu.ir.host import Expression
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.source import Span

Reduce = Literal["mean", "sum", "max", "min"]


class Parameter(msgspec.Struct, frozen=True):
    """One parameter, f32[shape]. `decay`: whether `decays?` holds; `labels` say where its sizes came from. A `buffer` is
    held, saved and read like a parameter and never trained."""

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    decay: bool
    trainable: bool
    origin: Origin
    labels: tuple[str | None, ...] = ()
    buffer: bool = False


class State(msgspec.Struct, frozen=True):
    """One optimizer state of one parameter: f32[shape], filled with one number at the start."""

    parameter: str
    name: str
    shape: tuple[int, ...]
    fill: float


class Metric(msgspec.Struct, frozen=True):
    """`mean`: Σ metric / Σ weight over the batches; `sum max min`: the batches' values folded, the weight is not read."""

    name: str
    reduce: Reduce
    span: Span


class Evaluation(msgspec.Struct, frozen=True):
    """`(every 200 held-out :batches 20 :metrics [accuracy])`; `batches` None: the whole loader."""

    every: int
    loader: str
    batches: int | None
    metrics: tuple[Metric, ...]
    span: Span


class Checkpoint(msgspec.Struct, frozen=True):
    """`(every 500 :keep 3 :best held-out/loss min)`; `best` is (record, min or max)."""

    every: int
    keep: int | None = None
    best: tuple[str, str] | None = None
    minutes: float | None = None
    to: str | None = None


class Stop(msgspec.Struct, frozen=True):
    """`(patience 5 held-out/loss)`: so many evaluations without a lower value end the run."""

    patience: int
    record: str


class Init(msgspec.Struct, frozen=True):
    """`(from RUN|PATH :rename (("old.*" "new.*")…) :strict false :raw false)`: the tensors that parameters begin with.

    `source` is a run of the file (`run`), else a path relative to `base`, an id or its beginning, or `latest`. `strict`:
    every parameter is there and everything is used. `raw`: the parameters of a run that has averages, not those."""

    source: str
    run: bool = False
    base: Path = Path()
    rename: tuple[tuple[str, str], ...] = ()
    strict: bool = False
    raw: bool = False
    span: Span | None = None


class RunOptions(msgspec.Struct, frozen=True):
    """A run's options, evaluated. Exactly one of `steps` and `epochs` is set, and at most one of `microbatches` (set
    where neither is given) and `global_batch`. `clip_grad_norm` may depend on the step. `short`: a batch of the training
    data may have fewer real examples than rows, and the training graph reads the field `real`. `batch_by_ranks`: its batch is
    a rank's share of `global_batch`, as the loader has none."""

    data: str
    steps: int | None
    epochs: int | None
    microbatches: int | None
    global_batch: int | None
    clip_grad_norm: Expression | None
    precision: Literal["off", "bfloat16", "float16"]
    ema: float | None
    evaluations: tuple[Evaluation, ...]
    checkpoint: Checkpoint | None
    stop: Stop | None
    diagnostics: tuple[str, ...]
    log_every: int
    sum_lanes: int | None
    seed: int
    short: bool = False
    init: Init | None = None
    batch_by_ranks: bool = False


class Experiment(msgspec.Struct, frozen=True):
    """Everything that a run needs to know of its file.

    training     outputs `loss` (f32[], Σ of the loss over all real elements, or Σ L·W), `weight` (f32[], how many, or Σ W)
                 and, for every buffer that `:loss` updates, `update:NAME`: V of one microbatch
    evaluations  loader → graph with `training` false: `loss`, `weight`, and per metric `metric:NAME`, `metric-weight:NAME`;
                 a graph that reads the field `real` (bool[batch]) masks the rows that repeat the last example
    predict      output `predict`, or None
    update       inputs of kind parameter, gradient (the step's mean gradient; the graph scales it by the host scalar
                 ("runtime", "gradient-scale")), state and update (Σ V over the step's microbatches; the graph divides it by
                 ("runtime", "microbatches")); outputs `parameter:NAME`, `state:NAME:STATE`, `buffer:NAME`; under
                 `:ema` inputs of kind average and outputs `average:NAME`, too
    learning_rate  the value of `:lr` of the (else) optimizer at a step, None without one
    headers      what each used loader's header says
    warnings     what is allowed and perhaps not meant, each with its place
    """

    name: str
    options: RunOptions
    parameters: tuple[Parameter, ...]
    states: tuple[State, ...]
    loaders: Mapping[str, LoaderSpec]
    headers: Mapping[str, Header]
    training: Graph
    evaluations: Mapping[str, Graph]
    predict: Graph | None
    update: Graph
    learning_rate: Expression | None
    warnings: tuple[str, ...] = ()


def averaged(experiment: Experiment) -> tuple[Parameter, ...]:
    """The parameters of which `:ema` keeps averages: those that are trained."""
    return () if experiment.options.ema is None else tuple(p for p in experiment.parameters if p.trainable)


def in_precision(experiment: Experiment, precision: Any) -> Experiment:
    """The experiment as a launch trains it, whose `--precision` wins over the run's."""
    return replace(experiment, options=replace(experiment.options, precision=precision))
