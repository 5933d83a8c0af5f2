"""Values of hyperparameters: the default or its replacement, with the name that messages and kernels know them by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Text
from sexpgpu.lang.program import Definition, Override
from sexpgpu.passes.elaboration.values import (
    POISON,
    DtypeName,
    Scalar,
    Value,
    describe,
    fold,
    is_number,
    labelled,
    plain,
)
from sexpgpu.source import Span

if TYPE_CHECKING:
    from sexpgpu.passes.elaboration.compile import Compiler


class CommandText(str):
    """A text typed on the command line: a path in it is relative to the folder that one is in."""


def folder_of(span: Span, *paths: object) -> Path:
    """The folder that paths written at a place are relative to; typed on the command line, the one that one is in."""
    path = span.source.path
    typed = any([isinstance(text, CommandText) for text in paths])
    return Path() if typed or path is None else path.parent


def hyper_value(compiler: Compiler, definition: Definition) -> Value:
    """An integer is labelled with its name; a float stays an input of the kernels, as a known host scalar."""
    form = definition.matched.one("VALUE")
    value = fold(compiler.evaluate(form))
    if value is not POISON and not _plain(value):
        message = f"defhyper {definition.name}: a hyperparameter is a number, a text, a boolean or a list, not {describe(value)}"
        return compiler.machine.report(Error("E-TYPE-001", message, form.span))
    replacements = compiler.program.overrides.get(definition.name, ())
    if replacements and value is not POISON:
        value = _replaced(compiler, definition, value, replacements[-1])
    name = definition.name
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return labelled(int(value), name)
    if isinstance(value, float):
        return Scalar(("hyper", name, plain(value)))
    return value


def _plain(value: Value) -> bool:
    if isinstance(value, tuple):
        return all([_plain(fold(v)) for v in value])
    return value is None or is_number(value) or isinstance(value, (bool, str))


def _replaced(compiler: Compiler, definition: Definition, default: Value, override: Override) -> Value:
    value = fold(compiler.evaluate(override.value))
    if value is POISON or not _differs(default, value):
        if isinstance(value, str) and override.origin == "--set" and isinstance(override.value, Text):
            return CommandText(value)
        return float(value) if isinstance(default, float) and is_number(value) else value
    notes = [f"replaces {definition.form.span.written} at {definition.form.span.place}"]
    message = f"{override.origin}: {definition.name} is {kind(default)}, not {describe(value)}"
    return compiler.machine.report(Error("E-RUN-004", message, override.value.span, notes=notes))


def kind(value: Value) -> str:
    """The kind of a hyperparameter in the words of messages."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int):
        return "an integer"
    if isinstance(value, float):
        return "a number"
    return "a dtype" if isinstance(value, DtypeName) else "a text" if isinstance(value, str) else "a list"


def _differs(default: Value, value: Value) -> bool:
    """An integer may become a float, nil anything."""
    if default is None:
        return not _plain(value)
    if is_number(default):
        return not is_number(value)
    return kind(default) != kind(value) or value is None
