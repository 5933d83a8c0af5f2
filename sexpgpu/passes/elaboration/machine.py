"""The state of elaboration while code runs: the graph at hand, open scopes, calls in progress, problems found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sexpgpu.errors import FURTHER, MAXIMUM_PROBLEMS, Error
from sexpgpu.ir.graph import Graph, Node, Origin
from sexpgpu.loaderspec import Header
from sexpgpu.ops.record import TypeMismatch
from sexpgpu.passes.elaboration.arguments import UnknownKeyword, resolve_arguments
from sexpgpu.passes.elaboration.bodies import Body, inside, replaced
from sexpgpu.passes.elaboration.lowering import tensor_of_list
from sexpgpu.passes.elaboration.scope import Parameters, Scope
from sexpgpu.passes.elaboration.values import (
    MISSING,
    POISON,
    Builtin,
    Closure,
    Frame,
    Function,
    ListGiven,
    Problem,
    Value,
    Values,
    describe,
)
from sexpgpu.passes.experiment import Parameter
from sexpgpu.passes.precision import mark_results
from sexpgpu.source import Span

if TYPE_CHECKING:
    from sexpgpu.passes.elaboration.compile import Compiler

_Made = TypeVar("_Made")

MAXIMUM_CALLS = 1_000
# Calls of functions and operations, iterations, and elements of lists by sixteens: a large model takes some 100,000.
MAXIMUM_WORK = 1_000_000
# How many calls a message shows; the others are counted.
SHOWN_CALLS = 4


@dataclass
class CallFrame:
    """A call in progress: what was called, where, in which iteration of the caller's loops."""

    function: Function
    span: Span
    repeats: tuple[str, ...]
    parent: CallFrame | None
    trace: tuple[str, ...] | None = None

    def text(self) -> str:
        loops = f" (repeat {' '.join(self.repeats)})" if self.repeats else ""
        name = self.function.name
        if self.function.prelude:
            return f"in {name} of the prelude, called at {self.span.place}{loops}"
        return f"in {self.function.kind} {name}, called at {self.span.place}{loops}"

    def traces(self) -> tuple[str, ...]:
        """The texts of this call and those around it, innermost first."""
        if self.trace is None:
            self.trace = (self.text(), *(self.parent.traces() if self.parent is not None else ()))[:SHOWN_CALLS]
        return self.trace


@dataclass(frozen=True)
class Context:
    """What is in scope for the expression at hand.

    steps     `step`, `updates`, `total-steps` may be read
    training  the value of `training`, None where there is none
    real      the field `real`, where a batch may have fewer real examples than rows
    """

    training: bool | None = None
    steps: bool = False
    real: Callable[[], Node] | None = None


class Wrong(Exception):
    """A part of a form is wrong and reported: there is no result."""


class Machine:
    """Runs compiled code. Every problem is reported once; the code that has it gives poison and goes on."""

    def __init__(self) -> None:
        self.errors: list[Error] = []
        self._reported: set[tuple[Any, ...]] = set()
        self.graph = Graph("definitions")
        self.scope: Scope | None = None
        self.context = Context()
        self.parameters = Parameters()
        self.frame: CallFrame | None = None
        self.repeats: tuple[str, ...] = ()
        self.calls = 0
        self.work = 0
        # The call that runs at the moment, for what operations report or remember of their place.
        self.here: Span | None = None
        # Bodies of regions by function, types of tensors and all other arguments.
        self.bodies: dict[Any, Graph] = {}
        self.in_body = False
        # The parameter that an optimizer is being elaborated for, and what it declared.
        self.update: UpdateState | None = None
        self.compiler: Compiler
        # What a loader's header says, by name; None where it cannot be read (which is reported then).
        self.header: Callable[[str], Header | None] = lambda name: None

    # Places

    def user_place(self, span: Span) -> tuple[Span, CallFrame | None, tuple[str, ...], list[str]]:
        """The innermost place in the user's files, the calls around it, the loops there, the prelude's calls inside."""
        frame, repeats, inside = self.frame, self.repeats, []
        while span.source.prelude and frame is not None:
            inside.append(f"in {frame.function.name} of the prelude ({span.place})")
            span, repeats, frame = frame.span, frame.repeats, frame.parent
        return span, frame, repeats, inside

    def origin(self, span: Span) -> Origin:
        frame = self.frame
        while span.source.prelude and frame is not None:
            span, frame = frame.span, frame.parent
        scope = self.scope.path if self.scope is not None else ""
        return Origin(span, scope, frame.traces() if frame is not None else ())

    # Problems

    def report(self, error: Error) -> Value:
        """Keeps an error whose place is complete; gives poison."""
        span = error.span
        place = ("", len(self.errors)) if span is None else (span.source.name, span.start)
        key = (error.code, *place, span and span.template and span.template.start)
        if key not in self._reported and len(self.errors) < MAXIMUM_PROBLEMS:
            self._reported.add(key)
            self.errors.append(error)
            if len(self.errors) == MAXIMUM_PROBLEMS:
                error.notes.append(FURTHER)
        return POISON

    def problem(self, problem: TypeMismatch, span: Span, label: str = "") -> Value:
        """Reports a problem of the form at `span`, with the calls that led there."""
        if not problem.message:
            return POISON
        error = self.located(problem, span, label)
        if span.source.prelude and error.span is not None:
            # One wrong call of a prelude function is one problem, however often it shows inside.
            place = ("prelude", error.span.source.name, error.span.start)
            if place in self._reported:
                return POISON
            self._reported.add(place)
        return self.report(error)

    def located(self, problem: TypeMismatch, span: Span, label: str = "") -> Error:
        place, frame, repeats, notes = self.user_place(span)
        if repeats:
            notes.append(f"repeat {' '.join(repeats)}")
        shown = 0
        while frame is not None and shown < SHOWN_CALLS:
            notes.append(frame.text())
            frame, shown = frame.parent, shown + 1
        if frame is not None:
            more = 0
            while frame is not None:
                frame, more = frame.parent, more + 1
            notes.append(f"and {more} more calls around these")
        label = getattr(problem, "label", "") or label
        return Error(problem.code, problem.message, place, label=label, notes=[*notes, *getattr(problem, "notes", ())])

    def guarded(self, take: Callable[[], _Made], default: _Made) -> _Made:
        """The result, or the default where a problem (reported) leaves none."""
        try:
            return take()
        except Wrong:
            pass
        except Error as error:
            self.report(error)
        except RecursionError:
            self.report(Error("E-SYN-003", "forms and calls are nested too deeply", self.here))
        return default

    # Calls

    def spend(self, work: int, span: Span) -> None:
        """Counts work. Beyond the limit, which is reported once, nothing has a result."""
        before = self.work
        self.work += work
        if self.work > MAXIMUM_WORK:
            if before <= MAXIMUM_WORK:
                message = f"elaboration takes more than {MAXIMUM_WORK:,} calls and iterations"
                self.report(self.located(Problem("E-SYN-005", message), span))
            raise Wrong

    def builtin(
        self, called: Builtin, arguments: Sequence[Value], span: Span, texts: Sequence[str], written: Sequence[Value]
    ) -> Value:
        """An operation on its arguments in order; a message names the `written` ones by their `texts`."""
        self.here = span
        self.spend(1, span)
        graph = self.graph
        if isinstance(graph, Body):
            arguments = inside(graph, arguments)
        try:
            with graph.at(self.origin(span)):
                made = self._run(called, arguments)
                if not span.source.prelude:
                    mark_results(self.graph, called.name, made)
                return made
        except TypeMismatch as problem:
            suggest = getattr(problem, "suggest", None)
            if suggest is not None:
                suggest(texts, [v.tensor.rank if isinstance(v, Node) else -1 for v in written])
            return self.problem(problem, span, operands_label(texts, written))

    def _run(self, called: Builtin, arguments: Sequence[Value]) -> Value:
        """Where the operation wants a tensor and gets a list of numbers, it gets them as a tensor."""
        while True:
            try:
                return called.run(self, *arguments)
            except ListGiven as problem:
                made = tensor_of_list(self.graph, problem.value, called.name)
                if made is None:
                    raise
                arguments = [replaced(argument, problem.value, made) for argument in arguments]

    def call(self, called: Value, arguments: Sequence[Value], span: Span, keywords: Sequence[str] = ()) -> Value:
        """A call of any value; the last arguments are those of the keywords."""
        if called is POISON:
            return POISON
        if isinstance(called, Closure):
            signature, name = called.function.signature, called.function.name
        elif isinstance(called, Builtin):
            signature, name = called.signature, called.name
        else:
            return self.problem(Problem("E-TYPE-004", f"{describe(called)} is no function"), span)
        try:
            places = resolve_arguments(signature, len(arguments) - len(keywords), keywords, name)
        except (Problem, UnknownKeyword) as problem:
            return self.problem(problem, span)
        if isinstance(called, Closure):
            return self.invoke(called, places, arguments, span)
        if any([a is POISON for a in arguments]):
            return POISON
        return self.builtin(called, arrange(signature_template(called), places, arguments), span, (), ())

    def invoke(self, closure: Closure, places: Sequence[int], arguments: Sequence[Value], span: Span) -> Value:
        """A function's body with its parameters filled. Depth beyond the limit ends the whole expression."""
        function = closure.function
        if self.calls >= MAXIMUM_CALLS:
            message = f"calls are nested deeper than {MAXIMUM_CALLS:,}"
            raise self.located(Problem("E-SYN-003", message), span)
        self.spend(1, span)
        if function.body is None:
            self.compiler.finish(function)
        frame: Frame = [*closure.captured, *([MISSING] * (function.size - len(closure.captured)))]
        first = function.first
        for place, value in zip(places, arguments):
            frame[first + place] = value
        outer, repeats, scope = self.frame, self.repeats, self.scope
        self.frame, self.repeats = CallFrame(function, span, repeats, outer), ()
        self.calls += 1
        try:
            for slot, default in function.defaults:
                if frame[slot] is MISSING:
                    frame[slot] = default(frame)
            assert function.body is not None
            if function.kind == "region" and not self.in_body:
                return self.region(function, frame, span)
            made = self._layer(function, frame, span) if function.kind == "layer" else function.body(frame)
            if function.prelude and not span.source.prelude:
                mark_results(self.graph, function.name, made)
            return made
        finally:
            self.frame, self.repeats, self.scope = outer, repeats, scope
            self.calls -= 1

    def _layer(self, function: Function, frame: Frame, span: Span) -> Value:
        name, share = frame[function.name_slot], frame[function.share_slot]
        if name is POISON or share is POISON:
            return POISON
        problem = None
        if self.scope is None:
            problem = Problem("E-TYPE-001", f"the layer {function.name} is called outside the expressions of a run")
        elif not isinstance(name, (str, type(None))) or name == "":
            problem = Problem("E-TYPE-001", f"{function.name}: :name must be a text, not {describe(name)}")
        elif not isinstance(share, bool):
            problem = Problem("E-TYPE-001", f"{function.name}: :share must be true or false, not {describe(share)}")
        if problem is not None or self.scope is None:
            assert problem is not None
            # The frame of this call is no place of its own.
            return self.problem(problem, function.span if function.prelude else span)
        self.scope = self.scope.open(function.name, name, share)
        assert function.body is not None
        return function.body(frame)

    def region(self, function: Function, frame: Frame, span: Span) -> Value:
        """One node whose body is the function on arguments of these types, made once per types and other arguments."""
        count = len(function.signature.names) + len(function.signature.keys)
        slots = range(function.first, function.first + count)
        values = [frame[slot] for slot in slots]
        assert function.body is not None
        if any([v is POISON for v in values]):
            return POISON
        if not any([isinstance(v, Node) for v in values]):
            return function.body(frame)
        key = (function.name, *[_body_key(v) for v in values])
        if key not in self.bodies:
            body = self._region_body(function, frame, slots)
            if body is None:
                return POISON
            self.bodies[key] = body
        body = self.bodies[key]
        try:
            with self.graph.at(self.origin(span)):
                made = self.graph.add("region", [v for v in values if isinstance(v, Node)], {"body": body})
                if len(body.outputs) == 1:
                    return made
                return Values([self.graph.add("get", (made,), {"index": k}) for k in range(len(body.outputs))])
        except TypeMismatch as problem:
            return self.problem(problem, span)

    def _region_body(self, function: Function, frame: Frame, slots: Sequence[int]) -> Graph | None:
        body = Graph(function.name.removesuffix("-region"))
        names = [*function.signature.names, *function.signature.key_names]
        frame = list(frame)
        for name, slot in zip(names, slots):
            value = frame[slot]
            if isinstance(value, Node):
                attributes = {"kind": "argument", "name": name, "dtype": value.dtype, "shape": value.shape}
                frame[slot] = body.add("input", (), attributes, labels=value.tensor.labels)
        outer, scope = self.graph, self.scope
        self.graph, self.in_body = body, True
        try:
            assert function.body is not None
            result = function.body(frame)
        finally:
            self.graph, self.in_body, self.scope = outer, False, scope
        if result is POISON or (isinstance(result, Values) and any([v is POISON for v in result])):
            return None
        outputs = list(result) if isinstance(result, Values) else [result]
        assert all([isinstance(v, Node) for v in outputs]), (function.name, outputs)
        body.outputs = {f"out{k}": node for k, node in enumerate(outputs)}
        return body


@dataclass
class UpdateState:
    """One parameter's update: the parameter, its decay, the states declared so far and their new values."""

    parameter: Parameter
    declare: Callable[[str, Node], Node]
    set: Callable[[str, Value], None]


def _body_key(value: Value) -> Any:
    """What of an argument decides a region's body: a tensor's type, any other value itself."""
    if isinstance(value, Node):
        return ("tensor", value.dtype, value.shape)
    if isinstance(value, tuple):
        return (type(value).__name__, *[_body_key(part) for part in value])
    return (type(value).__name__, repr(value) if isinstance(value, (int, float)) else value)


def signature_template(called: Builtin) -> list[Value]:
    """The arguments before any is given: nothing for names, defaults for keys, no rest."""
    signature = called.signature
    template: list[Value] = [None] * len(signature.names) + [default for _, default in signature.keys]
    return [*template, ()] if signature.rest is not None else template


def arrange(template: Sequence[Value], places: Sequence[int], values: Sequence[Value]) -> list[Value]:
    """The arguments in the signature's order."""
    arguments = list(template)
    rest = []
    for place, value in zip(places, values):
        if place < 0:
            rest.append(value)
        else:
            arguments[place] = value
    if rest:
        arguments[-1] = tuple(rest)
    return arguments


def operands_label(texts: Sequence[str], written: Sequence[Value]) -> str:
    """`x is f32[8 64], w is f32[96 256]`: the tensors among the written arguments."""
    shown = [f"{text} is {value.type}" for text, value in zip(texts, written) if isinstance(value, Node)]
    return ", ".join(shown[:3])
