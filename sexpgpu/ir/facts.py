"""What a run asks of a graph: facts that are counted once and kept, so that a later start need not make the graph.

A `LateGraph` stands for a graph of an earlier start: these questions are answered from its facts, and its nodes are
made when something else asks for them, such as a message that names a form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from math import prod
from typing import Any

import msgspec

from sexpgpu.ir.graph import Graph, Node


class Facts(msgspec.Struct, frozen=True):
    """`digest` is of the text and the labels, which decide a graph's plan; `fields` are in order of declaration; `flops`
    are those of products; `weight` is what a full microbatch of a training graph weighs; `text` may be left out."""

    name: str
    digest: str
    nodes: int
    fields: tuple[str, ...]
    outputs: tuple[str, ...]
    flops: int
    weight: float
    text: str


class LateGraph(Graph):
    """The graph of these facts, whose nodes `make` makes, once, when they are asked for."""

    def __init__(self, facts: Facts, make: Callable[[], Graph]) -> None:
        self.name = facts.name
        self.facts = facts
        self._make = make

    def __getattr__(self, name: str) -> Any:
        """Only of what is not there: all that makes a graph a graph, until it is made."""
        if name.startswith("__") or "nodes" in self.__dict__:
            raise AttributeError(name)
        made = self._make()
        assert facts_of(made).digest == self.facts.digest, f"{self.name} is not the graph that was kept"
        self.__dict__ |= made.__dict__
        return getattr(self, name)


def facts_of(graph: Graph, *, with_text: bool = False) -> Facts:
    """The facts of a graph that is there."""
    if isinstance(graph, LateGraph) and (graph.facts.text or not with_text):
        return graph.facts
    return Facts(
        graph.name, digest_of(graph), len(graph.nodes), field_names(graph), output_names(graph), flops_of(graph),
        nominal_weight(graph), text_of(graph) if with_text else "",
    )  # fmt: skip


def text_of(graph: Graph) -> str:
    """What `print_graph` gives."""
    if isinstance(graph, LateGraph) and graph.facts.text:
        return graph.facts.text
    from sexpgpu.ir.text import print_graph

    return print_graph(graph)


def digest_of(graph: Graph) -> str:
    """The text of a graph has no labels; a plan has those of its inputs and outputs."""
    if isinstance(graph, LateGraph):
        return graph.facts.digest
    seen = [*graph.inputs, *graph.outputs.values()]
    labels = [getattr(node.type, "labels", ()) for node in seen]
    return hashlib.sha256(f"{labels}\n{text_of(graph)}".encode()).hexdigest()


def node_count(graph: Graph) -> int:
    return graph.facts.nodes if isinstance(graph, LateGraph) else len(graph.nodes)


def output_names(graph: Graph) -> tuple[str, ...]:
    return graph.facts.outputs if isinstance(graph, LateGraph) else tuple(graph.outputs)


def field_names(graph: Graph) -> tuple[str, ...]:
    """The fields that a graph reads, in order of declaration."""
    if isinstance(graph, LateGraph):
        return graph.facts.fields
    return tuple(node.attributes["name"] for node in graph.inputs if node.attributes["kind"] == "field")


def flops_of(graph: Graph) -> int:
    """Two for every multiply-add of every product, bodies of regions included; the rest is small beside them."""
    return graph.facts.flops if isinstance(graph, LateGraph) else _flops(graph, {})


def _flops(graph: Graph, of_bodies: dict[int, int]) -> int:
    total = 0
    for node in graph.nodes:
        if node.op == "contract":
            total += product_flops(node)
        body = node.attributes.get("body")
        if body is not None:
            if id(body) not in of_bodies:
                of_bodies[id(body)] = _flops(body, of_bodies)
            total += of_bodies[id(body)] * node.attributes.get("length", 1)
    return total


def product_flops(node: Node) -> int:
    a = node.inputs[0]
    contracted: tuple[int, ...] = node.attributes["contracted"][0]
    return 2 * node.tensor.elements * prod(a.shape[axis] for axis in contracted)


def nominal_weight(graph: Graph) -> float:
    """What one full microbatch weighs: a constant where every element counts once, else how many numbers are summed.

    Any number will do that is the same for every microbatch: the sum's root is corrected by what was real.
    """
    if isinstance(graph, LateGraph):
        return graph.facts.weight
    weight = graph.outputs.get("weight")
    if weight is None:
        return 1.0
    if weight.op == "constant":
        return float(weight.attributes["value"])
    node = weight
    while node.inputs and node.op in ("cast", "reshape", "mul"):
        node = node.inputs[0]
    return float(node.inputs[0].tensor.elements) if node.op == "sum" and node.inputs else 1.0
