"""Experiments of a few lines, elaborated and evaluated node by node in float64: no device, no kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.lang.program import load_program
from sexpgpu.loaderspec import Field, Header
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.passes.pipeline import training_graph

Array = np.ndarray
DTYPES = {"f": "f32", "i": "i32", "b": "bool"}
# Every element of the loss weighs 1, gradients are not clipped.
SCALES = {"loss-scale": 1.0, "gradient-scale": 1.0}


def experiment(
    folder: Path,
    fields: Mapping[str, Array],
    loss: str,
    predict: str | None = None,
    optimizer: str = "(sgd)",
    steps: int = 1,
) -> Experiment:
    """A run of a loader with these fields."""
    path = folder / "case.sexp"
    keys = f":loss {loss}" + (f"\n :predict {predict}" if predict else "")
    path.write_text(
        '(defloader fields (arrays "fields.npz" :batch 1))\n'
        f"(defrun case :data fields :optimizer {optimizer} :steps {steps}\n {keys})\n"
    )
    described = {name: Field(DTYPES[value.dtype.kind], value.shape) for name, value in fields.items()}
    return elaborate(load_program(path), lambda *_: Header(described, 1))


def parameter(name: str, value: Array) -> str:
    """The parameter of that shape; its values are given when the graph is evaluated."""
    return f'(param "{name}" [{" ".join(map(str, value.shape))}] zeros)'


def prediction(made: Experiment, values: Mapping[str, Array]) -> Array:
    assert made.predict is not None
    return evaluate_graph(made.predict, values)["predict"]


def gradients(made: Experiment, values: Mapping[str, Array], hosts: Mapping[str, float] = SCALES) -> dict[str, Array]:
    """Outputs `loss`, `weight` and `gradient:NAME` of each parameter."""
    return evaluate_graph(training_graph(made), values, hosts)


def updated(made: Experiment, values: Mapping[str, Array], hosts: Mapping[str, float]) -> dict[str, Array]:
    """The update from `parameter:NAME`, `gradient:NAME` and `state:NAME:STATE`; a state not given is as it begins."""
    begun = {f"state:{s.parameter}:{s.name}": np.full(s.shape, s.fill) for s in made.states}
    return evaluate_graph(_named_by_kind(made.update), {**begun, **values}, {**SCALES, **hosts})


def _named_by_kind(graph: Graph) -> Graph:
    """A parameter and its gradient have one name; here inputs are named as outputs are."""
    renamed = Graph(graph.name)
    replace: dict[Node, Any] = {}
    for node in graph.nodes:
        if node.op == "input":
            name = f"{node.attributes['kind']}:{node.attributes['name']}"
            replace[node] = renamed.add("input", (), {**node.attributes, "name": name})
        else:
            replace[node] = renamed.clone(node, [replace[i] for i in node.inputs])
    renamed.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    return renamed
