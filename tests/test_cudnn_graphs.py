"""Operation graphs for cuDNN mean what our regions mean: exactly in float64, and within derived bounds in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from sexpgpu.cuda.cudnn_graph import MatMul, OperationGraph, Reduction, operands
from sexpgpu.cuda.cudnn_graphs import (
    BACKWARD,
    FORWARD,
    attention,
    product,
    why_not_attention,
    why_not_product,
)
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.attention import COTANGENT, LSE, OUT
from sexpgpu.plan.kernel import Access, Attention, Matrix, Place, Product
from tests.attending import HOSTS, Case, expected, turned, with_inner
from tests.fake_cudnn.attentions import launches, shape_of, strides_of
from tests.fake_cudnn.evaluate import evaluate, gelu, gelu_tanh, through

Array = np.ndarray[Any, np.dtype[Any]]
# Half a unit in the last place of 1.
BF16 = 2.0**-8

CASES = [
    Case((2, 3, 3, 33, 33, 16, 16), causal=True),
    Case((1, 4, 2, 64, 64, 8, 8), causal=True),
    Case((2, 4, 1, 17, 40, 8, 24)),
    Case((1, 2, 2, 40, 24, 16, 8), causal=True, scale=0.7),
    Case((1, 1, 1, 1, 1, 8, 8), causal=True),
]


def values(case: Case) -> dict[str, Array]:
    """Numbers that bf16 has."""
    return {name: x.astype(ml_dtypes.bfloat16).astype(np.float32) for name, x in case.values().items()}


def computed(launch: Attention, given: Mapping[str, Array], exact: bool) -> dict[str, Array]:
    """What the graph of a launch writes, its operands laid out as the launch says."""
    graph = attention(launch, "bf16")
    names, results = BACKWARD if launch.backward else FORWARD
    wanted = (*names, *results)
    flat: dict[int, Array] = {}
    for number, name in enumerate(wanted):
        of: Any = np.float64 if exact else np.float32 if name == "lse" else ml_dtypes.bfloat16
        flat[number] = np.full(np.prod(shape_of(launch, name)), np.nan).astype(of)
        if name in given:
            view(flat[number], launch, name)[...] = given[name].reshape(shape_of(launch, name))
    evaluate(graph, {t.number: flat[t.place.buffer] for t in graph.tensors.values() if t.place is not None}, exact)
    return {name: view(flat[wanted.index(name)], launch, name).astype(np.float64) for name in results}


def view(flat: Array, launch: Attention, name: str) -> Array:
    steps = [step * flat.itemsize for step in (*strides_of(launch, name), 1)]
    return np.lib.stride_tricks.as_strided(flat, shape_of(launch, name), steps)


def backward_body(graph: Graph) -> Graph:
    body: Graph = [node.attributes["body"] for node in graph.nodes if node.op == "region"][1]
    return body


def of_backward(case: Case, kept: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The operands of the backward launch from kept results, and the gradients that its region's body makes of them."""
    numbers = values(case)
    given = {name: numbers[name] for name in "qkv"} | {"out": kept["out"], "lse": kept["lse"], "dout": numbers["d"]}
    names = {OUT: "out", LSE: "lse", COTANGENT: "dout"} | {name: name for name in "qkv"}
    body = backward_body(case.graph())
    arguments = {
        node.attributes["name"]: given[names[node.attributes["name"]]].reshape(node.shape).astype(np.float64)
        for node in body.inputs
    }
    return given, dict(zip(BACKWARD[1], evaluate_graph(body, arguments).values(), strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_forward_graph_is_the_body(case: Case) -> None:
    numbers = values(case)
    forward, _ = launches(case)
    made = computed(forward, numbers, exact=True)
    want = evaluate_graph(with_inner(case.graph()), numbers, HOSTS)
    for name in ("out", "lse"):
        # float64: a thousand roundings.
        assert np.allclose(made[name].reshape(want[name].shape), want[name], rtol=0, atol=1e-13), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_backward_graph_is_the_body(case: Case) -> None:
    forward, backward = launches(case)
    given, want = of_backward(case, computed(forward, values(case), exact=True))
    made = computed(backward, given, exact=True)
    for name, exact in want.items():
        assert np.allclose(made[name], exact, rtol=0, atol=1e-13 * max(1, np.abs(exact).max())), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_forward_graph_in_bf16_is_within_its_bounds(case: Case) -> None:
    numbers = values(case)
    made = computed(launches(case)[0], numbers, exact=False)
    exact, bounds = expected(case, numbers)
    # Probabilities are rounded, and so is the result: p |v| is what the first is relative to.
    weighed = expected(case, numbers | {"v": np.abs(numbers["v"])})[0]["out"]
    of_out = (bounds["out"] + BF16 * weighed) * (1 + BF16) + BF16 * np.abs(exact["out"])
    assert np.all(np.abs(made["out"] - exact["out"]) <= of_out)
    assert np.all(np.abs(made["lse"][..., 0] - exact["lse"]) <= bounds["lse"])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_backward_graph_in_bf16_is_within_its_bounds(case: Case) -> None:
    forward, backward = launches(case)
    given, want = of_backward(case, computed(forward, values(case), exact=False))
    made = computed(backward, given, exact=False)
    of_f32 = expected(case, values(case))[1]
    magnitudes = rounded_magnitudes(case, given)
    for name, exact in want.items():
        # That out is rounded changes the magnitudes behind the bounds of float32 by far less than their double.
        bound = (2 * of_f32[f"gradient:{name[1]}"] + BF16 * magnitudes[name]) * (1 + BF16) + BF16 * np.abs(exact)
        assert np.all(np.abs(made[name] - exact) <= bound), (name, np.max(np.abs(made[name] - exact) / bound))


def rounded_magnitudes(case: Case, given: Mapping[str, Array]) -> dict[str, Array]:
    """Of each gradient the sum of magnitudes that an error relative to p or ds is relative to."""
    b, h, g, t, _, _, _ = case.sizes
    q, k, v, out, dout = (given[name].astype(np.float64) for name in ("q", "k", "v", "out", "dout"))
    k, v = (np.repeat(x, h // g, 1) for x in (k, v))
    scores = np.where(case.seen(given), q @ turned(k) * case.factor, -np.inf)
    p = np.exp(scores - given["lse"].reshape(b, h, t, 1))
    ds = np.abs(p * (dout @ turned(v) - (dout * out).sum(-1, keepdims=True)) * case.factor)

    def grouped(x: Array) -> Array:
        return np.asarray(x.reshape(b, g, h // g, *x.shape[2:]).sum(2))

    return {
        "dq": ds @ np.abs(k),
        "dk": grouped(turned(ds) @ np.abs(q)),
        "dv": grouped(turned(p) @ np.abs(dout)),
    }


def test_rounding_is_seen() -> None:
    # Else the tests of bounds could not fail by it.
    case = CASES[0]
    forward, _ = launches(case)
    numbers = values(case)
    rounded, exact = (computed(forward, numbers, exact=which)["out"] for which in (False, True))
    assert np.abs(rounded - exact).max() > 1e-4


def test_without_a_place_for_it_lse_is_virtual_and_still_computed() -> None:
    forward, _ = launches(CASES[0])
    graph = attention(msgspec.structs.replace(forward, stores=forward.stores[:1]), "bf16")
    assert [t.dtype for t in graph.tensors.values() if t.number in graph.written and not t.is_virtual] == ["bf16"]
    assert sum(isinstance(operation, Reduction) for operation in graph.operations) == 2


def test_every_value_is_written_before_it_is_read() -> None:
    for case in CASES:
        for launch in launches(case):
            graph, seen = attention(launch, "bf16"), set[int]()
            for operation in graph.operations:
                *read, written = operands(operation)
                assert not [t for t in read if t.is_virtual and t.number not in seen]
                assert written.number not in seen
                seen.add(written.number)


def test_heads_of_k_are_not_repeated_in_memory() -> None:
    _, backward = launches(Case((1, 4, 2, 64, 64, 8, 8), causal=True))
    products = [o for o in attention(backward, "bf16").operations if isinstance(o, MatMul)]
    assert [(o.a.sizes[1], o.b.sizes[1], o.y.sizes[1]) for o in products] == [
        (4, 2, 4), (4, 4, 4), (4, 2, 4), (4, 4, 4), (4, 2, 4),
    ]  # fmt: skip


# What is not asked of it


def test_f32_is_not_asked_for() -> None:
    forward, _ = launches(CASES[0])
    assert why_not_attention(forward, "bf16") == why_not_attention(forward, "f16") == ""
    assert why_not_attention(forward, "f32").startswith("cuDNN's attention takes bf16 and f16, not f32 (it would")


def test_a_mask_is_not_asked_for() -> None:
    # cuDNN 9.13 ends the process (SIGFPE) when it plans a selection by an operand.
    forward, _ = launches(Case((1, 2, 2, 8, 8, 8, 8), mask=(8, 8)))
    assert why_not_attention(forward, "bf16") == "cuDNN's attention takes no mask of what counts"


def test_rows_at_other_places_than_multiples_of_16_bytes_are_not_asked_for() -> None:
    forward, backward = launches(CASES[0])
    q = forward.loads[0]
    words = "cuDNN needs rows that begin at multiples of 16 bytes, and q has others"
    moved = msgspec.structs.replace(forward, loads=(Access(Place(0, 8), q.strides), *forward.loads[1:]))
    assert why_not_attention(moved, "bf16") == words
    stepped = msgspec.structs.replace(forward, loads=(Access(Place(0), (1584, 16, 52)), *forward.loads[1:]))
    assert why_not_attention(stepped, "bf16") == words
    # lse has no rows: of 33 numbers a head each begins somewhere.
    assert why_not_attention(backward, "bf16") == ""


# Products


def matrices(batch: int, m: int, n: int, k: int, b_turned: bool) -> Product:
    return Product(
        "bf16", m, n, k,
        Matrix(Place(0), k, 1, tuple(z * m * k for z in range(batch))),
        Matrix(Place(1), *((1, k) if b_turned else (n, 1)), tuple(z * n * k for z in range(batch))),
        Matrix(Place(2), n, 1, tuple(z * m * n for z in range(batch))),
    )  # fmt: skip


@pytest.mark.parametrize("b_turned", [False, True])
@pytest.mark.parametrize("activation", ["", "gelu", "gelu-tanh"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_with_bias_and_activation(b_turned: bool, activation: Any, has_bias: bool) -> None:
    launch = matrices(3, 5, 8, 16, b_turned)
    rng = np.random.default_rng(7)
    a, b, bias = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((3, 5, 16), (3, 16, 8), (8,)))
    flat = {
        0: a.reshape(-1),
        1: (np.swapaxes(b, 1, 2) if b_turned else b).reshape(-1),
        2: np.full(3 * 5 * 8, np.nan).astype(ml_dtypes.bfloat16),
        3: bias,
    }
    run_graph(product(launch, Epilogue(Place(3) if has_bias else None, activation)), flat)
    sums = np.matmul(a.astype(np.float64), b.astype(np.float64)) + (bias.astype(np.float64) if has_bias else 0)
    exact = {"": lambda x: x, "gelu": gelu, "gelu-tanh": gelu_tanh}[activation](sums)
    # Sums of 17 float32 numbers, of which a slope of GELU, at most 1.13, makes no more; then one rounding to bf16.
    magnitudes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) + np.abs(sums)
    bound = 1.13 * 24 * 2.0**-24 * magnitudes * (1 + BF16) + BF16 * np.abs(exact)
    assert np.all(np.abs(flat[2].reshape(3, 5, 8).astype(np.float64) - exact) <= bound)


def run_graph(graph: OperationGraph, flat: Mapping[int, Array]) -> None:
    evaluate(graph, {t.number: flat[t.place.buffer] for t in graph.tensors.values() if t.place is not None})


def test_why_cudnn_is_not_asked_for_a_product() -> None:
    plain = matrices(2, 8, 8, 8, False)
    replace = msgspec.structs.replace
    assert why_not_product(plain, Epilogue()) == ""
    assert "not f32" in why_not_product(replace(plain, dtype="f32"), Epilogue())
    assert why_not_product(replace(plain, accumulate=True), Epilogue()) == "cuDNN's products add to nothing"
    assert why_not_product(replace(plain, k=0), Epilogue()) == "it has no elements"
    uneven = replace(plain, a=replace(plain.a, starts=(0, 64, 192)))
    assert why_not_product(uneven, Epilogue()) == "the matrices of a are not evenly spaced"
    looped = replace(plain, a=replace(plain.a, rows=((2, 8), (4, 16))))
    assert why_not_product(looped, Epilogue()) == "a is no matrix, but loops"
    assert why_not_product(matrices(1, 8, 4, 8, False), Epilogue()).endswith("multiples of 16 bytes, and b has others")
    assert why_not_product(plain, Epilogue(Place(3, 2))) == "cuDNN needs a bias that begins at a multiple of 16 bytes"


def test_a_tensor_that_reaches_beyond_its_memory_is_an_error() -> None:
    graph = product(matrices(1, 8, 8, 8, False), Epilogue())
    (a, *_) = graph.tensors.values()
    with pytest.raises(AssertionError, match="reaches element 63 of 60"):
        through(np.zeros(60), a)
