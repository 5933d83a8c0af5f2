"""Which node of a graph first became NaN or infinite: the graph is run again, node by node, in its NumPy meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.device import Counter
from sexpgpu.ir.evaluate import evaluate_nodes
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import TensorType
from sexpgpu.randomness import key_of, uniform_f32, words_of

# Every value is kept while the graph runs again; beyond this much the search is left out of the message.
MOST_BYTES = 4 << 30


def uniform_draw(node: Node, scan: int, seed: int, counter: Counter) -> NDArray[np.float32]:
    """The uniform field of a `random` node in one call, at an index of a scan."""
    key = key_of(seed, node.attributes["path"], node.attributes["ordinal"])
    words = words_of(key, node.tensor.elements, scan, counter.microbatch, counter.step)
    return uniform_f32(words).reshape(node.shape)


def first_bad_node(
    graph: Graph, inputs: Mapping[str, Any], hosts: Mapping[str, float], seed: int, counter: Counter
) -> Node | None:
    """The first node that holds a NaN, else the first that is infinite though what it reads is not; None: all is finite.

    Infinities that a graph works with on purpose (a mask's -inf is a constant, picked by `select`) are passed over.
    """
    size = sum(t.size_bytes for node in graph.nodes for t in _types(node))
    if size > MOST_BYTES:
        return None
    values = evaluate_nodes(graph, inputs, hosts, wide=False, draw=lambda node, scan: uniform_draw(node, scan, seed, counter))
    infinite = None
    for node in graph.nodes:
        parts = values[node] if isinstance(values[node], (list, tuple)) else [values[node]]
        floats = [np.asarray(part) for part in parts if np.asarray(part).dtype.kind == "f"]
        if any(np.isnan(part).any() for part in floats):
            return node
        if infinite is None and node.op not in ("constant", "select") and any(np.isinf(part).any() for part in floats):
            infinite = node
    return infinite


def _types(node: Node) -> tuple[TensorType, ...]:
    return (node.type,) if isinstance(node.type, TensorType) else node.type
