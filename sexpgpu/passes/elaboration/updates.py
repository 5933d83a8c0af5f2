"""The update graph: the optimizer elaborated once for each trainable parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sexpgpu.errors import Error, nearest
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import Expression
from sexpgpu.lang.forms import Form, Listing, Symbol, Text
from sexpgpu.passes.elaboration.compile import Compiler
from sexpgpu.passes.elaboration.lowering import broadcast, fill, fitting
from sexpgpu.passes.elaboration.machine import Context, Machine, UpdateState, Wrong
from sexpgpu.passes.elaboration.scope import Parameters, Scope
from sexpgpu.passes.elaboration.values import POISON, OptimizerCall, Problem, Scalar, Value, describe, is_number, plain
from sexpgpu.passes.experiment import Parameter, State
from sexpgpu.source import Span

GRADIENT_SCALE = ("runtime", "gradient-scale")
MICROBATCHES = ("runtime", "microbatches")


def glob(pattern: str) -> re.Pattern[str]:
    """`*` matches any characters, dots included."""
    return re.compile(".*".join([re.escape(part) for part in pattern.split("*")]) + r"\Z", re.DOTALL)


# Which optimizer has which parameters: (pattern, optimizer) in order, the last pattern matching all.
Choices = Sequence[tuple[re.Pattern[str], OptimizerCall]]


def optimizer_choices(compiler: Compiler, form: Form) -> Choices:
    """An optimizer, or `(by-name (GLOB OPT)… (else OPT))`."""
    machine = compiler.machine
    machine.context = Context(training=None, steps=True)
    if not (isinstance(form, Listing) and form.head == "by-name"):
        return [(glob("*"), _optimizer(compiler, form))]
    made = []
    for item in form.items[1:]:
        if not (isinstance(item, Listing) and len(item.items) == 2 and isinstance(item.items[0], (Text, Symbol))):
            raise Error("E-SYN-001", 'by-name takes ("GLOB" OPTIMIZER)… and last (else OPTIMIZER)', item.span)
        head = item.items[0]
        is_else = isinstance(head, Symbol) and head.name == "else"
        pattern = "*" if is_else else head.value if isinstance(head, Text) else head.name if isinstance(head, Symbol) else ""
        made.append((glob(pattern), _optimizer(compiler, item.items[1])))
        if is_else:
            return made
    raise Error("E-SYN-001", "by-name ends with (else OPTIMIZER)", form.span)


def _optimizer(compiler: Compiler, form: Form) -> OptimizerCall:
    value = compiler.evaluate(form)
    if isinstance(value, OptimizerCall):
        if any([v is POISON for _, v in value.keywords]):
            raise Wrong
        return value
    if value is POISON:
        raise Wrong
    note = "as in (adamw :lr 1e-3)"
    raise Error("E-TYPE-001", f":optimizer is an optimizer, not {describe(value)}", form.span, notes=[note])


def learning_rate(choices: Choices) -> Expression | None:
    """The value of `:lr` of the last optimizer."""
    call = choices[-1][1]
    function = call.closure.function
    value = dict(call.keywords).get("lr", POISON)
    if value is POISON and "lr" in function.signature.key_names:
        slot = function.first + len(function.signature.names) + function.signature.key_names.index("lr")
        default = dict(function.defaults).get(slot)
        value = POISON if default is None else default([POISON] * function.size)
    if isinstance(value, Scalar):
        return value.expression
    return ("number", plain(value)) if is_number(value) else None


def update_graph(
    machine: Machine, parameters: Sequence[Parameter], choices: Choices, updated: Sequence[Parameter]
) -> tuple[Graph, list[State]]:
    """New parameters and states from parameters, gradients and states; new buffers from the sums of what they become."""
    graph = Graph("update")
    states: list[State] = []
    machine.graph, machine.scope, machine.context = graph, Scope(), Context(training=None, steps=True)
    machine.parameters = Parameters()
    for parameter in parameters:
        call = next(call for pattern, call in choices if pattern.match(parameter.name))
        states += _one_parameter(machine, graph, parameter, call)
    for buffer in updated:
        attributes = {"kind": "update", "name": buffer.name, "dtype": "f32", "shape": buffer.shape}
        count = broadcast(graph.add("host", (), {"expression": MICROBATCHES}), buffer.shape)
        graph.outputs[f"buffer:{buffer.name}"] = graph.add("div", (graph.add("input", (), attributes), count))
    return graph, states


def _one_parameter(machine: Machine, graph: Graph, parameter: Parameter, call: OptimizerCall) -> list[State]:
    shape, labels = parameter.shape, parameter.labels or None
    p, g = (
        graph.add("input", (), {"kind": kind, "name": parameter.name, "dtype": "f32", "shape": shape}, labels=labels)
        for kind in ("parameter", "gradient")
    )
    gradient = g * broadcast(graph.add("host", (), {"expression": GRADIENT_SCALE}), shape)
    declared = _States(graph, parameter)
    machine.update = UpdateState(parameter, declared.declare, declared.set)
    function, span = call.closure.function, call.span
    key_names, count = function.signature.key_names, len(function.signature.names)
    places = (0, 1, *[count + key_names.index(key) for key, _ in call.keywords])
    try:
        if count != 2:
            raise Problem("E-SYN-002", f"an optimizer takes (P G &key …), {function.name} has {count} arguments")
        made = machine.invoke(call.closure, places, [p, gradient, *[v for _, v in call.keywords]], span)
        if made is not POISON:
            what = f"{function.name}: the parameter {parameter.name}"
            graph.outputs[f"parameter:{parameter.name}"] = fitting(graph, made, shape, what)
            for name, (_, node, new) in declared.made.items():
                graph.outputs[f"state:{parameter.name}:{name}"] = node if new is None else new
    except Problem as problem:
        machine.problem(problem, span)
    finally:
        machine.update = None
    return [state for state, _, _ in declared.made.values()]


class _States:
    """The states that an optimizer declares for one parameter, and what they become."""

    def __init__(self, graph: Graph, parameter: Parameter) -> None:
        self.graph = graph
        self.parameter = parameter
        self.made: dict[str, tuple[State, Node, Node | None]] = {}

    def declare(self, name: str, start: Value) -> Node:
        if name in self.made:
            raise Problem("E-NAME-002", f"the state {name} is declared twice")
        node = fill(self.graph, start, "f32", (), "state") if is_number(start) else start
        if not isinstance(node, Node) or node.op != "constant":
            raise Problem("E-TYPE-001", "state: the initial value is (zeros-like p), (ones S), (full S C) or a number")
        state = State(self.parameter.name, name, node.shape, float(node.attributes["value"]))
        attributes = {"kind": "state", "name": f"{self.parameter.name}:{name}", "dtype": "f32", "shape": node.shape}
        read = self.graph.add("input", (), attributes)
        self.made[name] = (state, read, None)
        return read

    def set(self, name: str, value: Value) -> None:
        if name not in self.made:
            raise Problem("E-NAME-001", f"update: no state {name}")
        state, node, _ = self.made[name]
        self.made[name] = (state, node, fitting(self.graph, value, state.shape, f"the state {name}"))


def freeze(parameters: Mapping[str, Parameter], patterns: Sequence[tuple[str, Span]]) -> list[Parameter]:
    """The parameters, those that a pattern matches untrainable. A pattern that matches none is E-NAME-001."""
    names = [name for name, p in parameters.items() if not p.buffer]
    matchers = [glob(p) for p, _ in patterns]
    for matcher, (pattern, span) in zip(matchers, patterns, strict=True):
        if not any(matcher.match(name) for name in names):
            close = nearest(pattern, names)
            notes = [f"did you mean {close}?"] if close else []
            raise Error("E-NAME-001", f":freeze: no parameter matches {pattern}", span, notes=notes)
    return [replace(p, trainable=p.trainable and not any(m.match(p.name) for m in matchers)) for p in parameters.values()]
