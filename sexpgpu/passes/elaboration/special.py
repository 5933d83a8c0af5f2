"""The special forms: those that do not evaluate all their parts, or bind names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sexpgpu.errors import Error
from sexpgpu.ir.graph import Node
from sexpgpu.lang.forms import Form, Listing, Symbol
from sexpgpu.lang.grammar import SPECIAL_FORMS, Pattern, bindings_of, malformed, pattern_of, take_apart
from sexpgpu.passes.elaboration.values import (
    POISON,
    Closure,
    Code,
    Frame,
    Problem,
    Scalar,
    Value,
    Values,
    describe,
    fold,
    integer,
    is_number,
    scalar,
    several,
)
from sexpgpu.source import Span

if TYPE_CHECKING:
    from sexpgpu.passes.elaboration.compile import Compiler, Layout
    from sexpgpu.passes.elaboration.machine import Machine

MAXIMUM_ITERATIONS = 100_000

Special = Callable[["Compiler", Listing, "Layout"], Code]


def _fn(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    matched = take_apart(form, SPECIAL_FORMS["fn"])
    inner = layout.inner()
    function = compiler.function("fn", "function", matched.one("(ARG…)"), form, inner)
    compiler.finish_body(function, matched.one("(ARG…)"), matched.parts["BODY"], inner)
    first = function.first
    return lambda frame: Closure(function, tuple(frame[:first]))


# A pattern with slots in the place of names.
Slots = int | tuple["Slots", ...]


def _bind_pattern(pattern: Pattern, layout: Layout) -> Slots:
    if isinstance(pattern, Symbol):
        return layout.bind(pattern.variable)
    return tuple([_bind_pattern(part, layout) for part in pattern])


def _store(machine: Machine, frame: Frame, slots: Slots, value: Value, span: Span) -> None:
    """Fills the slots of a pattern; a value that cannot be taken apart poisons them all."""
    if isinstance(slots, int):
        frame[slots] = value
        return
    if value is not POISON and not (isinstance(value, tuple) and len(value) == len(slots)):
        value = machine.problem(Problem("E-TYPE-001", f"{len(slots)} values are taken from {describe(value)}"), span)
    for k, part in enumerate(slots):
        _store(machine, frame, part, POISON if value is POISON else value[k], span)


def _each_once(patterns: Sequence[Pattern], head: str) -> None:
    """A name that one form binds twice is E-NAME-002; `_` is for what is not wanted."""
    seen: set[str] = set()
    left = list(reversed(patterns))
    while left:
        pattern = left.pop()
        if isinstance(pattern, tuple):
            left += reversed(pattern)
        elif pattern.variable in seen and pattern.name != "_":
            notes = ["`let*` binds one after the other"] if head == "let" else []
            raise Error("E-NAME-002", f"{head}: {pattern.name} is bound twice", pattern.span, notes=notes)
        else:
            seen.add(pattern.variable)


def _let(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    """`let`: all values in the outer names; `let*`: each value sees the names before it."""
    head = form.head or "let"
    matched = take_apart(form, SPECIAL_FORMS[head])
    inner = layout.child()
    made: list[tuple[Code, Slots, Span]] = []
    bindings = bindings_of(matched.one("((N E)…)"), head)
    if head == "let":
        _each_once([pattern for pattern, _ in bindings], head)
    for pattern, expression in bindings:
        _each_once([pattern], head)
        code = compiler.code(expression, inner if head == "let*" else layout)
        # A slot is new, so that a later value of a plain `let` still sees the outer variable.
        made.append((code, _bind_pattern(pattern, inner), expression.span))
    body, machine = compiler.body(matched.parts["BODY"], inner), compiler.machine

    def run(frame: Frame) -> Value:
        for code, slots, span in made:
            if slots.__class__ is int:
                frame[slots] = code(frame)
            else:
                _store(machine, frame, slots, code(frame), span)
        return body(frame)

    return run


def condition(machine: Machine, value: Value, span: Span) -> Value:
    """True or False; a host scalar that changes; poison for anything that is no condition."""
    if value is True or value is False or value is POISON:
        return value
    if isinstance(value, Scalar):
        if not value.known:
            return value
        value = fold(value)
        if isinstance(value, bool):
            return value
    if value is None:
        return False
    if isinstance(value, Node):
        notes = ["`where` chooses element by element"]
        return machine.problem(Problem("E-TYPE-002", f"a condition on a tensor, {value.type}", notes=notes), span)
    if is_number(value):
        message = f"a condition is true or false, not {describe(value)}"
        return machine.problem(Problem("E-TYPE-001", message, notes=["write a comparison, as in (> x 0)"]), span)
    return True


def _chosen(machine: Machine, test: Scalar, then: Value, other: Value, span: Span) -> Value:
    """A choice on a host scalar is made by the host at every step: both sides are numbers."""
    if then is POISON or other is POISON:
        return POISON
    for side in (then, other):
        if not (is_number(side) or isinstance(side, (bool, Scalar))):
            notes = ["`where` chooses between tensors"]
            message = f"a condition that changes with the step chooses between numbers, not {describe(side)}"
            return machine.problem(Problem("E-TYPE-002", message, notes=notes), span)
    return _host(machine, span, "if", test, then, other)


def _host(machine: Machine, span: Span, operation: str, *parts: Value) -> Value:
    try:
        return scalar(operation, *parts)
    except Problem as problem:
        return machine.problem(problem, span)


def _if(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    matched = take_apart(form, SPECIAL_FORMS["if"])
    test_form = matched.one("COND")
    test = compiler.code(test_form, layout)
    then = compiler.code(matched.one("THEN"), layout.child())
    other = compiler.body(matched.parts["ELSE"], layout.child()) if matched.parts["ELSE"] else _nothing
    return _branch(compiler.machine, test, test_form.span, then, other, form.span)


def _branch(machine: Machine, test: Code, place: Span, then: Code, other: Code, span: Span) -> Code:
    def run(frame: Frame) -> Value:
        value = test(frame)
        if value is not True and value is not False:
            value = condition(machine, value, place)
            if value is POISON:
                return POISON
            if isinstance(value, Scalar):
                return _chosen(machine, value, then(frame), other(frame), span)
        return then(frame) if value else other(frame)

    return run


def _nothing(frame: Frame) -> Value:
    return None


def _cond(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    shape = SPECIAL_FORMS["cond"]
    clauses = take_apart(form, shape).parts["(COND BODY…)"]
    code: Code = _nothing
    for k in range(len(clauses) - 1, -1, -1):
        clause = clauses[k]
        assert isinstance(clause, Listing)
        if len(clause.items) < 2:
            raise malformed(clause, "cond: a clause is (COND BODY…)", shape.usage)
        first = clause.items[0]
        body = compiler.body(clause.items[1:], layout.child())
        if isinstance(first, Symbol) and first.name == "else" and first.variable not in layout.names:
            if k != len(clauses) - 1:
                raise malformed(clause, "cond: else is the last clause", shape.usage)
            code = body
        else:
            test = compiler.code(first, layout)
            code = _branch(compiler.machine, test, first.span, body, code, form.span)
    return code


def _and_or(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    """The first value that decides, as in Scheme; on host scalars the host decides at every step."""
    head = form.head or "and"
    forms = take_apart(form, SPECIAL_FORMS[head]).parts["E"]
    codes = [(compiler.code(part, layout), part.span) for part in forms]
    machine, decides, operation = compiler.machine, head == "or", "logical_and" if head == "and" else "logical_or"

    def run(frame: Frame) -> Value:
        value: Value = not decides
        dynamic: Value = None
        for code, span in codes:
            value = code(frame)
            test = condition(machine, value, span)
            if test is POISON:
                return POISON
            if isinstance(test, Scalar):
                dynamic = test if dynamic is None else _host(machine, form.span, operation, dynamic, test)
                if dynamic is POISON:
                    return POISON
            elif test is decides:
                return value
        return value if dynamic is None else dynamic

    return run


def _repeat(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    shape = SPECIAL_FORMS["repeat"]
    matched = take_apart(form, shape)
    counter = matched.one("(I N)")
    assert isinstance(counter, Listing)
    if len(counter.items) != 2 or not isinstance(counter.items[0], Symbol):
        raise malformed(counter, "repeat: the count is (I N)", shape.usage)
    bindings = _carried(matched.one("(X INIT)"), shape.usage)
    _each_once([counter.items[0], *(name for name, _ in bindings)], "repeat")
    count = compiler.code(counter.items[1], layout)
    starts = [compiler.code(expression, layout) for _, expression in bindings]
    inner = layout.child()
    index = inner.bind(counter.items[0].variable)
    slots = [inner.bind(name.variable) for name, _ in bindings]
    body = compiler.body(matched.parts["BODY"], inner)
    loop = _Loop(compiler.machine, counter.items[0].name, index, slots, body, form.span, counter.items[1].span)
    return lambda frame: loop.run(frame, count(frame), [start(frame) for start in starts])


def _carried(form: Form, usage: str) -> list[tuple[Symbol, Form]]:
    """`(X INIT)` or `((X INIT) (Y INIT)…)`."""
    assert isinstance(form, Listing)
    several = bool(form.items) and all(isinstance(item, Listing) and len(item.items) == 2 for item in form.items)
    made: list[tuple[Symbol, Form]] = []
    for item in form.items if several else (form,):
        assert isinstance(item, Listing)
        if len(item.items) != 2 or not isinstance(item.items[0], Symbol):
            raise malformed(item, "repeat: a carried value is (X INIT)", usage)
        made.append((item.items[0], item.items[1]))
    return made


class _Loop:
    """`repeat`, ready to run: in iteration I every scope opened directly by the body has the suffix .I."""

    def __init__(
        self, machine: Machine, name: str, index: int, slots: Sequence[int], body: Code, span: Span, count_span: Span
    ) -> None:
        self.machine, self.name, self.index, self.slots = machine, name, index, slots
        self.body, self.span, self.count_span = body, span, count_span

    def run(self, frame: Frame, count: Value, carried: list[Value]) -> Value:
        machine = self.machine
        if count is POISON:
            return POISON
        try:
            times = integer(count, "repeat: the count")
            if not 0 <= times <= MAXIMUM_ITERATIONS:
                message = f"repeat: the count is from 0 to {MAXIMUM_ITERATIONS:,}, not {int(times)}"
                raise Problem("E-TYPE-001", message)
        except Problem as problem:
            return machine.problem(problem, self.count_span)
        scope, repeats = machine.scope, machine.repeats
        suffix, counts = (scope.suffix, dict(scope.counts)) if scope is not None else ("", {})
        try:
            for i in range(times):
                machine.spend(1, self.span)
                machine.repeats = (*repeats, f"{self.name}={i}")
                if scope is not None:
                    # Numbering starts again in each iteration.
                    scope.suffix, scope.counts = f"{suffix}.{i}", dict(counts)
                carried = self._iteration(frame, i, carried)
        finally:
            machine.repeats = repeats
            if scope is not None:
                scope.suffix = suffix
        return carried[0] if len(carried) == 1 else several(carried)

    def _iteration(self, frame: Frame, i: int, carried: list[Value]) -> list[Value]:
        frame[self.index] = i
        for slot, value in zip(self.slots, carried):
            frame[slot] = value
        result = self.body(frame)
        if len(self.slots) == 1:
            return [result]
        if isinstance(result, Values) and len(result) == len(self.slots):
            return list(result)
        if result is not POISON:
            message = f"repeat: the body gives {describe(result)}, {len(self.slots)} values are carried"
            self.machine.problem(Problem("E-TYPE-001", message, notes=["give (values …)"]), self.span)
        return [POISON] * len(self.slots)


def assertion(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    matched = take_apart(form, SPECIAL_FORMS["assert"])
    test_form = matched.one("COND")
    test = compiler.code(test_form, layout)
    text = matched.one('"message"')
    values = [(part.span.written, compiler.code(part, layout)) for part in matched.parts["VALUE"]]
    machine, message = compiler.machine, getattr(text, "value", "")
    # The prelude's own assertions are about shapes; the user's show the values of a comparison's sides, too.
    code_name = "E-SHAPE-001" if layout.prelude else "E-ASSERT-001"
    if isinstance(test_form, Listing) and not layout.prelude:
        # Sides with lists in them are not compiled a second time: nested assertions would double at every level.
        sides = [p for p in test_form.items[1:] if isinstance(p, Symbol) or (isinstance(p, Listing) and _is_flat(p))]
        values += [(p.span.written, compiler.code(p, layout)) for p in sides if p.span.written not in dict(values)]

    def run(frame: Frame) -> Value:
        value = condition(machine, test(frame), test_form.span)
        if value is POISON:
            return POISON
        if isinstance(value, Scalar):
            problem = Problem("E-TYPE-002", "assert: the condition is not known before the run")
            return machine.problem(problem, test_form.span)
        if not value:
            shown = [f"{name} is {describe(code(frame))}" for name, code in values]
            return machine.problem(Problem(code_name, message, label=", ".join(shown)), form.span)
        return None

    return run


def _is_flat(form: Listing) -> bool:
    return not any(isinstance(item, Listing) for item in form.items)


def _state(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    """`(state NAME INIT)`: NAME is bound in the forms that follow."""
    matched = take_apart(form, SPECIAL_FORMS["state"])
    name = matched.name()
    start = compiler.code(matched.one("INIT"), layout)
    slot, machine = layout.bind(matched.symbol().variable), compiler.machine

    def run(frame: Frame) -> Value:
        value = start(frame)
        if value is POISON or machine.update is None:
            frame[slot] = POISON
            return POISON
        try:
            frame[slot] = machine.update.declare(name, value)
        except Problem as problem:
            frame[slot] = machine.problem(problem, form.span)
        return None

    return run


def _update(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    matched = take_apart(form, SPECIAL_FORMS["update"])
    name = matched.name()
    value_code, machine = compiler.code(matched.one("VALUE"), layout), compiler.machine
    if matched.symbol().variable not in layout.names:
        raise Error("E-NAME-001", f"update: no state {name}", matched.one("NAME").span)

    def run(frame: Frame) -> Value:
        value = value_code(frame)
        if value is POISON or machine.update is None:
            return POISON
        try:
            machine.update.set(name, value)
        except Problem as problem:
            return machine.problem(problem, form.span)
        return None

    return run


def _begin(compiler: Compiler, form: Listing, layout: Layout) -> Code:
    return compiler.body(take_apart(form, SPECIAL_FORMS["begin"]).parts["BODY"], layout)


SPECIAL: Mapping[str, Any] = {
    "begin": _begin,
    "fn": _fn,
    "let": _let,
    "let*": _let,
    "if": _if,
    "cond": _cond,
    "and": _and_or,
    "or": _and_or,
    "repeat": _repeat,
    "assert": assertion,
    "state": _state,
    "update": _update,
}

__all__ = ["SPECIAL", "Special", "assertion", "condition", "pattern_of"]
