"""Macros: what patterns match, what templates make of it, hygiene, places of problems, and limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from elaborating import LOADER, elaborated, errors_of, header_of, names, run_of, value_of

from sexpgpu.errors import Diagnostics
from sexpgpu.lang.program import load_program, program_of
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.source import Source

UNLESS = "(defmacro unless (c body ...) (if c nil (let () body ...)))"
# The first value that is true, evaluated once: its `t` is the classic trap.
EITHER = "(defmacro either (a b) (let ((t a)) (if t t b)))"


def number(expression: str, definitions: str = "") -> float:
    """The value of an expression of plain numbers."""
    return float(value_of(f"(full [1] {expression})", definitions)[0])


@pytest.mark.parametrize(
    ("macro", "call", "value"),
    [
        (UNLESS, "(unless (= 1 2) 3 4)", 4),
        ("(defmacro sub (a b) (- b a))", "(sub 1 (* 2 5))", 9),
        ("(defmacro nothing () 7)", "(nothing)", 7),
        ("(defmacro quoted [a b] [a b])", "(nth (quoted 3 4) 1)", 4),
        ("(defmacro first (a _ ...) a)", "(first 5 (no such thing) ((at all)))", 5),
        ("(defmacro last (_ ... z) z)", "(last 1 2 3)", 3),
        ("(defmacro middle (a b ... y z) (length [b ...]))", "(middle 1 2 3 4 5)", 2),
        ("(defmacro swap ((a b) ...) (append [b a] ...))", "(fold (fn (n d) (+ (* 10 n) d)) 0 (swap (1 2) [3 4]))", 2143),
        ("(defmacro lets (((n v) ...) e) ((fn (n ...) e) v ...))", "(lets ((a 1) (b 2)) (+ a (* 10 b)))", 21),
        ("(defmacro rows ((k v ...) ...) (length [[k [v ...]] ...]))", "(rows (1 2 3) (4) (5 6))", 3),
        ("(defmacro flat ((v ...) ...) (length [v ... ...]))", "(flat (1 2) () (3 4 5))", 5),
        ("(defmacro every (k (v ...) ...) (+ (* k v) ... ...))", "(every 10 (1 2) (3))", 60),
        ("(defmacro apply (f (x ...) ...) (+ (f x ...) ...))", "(apply - (9 1) (5))", 3),
        ("(defmacro pick (((f a) ...)) (+ (f a a) ...))", "(pick ((+ 2) (* 3)))", 13),
        ("(defmacro up (x :by n) (+ x n))", "(up 3 :by 4)", 7),
        ("(defmacro size (xs ... :axis k) (sum (ones [xs ...]) :axis k))", "(dim (size 2 3 :axis 0) 0)", 3),
        ('(defmacro named (("one" x) (2 y) (true z) (nil w)) [x y z w])', '(nth (named ("one" 6) (2 7) (true 8) (nil 9)) 3)', 9),
        ("(defmacro kind (([x ...]) 1) ((x) 2))", "(+ (* 10 (kind [1 2])) (kind (f a)))", 12),
        ("(defmacro total (() 0) ((x rest ...) (+ x (total rest ...))))", "(total 1 2 3 4)", 10),
        ("(defmacro many ((x) 1) ((x y ...) 2))", "(+ (* 10 (many 0)) (many 0 0))", 12),
        ("(defmacro sums ((a ...) (b ...)) ((fn (f) (+ (f a b) ...)) -))", "(sums (9 7) (1 2))", 13),
        ("(defmacro sums ((a ...) (b ...)) (length [[a b] ...]))", "(sums (9 7) (1 2))", 2),
        ("(defmacro nested ((a ...) (b ...)) [[a b] ...])", "(nth (nth (nested (9 7) (1 2)) 1) 0)", 7),
        ("(defmacro four ((a b) x) (+ a b x))", "(four (1 2) 3)", 6),
    ],
)  # fmt: skip
def test_a_macro_stands_for_its_template(macro: str, call: str, value: float) -> None:
    assert number(call, macro) == value


@pytest.mark.parametrize(
    ("definitions", "call", "value"),
    [
        # Names that a template binds are not the user's.
        (EITHER, "(let ((t 5)) (either (= 1 2) t))", 5),
        ("(defmacro thrice (e) (let* ((a 3) (r (* a e))) r))", "(let ((a 5) (r 7)) (thrice (+ a r)))", 36),
        ("(defmacro call (e) ((fn (a) (+ a e)) 100))", "(let ((a 5)) (call a))", 105),
        ("(defmacro key (e) ((fn (&key (k 1)) (+ k e)) :k 100))", "(let ((k 5)) (key k))", 105),
        ("(defmacro again (n e) (repeat (i n) (s 0) (+ s e i)))", "(let ((s 10) (i 5)) (again 2 (+ s i)))", 31),
        ("(defmacro two (e) (let (((a b) [1 2])) (+ a b e)))", "(let ((a 10) (b 20)) (two (+ a b)))", 33),
        (f"{EITHER}(defmacro or3 (a b c) (let ((t a)) (either t (either b (+ t c)))))", "(let ((t 4)) (or3 nil nil (+ t 1)))",
         None),
        # Names that a template leaves free are those of the top, whatever the user binds around the call.
        ("(defun f (x) (* 2 x))(defmacro twice (x) (f x))", "(let ((f 3)) (twice f))", 6),
        ("(defmacro choose (c a b) (if c a b))", "(let ((if (fn (a b c) 0))) (choose true 1 2))", 1),
        ("(defmacro add (a b) (+ a b))", "(let ((+ (fn (a b) 0))) (add 1 2))", 3),
        ("(defmacro add (a b) (sub a (- b)))(defmacro sub (a b) (- a b))", "(let ((sub 1) (- 2)) (add 1 sub))", 2),
        ("(defmacro otherwise (e) (cond ((= 1 2) 0) (else e)))", "(let ((else (= 1 2))) (otherwise 4))", 4),
        # What the user writes means what it means at the call.
        ("(defmacro in (e) (let ((f 1)) e))(defun f () 9)", "(in (f))", 9),
        ("(defun f (x) 1)(defmacro use (g) (g 0))", "(let ((f (fn (x) 2))) (use f))", 2),
        # A user's definition shadows the prelude's in the user's templates, too.
        ("(defun max (x) 42)(defmacro most (x) (max x))", "(most 1)", 42),
        # A variable of the macro's name is that variable.
        ("(defmacro m (x) 1)", "(let ((m (fn (x) 2))) (m 0))", 2),
        # A macro that a macro makes: symbols of both templates are told apart.
        ("(defmacro define (name e) (defmacro name (x) (let ((t 1)) (+ t x e))))(define plus t)(def t 100)",
         "(let ((t 10)) (plus t))", 111),
    ],
)  # fmt: skip
def test_names_mean_what_they_mean_where_they_were_written(definitions: str, call: str, value: float | None) -> None:
    if value is None:
        # `(+ t c)` adds the nil that the template's own t is, not the user's 4.
        (error,) = errors_of(run_of(f"(mean (full [1] {call}))", definitions))
        assert error.message == "+ takes numbers, not nil"
    else:
        assert number(call, definitions) == value


def test_macros_expand_to_definitions() -> None:
    definitions = """
(tower small 2)
(constants (one 1) (two 2))
(defmacro tower (name depth)
  (deflayer name (x) (repeat (i depth) (x x) (linear x 4 :name "up"))))
(defmacro constants ((n v) ...) (begin (def n v) ...))
(begin (def three 3) (constants (four 4)))
"""
    made = elaborated(run_of("(* (small x) (+ one two three four))", definitions))
    assert names(made)[::2] == ["small.up.0.weight", "small.up.1.weight"]


def test_a_macro_may_make_macros_that_stand_before_it() -> None:
    assert number("(inc 1)", "(def two (inc 1)) (inc-by 5) (defmacro inc-by (n) (defmacro inc (x) (+ x n)))") == 6


def test_macros_are_known_across_includes_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "a.sexp").write_text(f'{LOADER}(def a (inc 1))(include "macros.sexp")(twice-def b 3)')
    (tmp_path / "macros.sexp").write_text("(defmacro inc (x) (+ x 1))(defmacro twice-def (n v) (def n (* 2 (late v))))")
    (tmp_path / "main.sexp").write_text(
        '(include "a.sexp")(defmacro late (x) (inc x))(defrun r :data d :loss (* x (+ a b)) :optimizer (sgd) :steps 1)'
    )
    made = elaborate(load_program(tmp_path / "main.sexp"), header_of)
    assert 10 in [node.attributes.get("value") for node in made.training.nodes]


def test_options_of_runs_and_sources_of_loaders_may_be_macros() -> None:
    made = elaborated(
        '(defmacro file (name) (arrays name :batch 8))(defloader d (file "d.npz"))(defmacro often (n l) (every n l :batches 1))'
        "(defmacro rule (r) (by-name (else (sgd :lr r))))"
        "(defrun r :data d :loss (mean x) :optimizer (rule 0.5) :steps 1 :eval (often 3 d))"
    )
    assert made.options.evaluations[0].every == 3 and made.learning_rate is not None


def test_a_problem_of_a_template_stands_at_the_users_call_and_names_the_template() -> None:
    text = "(defmacro half (x)\n  (let ((y (/ x 2)))\n    (zeros [y])))\n(defmacro quarter (x) (half (/ x 2)))"
    (error,) = errors_of(f"{LOADER}\n{text}\n(def a (quarter\n  6))\n(defrun r :data d :loss (mean x) :optimizer (sgd) :steps 1)")
    assert error.code == "E-SHAPE-003" and error.span is not None
    assert error.span.place == "e.sexp:6:8" and error.span.text == "(quarter\n  6)"
    assert error.notes[:2] == [
        "in the template of macro half at e.sexp:4:5: (zeros [y])",
        "in the template of macro quarter at e.sexp:5:23: (half (/ x 2))",
    ]


def test_a_problem_of_an_argument_stands_at_the_argument() -> None:
    (error,) = errors_of(run_of("(mean (unless (= 1 2) (foo x)))", UNLESS))
    assert error.code == "E-NAME-001" and error.span is not None and error.span.text == "foo" and error.notes[0][:4] == "did "


def test_operands_are_named_as_they_are_written() -> None:
    (error,) = errors_of(run_of("(mean (times x))", "(defmacro times (x) (matmul x (zeros [63 2])))"))
    assert error.label == "x is f32[batch=8 64], (zeros [63 2]) is f32[63 2]"


def test_two_problems_of_one_call_are_both_reported() -> None:
    errors = errors_of(run_of("(mean (m x))", "(defmacro m (x) (+ (foo x) (bar x)))"))
    assert [e.message for e in errors] == ["unknown name foo", "unknown name bar"]


@pytest.mark.parametrize(
    ("definitions", "loss", "note"),
    [
        ("(defmacro m () (mean x))", "(m)", "a template sees no variables around the macro's call: give it x as an argument"),
        ("(defmacro m () (mean v))", "(let ((v x)) (m))",
         "a template sees no variables around the macro's call: give it v as an argument"),
        (UNLESS, "(unles true 1)", "did you mean unless?"),
        (UNLESS, "(unless)", "its rules: (unless c body ...)"),
    ],
)  # fmt: skip
def test_a_note_says_how_to_mend_it(definitions: str, loss: str, note: str) -> None:
    (error,) = errors_of(run_of(f"(mean {loss})", definitions))
    assert note in error.notes


# Its file begins with the loader's line.
WRONG = {
    "no rule": ("(defmacro m (x) x)\n(def a (m 1 2))", "E-MACRO-001", 3, 8),
    "a literal that differs": ("(defmacro m (:by x) x)\n(def a (m :to 2))", "E-MACRO-001", 3, 8),
    "a round list for a square one": ("(defmacro m ([x]) x)\n(def a (m (2)))", "E-MACRO-001", 3, 8),
    "different lengths": ("(defmacro m ((a ...) (b ...)) [[a b] ...])\n(def c (m (1) (2 3)))", "E-MACRO-001", 3, 8),
    "a variable twice": ("(defmacro m (x x) x)", "E-MACRO-002", 2, 16),
    "an ellipsis first": ("(defmacro m (... x) x)", "E-MACRO-002", 2, 14),
    "two ellipses in a list": ("(defmacro m (x ... y ...) 1)", "E-MACRO-002", 2, 22),
    "a variable without its ellipsis": ("(defmacro m (x ...) (+ x))", "E-MACRO-002", 2, 24),
    "an ellipsis on nothing repeated": ("(defmacro m (x) (+ x ...))", "E-MACRO-002", 2, 22),
    "an ellipsis too many": ("(defmacro m (x ...) (+ x ... ...))", "E-MACRO-002", 2, 26),
    "an ellipsis alone": ("(defmacro m (x ...) ...)", "E-MACRO-002", 2, 21),
    "eleven ellipses in each other": (f"(defmacro m ({'(' * 11}x{' ...)' * 11} ...) 1)", "E-MACRO-002", 2, 32),
    "no template": ("(defmacro m (x))", "E-SYN-001", 2, 1),
    "three parts that are no rules": ("(defmacro m (x) x x)", "E-SYN-001", 2, 1),
    "a pattern that is no list": ("(defmacro m x x)", "E-SYN-001", 2, 13),
    "a macro as a value": ("(defmacro m (x) x)\n(def a [m])", "E-TYPE-001", 3, 9),
    "a macro and a function of one name": ("(defmacro m (x) x)\n(defun m (x) x)", "E-NAME-002", 3, 8),
    "a form's name": ("(defmacro if (x) x)", "E-NAME-002", 2, 11),
    "an expansion that is no definition": ("(defmacro m (x) x)\n(m 1)", "E-SYN-004", 3, 4),
    "a template that is no definition": ("(defmacro m (x) (+ x 1))\n(m 1)", "E-SYN-004", 3, 1),
    "an include that a macro makes": ('(defmacro m (x) (include x))\n(m "a")', "E-SYN-004", 3, 1),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_macro_is_one_problem_at_its_place(what: str) -> None:
    text, code, line, column = WRONG[what]
    errors = errors_of(f"{LOADER}\n{text}\n(defrun r :data d :loss (mean x) :optimizer (sgd) :steps 1)")
    assert [(e.code, e.span and e.span.line, e.span and e.span.column) for e in errors] == [(code, line, column)]


def test_using_a_broken_macro_is_no_further_problem() -> None:
    (error,) = errors_of(run_of("(mean (m x))", "(defmacro m (x x) x) (m a b) (def c (m 1 2))"))
    assert error.code == "E-MACRO-002"


TREE = "".join(f"(defmacro a{i} () (list {f'(a{i + 1}) ' * 10}))" for i in range(5))
BOMBS = {
    "itself": "(defmacro m (x) (m x))(def a (m 1))",
    "itself twice": "(defmacro m (x) (+ (m x) (m x)))(def a (m 1))",
    "itself in many lists": f"(defmacro m (x) {'(' * 900}m x{')' * 900})(def a (m 1))",
    "another and back": "(defmacro m (x) (n x))(defmacro n (x) (m x))(def a (m 1))",
    "growing": "(defmacro m (x ...) (m x ... 1))(def a (m))",
    "doubling": "(defmacro m (x ...) (m x ... x ...))(def a (m 1))",
    "an argument twice": f"(defmacro m (x) (+ x x))(def a {'(m ' * 60}1{')' * 60})",
    "a large argument often": f"(defmacro m (x) ({'x ' * 1000}))(def a (m ({'(1) ' * 2000})))",
    "a tree": f"{TREE}(defmacro a5 () 1)(def z (a0))",
    "definitions": "(defmacro m () (begin (m) (m)))(m)",
    "many definitions": "(defmacro m (x ...) (begin (m x ... 1) (def x 1) ...))(m)",
    "a loader": '(defmacro m () (m))(defloader e (m))',
}  # fmt: skip


@pytest.mark.parametrize("what", BOMBS)
def test_expansion_without_end_is_one_problem_within_a_second(what: str) -> None:
    # A second of an idle core, with room for a busy one: without the limits none would end.
    begin = time.process_time()
    with pytest.raises(Diagnostics) as problems:
        elaborate(program_of(Source("e.sexp", run_of("(mean x)", BOMBS[what]))), header_of)
    assert [error.code for error in problems.value.errors] == ["E-MACRO-003"]
    assert time.process_time() - begin < 5


def test_a_macro_may_recur_over_as_many_items_as_a_call_holds() -> None:
    total = "(defmacro total (() 0) ((x rest ...) (+ x (total rest ...))))"
    assert number(f"(total {'1 ' * 500})", total) == 500
