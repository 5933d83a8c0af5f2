"""Parameters get the paths that the language page says: scopes, numbers, repetition, sharing."""

from __future__ import annotations

from elaborating import TOKENS, elaborated, errors_of, names, run_of

W = '(param "w" [64] zeros)'
ADD = f'(deflayer add (x) (+ x {W}))'


def paths(loss: str, definitions: str = "") -> list[str]:
    return names(elaborated(run_of(loss, definitions)))


def test_a_parameter_at_the_root_has_its_own_name() -> None:
    assert paths(f"(* x {W})") == ["w"]


def test_a_layer_opens_a_scope_with_its_name() -> None:
    assert paths("(add x)", ADD) == ["add.w"]


def test_a_name_keyword_names_the_scope() -> None:
    assert paths('(add x :name "first")', ADD) == ["first.w"]


def test_scopes_of_one_automatic_name_are_numbered_in_order_of_evaluation() -> None:
    assert paths("(+ (add (add x)) (add x))", ADD) == ["add.w", "add_2.w", "add_3.w"]


def test_numbering_counts_per_parent() -> None:
    two = "(deflayer two (x) (add (add x)))"
    assert paths("(two (two x))", ADD + two) == ["two.add.w", "two.add_2.w", "two_2.add.w", "two_2.add_2.w"]


def test_arguments_are_evaluated_before_the_layer_is_opened() -> None:
    outer = '(deflayer outer (x) (* x (param "g" [64] ones)))'
    assert paths("(outer (add x))", ADD + outer) == ["add.w", "outer.g"]


def test_repeat_gives_scopes_opened_by_its_body_the_index() -> None:
    assert paths("(repeat (i 2) (x x) (add x))", ADD) == ["add.0.w", "add.1.w"]


def test_numbering_starts_again_in_each_iteration() -> None:
    assert paths("(repeat (i 2) (x x) (add (add x)))", ADD) == ["add.0.w", "add_2.0.w", "add.1.w", "add_2.1.w"]


def test_a_second_repeat_goes_on_counting() -> None:
    loss = "(repeat (j 2) (z (repeat (i 2) (x x) (add x))) (add z))"
    assert paths(loss, ADD) == ["add.0.w", "add.1.w", "add_2.0.w", "add_2.1.w"]


def test_a_layer_before_a_repeat_counts_and_one_after_it_goes_on() -> None:
    loss = "(let* ((a (add x)) (b (repeat (i 1) (a a) (add a)))) (add b))"
    assert paths(loss, ADD) == ["add.w", "add_2.0.w", "add_3.w"]


def test_nested_repeats_give_nested_indices() -> None:
    loss = "(repeat (i 2) (x x) (repeat (j 2) (x x) (add x)))"
    assert paths(loss, ADD) == ["add.0.0.w", "add.0.1.w", "add.1.0.w", "add.1.1.w"]


def test_explicit_names_and_parameters_get_the_index_too() -> None:
    loss = f'(repeat (i 2) (x x) (+ (add x :name "a") {W}))'
    assert paths(loss, ADD) == ["a.0.w", "w.0", "a.1.w", "w.1"]


def test_the_index_goes_only_to_what_the_body_opens_directly() -> None:
    inner = '(deflayer inner (x) (add x))'
    assert paths("(repeat (i 1) (x x) (inner x))", ADD + inner) == ["inner.0.add.w"]


def test_a_function_called_by_the_body_opens_in_the_bodys_scope() -> None:
    assert paths("(repeat (i 1) (x x) (f x))", ADD + "(defun f (x) (add x))") == ["add.0.w"]


def test_a_repeat_of_no_iteration_opens_nothing() -> None:
    assert paths(f"(* {W} (repeat (i 0) (x x) (add x)))", ADD) == ["w"]


def test_repeat_carries_several_values() -> None:
    loss = "(let (((a b) (repeat (i 2) ((a x) (b 1)) (values (add a) (+ b i))))) (* a b))"
    assert paths(loss, ADD) == ["add.0.w", "add.1.w"]


def test_share_uses_the_same_parameter_again() -> None:
    made = elaborated(run_of(f'(* (* x {W}) (param "w" [64] zeros :share true))'))
    assert names(made) == ["w"]


def test_a_layer_with_share_shares_its_whole_scope() -> None:
    assert paths('(add (add x :name "a") :name "a" :share true)', ADD) == ["a.w"]


def test_metrics_start_at_the_root_and_reach_the_same_parameters() -> None:
    text = run_of("(add x)", ADD + "(defmetric m (add x))", ":steps 1 :eval (every 1 d :metrics [m])")
    made = elaborated(text)
    assert names(made) == ["add.w"]
    read = [n.attributes["name"] for n in made.evaluations["d"].inputs if n.attributes["kind"] == "parameter"]
    assert read == ["add.w"]


def test_decay_defaults_to_true_exactly_for_rank_2_and_more() -> None:
    loss = '(+ (* x (param "v" [64] zeros)) (matmul x (param "m" [64 64] zeros)) (* x (param "n" [1 64] zeros :decay false)))'
    assert [p.decay for p in elaborated(run_of(loss)).parameters] == [False, True, False]


def test_frozen_parameters_are_untrainable_and_not_updated() -> None:
    made = elaborated(run_of("(linear (linear x 64) 64)", rest=':steps 1 :freeze ["linear_2.*"]', optimizer="(adamw)"))
    assert [p.name for p in made.parameters if not p.trainable] == ["linear_2.weight", "linear_2.bias"]
    assert sorted(made.update.outputs) == [
        "parameter:linear.bias", "parameter:linear.weight",
        "state:linear.bias:m", "state:linear.bias:v", "state:linear.weight:m", "state:linear.weight:v",
    ]  # fmt: skip


def test_the_names_of_the_language_pages_model() -> None:
    text = """
    (defhyper width 8) (defhyper heads 2) (defhyper seq 6) (defhyper vocab 256)
    (deflayer mlp (x)
      (linear (gelu (linear x (* 4 width) :name "up")) width :name "down"))
    (deflayer self-attention (x)
      (let ((q (split-heads (linear x width :name "q") heads))
            (k (split-heads (linear x width :name "k") heads))
            (v (split-heads (linear x width :name "v") heads)))
        (linear (merge-heads (attention q k v :causal true)) width :name "out")))
    (deflayer block (x)
      (let* ((x (+ x (self-attention (layernorm x) :name "attn")))
             (x (+ x (mlp (layernorm x)))))
        (probe "residual" x)))
    (deflayer gpt (tokens)
      (let* ((wte (param "wte" [vocab width] (normal 0.02)))
             (wpe (param "wpe" [seq width] (normal 0.02)))
             (x   (+ (embed wte tokens) wpe))
             (x   (repeat (i 2) (x x) (block x)))
             (x   (layernorm x)))
        (matmul x (transpose wte))))
    """
    made = elaborated(run_of("(cross-entropy (gpt tokens) targets)", text, loader=TOKENS))
    parts = ["layernorm.gain", "layernorm.bias"]
    parts += [f"attn.{name}.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")]
    parts += ["layernorm_2.gain", "layernorm_2.bias"]
    parts += [f"mlp.{name}.{kind}" for name in ("up", "down") for kind in ("weight", "bias")]
    blocks = [f"gpt.block.{i}.{part}" for i in range(2) for part in parts]
    assert names(made) == ["gpt.wte", "gpt.wpe", *blocks, "gpt.layernorm.gain", "gpt.layernorm.bias"]


def test_the_same_path_twice_names_both_places() -> None:
    (error,) = errors_of(run_of(f"(* {W} {W})"))
    assert error.code == "E-NAME-003" and error.notes[0] == "first at e.sexp:3:28"


def test_sharing_needs_equal_shapes() -> None:
    (error,) = errors_of(run_of(f'(+ {W} (sum (param "w" [63] zeros :share true)))'))
    assert error.code == "E-NAME-004" and "shape: [64], here [63]" in error.message


def test_two_explicit_scopes_of_one_name_may_hold_different_parameters() -> None:
    other = '(deflayer scale (x) (* x (param "s" [64] ones)))'
    assert paths('(scale (add x :name "a") :name "a")', ADD + other) == ["a.w", "a.s"]
