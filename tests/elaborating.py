"""Programs of a few lines, elaborated without files: the loader `d` has x f32[8 64] and y i32[8]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.verify import verify
from sexpgpu.lang.program import program_of
from sexpgpu.loaderspec import Field, Header, LoaderSpec
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.source import Source

LOADER = '(defloader d (arrays "d.npz" :batch 8))'
TOKENS = '(defloader d (text "d.txt" :tokenizer (bytes) :seq 6 :batch 2))'


def header_of(spec: LoaderSpec) -> Header:
    """What the two loaders hold: 20 examples, or 50 windows of bytes."""
    rows = spec.batch or 1
    if spec.kind == "text":
        shape = (rows, spec.seq or 1)
        return Header({"tokens": Field("i32", shape), "targets": Field("i32", shape)}, 50, 256)
    return Header({"x": Field("f32", (rows, 64)), "y": Field("i32", (rows,))}, 20)


def elaborated(text: str, variants: Sequence[str] = (), sets: Sequence[str] = (), run: str | None = None) -> Experiment:
    made = elaborate(program_of(Source("e.sexp", text), variants, sets, run), header_of)
    for graph in (made.training, made.update, *made.evaluations.values(), *([made.predict] if made.predict else [])):
        verify(graph)
    return made


def errors_of(text: str, variants: Sequence[str] = (), sets: Sequence[str] = (), run: str | None = None) -> list[Error]:
    """The problems of a wrong program."""
    try:
        elaborate(program_of(Source("e.sexp", text), variants, sets, run), header_of)
    except Diagnostics as problems:
        return problems.errors
    raise AssertionError("no problem was found")


def run_of(loss: str, definitions: str = "", rest: str = ":steps 1", optimizer: str = "(sgd)", loader: str = LOADER) -> str:
    """A whole file around a loss."""
    return f"{loader}\n{definitions}\n(defrun r :data d :loss {loss} :optimizer {optimizer} {rest})"


def value_of(expression: str, definitions: str = "", **inputs: Any) -> np.ndarray[Any, Any]:
    """An expression's value in float64; `inputs` are the fields that it reads, 8 rows of 64 in x."""
    made = elaborated(run_of("(mean x)", definitions, f":steps 1 :predict {expression}"))
    assert made.predict is not None
    return evaluate_graph(made.predict, inputs)["predict"]


def names(experiment: Experiment) -> list[str]:
    return [parameter.name for parameter in experiment.parameters]
