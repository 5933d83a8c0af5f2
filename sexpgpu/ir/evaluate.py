"""The NumPy meaning of a graph: every node by its record, regions by their bodies. The oracle of tests, and `eval`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import evaluate as evaluate_host
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.ops.scan import positions
from sexpgpu.ops.table import OPS

Array = np.ndarray[Any, Any]
# Gives the uniform field of a `random` node at an index of a scan (0 outside).
Draw = Callable[[Node, int], Array]
# Sees every node and its operands before it is computed, those of bodies, too.
Watch = Callable[[Node, list[Any]], None]


def evaluate_graph(
    graph: Graph,
    inputs: Mapping[str, Any],
    hosts: Mapping[str, float] | None = None,
    *,
    wide: bool = True,
    draw: Draw | None = None,
    watch: Watch | None = None,
) -> dict[str, Array]:
    """The outputs by name. `inputs` are by the input nodes' names; `wide` computes floats in float64, else in their dtype."""
    values = evaluate_nodes(graph, inputs, hosts, wide=wide, draw=draw, watch=watch)
    return {name: np.asarray(values[node]) for name, node in graph.outputs.items()}


def evaluate_nodes(
    graph: Graph,
    inputs: Mapping[str, Any],
    hosts: Mapping[str, float] | None = None,
    *,
    wide: bool = True,
    draw: Draw | None = None,
    watch: Watch | None = None,
) -> dict[Node, Any]:
    """The value of every node, a list where a node gives several."""
    meaning = _Meaning(hosts or {}, wide, draw, watch)
    return meaning.nodes(graph, [inputs[node.attributes["name"]] for node in graph.inputs])


class _Meaning:
    def __init__(self, hosts: Mapping[str, float], wide: bool, draw: Draw | None, watch: Watch | None) -> None:
        self.hosts = hosts
        self.wide = wide
        self.draw = draw
        self.watch = watch
        # The word `scan` of a draw's counter.
        self.position = 0

    def nodes(self, graph: Graph, arguments: Sequence[Any]) -> dict[Node, Any]:
        values: dict[Node, Any] = dict(zip(graph.inputs, map(self._given, graph.inputs, arguments), strict=True))
        with np.errstate(all="ignore"):
            for node in graph.nodes:
                if node not in values:
                    values[node] = self._node(node, [values[i] for i in node.inputs])
        return values

    def _given(self, node: Node, value: Any) -> Array:
        made = np.asarray(value, self._dtype(node.dtype))
        assert made.shape == node.shape, (node, made.shape)
        return made

    def _dtype(self, dtype: str) -> Any:
        return np.dtype(np.float64) if self.wide and dtype in FLOATS else numpy_dtype(dtype)

    def _node(self, node: Node, operands: list[Any]) -> Any:
        if self.watch is not None:
            self.watch(node, operands)
        if node.op == "host":
            return np.asarray(evaluate_host(node.attributes["expression"], self.hosts), self._dtype("f32"))
        if node.op == "random":
            assert self.draw is not None, "a graph with random fields needs `draw`"
            return self.draw(node, self.position)
        if node.op == "region":
            body = node.attributes["body"]
            values = self.nodes(body, operands)
            made = [values[output] for output in body.outputs.values()]
            return made[0] if len(made) == 1 else made
        if node.op == "scan":
            return self._scan(node, operands)
        if node.op == "get":
            return operands[0][node.attributes["index"]]
        if node.op == "constant":
            return np.full(node.shape, node.attributes["value"], self._dtype(node.dtype))
        if node.op == "cast" and self.wide and node.dtype in FLOATS:
            return np.asarray(operands[0], np.float64)
        made = OPS[node.op].run(*operands, **node.attributes)
        return np.asarray(made, self._dtype(node.dtype))

    def _scan(self, node: Node, operands: list[Any]) -> list[Any]:
        body, carries, scanned = (node.attributes[name] for name in ("body", "carries", "scanned"))
        carried, xs, constants = operands[:carries], operands[carries : carries + scanned], operands[carries + scanned :]
        outputs, before = list(body.outputs.values()), self.position
        stacked = [np.zeros((node.attributes["length"], *n.shape), self._dtype(n.dtype)) for n in outputs[carries:]]
        for t in positions(node):
            self.position = before * node.attributes["length"] + t
            values = self.nodes(body, [*carried, *(x[t] for x in xs), *constants])
            carried = [values[output] for output in outputs[:carries]]
            for whole, output in zip(stacked, outputs[carries:], strict=True):
                whole[t] = values[output]
        self.position = before
        return [*carried, *stacked]
