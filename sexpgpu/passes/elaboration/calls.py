"""Calls, compiled: of operations, of functions known by name, and of whatever a form gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Form, Keyword, Listing, Symbol
from sexpgpu.lang.grammar import split_keywords
from sexpgpu.lang.program import FUNCTION_KINDS
from sexpgpu.passes.elaboration.arguments import UnknownKeyword, resolve_arguments
from sexpgpu.passes.elaboration.machine import arrange, signature_template
from sexpgpu.passes.elaboration.values import (
    POISON,
    Builtin,
    Closure,
    Code,
    Frame,
    OptimizerCall,
    Problem,
    Signature,
    Value,
)

if TYPE_CHECKING:
    from sexpgpu.passes.elaboration.compile import Compiler, Layout

# How long an argument's text may be to name it in a message.
_SHORT_TEXT = 24


class Arguments:
    """The arguments of a call: codes in the order written, keywords last, and the texts that messages name them by."""

    def __init__(self, compiler: Compiler, form: Listing, layout: Layout) -> None:
        items: Sequence[Form] = form.items[1:]
        keywords: dict[str, Form] = {}
        if any(isinstance(item, Keyword) for item in items):
            items, keywords = split_keywords(form, items, form.head or "this call")
        self.form = form
        self.positional = len(items)
        self.keywords = tuple(keywords)
        forms = [*items, *keywords.values()]
        self.codes: list[Code] = [compiler.code(item, layout) for item in forms]
        self.texts = [_text(item) for item in forms]

    def places(self, signature: Signature, name: str, given: int = 0) -> tuple[int, ...]:
        """Which parameter each argument fills (after `given` that are given otherwise), or the error with its place."""
        try:
            return resolve_arguments(signature, self.positional + given, self.keywords, name)
        except UnknownKeyword as problem:
            items = self.form.items
            at = next(i for i in items if isinstance(i, Keyword) and i.name == problem.keyword)
            raise Error(problem.code, problem.message, at.span, notes=problem.notes) from None
        except Problem as problem:
            raise Error(problem.code, problem.message, self.form.span, notes=problem.notes) from None


def _text(form: Form) -> str:
    """How a message names an argument."""
    text = form.span.written if form.span.length else ""
    return text if len(text) <= _SHORT_TEXT and "\n" not in text else text.split("\n")[0][:_SHORT_TEXT] + "…"


def named_call(compiler: Compiler, form: Listing, head: Symbol, layout: Layout) -> Code:
    """A call whose head is a name that no variable has."""
    definition = compiler.program.find(head.name, layout.prelude)
    if definition is not None:
        if definition.kind == "optimizer":
            return _optimizer_call(compiler, form, compiler.closure(definition), layout)
        if definition.kind in FUNCTION_KINDS:
            return _function_call(compiler, form, compiler.closure(definition), layout)
        if definition.kind == "macro":
            return compiler.code(compiler.expansion(definition.name, form), layout)
    elif head.name in compiler.builtins and not (head.name in layout.fields or head.name in compiler.program.broken):
        return _builtin_call(compiler, form, compiler.builtins[head.name], layout)
    return dynamic_call(compiler, form, compiler.symbol(head, layout), layout)


def _function_call(compiler: Compiler, form: Listing, closure: Closure, layout: Layout) -> Code:
    arguments = Arguments(compiler, form, layout)
    machine, span, codes = compiler.machine, form.span, arguments.codes
    places = arguments.places(closure.function.signature, closure.function.name)

    def run(frame: Frame) -> Value:
        return machine.invoke(closure, places, [code(frame) for code in codes], span)

    return run


def _builtin_call(compiler: Compiler, form: Listing, builtin: Builtin, layout: Layout) -> Code:
    arguments = Arguments(compiler, form, layout)
    machine, span, codes, texts = compiler.machine, form.span, arguments.codes, arguments.texts
    places = arguments.places(builtin.signature, builtin.name)
    template = signature_template(builtin)
    in_order = places == tuple(range(len(template)))

    def run(frame: Frame) -> Value:
        values = [code(frame) for code in codes]
        for value in values:
            if value is POISON:
                return POISON
        ordered = values if in_order else arrange(template, places, values)
        return machine.builtin(builtin, ordered, span, texts, values)

    return run


def _optimizer_call(compiler: Compiler, form: Listing, closure: Closure, layout: Layout) -> Code:
    """An optimizer with its keywords; parameter and gradient are given when it is elaborated for each parameter, or by
    the optimizer that calls it."""
    arguments = Arguments(compiler, form, layout)
    function, span, codes, keywords = closure.function, form.span, arguments.codes, arguments.keywords
    if arguments.positional and layout.optimizer:
        return _function_call(compiler, form, closure, layout)
    if arguments.positional:
        raise Error("E-SYN-002", f"{function.name} takes keywords only", form.items[1].span)
    arguments.places(function.signature, function.name, given=len(function.signature.names))

    def run(frame: Frame) -> Value:
        return OptimizerCall(closure, tuple(zip(keywords, [code(frame) for code in codes])), span)

    return run


def dynamic_call(compiler: Compiler, form: Listing, head: Code, layout: Layout) -> Code:
    """A call of the value that a form gives."""
    arguments = Arguments(compiler, form, layout)
    machine, span, codes, keywords = compiler.machine, form.span, arguments.codes, arguments.keywords

    def run(frame: Frame) -> Value:
        called = head(frame)
        return machine.call(called, [code(frame) for code in codes], span, keywords)

    return run
