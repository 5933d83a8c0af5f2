"""Elaboration: a program becomes an experiment, its graphs typed and every compile-time value folded.

Nothing of a data file but its header is read. Every problem of the file is found in one pass.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.lang.forms import Form
from sexpgpu.lang.program import Definition, Program
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.passes.elaboration.compile import Compiler, Layout
from sexpgpu.passes.elaboration.loaders import HeaderReader, Loaders, Wrong
from sexpgpu.passes.elaboration.losses import Mask, extreme, loss_sums
from sexpgpu.passes.elaboration.machine import Context, Machine
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC
from sexpgpu.passes.elaboration.options import PRECISIONS, Options, chosen_run
from sexpgpu.passes.elaboration.scope import Scope
from sexpgpu.passes.elaboration.special import assertion
from sexpgpu.passes.elaboration.updates import freeze, learning_rate, optimizer_choices, update_graph
from sexpgpu.passes.elaboration.values import POISON, Labelled, Problem, Value, describe
from sexpgpu.passes.experiment import Evaluation, Experiment, Metric, RunOptions

# Calls may be nested 1,000 deep and forms inside each function, too; Python counts each step of both.
_RECURSION_LIMIT = 120_000


def elaborate(program: Program, read_header: HeaderReader, *, steps: int | None = None) -> Experiment:
    """The experiment of a program's chosen run. Raises Diagnostics with every problem found.

    `read_header` says what a loader's files hold; `steps` wins over the run's :steps or :epochs.
    """
    elaboration = _Elaboration(program, read_header)
    with _deep_recursion():
        made = elaboration.run(steps)
    errors = elaboration.machine.errors
    if errors or made is None:
        assert errors, "no experiment and no problem"
        raise Diagnostics(in_order(program, errors))
    return made


def in_order(program: Program, errors: Sequence[Error]) -> list[Error]:
    """Errors in the order of the files' text; those without a place first."""
    places = {id(source): k for k, source in enumerate(program.sources)}
    return sorted(errors, key=lambda e: (-1, 0) if e.span is None else (places.get(id(e.span.source), -1), e.span.start))


@contextmanager
def _deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


_Made = TypeVar("_Made")


class _Elaboration:
    def __init__(self, program: Program, read_header: HeaderReader) -> None:
        self.program = program
        self.machine = Machine()
        self.compiler = Compiler(program, self.machine, BUILTINS, CONSTANTS, DYNAMIC)
        self.loaders = Loaders(program, self.compiler, read_header)
        for error in program.problems:
            self.machine.report(error)

    def run(self, steps: int | None) -> Experiment | None:
        self._definitions()
        made = self._guarded(lambda: self._experiment(steps))
        for definition in self.program.of_kind("loader"):
            self.loaders.spec(definition.name)
        return made

    def _guarded(self, take: Callable[[], _Made]) -> _Made | None:
        """The result; None where a problem (reported) leaves none."""
        try:
            return take()
        except Wrong:
            pass
        except Error as error:
            self.machine.report(error)
        except RecursionError:
            run = self.program.of_kind("run")
            span = run[0].form.span if run else None
            self.machine.report(Error("E-SYN-003", "forms and calls are nested too deeply", span))
        return None

    def _definitions(self) -> None:
        """What stands at the top of the files: every function compiled, every value made."""
        self._guarded(self.compiler.check_all)
        for definition in self.program.definitions.values():
            if definition.kind == "hyper":
                self._guarded(lambda d=definition: self.compiler.hyper(d))  # type: ignore[misc]
            elif definition.kind == "def":
                self._guarded(lambda d=definition: self.compiler.definition(d, d.form.span))  # type: ignore[misc]
        for matched in self.program.asserts:
            layout = Layout(False)
            code = assertion(self.compiler, matched.form, layout)
            self._guarded(lambda c=code, n=layout.size: c([None] * n[0]))  # type: ignore[misc]

    def _experiment(self, steps: int | None) -> Experiment | None:
        machine = self.machine
        machine.context = Context(training=None, steps=True)
        run = chosen_run(self.program)
        reader = Options(self.program, run, self.loaders)
        options = run_options(reader, self.loaders, steps)
        graphs = Graphs(self, reader, options) if options is not None else None
        choices = self._guarded(lambda: optimizer_choices(self.compiler, reader.need("optimizer")))
        if graphs is None or options is None or not graphs.whole or choices is None:
            return None
        parameters = freeze(machine.parameters.model, reader.frozen())
        update, states = update_graph(machine, [p for p in parameters if p.trainable], choices)
        names = {options.data, *(e.loader for e in options.evaluations)}
        specs = {name: self.loaders.spec(name) for name in names}
        headers = {name: self.loaders.header(name) for name in names}
        return Experiment(
            name=run.name,
            options=options,
            parameters=tuple(parameters),
            states=tuple(states),
            loaders={name: spec for name, spec in specs.items() if spec is not None},
            headers={name: header for name, header in headers.items() if header is not None},
            training=graphs.training,
            evaluations=graphs.evaluations,
            predict=graphs.predict,
            update=update,
            learning_rate=learning_rate(choices),
        )


def run_options(reader: Options, loaders: Loaders, steps: int | None) -> RunOptions | None:
    """The options of the run; None where there is no data to elaborate it on."""
    machine, keys = reader.machine, reader.keys
    if steps is not None:
        keys.pop("epochs", None)
    for one, other in (("steps", "epochs"), ("microbatches", "global-batch")):
        if one in keys and other in keys:
            machine.report(Error("E-RUN-003", f":{one} and :{other} exclude each other", keys[other].span))
    step_count = steps if steps is not None else reader.read("steps", reader.count("steps", 0), None)
    epochs = reader.read("epochs", reader.count("epochs", 1), None)
    if steps is None and "steps" not in keys and "epochs" not in keys:
        note = "a run needs :data, :loss, :optimizer, and :steps or :epochs"
        message = f"the run {reader.run.name} has neither :steps nor :epochs"
        machine.report(Error("E-RUN-001", message, reader.run.form.span, notes=[note]))
    global_batch = reader.read("global-batch", reader.count("global-batch", 1), None)
    loaders.default_batch = global_batch
    microbatches = reader.read("microbatches", reader.count("microbatches", 1), None if global_batch else 1)
    if "init" in keys:
        machine.report(Error("E-RUN-004", ":init is not there yet", keys["init"].span))
    data = reader.guarded(lambda: loaders.named(reader.need("data"), ":data"), None)
    made = RunOptions(
        data=data or "",
        steps=step_count,
        epochs=epochs,
        microbatches=microbatches,
        global_batch=global_batch,
        clip_grad_norm=reader.read("clip-grad-norm", reader.expression, None),
        precision=reader.read("precision", lambda form: reader.word(form, PRECISIONS, ":precision"), "off"),
        ema=reader.read("ema", reader.fraction("ema"), None),
        evaluations=reader.evaluations(),
        checkpoint=reader.checkpoint(),
        stop=reader.stop(),
        diagnostics=reader.diagnostics(),
        log_every=reader.read("log-every", reader.count("log-every", 1), 1),
        sum_lanes=reader.read("sum-lanes", reader.count("sum-lanes", 1), None),
        seed=reader.read("seed", reader.count("seed", 0), 0),
    )
    header = loaders.header(data) if data is not None else None
    for key in ("loss", "optimizer"):
        reader.guarded(lambda k=key: reader.need(k), None)  # type: ignore[misc]
    if header is None:
        return None
    return replace(made, short=_training_short(made, header, loaders.spec(data or "")))


def _training_short(options: RunOptions, header: Header, spec: LoaderSpec | None) -> bool:
    """Whether a batch of the training data may have fewer real examples than rows."""
    batch = batch_of(spec, header)
    whole = options.global_batch or batch * (options.microbatches or 1)
    return whole % batch != 0 or (options.epochs is not None and header.count % whole != 0)


def batch_of(spec: LoaderSpec | None, header: Header) -> int:
    """The rows of a loader's batch."""
    if spec is not None and spec.batch is not None:
        return int(spec.batch)
    return next(iter(header.fields.values())).shape[0]


class Graphs:
    """The graphs of a run's expressions; `whole` says whether all of them came out."""

    def __init__(self, elaboration: _Elaboration, reader: Options, options: RunOptions) -> None:
        self.machine = elaboration.machine
        self.compiler = elaboration.compiler
        self.loaders = elaboration.loaders
        self.guarded = elaboration._guarded
        self.reader = reader
        self.whole = True
        self.training = Graph("training")
        self._training(options)
        by_loader: dict[str, list[Evaluation]] = {}
        for evaluation in options.evaluations:
            by_loader.setdefault(evaluation.loader, []).append(evaluation)
        self.evaluations: Mapping[str, Graph] = {
            name: self._evaluation(name, evaluations) for name, evaluations in by_loader.items()
        }
        self.predict = self._predict(options)

    def _training(self, options: RunOptions) -> None:
        form = self.reader.keys.get("loss")
        value = self._value(form, self.training, options.data, Context(training=True, steps=True), in_loss=True)
        mask = self._mask(options.data) if options.short and value is not POISON else None
        self._sums(self.training, value, mask, form, "the loss", "loss", "weight")

    def _value(self, form: Form | None, graph: Graph, data: str, context: Context, in_loss: bool = False) -> Value:
        """The value of an expression of the run: scopes start at the root, the loader's fields are in scope."""
        if form is None:
            return POISON
        layout = Layout(False)
        layout.fields = self._fields(data)
        machine = self.machine
        machine.graph, machine.scope, machine.context = graph, Scope(), context
        machine.parameters.begin(in_loss)
        value = self.guarded(lambda: self.compiler.evaluate(form, layout))
        return POISON if value is None else value

    def _fields(self, name: str) -> Mapping[str, Callable[[], Value]]:
        header, spec = self.loaders.header(name), self.loaders.spec(name)
        if header is None:
            return {}
        batch = batch_of(spec, header)
        made: dict[str, Callable[[], Value]] = {"real": lambda: self._field("real", "bool", (batch,), spec)}
        for field_name, field in header.fields.items():
            made[field_name] = lambda n=field_name, f=field: self._field(n, f.dtype, f.shape, spec)  # type: ignore[misc]
        return made

    def _field(self, name: str, dtype: str, shape: tuple[int, ...], spec: LoaderSpec | None) -> Node:
        attributes = {"kind": "field", "name": name, "dtype": dtype, "shape": tuple([int(n) for n in shape])}
        labels: list[str | None] = [None] * len(shape)
        sizes = (("batch", spec.batch), ("seq", spec.seq)) if spec is not None else ()
        for axis, (word, value) in enumerate(sizes[: len(shape)]):
            if value is not None and value == shape[axis]:
                labels[axis] = value.label if isinstance(value, Labelled) else word
        return self.machine.graph.add("input", (), attributes, labels=tuple(labels))

    def _mask(self, data: str) -> Mask:
        node = self._fields(data)["real"]()
        assert isinstance(node, Node)
        return Mask(node)

    def _sums(
        self, graph: Graph, value: Value, mask: Mask | None, form: Form | None, what: str, total: str, count: str
    ) -> None:
        if value is POISON or form is None:
            self.whole = False
            return
        try:
            graph.outputs[total], graph.outputs[count] = loss_sums(graph, value, mask, what)
        except Problem as problem:
            self.machine.problem(problem, form.span)
            self.whole = False

    def _evaluation(self, name: str, evaluations: Sequence[Evaluation]) -> Graph:
        graph = Graph(f"evaluation-{name}")
        form = self.reader.keys.get("loss")
        header = self.loaders.header(name)
        if header is None:
            self.whole = False
            return graph
        value = self._value(form, graph, name, Context(training=False, steps=True))
        mask = self._mask(name) if self._short(evaluations, header, name) and value is not POISON else None
        self._sums(graph, value, mask, form, "the loss", "loss", "weight")
        for metric in dict.fromkeys([m for e in evaluations for m in e.metrics]):
            self._metric(graph, metric, name, mask)
        return graph

    def _short(self, evaluations: Sequence[Evaluation], header: Header, name: str) -> bool:
        """Whether a batch of an evaluation may have fewer real examples than rows."""
        batch = batch_of(self.loaders.spec(name), header)
        return header.count % batch != 0 and any([e.batches is None or e.batches * batch > header.count for e in evaluations])

    def _metric(self, graph: Graph, metric: Metric, data: str, mask: Mask | None) -> None:
        form = self._definition(metric.name).matched.one("EXPR")
        value = self._value(form, graph, data, Context(training=False))
        total, count = f"metric:{metric.name}", f"metric-weight:{metric.name}"
        if metric.reduce in ("mean", "sum") or value is POISON:
            self._sums(graph, value, mask, form, f"the metric {metric.name}", total, count)
            return
        try:
            graph.outputs[total] = extreme(graph, value, mask, metric.reduce, f"the metric {metric.name}")
            graph.outputs[count] = graph.constant(1.0, "f32")
        except Problem as problem:
            self.machine.problem(problem, form.span)
            self.whole = False

    def _definition(self, name: str) -> Definition:
        return self.compiler.program.definitions[name]

    def _predict(self, options: RunOptions) -> Graph | None:
        form = self.reader.keys.get("predict")
        if form is None:
            return None
        graph = Graph("predict")
        value = self._value(form, graph, options.data, Context(training=False))
        if not isinstance(value, Node):
            self.whole = False
            if value is not POISON:
                message = f":predict is a tensor, not {describe(value)}"
                self.machine.report(Error("E-TYPE-001", message, form.span))
            return None
        graph.outputs["predict"] = value
        return graph
