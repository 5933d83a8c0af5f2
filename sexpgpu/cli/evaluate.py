"""`sexpgpu eval`: the value of a form, as text or JSON."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from sexpgpu.cli.run import as_problem, json_text
from sexpgpu.device import Counter
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.initial import initial_value
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import TensorType
from sexpgpu.lang.forms import Form, Listing, Text
from sexpgpu.lang.grammar import DEFINITIONS
from sexpgpu.lang.printer import number_text, print_form
from sexpgpu.lang.program import Program, load_program, program_of
from sexpgpu.lang.reader import read
from sexpgpu.passes.elaboration.values import DtypeName, Values, describe, fold, plain
from sexpgpu.passes.evaluating import Evaluated, evaluated
from sexpgpu.settings import Sources, resolve
from sexpgpu.source import Source, command_line_span
from sexpgpu.train.launch import problems_of
from sexpgpu.train.loader import header
from sexpgpu.train.suspect import uniform_draw

NAME = "<eval>"
# Tensors of more elements are shown by their ends.
_SHOWN = 1_000
_MOST_BYTES = 4 << 30


def evaluate_text(
    text: str,
    file: str | None,
    variants: Sequence[str],
    sets: Sequence[str],
    seed: int,
    allow_outside: bool,
    as_json: bool,
) -> str:
    """The value of a text's last form as it is printed. Raises Error or Diagnostics."""
    try:
        *further, form = _forms(text)
        if file is None:
            program = program_of(Source(NAME, ""), variants, sets, further=further)
        else:
            program = load_program(Path(file), variants, sets, allow_outside=allow_outside, further=further)
        made = _value_of(program, form)
        tensors = iter(_computed(made, seed))
        return json_text(_facts(made.value, tensors)) if as_json else "\n".join(_lines(made.value, tensors))
    except (Error, Diagnostics) as problem:
        if as_json:
            click.echo(json_text({"errors": [as_problem(error) for error in problems_of(problem)]}))
        raise


def _forms(text: str) -> list[Form]:
    """Definitions and, last, an expression."""
    forms = read(Source(NAME, text))
    if not forms:
        raise Error("E-SYN-001", "eval takes a form, as in (softmax [1 2 3])", command_line_span(text))
    last = forms[-1]
    if isinstance(last, Listing) and (last.head in DEFINITIONS or last.head == "include"):
        raise Error("E-SYN-001", "eval: an expression must stand last", last.span)
    return forms


def _value_of(program: Program, form: Form) -> Evaluated:
    settings = resolve(Sources({}, os.environ, {}, {}))
    return evaluated(program, form, lambda spec: header(spec, settings.cache))


def _computed(made: Evaluated, seed: int) -> list[np.ndarray[Any, Any]]:
    """The value's tensors in order; parameters have the values that the seed begins them with."""
    size = sum(node.tensor.size_bytes for node in made.graph.nodes if isinstance(node.type, TensorType))
    if size > _MOST_BYTES:
        raise Error("E-MEM-001", f"eval keeps every tensor, and these are {size:,} bytes: at most {_MOST_BYTES:,}")
    inputs = {p.name: initial_value(p.initializer, p.shape, seed, p.name) for p in made.parameters}
    arrays = evaluate_graph(
        made.graph,
        inputs,
        wide=False,
        draw=lambda node, scan: uniform_draw(node, scan, seed, Counter(0, 0)),
        watch=_in_range,
    )
    return list(arrays.values())


def _in_range(node: Node, operands: list[Any]) -> None:
    """E-NUM-002 where a node reads outside its axis."""
    if node.op not in ("take", "gather", "scatter_add"):
        return
    limit = operands[0].shape[node.attributes["axis"]]
    wrong = operands[1][(operands[1] < -limit) | (operands[1] >= limit)]
    if wrong.size:
        origin = node.origins[0] if node.origins else None
        message = f"index {wrong.flat[0]} is outside an axis of {limit}"
        raise Error("E-NUM-002", message, origin.span if origin else None, notes=origin.frames if origin else ())


Arrays = Iterator[np.ndarray[Any, Any]]


def _lines(value: Any, tensors: Arrays) -> list[str]:
    """A line for a value, several for several values; a tensor's numbers stand below its type where they need more."""
    if isinstance(value, Values):
        return [line for part in value for line in _lines(part, tensors)]
    if isinstance(value, Node):
        shown = _tensor_text(next(tensors))
        return [str(value.type), shown] if "\n" in shown else [f"{value.type} {shown}"]
    return [_text(value, tensors)]


def _text(value: Any, tensors: Arrays) -> str:
    """A value as the language writes it, as far as it can."""
    value = fold(value)
    if isinstance(value, tuple):
        return f"[{' '.join([_text(part, tensors) for part in value])}]"
    if isinstance(value, Node):
        return f"{value.type} {_tensor_text(next(tensors))}"
    if isinstance(value, DtypeName):
        return str(value)
    if isinstance(value, str):
        return print_form(Text(str(value), command_line_span("")))
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    return number_text(plain(value)) if isinstance(value, (int, float)) else describe(value)


def _tensor_text(array: np.ndarray[Any, Any]) -> str:
    one: Callable[[Any], str] = _number_text
    if array.ndim == 0:
        return one(array[()])
    return np.array2string(array, max_line_width=100, threshold=_SHOWN, separator=" ", formatter={"all": one})


def _number_text(value: Any) -> str:
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    text = str(value)
    # A bf16 of 1 prints as 1.
    return text + ".0" if value.dtype.kind not in "iu" and text.lstrip("-").isdigit() else text


def _facts(value: Any, tensors: Arrays) -> dict[str, Any]:
    """A tensor with its dtype and shape, several values as a list of such, any other value plain."""
    if isinstance(value, Values):
        return {"values": [_facts(part, tensors) for part in value]}
    if isinstance(value, Node):
        array = next(tensors)
        return {"dtype": value.dtype, "shape": list(value.shape), "value": _plain_array(array)}
    return {"value": _plain(value, tensors)}


def _plain(value: Any, tensors: Arrays) -> Any:
    value = fold(value)
    if isinstance(value, tuple):
        return [_plain(part, tensors) for part in value]
    if isinstance(value, Node):
        return _facts(value, tensors)
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    return plain(value) if isinstance(value, (int, float)) else describe(value)


def _plain_array(array: np.ndarray[Any, Any]) -> Any:
    """Nested lists of Python's numbers; a float is the shortest that reads back to the same float32."""
    if array.dtype.kind in "biu":
        return array.tolist()
    flat = [float(str(number)) for number in array.astype(np.float32).reshape(-1)]
    return np.asarray(flat, object).reshape(array.shape).tolist()
