"""The verifier: what holds of every graph after every pass. A failure is our own bug, never the user's."""

from __future__ import annotations

from sexpgpu.ir.graph import Graph
from sexpgpu.ops.table import OPS


def verify(graph: Graph) -> Graph:
    """Asserts order, types, ownership and outputs, bodies included; gives the graph back."""
    for place, node in enumerate(graph.nodes):
        assert node.index == place and node.graph is graph, (node, place)
        assert node.op in OPS, node
        for operand in node.inputs:
            assert operand.graph is graph and operand.index < place, (node, operand)
        inferred = OPS[node.op].infer(*[i.type for i in node.inputs], **node.attributes)
        assert inferred == node.type, (node, inferred)
        if "body" in node.attributes:
            verify(node.attributes["body"])
    names = [(n.attributes["kind"], n.attributes["name"]) for n in graph.inputs]
    assert len(set(names)) == len(names), names
    for name, node in graph.outputs.items():
        assert node.graph is graph, name
    return graph
