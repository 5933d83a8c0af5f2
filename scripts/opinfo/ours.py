"""Our side: a form as a user writes it, elaborated, differentiated, compiled for the CPU, and run in float32."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.interp.executor import Engine, Executable
from sexpgpu.ir.graph import Graph
from sexpgpu.lang.program import program_of
from sexpgpu.lang.reader import read
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.evaluating import evaluated
from sexpgpu.passes.hoist import hoist
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan.build import plan
from sexpgpu.source import Source

Array = np.ndarray[Any, Any]
THREADS = 2


class Prepared:
    """A form's graph: results `0`, `1`, …, and `gradient:NAME` of each operand that is asked for."""

    def __init__(self, graph: Graph, results: int) -> None:
        self.graph = graph
        self.results = results
        self.loaded: Executable | None = None

    def load(self) -> None:
        """Its kernels are wanted, and compiled with those of others."""
        self.loaded = engine().load(plan(self.graph, keep_values=False))

    def run(self, values: Mapping[str, Array]) -> dict[str, Array]:
        assert self.loaded is not None
        kept = []
        for node in self.graph.inputs:
            name = f"{node.attributes['kind']}:{node.attributes['name']}"
            if name not in self.loaded.plan.externals:
                continue  # nothing reads it
            array = np.array(values[node.attributes["name"]], numpy_dtype(node.dtype), order="C")
            kept.append(array)
            self.loaded.bind(name, array)
        self.loaded.run({})
        return {name: self.loaded.output(name).copy() for name in self.graph.outputs}


@cache
def engine() -> Engine:
    return Engine(THREADS, Path(tempfile.gettempdir()) / "sexpgpu-opinfo")


def form_text(text: str, operands: Mapping[str, Array], cotangents: Mapping[int, Array], results: int) -> str:
    """The form among its operands, with its loss last. Whole numbers and conditions come through parameters, too."""
    bindings = " ".join(
        f"({name} {_operand(name, value)})" for name, value in operands.items() if "." not in name
    )
    places = [f"result-{k}" for k in range(results)]
    products = [f'(sum (* result-{k} (param "cotangent.{k}" {_shape(c)} zeros)))' for k, c in cotangents.items()]
    loss = f" (+ {' '.join(products)})" if products else ""
    bound = f"({places[0]} {text})" if results == 1 else f"(({' '.join(places)}) {text})"
    return f"(let ({bindings}) (let ({bound}) (values {' '.join(places)}{loss})))"


def _shape(value: Array) -> str:
    return f"[{' '.join(map(str, value.shape))}]"


def _operand(name: str, value: Array) -> str:
    made = f'(param "{name}" {_shape(value)} zeros)'
    return {"f": made, "b": f"(!= {made} 0)"}.get(value.dtype.kind, f"(cast {made} i32)")


def prepare(
    text: str, operands: Mapping[str, Array], cotangents: Mapping[int, Array], results: int,
    wanted: Mapping[str, Any], training: bool,
) -> Prepared:  # fmt: skip
    """Raises Diagnostics with the problems of the form."""
    source = form_text(text, operands, cotangents, results)
    made = evaluated(program_of(Source("opinfo", "")), read(Source("form", source))[-1], _no_header, training=training)
    graph = hoist(made.graph)
    if not cotangents:
        return Prepared(simplify(graph), results)
    targets = {node.attributes["name"]: node for node in graph.inputs if node.attributes["name"] in wanted}
    return Prepared(simplify(differentiate(graph, {str(results): ("number", 1.0)}, targets)), results)


def _no_header(*_: Any) -> Any:
    raise AssertionError("a form has no loader")
