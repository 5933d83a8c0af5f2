"""Values known at elaboration: numbers, lists, functions, facts about tensors, choices, and lists that become tensors."""

from __future__ import annotations

import numpy as np
import pytest
from elaborating import errors_of, run_of, value_of

from sexpgpu.lang.foreign import FOREIGN
from sexpgpu.lang.grammar import DEFINITIONS, SPECIAL_FORMS, TOP_FORMS
from sexpgpu.lang.program import load_prelude
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC

DIGITS = "(defun digits (list) (fold (fn (n d) (+ (* 10 n) d)) 0 list))"
FUNCTIONS = """
(defun factorial (n) (if (= n 0) 1 (* n (factorial (- n 1)))))
(defun fib (n) (cond ((< n 2) n) (else (+ (fib (- n 1)) (fib (- n 2))))))
(defun even (n) (if (= n 0) true (odd (- n 1))))
(defun odd (n) (if (= n 0) false (even (- n 1))))
(defun twice (f) (fn (x) (f (f x))))
(defun divided (a b) (values (// a b) (mod a b)))
(defun scaled (x &key (by 2) (then (* by 10))) (+ (* x by) then))
"""


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        # Numbers: integers stay exact, `/` is an integer where it is exact, // and mod go down.
        ("(/ 6 3)", 2), ("(/ 7 2)", 3.5), ("(// 7 2)", 3), ("(// -7 2)", -4), ("(mod -7 3)", 2), ("(mod 7 -3)", -2),
        ("(// 5.5 2)", 2), ("(mod 5.5 2)", 1.5), ("(pow 2 10)", 1024), ("(+)", 0), ("(*)", 1), ("(- 5)", -5),
        ("(+ 4611686018427387904 -4611686018427387903)", 1), ("(round 2.5)", 2), ("(maximum 1 3 2)", 3),
        # Lists.
        ("(digits (map + [1 2] [3 4]))", 46), ("(digits (map (fn (x) (* x x)) (range 1 4)))", 149),
        ("(digits (range 7 0 -3))", 741), ("(fold - 10 [1 2 3])", 4), ("(fold + 7 [])", 7), ("(nth [5 6 7] -1)", 7),
        ("(digits (append [1] [] [2 3]))", 123), ("(length [1 [2 3]])", 2), ("(length (list))", 0), ("(length \"abc\")", 3),
        ('(if (= (str "a" 1 2.5 true nil [1 "x"]) "a12.5truenil[1 x]") 1 0)', 1),
        ("(if (= [1 [2]] (list 1 (list 2))) 1 0)", 1), ("(if (= [1 2] [1 3]) 1 0)", 0),
        # Facts about tensors.
        ("(digits (shape (zeros [2 3])))", 23), ("(rank (zeros [2 3]))", 2), ("(dim (zeros [2 3]) -1)", 3),
        ("(rank 3.5)", 0), ("(length (shape 3))", 0), ("(if (= (dtype (zeros [2] :dtype i32)) i32) 1 0)", 1),
        ("(digits (shape (zeros (map (fn (n) (* 2 n)) [1 2]))))", 24),
        # Choices: the branch that is not taken is not evaluated.
        ("(if true 1 (zeros [-1]))", 1), ("(cond ((= 1 2) 1) ((= 1 1) 2) (else 3))", 2), ("(if nil 1 2)", 2),
        ("(if (or nil (= 1 2)) 1 2)", 2), ("(if (and true [] \"\") 1 2)", 1), ("(if (and (= 1 2) (zeros [-1])) 1 2)", 2),
        ("(if (or false nil) 1 2)", 2),
        # Functions.
        ("(factorial 10)", 3628800), ("(fib 15)", 610), ("(if (even 500) 1 0)", 1), ("((twice (twice square)) 3)", 43046721),
        ("(let (((q r) (divided 17 5))) (digits [q r]))", 32), ("(let (((a (b c)) [1 [2 3]])) (digits [a b c]))", 123),
        ("(scaled 1)", 22), ("(scaled 1 :by 3)", 33), ("(scaled 1 :then 5)", 7), ("(scaled 1 :then 5 :by 4)", 9),
        # Names: the innermost binding counts, `let` sees the outer ones, `let*` those before.
        ("(let ((a 1)) (let ((a 2) (b a)) (digits [a b])))", 21), ("(let* ((a 1) (a (+ a 1)) (b a)) b)", 2),
        ("(let ((range 4)) range)", 4), ("(let ((f (let ((n 5)) (fn (x) (+ x n))))) (let ((n 1)) (f n)))", 6),
        ("(let ((x 1)) (assert (= x 1) \"one\") (+ x 1))", 2), ("(begin 1 2)", 2),
        ("(let (((a b) (repeat (i 4) ((a 0) (b 1)) (values b (+ a b))))) (digits [a b]))", 35),
    ],
)  # fmt: skip
def test_an_expression_has_its_value(expression: str, value: float) -> None:
    assert value_of(f"(full [] {expression})", DIGITS + FUNCTIONS) == value


def test_recursion_goes_a_thousand_deep_and_no_further() -> None:
    count = "(defun count (n) (if (= n 0) 0 (+ 1 (count (- n 1)))))"
    assert value_of("(full [] (count 998))", count) == 998
    (error,) = errors_of(run_of("(mean (full [1] (count 1001)))", count))
    assert error.code == "E-SYN-003"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(softmax [1 2 3])", np.exp([1, 2, 3]) / np.exp([1, 2, 3]).sum()),
        ("(exp [0 1])", np.exp([0.0, 1])),
        ("(matmul [[1 2] [3 4]] [1 1])", [3, 7]),
        ("(+ [1 2] [[10] [20]])", [[11, 12], [21, 22]]),
        ("(where [true false] [1.5 2] 0)", [1.5, 0]),
        ("(* 2 (zeros-like [1 2]))", [0, 0]),
        ("(concat [[1 2] [3]])", [1, 2, 3]),
        ("(cast [1.7 -1.7] i32)", [1, -1]),
        ("(mse [1 2] [3 5])", [4, 9]),
    ],
)  # fmt: skip
def test_a_list_of_numbers_becomes_a_tensor_where_an_operation_wants_one(expression: str, value: object) -> None:
    np.testing.assert_allclose(value_of(expression), value, rtol=1e-6)


@pytest.mark.parametrize("numbers", ["[[1 2] [3]]", '["a"]', "[]", "[1 [2]]", "[nil]"])
def test_any_other_list_is_no_tensor(numbers: str) -> None:
    (error,) = errors_of(run_of(f"(mean {numbers})"))
    assert error.code == "E-TYPE-001"


def test_a_long_list_is_no_tensor() -> None:
    (error,) = errors_of(run_of("(mean (range 5000))"))
    assert error.message == "sum: a list of 5,000 numbers, at most 4,096 become a tensor"


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ("(/ 16 3)", "16 / 3 = 5.333 is a float"),
        ("(* 2 (/ 16 3))", "10.67, made of 16 / 3 = 5.333 is a float"),
        ("(/ (/ 16 3) 2)", "2.667, made of 16 / 3 = 5.333 is a float"),
        ("2.5", "2.5 is a float"),
    ],
)
def test_a_float_in_a_shape_shows_the_division_that_it_came_from(size: str, words: str) -> None:
    (error,) = errors_of(run_of(f"(mean (zeros [{size}]))"))
    assert error.code == "E-SHAPE-003" and words in error.message


@pytest.mark.parametrize("loss", ["mse", "huber", "binary-cross-entropy", "kl-divergence"])
def test_a_loss_does_not_broadcast(loss: str) -> None:
    (error,) = errors_of(run_of(f"(mean ({loss} (sum x :axis 1 :keep true) (sum x :axis 1)))"))
    assert error.code == "E-SHAPE-001" and f"{loss}: a loss does not broadcast" in error.message
    assert error.label == ("a is f32[batch=8 1], b is f32[batch=8]" if loss in ("mse", "huber") else error.label)
    assert error.span is not None and error.span.text.startswith(f"({loss} ")


def test_a_loss_beside_a_number_is_no_broadcast() -> None:
    assert value_of("(mean (mse [1 3] 2))") == 1


def test_words_of_other_languages_mean_words_of_this_one() -> None:
    words = {*load_prelude(), *BUILTINS, *CONSTANTS, *DYNAMIC, *SPECIAL_FORMS, *DEFINITIONS, *TOP_FORMS, "true", "false", "nil"}
    assert not words & set(FOREIGN)
    assert {meant.strip("()").split()[0] for meant in FOREIGN.values()} <= words


DEEP = "(repeat (i 90000) (x 1) [x])"


@pytest.mark.parametrize(
    "expression",
    [
        f"(if (= {DEEP} {DEEP}) 1 2)", f"(length (str {DEEP}))", f"(sum (softmax {DEEP}))",
        f"(sum (softmax (zeros [3]) :axis {DEEP}))", "(length (repeat (i 90000) (x 1) [x x]))",
        f"(sum (concat {DEEP}))", "(nth (repeat (i 90000) (x 1) (values 1 x)) 0)", "(length (repeat (i 90000) (x 1) (list x 2)))",
        "(length (repeat (i 90000) (x [1]) (map (fn (y) x) x)))", "(length (repeat (i 90000) (x [1]) (append [x] x)))",
    ],
)  # fmt: skip
def test_lists_are_not_nested_without_end(expression: str) -> None:
    errors = errors_of(run_of(f"(mean (full [1] {expression}))"))
    assert {e.code for e in errors} == {"E-TYPE-001"} and all("a list of lists is too large" in e.message for e in errors)


@pytest.mark.parametrize("grown", ["(* s 1.5)", "(+ s s)", "(if (> step 3) s (+ s step))", "(+ s (* s s step))"])
def test_a_number_of_the_host_does_not_grow_without_end(grown: str) -> None:
    (error,) = errors_of(run_of(f"(* x (repeat (i 90000) (s rate) {grown}))", "(defhyper rate 0.5)"))
    assert error.message == "a number known at each step takes more than 500 operations"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(cast (round (* 4 ratio)) i32)", 11), ("(cast (* 4 ratio) i32)", 10), ("(if (> (floor (/ ratio 0.0)) 1) 1 2)", 1),
        ("(if (> (mod (/ ratio 0.0) 2) 1) 1 2)", 2), ("(if (> (sin (/ ratio 0.0)) 0) 1 2)", 2),
        ("(if (> (log (- ratio ratio)) 0) 1 2)", 2), ("(if (> (exp (* 1000 ratio)) 0) 1 2)", 1),
    ],
)  # fmt: skip
def test_a_float_hyper_is_folded_where_its_value_is_needed(expression: str, value: float) -> None:
    assert value_of(f"(full [] (dim (zeros [{expression}]) 0))", "(defhyper ratio 2.67)") == value


def test_a_tensor_joined_with_itself_again_and_again_is_come_to_once() -> None:
    # Followed along every way there would be 2^40 of them.
    (error,) = errors_of(run_of("(sum (repeat (i 40) (v x) (concat [v v])))"))
    assert error.code == "E-SHAPE-005"
