"""Our side: a form elaborated, planned, compiled for the CPU and run, with tensors of every dtype as its inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from onnx_nodes.case import Array
from sexpgpu.errors import Diagnostics
from sexpgpu.interp.executor import Engine, Executable
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.lang.program import program_of
from sexpgpu.lang.reader import read
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.passes.elaboration.bodies import is_wrong, tensors
from sexpgpu.passes.elaboration.compile import Compiler, Layout
from sexpgpu.passes.elaboration.machine import Context, Machine
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC
from sexpgpu.passes.elaboration.scope import Scope
from sexpgpu.passes.elaboration.values import POISON, Value, Values
from sexpgpu.passes.hoist import hoist
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan.build import plan
from sexpgpu.source import Source

THREADS = 2
DTYPES = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint32": "u32",
    "bool": "bool",
}  # fmt: skip


@cache
def engine() -> Engine:
    return Engine(THREADS, Path(tempfile.gettempdir()) / "sexpgpu-onnx")


class Prepared:
    """A form's value and the graph of its tensors."""

    def __init__(self, text: str, operands: Mapping[str, Array], parameters: Mapping[str, Array]) -> None:
        self.given = {**operands, **parameters}
        self.value, graph = _elaborated(text, operands)
        self.kinds = [part if not isinstance(part, Node) else None for part in _parts(self.value)]
        self.graph = simplify(hoist(graph))
        self.loaded: Executable | None = None

    def load(self) -> None:
        """Its kernels are wanted, and compiled with those of others."""
        if self.graph.outputs:
            self.loaded = engine().load(plan(self.graph, keep_values=False))

    def run(self) -> list[Array]:
        """The results in order."""
        if self.loaded is None:
            return self._results({})
        kept = []
        for node in self.graph.inputs:
            name = f"{node.attributes['kind']}:{node.attributes['name']}"
            if name not in self.loaded.plan.externals:
                continue  # nothing reads it
            kept.append(np.array(self.given[node.attributes["name"]], numpy_dtype(node.dtype), order="C"))
            self.loaded.bind(name, kept[-1])
        self.loaded.run({})
        return self._results({name: self.loaded.output(name).copy() for name in self.graph.outputs})

    def meant(self) -> list[Array]:
        """The results by the NumPy meaning of the graph."""
        return self._results(evaluate_graph(self.graph, self.given, wide=False))

    def _results(self, made: Mapping[str, Array]) -> list[Array]:
        """Tensors as computed; a list or number that was known at elaboration, as i64."""
        numbers = iter(range(len(made)))
        return [made[str(next(numbers))] if part is None else np.array(part, np.int64) for part in self.kinds]


def _parts(value: Value) -> list[Any]:
    return list(value) if isinstance(value, Values) else [value]


def _elaborated(text: str, operands: Mapping[str, Array]) -> tuple[Value, Graph]:
    machine = Machine()
    compiler = Compiler(program_of(Source("onnx", "")), machine, BUILTINS, CONSTANTS, DYNAMIC)
    graph = Graph("onnx")
    machine.graph, machine.scope, machine.context = graph, Scope(), Context(training=False)
    layout = Layout(False)
    layout.fields = {name: _input(graph, name, array) for name, array in operands.items()}
    value = machine.guarded(lambda: compiler.evaluate(read(Source("form", text))[-1], layout), POISON)
    if machine.errors:
        raise Diagnostics(machine.errors)
    assert not is_wrong(value)
    graph.outputs = {str(k): node for k, node in enumerate(tensors(value))}
    return value, graph


def _input(graph: Graph, name: str, array: Array) -> Callable[[], Node]:
    attributes = {"kind": "field", "name": name, "dtype": DTYPES[array.dtype.name], "shape": array.shape}

    @cache
    def made() -> Node:
        return graph.add("input", (), attributes)

    return made
