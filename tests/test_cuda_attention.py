"""Attention on a simulated card: within float32's error bounds, NaN and infinities where the body has them, nothing found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from attending import HOSTS, Array, Case, expected, with_inner

from sexpgpu.codegen.cuda_attention import WIDEST_HEAD
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Attention
from sexpgpu.plan.work import works_of
from tests.elaborated import experiment, parameter
from tests.on_simulator import Simulated
from tests.test_attention import GRADIENTS, SPOILED

CASES = [
    *(Case((1, 1, 1, n, n, 5, 5), causal=True) for n in (1, 31, 33, 64, 65)),
    Case((1, 2, 2, 64, 97, 16, 16)),
    Case((2, 3, 3, 65, 65, 8, 8), causal=True),
    Case((2, 4, 2, 33, 33, 8, 8), causal=True),
    Case((2, 4, 1, 70, 40, 8, 8)),
    Case((1, 2, 1, 130, 70, 8, 8), causal=True),
    Case((1, 2, 1, 70, 130, 8, 8), causal=True),
    Case((1, 2, 2, 40, 50, 24, 7), scale=-0.7),
    Case((1, 2, 2, 66, 66, 8, 40), causal=True, scale=1.0),
    Case((1, 1, 1, 40, 40, 64, 64), causal=True),
    Case((1, 1, 1, 20, 20, 128, 128), causal=True),
    Case((1, 1, 1, 18, 18, WIDEST_HEAD, WIDEST_HEAD)),
    Case((2, 2, 2, 65, 66, 8, 8), mask=(65, 66)),
    Case((2, 2, 2, 65, 66, 8, 8), mask=(2, 1, 1, 66)),
    Case((2, 4, 2, 65, 66, 8, 8), mask=(4, 1, 66)),
    Case((1, 4, 2, 65, 65, 8, 8), causal=True, mask=(1, 4, 65, 65)),
]


NARROW = [
    Case((1, 2, 1, 70, 70, 8, 8), causal=True),
    Case((2, 2, 2, 40, 33, 24, 7), mask=(40, 33)),
]


def narrow_graph(case: Case, dtype: str, folder: Path) -> Graph:
    """The gradients of Σ d · attention(q, k, v), where q, k, v, the result and its cotangent are rounded."""
    values = case.values()
    fields = {name: values[name] for name in ("d", "mask") if name in values}
    q, k, v = (f"(cast (cast {parameter(name, values[name])} {dtype}) f32)" for name in "qkv")
    keys = (" :causal true" if case.causal else "") + ("" if case.mask is None else " :mask mask")
    loss = f"(sum (* d (cast (cast (attention {q} {k} {v}{keys}) {dtype}) f32)))"
    return with_inner(training_graph(experiment(folder, fields, loss)))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("case", NARROW, ids=str)
def test_narrow_operands_are_read_as_they_are_with_the_bits_of_widened_ones(
    case: Case, dtype: str, tmp_path: Path
) -> None:
    graph, values = narrow_graph(case, dtype, tmp_path), case.values()
    copied, made = run(graph, values), run(graph, values, narrow_attention=True, dtype=dtype)
    for name in ("out", "lse", *GRADIENTS):
        assert made[name].tobytes() == copied[name].tobytes(), name


def test_narrow_infinities_hide_nothing_beyond_the_diagonal(tmp_path: Path) -> None:
    case = NARROW[0]
    values = case.values()
    values["v"][0, 0, 69, 2] = np.inf
    graph = narrow_graph(case, "bf16", tmp_path)
    copied, made = run(graph, values), run(graph, values, narrow_attention=True, dtype="bf16")
    assert np.isnan(made["out"]).any()
    assert all(np.array_equal(made[name], copied[name], equal_nan=True) for name in ("out", "lse", *GRADIENTS))


def test_the_bytes_of_narrow_operands_are_counted(tmp_path: Path) -> None:
    graph = narrow_graph(Case((2, 4, 2, 5, 7, 3, 6), causal=True), "bf16", tmp_path)
    works = works_of(plan(graph, widest_head=WIDEST_HEAD, narrow_attention=True), graph)
    forward, backward = (work for work in works if work.kind == "attention")
    # 8 heads of 5 rows: q of 3, out of 6 and lse; 4 heads of 7 columns: k of 3 and v of 6.
    assert forward.bytes == 8 * 5 * (2 * 3 + 4 * 6 + 4) + 4 * 7 * 2 * 9
    # Also dout of 6, and in f32 dq, dk and dv.
    assert backward.bytes == forward.bytes + 8 * 5 * (2 * 6 + 4 * 3) + 4 * 7 * 4 * 9


def test_operands_of_two_dtypes_are_widened(tmp_path: Path) -> None:
    x = np.zeros((1, 2, 5, 4))
    dtypes = {"q": "bf16", "k": "f16", "v": "bf16"}
    q, k, v = (f"(cast (cast {parameter(name, x)} {dtype}) f32)" for name, dtype in dtypes.items())
    graph = training_graph(experiment(tmp_path, {"d": np.zeros(1, np.float32)}, f"(sum (attention {q} {k} {v}))"))
    made = plan(graph, narrow_attention=True)
    assert [launch.dtype for launch in made.launches if isinstance(launch, Attention)] == ["f32", "f32"]


def run(
    graph: Graph, values: Mapping[str, Array], *, narrow_attention: bool = False, dtype: str = "f32"
) -> dict[str, Array]:
    made = Simulated(plan(graph, widest_head=WIDEST_HEAD, narrow_attention=narrow_attention))
    assert [x.dtype for x in made.plan.launches if isinstance(x, Attention)] == [dtype] * 2
    for node in graph.inputs:
        name, kind = node.attributes["name"], node.attributes["kind"]
        made.bind(f"{kind}:{name}", values[name])
    made.run(HOSTS)
    assert made.findings == []
    return {name: made.output(name) for name in graph.outputs}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_within_the_error_bounds_of_float32(case: Case) -> None:
    values = case.values()
    made = run(with_inner(case.graph()), values)
    exact, bounds = expected(case, values)
    for name, want in exact.items():
        assert np.all(np.abs(made[name] - want) <= bounds[name]), name


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spoil", SPOILED)
def test_nan_and_infinities_pass_as_in_numpy(spoil: str, causal: bool) -> None:
    case = Case((1, 2, 1, 70, 70, 4, 4), causal=causal, mask=(2, 70, 70) if "row without" in spoil else None)
    values = case.values()
    SPOILED[spoil](values)
    if "and NaN" in spoil:
        values["v"][0, 0, 1, 1] = np.nan
    graph = with_inner(case.graph())
    made = run(graph, values)
    want = evaluate_graph(graph, values, HOSTS, wide=False)
    for name in ("out", "lse", *GRADIENTS):
        assert np.array_equal(np.isnan(made[name]), np.isnan(want[name])), name
        infinite = np.isinf(want[name])
        assert np.array_equal(made[name][infinite], want[name][infinite]), name
    assert not all(np.isfinite(value).all() for value in made.values())


def test_wider_heads_are_computed_by_their_body_and_the_plan_says_so() -> None:
    graph = Case((1, 1, 1, 3, 3, WIDEST_HEAD + 1, WIDEST_HEAD + 1)).graph()
    made = plan(graph, widest_head=WIDEST_HEAD)
    assert not any(isinstance(launch, Attention) for launch in made.launches)
    assert f"attention: its heads of {WIDEST_HEAD + 1} are wider than {WIDEST_HEAD}; it is computed by its body" in made.notes


def test_the_memory_of_long_rows_has_no_scores() -> None:
    def arena(rows: int) -> int:
        return plan(Case((1, 1, 1, rows, rows, 8, 8), causal=True).graph(), widest_head=WIDEST_HEAD).arena_bytes

    assert arena(4096) < 2.5 * arena(2048) < 4 * 2048 * 2048
