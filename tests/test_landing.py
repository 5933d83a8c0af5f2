"""Results that land in the arena: other values lie there until the results come."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import numpy as np
from on_cpu import engine
from plan_oracle import run_plan
from test_chunk import head
from test_plan import no_overlap

from sexpgpu import load
from sexpgpu.examples import __file__ as examples
from sexpgpu.interp.executor import Engine
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Plan

HOSTS = {"loss-scale": 1.0}


def end_to_end(graph: Graph) -> tuple[dict[str, int], int]:
    """Places for every gradient, one after the other on cache lines, and their bytes in all."""
    names = [name for name in graph.outputs if name.startswith("gradient:")]
    sizes = [-(-graph.outputs[name].tensor.size_bytes // 64) * 64 for name in names]
    ends = list(accumulate(sizes))
    return dict(zip(names, [0, *ends])), ends[-1]


def both(graph: Graph) -> tuple[Plan, Plan, int]:
    """The plan with gradients outside the arena, and with gradients that land in it."""
    landing, total = end_to_end(graph)
    apart = plan(graph, aliases=bound_outputs(graph))
    landed = plan(graph, aliases=bound_outputs(graph), landing=landing)
    no_overlap(landed)
    return apart, landed, total


def test_gradients_in_the_arena_are_those_outside_it(tmp_path: Path) -> None:
    made, values = head(tmp_path)
    graph = training_graph(made)
    apart, landed, _ = both(graph)
    given = {f"{n.attributes['kind']}:{n.attributes['name']}": values[n.attributes["name"]] for n in graph.inputs}
    expected, found = run_plan(apart, given, HOSTS), run_plan(landed, given, HOSTS)
    assert expected.keys() == found.keys()
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_most_of_what_gpt2_keeps_for_its_backward_pass_lies_where_gradients_land() -> None:
    graph = training_graph(load(Path(examples).parent / "gpt2.sexp", set={"layers": 4}).elaborated)
    apart, landed, total = both(graph)
    assert landed.arena_bytes >= max(total, apart.arena_bytes)
    saved = apart.arena_bytes + total - landed.arena_bytes
    # A layer's gradients come after those of the layers above it: three of four layers' memory waits for them.
    layer = 12 * 768 * 768 * 4
    assert saved >= 2 * layer


def test_a_plan_follows_the_arena_when_a_larger_plan_makes_it_move(tmp_path: Path) -> None:
    def doubled(size: int) -> Graph:
        graph = Graph("doubled")
        x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (size,)})
        graph.outputs["y"] = graph.add("add", (x, x))
        return graph

    kernels = Engine(1, engine().cache.folder.parent)
    small, large = (kernels.load(plan(doubled(size))) for size in (10, 10_000))
    small.bind("field:x", np.arange(10, dtype=np.float32))
    large.bind("field:x", np.arange(10_000, dtype=np.float32))
    small.run({})
    larger = kernels.load(plan(doubled(100_000)))
    larger.bind("field:x", np.zeros(100_000, np.float32))
    for loaded, size in ((larger, 0), (large, 10_000), (small, 10)):
        loaded.run({})
        assert np.array_equal(loaded.output("y")[:size], 2 * np.arange(size))
    kernels.close()
