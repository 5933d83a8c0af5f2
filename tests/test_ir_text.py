"""The IR's text reads back to the same graph."""

from __future__ import annotations

import math

import pytest
from test_differentiate import region_graph

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.text import print_graph, read_graph
from sexpgpu.ir.verify import verify
from sexpgpu.passes.simplify import simplify


def same(a: Graph, b: Graph) -> bool:
    """Node for node: operation, operands, attributes (bodies in depth), types, outputs."""
    pairs = list(zip(a.nodes, b.nodes, strict=True))
    for x, y in pairs:
        if (x.op, x.type, [i.index for i in x.inputs]) != (y.op, y.type, [i.index for i in y.inputs]):
            return False
        for name, value in x.attributes.items():
            other = y.attributes[name]
            equal = same(value, other) if isinstance(value, Graph) else repr(value) == repr(other)
            if not equal:
                return False
    return {k: v.index for k, v in a.outputs.items()} == {k: v.index for k, v in b.outputs.items()}


def test_a_graph_with_regions_reads_back() -> None:
    graph = simplify(region_graph((0, 1)))
    text = print_graph(graph)
    back = verify(read_graph(text))
    assert same(graph, back)
    assert print_graph(back) == text


def test_odd_attributes_read_back() -> None:
    graph = Graph("odd")
    values = [math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-45, 3.0]
    nodes = [graph.constant(v, "f32", (2,)) for v in values] + [graph.constant(2**62 + 1, "i64")]
    name = "it's a=1 \"b=2\" %3 = x() : f32[]"
    nodes.append(graph.add("input", (), {"kind": "field", "name": name, "dtype": "f32", "shape": ()}))
    nodes.append(graph.add("host", (), {"expression": ("mul", ("hyper", "lr", 1e-3), ("step",))}))
    graph.outputs = {f"o{k}": node for k, node in enumerate(nodes)}
    back = read_graph(print_graph(graph))
    assert same(graph, back)
    assert back.nodes[7].attributes["value"] == 2**62 + 1
    assert math.copysign(1, back.nodes[3].attributes["value"]) == -1


def test_the_text_of_a_small_graph_is_what_the_page_says() -> None:
    graph = Graph("t")
    x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (3, 4)})
    graph.outputs["y"] = graph.add("sum", (x * 2.0,), {"axes": (1,)})
    assert print_graph(graph) == (
        "graph t\n"
        "  %0 = input() kind='field' name='x' dtype='f32' shape=(3, 4) : f32[3 4]\n"
        "  %1 = constant() value=2.0 dtype='f32' shape=(3, 4) : f32[3 4]\n"
        "  %2 = mul(%0, %1) : f32[3 4]\n"
        "  %3 = sum(%2) axes=(1,) : f32[3]\n"
        "  return y=%3\n"
    )


@pytest.mark.parametrize("text", ["nonsense\n", "graph t\n  %0 = exp(\n"])
def test_other_texts_are_refused_with_their_line(text: str) -> None:
    with pytest.raises(ValueError, match="line [12]"):
        read_graph(text)
