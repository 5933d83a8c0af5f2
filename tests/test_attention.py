"""Attention in blocks: against the textbook in float64 with bounds, bit for bit over threads, NaN and infinities, memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attending import HOSTS, Array, Case, expected, run, with_inner
from elaborated import experiment, parameter
from on_cpu import engine
from plan_oracle import run_plan

from sexpgpu.interp.native import find_blas
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.attention import BACKWARD, AttentionBody, recognise
from sexpgpu.passes.differentiate import differentiate_body
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Attention, Product
from sexpgpu.plan.work import works_of

needs_blas = pytest.mark.skipif(find_blas() is None, reason="attention in blocks calls BLAS")
GRADIENTS = ("gradient:q", "gradient:k", "gradient:v")

CASES = [
    *(Case((1, 1, 1, n, n, 5, 5), causal=True) for n in (1, 31, 33, 63, 64, 65, 127, 130)),
    *(Case((1, 2, 2, 64, n, 16, 16)) for n in (1, 65, 511, 512, 513, 1030)),
    Case((2, 3, 3, 65, 65, 8, 8), causal=True),
    Case((2, 4, 2, 33, 33, 8, 8), causal=True),
    Case((2, 4, 1, 70, 40, 8, 8)),
    Case((1, 2, 1, 130, 70, 8, 8), causal=True),
    Case((1, 2, 1, 70, 130, 8, 8), causal=True),
    Case((1, 2, 2, 40, 50, 24, 7), scale=-0.7),
    Case((1, 2, 2, 66, 66, 8, 40), causal=True, scale=1.0),
    Case((1, 1, 1, 700, 700, 4, 4), causal=True),
    Case((2, 2, 2, 65, 66, 8, 8), mask=(65, 66)),
    Case((2, 2, 2, 65, 66, 8, 8), mask=(2, 1, 1, 66)),
    Case((2, 4, 2, 65, 66, 8, 8), mask=(4, 1, 66)),
    Case((1, 4, 2, 65, 65, 8, 8), causal=True, mask=(1, 4, 65, 65)),
]


def bodies(graph: Graph) -> dict[str, Graph]:
    found = [node.attributes["body"] for node in graph.nodes if node.op == "region"]
    return {body.name: body for body in found}


@needs_blas
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_are_within_the_error_bounds_of_float32(case: Case) -> None:
    values = case.values()
    made = run(with_inner(case.graph()), values, engine())
    exact, bounds = expected(case, values)
    for name, want in exact.items():
        assert np.all(np.abs(made[name] - want) <= bounds[name]), (
            name,
            np.max(np.abs(made[name] - want) / bounds[name]),
        )


@needs_blas
@pytest.mark.parametrize(
    "case", [Case((2, 4, 2, 200, 200, 32, 32), causal=True), Case((1, 3, 3, 70, 600, 8, 8))], ids=str
)
def test_bits_do_not_depend_on_the_number_of_threads(case: Case) -> None:
    graph, values = with_inner(case.graph()), case.values()
    made = [run(graph, values, engine(threads)) for threads in (1, 2, 3, 4)]
    for name in ("out", "lse", *GRADIENTS):
        assert all(other[name].tobytes() == made[0][name].tobytes() for other in made[1:]), name


@pytest.mark.parametrize("case", CASES[16:], ids=str)
def test_the_own_derivative_is_that_of_the_body(case: Case) -> None:
    values = case.values()
    graph = case.graph()
    made = evaluate_graph(graph, values, HOSTS)
    body = bodies(graph)["attention"]
    # The forward body without what is saved, differentiated like any other.
    body.outputs = {"out0": body.outputs["out0"]}
    automatic = differentiate_body(body, (0, 1, 2), (0,))
    arguments = [values[node.attributes["name"]] for node in body.inputs]
    names = [node.attributes["name"] for node in body.inputs]
    forward = list(evaluate_graph(automatic.forward, dict(zip(names, arguments, strict=True))).values())
    inputs = [*(arguments[k] for k in automatic.kept), *forward[1:], values["d"]]
    given = {node.attributes["name"]: value for node, value in zip(automatic.backward.inputs, inputs, strict=True)}
    for name, want in zip(GRADIENTS, evaluate_graph(automatic.backward, given).values(), strict=True):
        # float64: a thousand roundings.
        assert np.allclose(made[name], want, rtol=0, atol=1e-13 * max(1, np.abs(want).max())), name


def test_the_backward_body_has_a_derivative_too() -> None:
    case = Case((1, 2, 1, 3, 4, 2, 2), causal=True)
    body = bodies(case.graph())[BACKWARD]
    rng = np.random.default_rng(1)
    given = {node.attributes["name"]: rng.standard_normal(node.shape) for node in body.inputs}
    twice = differentiate_body(body, tuple(range(6)), (0, 1, 2))
    weights = [rng.standard_normal(node.shape) for node in body.outputs.values()]

    def total(values: dict[str, Array]) -> float:
        return float(sum((w * x).sum() for w, x in zip(weights, evaluate_graph(body, values).values(), strict=True)))

    forward = list(evaluate_graph(twice.forward, given).values())
    inputs = [*(list(given.values())[k] for k in twice.kept), *forward[3:], *weights]
    named = {node.attributes["name"]: value for node, value in zip(twice.backward.inputs, inputs, strict=True)}
    slopes = evaluate_graph(twice.backward, named)
    for name, slope in zip(given, slopes.values(), strict=True):
        direction = rng.standard_normal(given[name].shape)
        h = 1e-5
        moved = [total({**given, name: given[name] + sign * h * direction}) for sign in (1, -1)]
        # Central differences: h² of the third derivative, and 1e-16 / h of rounding.
        assert (moved[0] - moved[1]) / (2 * h) == pytest.approx((slope * direction).sum(), rel=1e-6, abs=1e-7), name


# NaN and infinities


def put(name: str, place: tuple[int, ...], number: float) -> Callable[[dict[str, Array]], None]:
    def change(values: dict[str, Array]) -> None:
        values[name][place] = number

    return change


SPOILED = {
    "NaN in a row of q": put("q", (0, 1, 40), np.nan),
    "NaN in a key": put("k", (0, 0, 50, 1), np.nan),
    "NaN in a value": put("v", (0, 0, 69, 2), np.nan),
    "inf in a value": put("v", (0, 0, 69, 2), np.inf),
    "inf in a key": put("k", (0, 0, 3, 1), np.inf),
    "NaN in the cotangent": put("d", (0, 1, 2), np.nan),
    "scores that overflow": put("q", (0, 0, 66, 0), 3e38),
    "a row without anything": put("mask", (1, 5), False),
    "a row without anything and NaN in its head": put("mask", (0, 69), False),
}


@needs_blas
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("spoil", SPOILED)
def test_nan_and_infinities_pass_as_in_numpy(spoil: str, causal: bool) -> None:
    case = Case((1, 2, 1, 70, 70, 4, 4), causal=causal, mask=(2, 70, 70) if "row without" in spoil else None)
    values = case.values()
    SPOILED[spoil](values)
    if "and NaN" in spoil:
        values["v"][0, 0, 1, 1] = np.nan
    graph = with_inner(case.graph())
    made = run(graph, values, engine())
    want = evaluate_graph(graph, values, HOSTS, wide=False)
    for name in ("out", "lse", *GRADIENTS):
        assert np.array_equal(np.isnan(made[name]), np.isnan(want[name])), name
        infinite = np.isinf(want[name])
        assert np.array_equal(made[name][infinite], want[name][infinite]), name
    assert not all(np.isfinite(value).all() for value in made.values())


@pytest.mark.parametrize("spoil", SPOILED)
def test_the_own_derivative_has_nan_where_that_of_the_body_has(spoil: str) -> None:
    case = Case((1, 2, 1, 70, 70, 4, 4), causal=True, mask=(2, 70, 70) if "row without" in spoil else None)
    values = case.values()
    SPOILED[spoil](values)
    graph = case.graph()
    made = evaluate_graph(graph, values, HOSTS)
    body = bodies(graph)["attention"]
    body.outputs = {"out0": body.outputs["out0"]}
    automatic = differentiate_body(body, (0, 1, 2), (0,))
    arguments = {node.attributes["name"]: values[node.attributes["name"]] for node in body.inputs}
    forward = list(evaluate_graph(automatic.forward, arguments).values())
    inputs = [*(list(arguments.values())[k] for k in automatic.kept), *forward[1:], values["d"]]
    given = {node.attributes["name"]: value for node, value in zip(automatic.backward.inputs, inputs, strict=True)}
    for name, want in zip(GRADIENTS, evaluate_graph(automatic.backward, given).values(), strict=True):
        assert np.array_equal(np.isnan(made[name]), np.isnan(want)), name


# How it is planned


def test_the_plan_runs_it_as_one_launch_each_way() -> None:
    case = Case((2, 4, 2, 5, 7, 3, 6), causal=True, mask=(4, 1, 7))
    graph, values = with_inner(case.graph()), case.values()
    made = plan(graph)
    assert [launch.backward for launch in made.launches if isinstance(launch, Attention)] == [False, True]
    assert not any(isinstance(launch, Product) for launch in made.launches)
    kinds = {node.attributes["name"]: node.attributes["kind"] for node in graph.inputs}
    found = run_plan(made, {f"{kind}:{name}": values[name] for name, kind in kinds.items()}, HOSTS)
    exact, bounds = expected(case, values)
    assert all(np.all(np.abs(found[name] - want) <= bounds[name]) for name, want in exact.items())


def test_heads_are_split_and_merged_without_copies(tmp_path: Path) -> None:
    x = np.zeros((2, 6, 24), np.float32)
    split = "(split-heads {0} 2)".format
    loss = f"""(let (((q k v) (split {parameter("x", x)} 3 :axis -1)))
      (sum (merge-heads (attention {split("q")} {split("k")} {split("v")} :causal true))))"""
    graph = training_graph(experiment(tmp_path, {"d": np.zeros(1, np.float32)}, loss))
    made = plan(graph, aliases=bound_outputs(graph))
    forward, backward = (launch for launch in made.launches if isinstance(launch, Attention))
    # Steps between the entries of a batch, heads and rows of [2 6 24] for q, k, v and their gradients; of [2 6 8].
    assert [access.strides for access in (*forward.loads, *backward.stores)] == [(144, 4, 24)] * 6
    assert forward.stores[0].strides == (48, 4, 8)
    at = [access.place and (made.buffers[access.place.buffer].name, access.place.offset) for access in forward.loads]
    assert at == [("parameter:x", 0), ("parameter:x", 32), ("parameter:x", 64)]
    assert len({access.place and access.place.buffer for access in backward.stores}) == 1


def test_the_work_of_a_launch_is_counted() -> None:
    # 8 heads of 5 rows by 7 columns, width 3, width of v 6; 4 heads of k and v.
    graph = Case((2, 4, 2, 5, 7, 3, 6), causal=True, mask=(4, 1, 7)).graph()
    forward, backward = (work for work in works_of(plan(graph), graph) if work.kind == "attention")
    # Half of 2 · 5 · 7 a unit of width: of q kᵀ and p v; of q kᵀ, dout vᵀ, pᵀ dout, dsᵀ q and ds k.
    assert (forward.flops, backward.flops) == (8 * 35 * (3 + 6), 8 * 35 * (3 * 3 + 2 * 6))
    # q and out, and lse; k and v; the mask. Backward all of them twice but lse and the mask.
    assert forward.bytes == 4 * (8 * 5 * 9 + 8 * 5 + 4 * 7 * 9) + 4 * 7
    assert backward.bytes == 4 * (2 * 8 * 5 * 9 + 8 * 5 + 2 * 4 * 7 * 9) + 4 * 7
    assert (forward.form, backward.form) == ("attention", "attention-backward")


def test_every_value_is_kept_by_the_body() -> None:
    made = plan(Case((1, 2, 2, 5, 5, 4, 4)).graph(), keep_values=True)
    assert not any(isinstance(launch, Attention) for launch in made.launches)


def test_a_device_without_it_runs_the_body() -> None:
    case = Case((1, 2, 2, 5, 5, 4, 4), causal=True)
    made = plan(case.graph(), native=False)
    assert not any(isinstance(launch, Attention) for launch in made.launches) and made.notes == ()


def test_a_body_that_is_not_taken_is_noted_with_the_reason() -> None:
    made = plan(Case((1, 2, 2, 5, 5, 4, 4), scale=0.0).graph())
    assert not any(isinstance(launch, Attention) for launch in made.launches)
    assert "attention: its scale is 0.0; it is computed by its body" in made.notes


def test_bfloat16_is_noted_too(tmp_path: Path) -> None:
    loss = f"(let ((x (cast {parameter('x', np.zeros((1, 2, 5, 4)))} bf16))) (mean (attention x x x)))"
    graph = training_graph(experiment(tmp_path, {"d": np.zeros(1, np.float32)}, loss))
    assert "attention: it is given bf16, not f32; it is computed by its body" in plan(graph).notes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bodies_are_recognised(case: Case) -> None:
    for name, body in bodies(case.graph()).items():
        found = recognise(body)
        assert isinstance(found, AttentionBody), found
        assert (found.backward, found.causal) == (name == BACKWARD, case.causal)
        assert found.scale == pytest.approx(case.factor, rel=1e-7) and (found.mask is None) == (case.mask is None)


def test_gpt2_keeps_no_scores() -> None:
    from sexpgpu import load
    from sexpgpu.examples import __file__ as examples

    graph = training_graph(load(Path(examples).parent / "gpt2.sexp", set={"layers": 2}).elaborated)
    planned = plan(graph, aliases=bound_outputs(graph))
    scores_bytes = 12 * 1024 * 1024 * 4
    assert not any(b.size_bytes == scores_bytes for b in planned.buffers)
    assert any(b.size_bytes == scores_bytes for b in plan(graph, native=False).buffers)
    assert sum(isinstance(launch, Attention) for launch in planned.launches) == 4
