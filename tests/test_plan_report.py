"""The report of a plan: counts, flops and bytes by hand, and what the text names."""

from __future__ import annotations

import numpy as np
from test_differentiate import field
from test_plan import norm_graph

from sexpgpu.ir.graph import Graph, Origin
from sexpgpu.plan.build import plan
from sexpgpu.plan.report import describe, memory_parts, peak, totals
from sexpgpu.source import Source, Span


def linear_graph() -> Graph:
    """tanh(x · w) summed: [64 100] · [100 300]."""
    graph = Graph("linear")
    x = field(graph, "x", np.zeros((64, 100)))
    w = field(graph, "w", np.zeros((100, 300)), "parameter")
    with graph.at(Origin(Span(Source("net.sexp", "(linear x)"), 0, 10))):
        product = graph.add("contract", (x, w), {"batch": ((), ()), "contracted": ((1,), (0,))})
    graph.outputs["y"] = graph.add("tanh", (product,))
    return graph


def test_totals_count_launches_and_multiply_adds() -> None:
    counts = totals(plan(linear_graph()))
    assert (counts.launches, counts.kernels, counts.products, counts.indexed, counts.programs) == (2, 1, 1, 0, 1)
    assert counts.flops == 2 * 64 * 100 * 300


def test_the_parts_of_memory_are_the_bytes_of_their_buffers() -> None:
    parts = memory_parts(plan(linear_graph()))
    assert parts["field"] == 64 * 100 * 4
    assert parts["parameter"] == 100 * 300 * 4
    # tanh overwrites the product.
    assert parts["arena"] == 64 * 300 * 4


def test_the_peak_is_where_most_is_alive() -> None:
    graph = Graph("peak")
    x = field(graph, "x", np.zeros((64, 64)))
    pairs = {"batch": ((), ()), "contracted": ((1,), (0,))}
    first = graph.add("contract", (x, x), pairs)
    second = graph.add("contract", (first, x), pairs)
    graph.outputs["y"] = graph.add("contract", (first, second), pairs)
    made = plan(graph)
    moment, live = peak(made)
    assert moment == 2
    assert [made.buffers[b].size_bytes for b in live] == [64 * 64 * 4] * 3


def test_a_description_names_kind_sizes_operations_buffers_and_place() -> None:
    lines = describe(plan(linear_graph()), linear_graph()).splitlines()
    assert "product [64 100] · [100 300]" in lines[0]
    assert "field:x parameter:w" in lines[0]
    assert lines[0].endswith("net.sexp:1:1")
    assert "map [19200]: tanh" in lines[1]
    assert lines[3] == "flops     3,840,000 in products"


def test_a_description_numbers_the_calls_of_a_region() -> None:
    graph, body = Graph("calls"), Graph("double")
    for target in (body,):
        argument = target.add("input", (), {"kind": "argument", "name": "a", "dtype": "f32", "shape": (4, 5)})
        target.outputs["y"] = target.add("sum", (argument + argument,), {"axes": (1,)})
    for name in "xy":
        graph.outputs[name] = graph.add("region", (field(graph, name, np.zeros((4, 5))),), {"body": body})
    text = describe(plan(graph), graph)
    assert "double 1" in text
    assert "double 2" in text


def test_one_norm_is_one_fused_kernel() -> None:
    counts = totals(plan(norm_graph(3, 33)))
    assert (counts.launches, counts.fused) == (1, 1)
