"""The graphs of an experiment: how operations are lowered, what the sums of a step are, which values stay inputs."""

from __future__ import annotations

import numpy as np
import pytest
from elaborating import TOKENS, elaborated, errors_of, run_of, value_of

from sexpgpu.errors import Error
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.text import print_graph, read_graph

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 64))


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op not in ("input", "constant")]


def predict_of(expression: str, definitions: str = "") -> Graph:
    made = elaborated(run_of("(mean x)", definitions, f":steps 1 :predict {expression}")).predict
    assert made is not None
    return made


def contract_of(expression: str) -> Node:
    graph = predict_of(expression)
    (product,) = [n for n in graph.nodes if n.op == "contract"]
    return product


# Products


def test_matmul_with_a_matrix_contracts_without_copies() -> None:
    graph = predict_of("(matmul (expand-dims x 0) (zeros [64 3]))")
    assert ops(graph) == ["reshape", "contract"]
    assert graph.outputs["predict"].attributes == {"batch": ((), ()), "contracted": ((2,), (0,))}


def test_batches_of_both_operands_are_batch_axes() -> None:
    product = contract_of("(matmul (zeros [5 8 64]) (zeros [5 64 3]))")
    assert product.attributes == {"batch": ((0,), (0,)), "contracted": ((2,), (1,))} and product.shape == (5, 8, 3)


def test_a_batch_of_size_1_is_squeezed_not_repeated() -> None:
    graph = predict_of("(matmul (* (broadcast-to x [5 8 64]) 1) (reshape (full [64 3] 2) [1 64 3]))")
    assert "broadcast" not in ops(graph)[2:] and ops(graph)[-1] == "contract"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((2, 4), (4, 3)), ((5, 2, 4), (4, 3)), ((2, 4), (5, 4, 3)),
        ((4,), (5, 4, 3)), ((5, 2, 4), (5, 4, 3)), ((5, 2, 4), (1, 4, 3)), ((1, 2, 4), (5, 4, 3)),
        ((6, 1, 2, 4), (5, 4, 3)), ((6, 5, 2, 4), (4, 5)), ((1, 5, 2, 4), (6, 1, 4, 3)), ((5, 2, 4), (4,)),
    ],
)  # fmt: skip
def test_matmul_has_numpys_shapes_and_values(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = RNG.normal(size=a), RNG.normal(size=b)
    flat = np.zeros((8, 64)).ravel()
    total = x.size + y.size
    flat[: x.size], flat[x.size : total] = x.ravel(), y.ravel()

    def operand(start: int, shape: tuple[int, ...]) -> str:
        end = start + int(np.prod(shape))
        return f"(reshape (slice (reshape x [512]) [{start}] [{end}]) [{' '.join(map(str, shape))}])"

    got = value_of(f"(matmul {operand(0, a)} {operand(x.size, b)})", x=flat.reshape(8, 64))
    np.testing.assert_allclose(got, np.matmul(x, y), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "equation", ["b i, b i -> b", "b i, c i -> c b", "b i, c i ->", "b i, b j -> b j i", "bi,ci->bc", "b i, c j -> b c"]
)
def test_einsum_has_numpys_values(equation: str) -> None:
    compact = equation.replace(" ", "")
    got = value_of(f'(einsum "{equation}" x (flip x))', x=X)
    np.testing.assert_allclose(got, np.einsum(compact, X, X[::-1, ::-1]), rtol=1e-12, atol=1e-12)


def test_einsum_of_three_operands() -> None:
    got = value_of('(einsum "b i, c i, d c -> d b" x x (transpose x))', x=X[:8, :8].repeat(8, 1).reshape(8, 64))
    y = X[:8, :8].repeat(8, 1).reshape(8, 64)
    np.testing.assert_allclose(got, np.einsum("bi,ci,dc->db", y, y, y.T), rtol=1e-12)


def test_linear_is_one_contract_and_a_bias() -> None:
    assert ops(elaborated(run_of("(linear x 3)")).training)[:3] == ["contract", "broadcast", "add"]


def test_transpose_is_a_permute() -> None:
    assert ops(predict_of("(transpose x)")) == ["permute"]


# Regions


GPT_LIKE = "(deflayer block (x) (+ x (matmul (layernorm x) (softmax (matmul (transpose x) x)))))"


def test_a_region_has_one_body_for_all_layers() -> None:
    graph = elaborated(run_of("(repeat (i 5) (x x) (block x))", GPT_LIKE)).training
    regions = [n for n in graph.nodes if n.op == "region"]
    assert [n.attributes["body"].name for n in regions] == ["layernorm", "softmax"] * 5
    assert len({id(n.attributes["body"]) for n in regions}) == 2


def test_other_compile_time_arguments_make_another_body() -> None:
    graph = elaborated(run_of("(+ (softmax x :axis 0) (softmax x :axis 1))")).training
    assert len({id(n.attributes["body"]) for n in graph.nodes if n.op == "region"}) == 2


def test_bodies_hold_primitives_only() -> None:
    loss = "(mean (attention (reshape x [2 4 8 8]) (reshape x [2 4 8 8]) (reshape x [2 4 8 8]) :causal true))"
    graph = elaborated(run_of(loss)).training
    (region,) = [n for n in graph.nodes if n.op == "region"]
    assert region.attributes["body"].name == "attention"
    assert "region" not in ops(region.attributes["body"])


def test_grouped_heads_are_not_copied() -> None:
    q, k = "(reshape x [2 8 4 8])", "(slice (reshape x [2 8 4 8]) [0 0] [2 2])"
    graph = elaborated(run_of(f"(mean (attention {q} {k} {k}))")).training
    body = next(n.attributes["body"] for n in graph.nodes if n.op == "region")
    for product in [n for n in body.nodes if n.op == "contract"]:
        assert all(i.op in ("input", "reshape") or i.dtype == "f32" for i in product.inputs)
        assert all(i.op != "broadcast" for i in product.inputs)


def test_a_graph_of_regions_prints_and_reads_back() -> None:
    graph = elaborated(run_of("(repeat (i 2) (x x) (block x))", GPT_LIKE)).training
    assert print_graph(read_graph(print_graph(graph))) == print_graph(graph)


# The sums of a step


def test_the_loss_is_summed_and_counted() -> None:
    graph = elaborated(run_of("(square x)")).training
    made = evaluate_graph(graph, {"x": X})
    assert made["loss"] == pytest.approx(np.square(X).sum()) and made["weight"] == 512


def test_a_scalar_loss_counts_as_one_element() -> None:
    made = evaluate_graph(elaborated(run_of("(mean x)")).training, {"x": X})
    assert made["loss"] == pytest.approx(X.mean()) and made["weight"] == 1


def test_a_weighted_loss_sums_products_and_weights() -> None:
    graph = elaborated(run_of("(weighted (square x) (> x 0))")).training
    made = evaluate_graph(graph, {"x": X})
    assert made["loss"] == pytest.approx(np.square(X[X > 0]).sum()) and made["weight"] == (X > 0).sum()


def test_weighted_stands_only_as_a_whole_loss() -> None:
    (error,) = errors_of(run_of("(* 2 (weighted x x))"))
    assert error.code == "E-TYPE-001" and "weighted" in error.message


def test_batches_that_are_never_short_are_not_masked() -> None:
    made = elaborated(run_of("x", rest=":steps 1 :eval (every 1 d :batches 2)"))
    assert not made.options.short
    assert all(n.attributes["name"] != "real" for g in (made.training, made.evaluations["d"]) for n in g.inputs)


def test_a_short_batch_is_masked_by_where() -> None:
    # 20 examples in batches of 8: the last has 4.
    made = elaborated(run_of("x", rest=":epochs 1 :eval (every 1 d)"))
    assert made.options.short
    real = np.arange(8) < 4
    x = np.where(real[:, None], X, np.nan)
    for graph in (made.training, made.evaluations["d"]):
        got = evaluate_graph(graph, {"x": x, "real": real})
        assert got["loss"] == pytest.approx(X[:4].sum()) and got["weight"] == 4 * 64


def test_a_global_batch_that_does_not_divide_is_short() -> None:
    assert elaborated(run_of("x", rest=":steps 1 :global-batch 20")).options.short
    assert not elaborated(run_of("x", rest=":steps 1 :global-batch 16")).options.short


def test_a_global_batch_is_the_batch_of_a_loader_that_has_none() -> None:
    made = elaborated(run_of("x", rest=":steps 1 :global-batch 20", loader='(defloader d (arrays "d.npz"))'))
    assert made.training.inputs[0].shape == (20, 64)


@pytest.mark.parametrize(("reduce", "expected"), [("sum", X.sum()), ("max", X.max()), ("min", X.min()), ("mean", X.sum())])
def test_metrics_are_reduced_as_they_say(reduce: str, expected: float) -> None:
    rest = ":steps 1 :eval (every 1 d :batches 2 :metrics [m])"
    made = elaborated(run_of("x", f"(defmetric m :reduce {reduce} x)", rest))
    got = evaluate_graph(made.evaluations["d"], {"x": X})
    assert got["metric:m"] == pytest.approx(expected)
    if reduce in ("mean", "sum"):
        assert got["metric-weight:m"] == 512


def test_a_metric_of_bools_is_counted() -> None:
    rest = ":steps 1 :eval (every 1 d :batches 2 :metrics [m])"
    made = elaborated(run_of("x", "(defmetric m (> x 0))", rest))
    assert evaluate_graph(made.evaluations["d"], {"x": X})["metric:m"] == (X > 0).sum()


# What stays an input


def hosts(graph: Graph) -> list[object]:
    return [n.attributes["expression"] for n in graph.nodes if n.op == "host"]


def test_a_float_hyper_that_is_an_operand_is_an_input() -> None:
    assert hosts(elaborated(run_of("(* x c)", "(defhyper c 0.5)")).training) == [("hyper", "c", 0.5)]


def test_arithmetic_on_a_float_hyper_is_done_by_the_host() -> None:
    expected = [("mul", ("number", 2), ("hyper", "c", 0.5))]
    assert hosts(elaborated(run_of("(* x (* 2 c))", "(defhyper c 0.5)")).training) == expected


def test_a_hyper_in_a_condition_or_shape_is_folded() -> None:
    text = run_of("(if (> c 0.1) (* x (sum (zeros [n]))) x)", "(defhyper c 0.5) (defhyper n 3)")
    graph = elaborated(text).training
    assert hosts(graph) == [] and 3 in [n.shape[0] for n in graph.nodes if n.op == "constant" and n.shape]


def test_an_integer_hyper_is_folded() -> None:
    assert hosts(elaborated(run_of("(* x n)", "(defhyper n 3)")).training) == []


def test_an_expression_of_the_step_is_one_host_scalar() -> None:
    graph = elaborated(run_of("(* x (/ step total-steps))")).training
    assert hosts(graph) == [("div", ("step",), ("total-steps",))]


def test_a_choice_by_the_step_is_made_by_the_host() -> None:
    graph = elaborated(run_of("(* x (cond ((< step 3) 1) ((< step 5) 0.5) (else 0)))")).training
    step = ("step",)
    later = ("if", ("lt", step, ("number", 5)), ("number", 0.5), ("number", 0))
    assert hosts(graph) == [("if", ("lt", step, ("number", 3)), ("number", 1), later)]


def test_training_is_true_in_the_loss_only() -> None:
    rest = ":steps 1 :predict (if training 1.0 x) :eval (every 1 d :batches 1)"
    made = elaborated(run_of("(if training x (* x 2))", rest=rest))
    assert ops(made.training) == ["sum"] and ops(made.evaluations["d"]) == ["mul", "sum"]


def test_dropout_is_its_argument_outside_training() -> None:
    made = elaborated(run_of("(dropout x 0.5)", rest=":steps 1 :predict (dropout x 0.5)"))
    assert made.predict is not None and ops(made.predict) == []
    assert "random" in ops(made.training)


def test_draws_are_numbered_in_their_scope() -> None:
    layer = "(deflayer l (x) (dropout (dropout x 0.1) 0.1))"
    graph = elaborated(run_of("(dropout (repeat (i 2) (x x) (l x)) 0.1)", layer)).training
    places = [(n.attributes["path"], n.attributes["ordinal"]) for n in graph.nodes if n.op == "random"]
    assert places == [("l.0", 0), ("l.0", 1), ("l.1", 0), ("l.1", 1), ("", 0)]


def test_unread_fields_are_no_inputs() -> None:
    assert [n.attributes["name"] for n in elaborated(run_of("x")).training.inputs] == ["x"]


# The update


def test_the_gradient_is_scaled_by_the_runtime() -> None:
    update = elaborated(run_of('(* x (param "w" [64] ones))', optimizer="(sgd :lr 0.5)")).update
    assert hosts(update) == [("runtime", "gradient-scale")]
    assert [n.attributes["kind"] for n in update.inputs] == ["parameter", "gradient"]


def test_states_have_their_shape_and_fill() -> None:
    optimizer = "(defoptimizer o (p g) (state m (zeros-like p)) (state n (full [2] 0.5)) (state k 3) (update m g) (- p m))"
    made = elaborated(run_of('(* x (param "w" [64] ones))', optimizer, optimizer="(o)"))
    assert [(s.name, s.shape, s.fill) for s in made.states] == [("m", (64,), 0.0), ("n", (2,), 0.5), ("k", (), 3.0)]
    # A state that is not updated stays.
    assert made.update.outputs["state:w:n"].op == "input"


def test_by_name_takes_the_first_match() -> None:
    optimizer = '(by-name ("*.bias" (sgd)) (else (adamw :lr 0.5)))'
    made = elaborated(run_of("(linear x 3)", optimizer=optimizer))
    assert [s.parameter for s in made.states] == ["linear.weight"] * 2
    assert made.learning_rate == ("number", 0.5)


def test_weight_decay_reaches_only_what_decays() -> None:
    made = elaborated(run_of("(linear x 3)", "(defhyper wd 0.1)", optimizer="(adamw :decay wd)"))
    decayed = [n for n in made.update.nodes if n.op == "mul" and any(i.op == "broadcast" for i in n.inputs)]
    uses = [n for n in decayed if any(b.inputs and b.inputs[0].op == "host"
            and b.inputs[0].attributes["expression"] == ("hyper", "wd", 0.1) for b in n.inputs)]  # fmt: skip
    assert [n.shape for n in uses] == [(64, 3)]


# Places and labels


def test_sizes_carry_the_names_of_their_hypers_through_operations() -> None:
    text = run_of(
        "(mean (split-heads (embed (param \"t\" [256 width] ones) tokens) heads))",
        "(defhyper width 8) (defhyper heads 2)", loader=TOKENS,
    )  # fmt: skip
    graph = elaborated(text).training
    assert "f32[batch=2 seq=6 width=8]" in [str(n.type) for n in graph.nodes]
    assert "f32[batch=2 seq=6 heads=2 4]" in [str(n.type) for n in graph.nodes]


def test_nodes_know_form_scope_and_calls() -> None:
    text = run_of("(l x)", "(deflayer l (x)\n  (f x))\n(defun f (x)\n  (square x))")
    (square,) = [n for n in elaborated(text).training.nodes if n.op == "mul"]
    (origin,) = square.origins
    assert origin.span is not None and origin.span.text == "(square x)" and origin.scope == "l"
    assert origin.frames == ("in function f, called at e.sexp:3:3", "in layer l, called at e.sexp:6:25")


def test_a_node_of_the_prelude_comes_from_the_users_call() -> None:
    graph = elaborated(run_of("(gelu x)")).training
    assert {o.span.text for n in graph.nodes if n.op == "erf" for o in n.origins if o.span} == {"(gelu x)"}


def test_an_unreadable_header_is_reported_at_the_loader() -> None:
    from elaborating import LOADER

    from sexpgpu.errors import Diagnostics
    from sexpgpu.lang.program import program_of
    from sexpgpu.loaderspec import Header, LoaderSpec
    from sexpgpu.passes.elaborate import elaborate
    from sexpgpu.source import Source

    def refuse(spec: LoaderSpec) -> Header:
        raise Error("E-DATA-001", "no such file", spec.span)

    with pytest.raises(Diagnostics) as caught:
        elaborate(program_of(Source("e.sexp", run_of("x", loader=LOADER))), refuse)
    (error,) = caught.value.errors
    assert error.code == "E-DATA-001" and error.span is not None and error.span.line == 1
