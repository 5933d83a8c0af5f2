"""The graphs of a run's expressions: training, evaluations with their metrics, prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sexpgpu.errors import Error
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.lang.forms import Form
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.passes.elaboration.compile import Compiler, Layout
from sexpgpu.passes.elaboration.loaders import Loaders
from sexpgpu.passes.elaboration.losses import Mask, check_loss, extreme, loss_sums
from sexpgpu.passes.elaboration.machine import Context
from sexpgpu.passes.elaboration.options import Options
from sexpgpu.passes.elaboration.scope import Scope
from sexpgpu.passes.elaboration.values import POISON, Labelled, Problem, Value, describe
from sexpgpu.passes.experiment import Evaluation, Metric, RunOptions


def batch_of(spec: LoaderSpec | None, header: Header) -> int:
    """The rows of a loader's batch."""
    if spec is not None and spec.batch is not None:
        return int(spec.batch)
    return next(iter(header.fields.values())).shape[0]


def training_short(options: RunOptions, header: Header, spec: LoaderSpec | None) -> bool:
    """Whether a batch of the training data may have fewer real examples than rows."""
    batch = batch_of(spec, header)
    whole = options.global_batch or batch * (options.microbatches or 1)
    return whole % batch != 0 or (options.epochs is not None and header.count % whole != 0)


class Graphs:
    """The graphs of a run's expressions; `whole` says whether all of them came out."""

    def __init__(self, compiler: Compiler, loaders: Loaders, reader: Options, options: RunOptions) -> None:
        self.machine = compiler.machine
        self.compiler = compiler
        self.loaders = loaders
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
        real = (lambda: self._mask(options.data).real) if options.short else None
        value = self._value(form, self.training, options.data, Context(training=True, steps=True, real=real), in_loss=True)
        mask = self._mask(options.data) if options.short and value is not POISON else None
        self._sums(self.training, value, mask, form, "the loss", "loss", "weight")
        for name, (node, _) in self.machine.parameters.updates.items():
            self.training.outputs[f"update:{name}"] = node

    def _value(self, form: Form | None, graph: Graph, data: str, context: Context, in_loss: bool = False) -> Value:
        """The value of an expression of the run: scopes start at the root, the loader's fields are in scope."""
        if form is None:
            return POISON
        layout = Layout(False)
        layout.fields = self._fields(data)
        machine = self.machine
        machine.graph, machine.scope, machine.context = graph, Scope(), context
        machine.parameters.begin(in_loss)
        return machine.guarded(lambda: self.compiler.evaluate(form, layout), POISON)

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
            if total == "loss":
                check_loss(value)
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
        whole = [e.batches is None or e.batches * batch > header.count for e in evaluations]
        return header.count % batch != 0 and any(whole)

    def _metric(self, graph: Graph, metric: Metric, data: str, mask: Mask | None) -> None:
        form = self.compiler.program.definitions[metric.name].matched.one("EXPR")
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
