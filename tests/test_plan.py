"""Plans: what they compute, how few kernels they take, and that no memory is shared by two lives."""

from __future__ import annotations

import numpy as np
import pytest
from operations import CASES, Case
from plan_oracle import run_plan
from test_differentiate import SMOOTH, field, gradient_graph

from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.simplify import simplify
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Generated, Plan, Product

# Float32 against float64: a factor on the unit roundoff, for sums of up to 1,025 terms.
TOLERANCE = 2e-5


def external(graph: Graph, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{n.attributes['kind']}:{n.attributes['name']}": values[n.attributes["name"]] for n in graph.inputs}


def check(graph: Graph, values: dict[str, np.ndarray], **options: bool) -> Plan:
    """The plan's results are the graph's meaning."""
    made = plan(graph, **options)  # type: ignore[arg-type]
    no_overlap(made)
    expected = evaluate_graph(graph, values, wide=True)
    for name, value in run_plan(made, external(graph, values)).items():
        wanted = expected[name]
        scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        assert np.allclose(value, wanted, rtol=TOLERANCE, atol=TOLERANCE * scale), name
    return made


def no_overlap(made: Plan) -> None:
    """An independent look at lives: no two arena buffers that share bytes are in use at the same time."""
    from sexpgpu.plan.kernel import places_of

    lives: dict[int, list[int]] = {}
    for moment, launch in enumerate(made.launches):
        for place in places_of(launch):
            if made.buffers[place.buffer].kind == "arena":
                lives.setdefault(place.buffer, []).append(moment)
    for place, _ in made.outputs.values():
        if made.buffers[place.buffer].kind == "arena":
            lives.setdefault(place.buffer, []).append(len(made.launches))
    spans = [(made.buffers[b], min(t), max(t)) for b, t in lives.items()]
    for i, (a, first, last) in enumerate(spans):
        for b, start, end in spans[:i]:
            apart = a.offset + a.size_bytes <= b.offset or b.offset + b.size_bytes <= a.offset
            assert apart or last < start or end < first, (a, b)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_one_operation_is_planned(case: Case) -> None:
    graph = Graph(case.name)
    inputs = [field(graph, f"x{k}", x) for k, x in enumerate(case.inputs)]
    graph.outputs["y"] = graph.add(case.op, inputs, case.attributes)
    check(graph, {f"x{k}": x for k, x in enumerate(case.inputs)})


@pytest.mark.parametrize("keep_values", [False, True])
@pytest.mark.parametrize("case", SMOOTH, ids=[c.name for c in SMOOTH])
def test_an_operation_with_its_gradient_is_planned(case: Case, keep_values: bool) -> None:
    graph = simplify(gradient_graph(case))
    weights = np.random.default_rng(1).normal(size=graph.outputs["y"].shape).astype(np.float32)
    values = {f"x{k}": x for k, x in enumerate(case.inputs)} | {"weights": weights.astype(np.float64)}
    check(graph, values, keep_values=keep_values)


def norm_graph(rows: int, width: int) -> Graph:
    """A residual sum, then a layer norm: one pass over rows."""
    graph = Graph("norm")
    x, h, gain = (field(graph, n, np.zeros(s)) for n, s in (("x", (2, rows, width)), ("h", (2, rows, width)), ("gain", (width,))))
    total = x + h
    shape, dims = (2, rows, width), (0, 1)
    mean = graph.add("sum", (total,), {"axes": (2,)}) * (1.0 / width)
    centred = total - graph.add("broadcast", (mean,), {"shape": shape, "dims": dims})
    variance = graph.add("sum", (centred * centred,), {"axes": (2,)}) * (1.0 / width)
    scale = graph.add("rsqrt", (variance + 1e-5,))
    normed = centred * graph.add("broadcast", (scale,), {"shape": shape, "dims": dims})
    graph.outputs["total"] = total
    graph.outputs["y"] = normed * graph.add("broadcast", (gain,), {"shape": shape, "dims": (2,)})
    return graph


def test_a_residual_sum_with_its_norm_is_one_kernel() -> None:
    rng = np.random.default_rng(2)
    values = {"x": rng.normal(size=(2, 3, 33)), "h": rng.normal(size=(2, 3, 33)), "gain": rng.normal(size=33)}
    made = check(norm_graph(3, 33), values)
    (launch,) = made.launches
    assert isinstance(launch, Generated) and launch.program.kind == "row"
    assert launch.sizes == (6, 33)


def test_other_sizes_give_the_same_programs() -> None:
    programs = [{x.program for x in plan(norm_graph(*s)).launches if isinstance(x, Generated)} for s in ((3, 33), (8, 33))]
    assert programs[0] == programs[1]


def attention_graph() -> Graph:
    """Heads split from [b t c], scores, their product with values, heads merged, one more product."""
    graph = Graph("attention")
    b, t, h, d = 2, 5, 3, 4
    q, k, v = (field(graph, n, np.zeros((b, t, h * d))) for n in "qkv")
    w = field(graph, "w", np.zeros((h * d, 7)))

    def heads(x):  # type: ignore[no-untyped-def]
        return graph.add("permute", (graph.add("reshape", (x,), {"shape": (b, t, h, d)}),), {"axes": (0, 2, 1, 3)})

    pairs = ((0, 1), (0, 1))
    scores = graph.add("contract", (heads(q), heads(k)), {"batch": pairs, "contracted": ((3,), (3,))})
    mixed = graph.add("contract", (scores, heads(v)), {"batch": pairs, "contracted": ((3,), (2,))})
    merged = graph.add("reshape", (graph.add("permute", (mixed,), {"axes": (0, 2, 1, 3)}),), {"shape": (b, t, h * d)})
    graph.outputs["y"] = graph.add("contract", (merged, w), {"batch": ((), ()), "contracted": ((2,), (0,))})
    return graph


def test_heads_are_split_and_merged_without_copies() -> None:
    rng = np.random.default_rng(3)
    values = {n: rng.normal(size=(2, 5, 12)) for n in "qkv"} | {"w": rng.normal(size=(12, 7))}
    made = check(attention_graph(), values)
    assert [type(launch) for launch in made.launches] == [Product] * 3


def test_an_updated_parameter_is_written_in_place_only_where_nothing_else_reads_it() -> None:
    graph = Graph("update")
    p, g = (field(graph, n, np.zeros(33), kind) for n, kind in (("w", "parameter"), ("w", "gradient")))
    graph.outputs["parameter:w"] = p - g * 0.5
    made = plan(graph, aliases={"parameter:w": "parameter:w"})
    (launch,) = made.launches
    assert isinstance(launch, Generated) and launch.program.stores[0].alias is not None
    flipped = Graph("flipped")
    p, g = (field(flipped, n, np.zeros(33), kind) for n, kind in (("w", "parameter"), ("w", "gradient")))
    flipped.outputs["parameter:w"] = p - flipped.add("flip", (p,), {"axes": (0,)}) * g
    made = plan(flipped, aliases={"parameter:w": "parameter:w"})
    x, y = np.random.default_rng(4).normal(size=(2, 33)).astype(np.float32)
    result = run_plan(made, {"parameter:w": x, "gradient:w": y})["parameter:w"]
    assert np.allclose(result, x - x[::-1] * y, rtol=1e-6)
