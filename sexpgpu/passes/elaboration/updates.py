"""The update graph: the optimizer elaborated once for each trainable parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sexpgpu.errors import Error
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import Expression
from sexpgpu.passes.elaboration.lowering import broadcast, fill, fitting
from sexpgpu.passes.elaboration.machine import Context, Machine, UpdateState
from sexpgpu.passes.elaboration.scope import Parameters, Scope
from sexpgpu.passes.elaboration.values import POISON, OptimizerCall, Problem, Value, is_number
from sexpgpu.passes.experiment import Parameter, State
from sexpgpu.passes.globs import glob, nearest_glob
from sexpgpu.source import Span

GRADIENT_SCALE = ("runtime", "gradient-scale")
MICROBATCHES = ("runtime", "microbatches")


def update_graph(
    machine: Machine, chosen: Sequence[tuple[Parameter, OptimizerCall]], updated: Sequence[Parameter], ema: float | None
) -> tuple[Graph, list[State]]:
    """New parameters and states from parameters, gradients and states; averages of new parameters, where `ema` asks for
    them; new buffers from the sums of what they become."""
    graph = Graph("update")
    states: list[State] = []
    machine.graph, machine.scope, machine.context = graph, Scope(), Context(training=None, steps=True)
    machine.parameters = Parameters()
    for parameter, call in chosen:
        states += _one_parameter(machine, graph, parameter, call)
        if ema is not None:
            _average(graph, parameter, ema)
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


def _average(graph: Graph, parameter: Parameter, ema: float) -> None:
    """What is left of the average so far, and the rest of the new parameter."""
    new = graph.outputs.get(f"parameter:{parameter.name}")
    if new is None:
        return
    attributes = {"kind": "average", "name": parameter.name, "dtype": "f32", "shape": parameter.shape}
    before = graph.add("input", (), attributes, labels=parameter.labels or None)
    kept: Expression = ("hyper", "ema", ema)
    shares = (kept, ("sub", ("number", 1), kept))
    kept_share, new_share = (
        broadcast(graph.add("host", (), {"expression": share}), parameter.shape) for share in shares
    )
    graph.outputs[f"average:{parameter.name}"] = before * kept_share + new * new_share


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
            close = nearest_glob(pattern, names)
            notes = [f"did you mean {close}?"] if close else []
            raise Error("E-NAME-001", f":freeze: no parameter matches {pattern}", span, notes=notes)
    return [replace(p, trainable=p.trainable and not any(m.match(p.name) for m in matchers)) for p in parameters.values()]
