"""Wrong files: the code, line and column of each problem, and the words that help."""

from __future__ import annotations

import time

import pytest
from elaborating import LOADER, elaborated, errors_of, run_of

RUN = "(defrun r :data d :loss (mean x) :optimizer (sgd) :steps 1)"

# What is wrong: the file (its first line is the loader's), then (code, line, column) of every problem in the text's order.
WRONG: dict[str, tuple[str, list[tuple[str, int, int]]]] = {
    "unknown operation": (f"{LOADER}\n(def a 1)\n{RUN.replace('(mean x)', '(maen x)')}", [("E-NAME-001", 3, 26)]),
    "unknown name in a function that nobody calls": (f"{LOADER}\n(defun f (a)\n  (+ a bb))\n{RUN}", [("E-NAME-001", 3, 8)]),
    "the same name twice": (f"{LOADER}\n(def a 1)\n(def a 2)\n{RUN}", [("E-NAME-002", 3, 6)]),
    "a form's name taken": (f"{LOADER}\n(defun if (x) x)\n{RUN}", [("E-NAME-002", 2, 8)]),
    "defined by itself": (f"{LOADER}\n(def a (+ b 1))\n(def b (+ a 1))\n{RUN}", [("E-NAME-001", 3, 11)]),
    "unknown keyword": (f"{LOADER}\n{RUN.replace('(mean x)', '(mean x :axes 1)')}", [("E-NAME-005", 2, 33)]),
    "unknown keyword of a layer": (
        f"{LOADER}\n(deflayer f (x &key (k 1)) x)\n(defun g (x) (f x :l 2))\n{RUN}", [("E-NAME-005", 3, 19)],
    ),
    "the same parameter path twice": (
        run_of('\n  (* (param "w" [64] zeros)\n     (* x (param "w" [64] zeros)))'), [("E-NAME-003", 5, 11)],
    ),
    "shared with another initializer": (
        run_of('\n  (* (param "w" [64] zeros)\n     (* x (param "w" [64] ones :share true)))'), [("E-NAME-004", 5, 11)],
    ),
    "a parameter that the loss does not reach": (
        run_of("(mean x)", rest=":steps 1\n  :predict (linear x 3)"), [("E-NAME-007", 4, 12)],
    ),
    "a best record that no evaluation writes": (
        run_of("x", rest=":steps 1 :eval (every 1 d)\n  :checkpoint (every 1 :best d/los min)"), [("E-NAME-001", 4, 15)],
    ),
    "a stop without the evaluation it waits for": (
        run_of("x", rest=":steps 1\n  :stop (patience 1 v/loss)"), [("E-NAME-001", 4, 9)],
    ),
    "no initializer": (run_of('\n  (mean (param "w" [3] normal))'), [("E-NAME-008", 4, 9)]),
    "hyper without a value": (f"{LOADER}\n(defhyper w)\n{RUN}", [("E-SYN-001", 2, 1)]),
    "hyper with two values": (f"{LOADER}\n(defhyper w 1 2)\n{RUN}", [("E-SYN-001", 2, 15)]),
    "a binding that is none": (f"{LOADER}\n(defun f (x)\n  (let ((a)) a))\n{RUN}", [("E-SYN-001", 3, 9)]),
    "an argument that is no name": (f"{LOADER}\n(defun f (3) 1)\n{RUN}", [("E-SYN-001", 2, 11)]),
    "no arguments": (f"{LOADER}\n(defun f x 1)\n{RUN}", [("E-SYN-001", 2, 10)]),
    "repeat without a count": (f"{LOADER}\n(defun f (x)\n  (repeat (i) (x x) x))\n{RUN}", [("E-SYN-001", 3, 11)]),
    "else not last": (f"{LOADER}\n(defun f (x)\n  (cond (else 1)\n        (x 2)))\n{RUN}", [("E-SYN-001", 3, 9)]),
    "the empty call": (f"{LOADER}\n(defun f (x) ())\n{RUN}", [("E-SYN-001", 2, 14)]),
    "a form as a value": (f"{LOADER}\n(defun f (x) (+ x let))\n{RUN}", [("E-SYN-001", 2, 19)]),
    "a keyword without a value": (f"{LOADER}\n(defun f (x) (sum x :axis))\n{RUN}", [("E-SYN-001", 2, 21)]),
    "too many arguments": (f"{LOADER}\n(defun f (x) (exp x x))\n{RUN}", [("E-SYN-002", 2, 14)]),
    "too few arguments of a function": (f"{LOADER}\n(defun f (x y) x)\n(defun g (x) (f x))\n{RUN}", [("E-SYN-002", 3, 14)]),
    "calls without end": (f"{LOADER}\n(defun f (n)\n  (f (+ n 1)))\n(def z (f 0))\n{RUN}", [("E-SYN-003", 3, 3)]),
    "two calls without end": (
        f"{LOADER}\n(defun f (n)\n  (+ (f (+ n 1)) (f (+ n 2))))\n(def z (f 0))\n{RUN}", [("E-SYN-003", 3, 6)],
    ),
    "not a definition": (f"{LOADER}\n(+ 1 2)\n{RUN}", [("E-SYN-004", 2, 1)]),
    "a number at the top": (f"{LOADER}\n{RUN}\n 42", [("E-SYN-004", 3, 2)]),
    "a text added": (f'{LOADER}\n(def a (+ 1 "two"))\n{RUN}', [("E-TYPE-001", 2, 8)]),
    "a condition on a tensor": (run_of("\n  (if (> x 0) x 0)"), [("E-TYPE-002", 4, 7)]),
    "a tensor chosen by the step": (run_of("\n  (if (> step 3) x 0)"), [("E-TYPE-002", 4, 3)]),
    "a number as a condition": (f"{LOADER}\n(def a (if 1 2 3))\n{RUN}", [("E-TYPE-001", 2, 12)]),
    "dtypes without a common one": (run_of("\n  (+ (cast x i32) (cast x u32))"), [("E-TYPE-003", 4, 3)]),
    "not a function": (f"{LOADER}\n(def a 1)\n(def b (a 2))\n{RUN}", [("E-TYPE-004", 3, 8)]),
    "values that do not fit their names": (
        run_of("\n  (let (((a b) (split x 4 :axis 1))) a)"), [("E-TYPE-001", 4, 16)],
    ),
    "a count that is a float": (run_of("\n  (repeat (i 2.5) (y x) y)"), [("E-TYPE-001", 4, 14)]),
    "the step in a metric": (
        run_of("x", "(defmetric m\n  (* step x))", ":steps 1 :eval (every 1 d :metrics [m])"), [("E-NAME-001", 3, 6)],
    ),
    "shapes that do not broadcast": (run_of("\n  (+ x (zeros [8 63]))"), [("E-SHAPE-001", 4, 3)]),
    "an inner size that differs": (run_of("\n  (matmul x (zeros [63 2]))"), [("E-SHAPE-002", 4, 3)]),
    "a float in a shape": (f"{LOADER}\n(def a (zeros [(/ 16 3)]))\n{RUN}", [("E-SHAPE-003", 2, 8)]),
    "an axis that is not there": (run_of("\n  (sum x :axis 2)"), [("E-SHAPE-004", 4, 3)]),
    "an axis twice": (run_of("\n  (sum x :axis [0 -2])"), [("E-SHAPE-004", 4, 3)]),
    "a tensor too large": (f"{LOADER}\n(def a (zeros [16777216 16777216]))\n{RUN}", [("E-SHAPE-005", 2, 8)]),
    "heads that do not divide": (run_of("\n  (mean (split-heads (expand-dims x 1) 3))"), [("E-SHAPE-001", 4, 9)]),
    "targets that are floats": (run_of("\n  (cross-entropy x x)"), [("E-SHAPE-001", 4, 3)]),
    "einsum with a wrong rank": (run_of('\n  (einsum "a b c -> a" x)'), [("E-SHAPE-001", 4, 3)]),
    "an assertion": (f'{LOADER}\n(defhyper w 12)\n(assert (= (mod w 5) 0) "five")\n{RUN}', [("E-ASSERT-001", 3, 1)]),
    "a run without data": (f"{LOADER}\n(defrun r :loss (mean x) :optimizer (sgd) :steps 1)", [("E-RUN-001", 2, 1)]),
    "a run without an optimizer": (f"{LOADER}\n(defrun r :data d :loss (mean x) :steps 1)", [("E-RUN-001", 2, 1)]),
    "a run without steps": (f"{LOADER}\n(defrun r :data d :loss (mean x) :optimizer (sgd))", [("E-RUN-001", 2, 1)]),
    "unknown key of a run": (f"{LOADER}\n{RUN[:-1]}\n  :microbatch 2)", [("E-RUN-002", 3, 3)]),
    "steps and epochs": (f"{LOADER}\n{RUN[:-1]}\n  :epochs 2)", [("E-RUN-003", 3, 11)]),
    "a scalar loss with short batches": (run_of("\n  (mean x)", rest=":epochs 2"), [("E-RUN-003", 4, 3)]),
    "steps that are a text": (f'{LOADER}\n{RUN.replace("1)", chr(34) + "many" + chr(34) + ")")}', [("E-RUN-004", 2, 58)]),
    "no microbatch": (f"{LOADER}\n{RUN[:-1]}\n  :microbatches 0)", [("E-RUN-007", 3, 17)]),
    "unknown precision": (f"{LOADER}\n{RUN[:-1]}\n  :precision bfloat)", [("E-RUN-007", 3, 14)]),
    "no run": (LOADER, [("E-RUN-005", 0, 0)]),
    "unknown source": ('(defloader d (arays "d.npz" :batch 8))\n' + RUN, [("E-NAME-001", 1, 14)]),
    "unknown key of a loader": ('(defloader d (arrays "d.npz" :bacth 8))\n' + RUN, [("E-RUN-002", 1, 30)]),
    "unknown loader": (f"{LOADER}\n{RUN.replace(':data d', ':data e')}", [("E-NAME-001", 2, 17)]),
    "unknown metric": (run_of("x", rest=":steps 1\n  :eval (every 2 d :metrics [m])"), [("E-NAME-001", 4, 30)]),
    "using a broken definition is no further problem": (
        f"{LOADER}\n(defhyper n)\n(defnu f (x) x)\n(defvariant s (n 2))\n(defun g (x) (+ n (f x)))\n{RUN}",
        [("E-SYN-001", 2, 1), ("E-SYN-004", 3, 1)],
    ),
    "unknown hyper in a variant": (
        f"{LOADER}\n(defhyper width 1)\n(defvariant s\n  (widht 2))\n{RUN}", [("E-NAME-006", 4, 4)],
    ),
    "unknown optimizer": (run_of('(* x (param "w" [64] ones))', optimizer="\n  (adamv)"), [("E-NAME-001", 4, 4)]),
    "an optimizer's unknown keyword": (
        run_of('(* x (param "w" [64] ones))', optimizer="\n  (adamw :rate 1)"), [("E-NAME-005", 4, 10)],
    ),
    "an update of no state": (
        run_of('(* x (param "w" [64] ones))', "(defoptimizer o (p g)\n  (update m g)\n  (- p g))", optimizer="(o)"),
        [("E-NAME-001", 3, 11)],
    ),
    "a parameter's new shape": (
        run_of('(* x (param "w" [64] ones))', "(defoptimizer o (p g)\n  (sum g))", optimizer="\n  (o)"), [("E-SHAPE-001", 5, 3)],
    ),
    "every problem, in the text's order": (
        run_of("\n  (+ (mean (foo x))\n     (mean (reshape x [3]))\n     (matmul x x)\n     (bar 2))"),
        [("E-NAME-001", 4, 13), ("E-SHAPE-001", 5, 12), ("E-SHAPE-002", 6, 6), ("E-NAME-001", 7, 7)],
    ),
    "one problem although the loop meets it often": (
        run_of("\n  (repeat (i 3) (x x)\n    (+ x (foo x)))"), [("E-NAME-001", 5, 11)],
    ),
    "problems in several definitions": (
        f"{LOADER}\n(def a (foo 1))\n(defun f (x) (bar x))\n(deflayer g (x) (baz x))\n{RUN}",
        [("E-NAME-001", 2, 9), ("E-NAME-001", 3, 15), ("E-NAME-001", 4, 18)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_gives_its_problems_and_places(what: str) -> None:
    text, expected = WRONG[what]
    got = [(e.code, e.span.line if e.span else 0, e.span.column if e.span else 0) for e in errors_of(text)]
    assert got == expected


def test_the_message_of_the_language_page() -> None:
    text = (
        '(defhyper width 128) (defhyper batch 8) (defhyper seq 64)\n'
        '(defloader d (text "d.txt" :tokenizer (bytes) :seq seq :batch batch))\n'
        '(deflayer mlp (x)\n'
        '  (let ((w (param "w" [96 256] (normal 0.02))))\n'
        '    (matmul x w)))\n'
        '(defun net (x)\n'
        '  (repeat (i 2) (x x)\n'
        '    (mlp x)))\n'
        '(defrun r :data d :optimizer (sgd) :steps 1\n'
        '  :loss (repeat (i 2) (x (embed (param "t" [256 width] ones) tokens)) (mlp x)))\n'
    )  # fmt: skip
    (error,) = errors_of(text)
    assert error.render() == (
        "error[E-SHAPE-002]: matmul: inner sizes differ, 128 (width) and 96\n"
        " --> e.sexp:5:5\n"
        "  |\n"
        "5 |     (matmul x w)))\n"
        "  |     ^^^^^^^^^^^^ x is f32[batch=8 seq=64 width=128], w is f32[96 256]\n"
        "   = in layer mlp, called at e.sexp:10:71 (repeat i=0)\n"
        "   = did you mean (transpose w)?"
    )


@pytest.mark.parametrize(
    ("expression", "note"),
    [
        ("(maen x)", "did you mean mean?"),
        ("(mean x :axes 1)", "did you mean :axis?"),
        ("(lineer x 3)", "did you mean linear?"),
        ("(repaet (i 2) (x x) x)", "did you mean repeat?"),
        ("(matmul (zeros [3 64]) (zeros [3 2]))", "did you mean (transpose (zeros [3 64]))?"),
    ],
)
def test_the_nearest_is_suggested(expression: str, note: str) -> None:
    assert note in errors_of(run_of(f"(mean {expression})"))[0].notes


def test_a_problem_inside_the_prelude_stands_at_the_users_call() -> None:
    (error,) = errors_of(run_of("(mean (softmax x :axis 5))"))
    assert error.code == "E-SHAPE-004" and error.span is not None
    assert error.span.text == "(softmax x :axis 5)"
    assert any("of the prelude" in note for note in error.notes)


@pytest.mark.parametrize("limit", ["-1", "0", "nan"])
def test_a_clip_that_is_not_above_zero_is_refused(limit: str) -> None:
    (error,) = errors_of(f"{LOADER}\n{RUN[:-1]}\n  :clip-grad-norm {limit})")
    assert error.code == "E-RUN-007" and error.span is not None and (error.span.line, error.span.column) == (3, 19)


@pytest.mark.parametrize("loss", ["1.0", "(> x 0)", "(cast x i32)"])
def test_a_loss_is_a_float_tensor(loss: str) -> None:
    (error,) = errors_of(run_of(loss))
    assert error.code == "E-TYPE-001" and ":loss must be a float tensor" in error.message


def test_a_frozen_name_that_no_parameter_has_is_refused_with_the_nearest() -> None:
    run = RUN[:-1].replace("(mean x)", "(mean (linear x 2))")
    (error,) = errors_of(f'{LOADER}\n{run}\n  :freeze ["linear.wieght"])')
    assert error.code == "E-NAME-001" and error.span is not None and (error.span.line, error.span.column) == (3, 12)
    assert error.notes == ["did you mean linear.weight?"]


def test_an_assertion_shows_the_values() -> None:
    (error,) = errors_of(f'{LOADER}\n(defhyper w 12)\n(defhyper h 5)\n(assert (= (mod w h) 0) "h" w h)\n{RUN}')
    assert error.message == "h" and error.label.startswith("w is the number 12, h is the number 5")


def test_a_float_in_a_shape_shows_both_integers() -> None:
    (error,) = errors_of(run_of("(mean (zeros [(/ 16 3)]))"))
    assert "16 / 3 = 5.333" in error.message


def test_a_deep_chain_of_calls_is_counted_not_shown() -> None:
    (error,) = errors_of(run_of("(f 0)", "(defun f (n) (if (= n 20) (foo n) (f (+ n 1))))".replace("foo n", "+ n true")))
    assert error.notes[-1] == "and 17 more calls around these"


def test_a_thousand_nested_calls_are_allowed() -> None:
    made = elaborated(run_of("(mean (* x (f 0)))", "(defun f (n) (if (= n 990) n (f (+ n 1))))"))
    assert 990 in [node.attributes.get("value") for node in made.training.nodes]


def test_forms_nested_nearly_a_thousand_deep_are_elaborated() -> None:
    deep = "(+ 1 " * 990 + "1" + ")" * 990
    made = elaborated(run_of(f"(mean (* x {deep}))"))
    assert 991 in [node.attributes.get("value") for node in made.training.nodes]


def test_a_parameter_may_have_a_line_end_in_its_name() -> None:
    assert [p.name for p in elaborated(run_of('(* x (param "a\\nb" [64] ones))')).parameters] == ["a\nb"]


@pytest.mark.parametrize("line", ["(def a{k} (b{k} 1))", "(dfe a{k} 1)", "(defvariant v{k} (a{k} 1))"])
def test_of_a_file_of_nothing_but_problems_the_first_thousand_are_shown(line: str) -> None:
    begin = time.process_time()
    errors = errors_of(f"{LOADER}\n" + "\n".join(line.format(k=k) for k in range(3_000)))
    assert len(errors) == 1_000 and sum("the file has more" in note for e in errors for note in e.notes) == 1
    assert time.process_time() - begin < 20
