"""What a row of the tables says: an operator of OpInfo, its arguments by name, and our form as a user writes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

# What says nothing of the values. `dtype` is the samples' own float type, unless it is refused below.
SILENT = {"device", "dtype", "layout", "pin_memory", "requires_grad", "stable", "memory_format", "out"}
FLOATS = (torch.float32, torch.float64)


class Left(Exception):
    """A sample that is left out, with the reason that the table gives."""


Arguments = SimpleNamespace


@dataclass(frozen=True)
class Operand:
    """A tensor of PyTorch's call as we take it: `placed` moves elements alone, so a gradient is placed as its tensor is."""

    leaf: torch.Tensor
    placed: Callable[[torch.Tensor], torch.Tensor] = lambda t: t


Form = Callable[[Arguments], str]


@dataclass(frozen=True)
class Row:
    """One operator.

    name        OpInfo's, with "|variant" where it has one
    form        a text with `{argument}`, or a function of the arguments that gives the text; tensors stand in it by name
    signature   the arguments in order, `name` or `name=default`, as PyTorch calls them or `theirs:ours`
    left        conditions on the arguments, each with the reason for leaving such a sample out
    value       PyTorch's result as we give it: its first part, say
    operands    further operands by name, made from the arguments: a weight transposed
    no_gradient the reason for comparing values alone
    terms       of the arguments: the typical size of the terms that cancel in a saturated gradient, beyond its elements
    training    of the arguments: whether the form is elaborated as part of a loss
    """

    name: str
    form: str | Form
    signature: str = "x"
    left: tuple[tuple[Callable[[Arguments], Any], str], ...] = ()
    value: Callable[[Any], Any] = lambda y: y
    operands: Callable[[Arguments], Mapping[str, Operand]] = lambda a: {}
    no_gradient: str = ""
    terms: Callable[[Arguments], float] = lambda a: 0.0
    training: Callable[[Arguments], bool] = lambda a: False


@dataclass
class Call:
    """A sample in our terms: the text, the operands that stand in it and those that layers own."""

    text: str
    operands: dict[str, Operand] = field(default_factory=dict)
    training: bool = False


def arguments(row: Row, given: Any, positional: tuple[Any, ...], named: Mapping[str, Any]) -> Arguments:
    """A sample's arguments by our names. Raises Left for one that the row does not know, or that another rules out."""
    dtype = named.get("dtype")
    if dtype is not None and dtype not in FLOATS:
        raise Left(f"asks for another dtype, {str(dtype).removeprefix('torch.')}")
    slots = [_slot(text) for text in row.signature.split()]
    values = {ours: default for _, ours, default in slots}
    if len(positional) >= len(slots):
        raise Left("has more arguments than our form")
    for (_, ours, _), value in zip(slots, (given, *positional), strict=False):
        values[ours] = value
    known = {theirs: ours for theirs, ours, _ in slots}
    for name, value in named.items():
        if name in known:
            values[known[name]] = value
        elif name not in SILENT:
            raise Left(f"gives `{name}`, which our form has not")
    made = Arguments(**values)
    for condition, reason in row.left:
        if condition(made):
            raise Left(reason)
    return made


def _slot(text: str) -> tuple[str, str, Any]:
    name, _, default = text.partition("=")
    theirs, _, ours = name.partition(":")
    return theirs, ours or theirs, eval(default) if default else None


def call(row: Row, made: Arguments) -> Call:
    """Our form of a sample."""
    operands = {name: Operand(t) for argument, value in vars(made).items() for name, t in _tensors(argument, value)}
    operands |= row.operands(made)
    text = row.form(made) if callable(row.form) else row.form
    text = text.format_map({name: written(value, name) for name, value in vars(made).items()})
    return Call(text, {name: o for name, o in operands.items() if "." in name or _stands(name, text)}, row.training(made))


def _stands(name: str, text: str) -> bool:
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text) is not None


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for k, part in enumerate(value):
            yield from _tensors(f"{name}-{k}", part)


def written(value: Any, name: str = "") -> str:
    """A value of Python as our language writes it; a tensor by its name."""
    if isinstance(value, torch.Tensor):
        return name
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(written(part, f'{name}-{k}') for k, part in enumerate(value))}]"
    return str(value)
