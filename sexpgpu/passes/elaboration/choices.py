"""Which optimizer has which parameter: one for all, or `(by-name (GLOB OPTIMIZER)… (else OPTIMIZER))`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sexpgpu.errors import Error
from sexpgpu.ir.host import Expression
from sexpgpu.lang.forms import Form, Listing, Symbol, Text
from sexpgpu.passes.elaboration.compile import Compiler
from sexpgpu.passes.elaboration.machine import Context, Wrong
from sexpgpu.passes.elaboration.values import POISON, OptimizerCall, Scalar, describe, is_number, plain
from sexpgpu.passes.experiment import Parameter
from sexpgpu.passes.globs import glob, nearest_glob
from sexpgpu.source import Span


@dataclass(frozen=True, eq=False)
class Choice:
    """One optimizer and the names that it is for; None: all that no choice before it has."""

    pattern: str | None
    call: OptimizerCall
    span: Span

    def matches(self, name: str) -> bool:
        return self.pattern is None or glob(self.pattern).match(name) is not None


def optimizer_choices(compiler: Compiler, form: Form) -> Sequence[Choice]:
    """The choices in order: the first that matches a parameter's name has it."""
    compiler.machine.context = Context(training=None, steps=True)
    if not (isinstance(form, Listing) and form.head == "by-name"):
        return [Choice(None, _optimizer(compiler, form), form.span)]
    made: list[Choice] = []
    for item in form.items[1:]:
        if made and made[-1].pattern is None:
            raise Error("E-SYN-001", "by-name: (else OPTIMIZER) is the last of its parts", item.span)
        made.append(_choice(compiler, item))
    if not made:
        raise Error("E-SYN-001", "by-name has no part", form.span, notes=[_USAGE])
    return made


_USAGE = 'the form is (by-name ("GLOB" OPTIMIZER)… (else OPTIMIZER))'


def _choice(compiler: Compiler, item: Form) -> Choice:
    if not (isinstance(item, Listing) and len(item.items) == 2 and isinstance(item.items[0], (Text, Symbol))):
        raise Error("E-SYN-001", 'by-name: a part is ("GLOB" OPTIMIZER)', item.span, notes=[_USAGE])
    head, optimizer = item.items
    pattern = head.value if isinstance(head, Text) else head.name if isinstance(head, Symbol) else ""
    is_else = isinstance(head, Symbol) and pattern == "else"
    return Choice(None if is_else else pattern, _optimizer(compiler, optimizer), head.span)


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


def chosen(
    choices: Sequence[Choice], parameters: Sequence[Parameter], span: Span
) -> tuple[list[tuple[Parameter, OptimizerCall]], list[str]]:
    """Every trained parameter with its optimizer, and warnings of choices that are for none. `span`: of :optimizer."""
    made, used = [], set()
    for parameter in parameters:
        choice = next((c for c in choices if c.matches(parameter.name)), None)
        if choice is None:
            notes = ["add (else OPTIMIZER), or a part whose glob matches it"]
            raise Error("E-NAME-009", f"by-name has no optimizer for the parameter {parameter.name}", span, notes=notes)
        made.append((parameter, choice.call))
        used.add(choice)
    return made, [_unused(c, parameters) for c in choices if c not in used and c.pattern is not None]


def _unused(choice: Choice, parameters: Sequence[Parameter]) -> str:
    where = f"{choice.span.place}: by-name"
    if any(choice.matches(p.name) for p in parameters):
        return f"{where}: parts before {choice.pattern} have all that it matches"
    close = nearest_glob(choice.pattern or "", [p.name for p in parameters])
    return f"{where}: no trained parameter matches {choice.pattern}" + (f"; did you mean {close}?" if close else "")


def learning_rate(choices: Sequence[Choice]) -> Expression | None:
    """The value of `:lr` of the (else) optimizer."""
    call = choices[-1].call
    if choices[-1].pattern is not None:
        return None
    function = call.closure.function
    value = dict(call.keywords).get("lr", POISON)
    if value is POISON and "lr" in function.signature.key_names:
        slot = function.first + len(function.signature.names) + function.signature.key_names.index("lr")
        default = dict(function.defaults).get(slot)
        value = POISON if default is None else default([POISON] * function.size)
    if isinstance(value, Scalar):
        return value.expression
    return ("number", plain(value)) if is_number(value) else None
