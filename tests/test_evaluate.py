"""`sexpgpu eval`: the value of a form as text and JSON, problems in the given text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.cli import main as cli
from sexpgpu.cli.evaluate import evaluate_text
from sexpgpu.errors import Diagnostics, Error


def evaluated(text: str, file: Path | None = None, sets: tuple[str, ...] = (), seed: int = 0) -> str:
    return evaluate_text(text, None if file is None else str(file), (), sets, seed, False, False)


def facts(text: str) -> dict[str, object]:
    made: dict[str, object] = json.loads(evaluate_text(text, None, (), (), 0, False, True))
    return made


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("(+ 1 2)", "3"),
        ("(/ 7 2)", "3.5"),
        ("(/ 1.0 0)", "inf"),
        ('[1 "a\\n" true nil [2.5]]', '[1 "a\\n" true nil [2.5]]'),
        ("(shape (zeros [2 3]))", "[2 3]"),
        ("(dtype (zeros [2] :dtype i64))", "i64"),
        ("softmax", "the function softmax"),
        ("(iota 3)", "i32[3] [0 1 2]"),
        ("(sum [1 2 3.5])", "f32[] 6.5"),
        ("(isfinite [1.0 inf])", "bool[2] [true false]"),
        ("(cast [1.0 2.75] bf16)", "bf16[2] [1.0 2.75]"),
        ("(sum (cast [1.0 256.0 1.0] bf16))", "bf16[] 258.0"),
        ("(cumsum (cast [1.0 256.0 1.0] bf16))", "bf16[3] [1.0 256.0 258.0]"),
        ("(dot (cast [1.0 256.0] bf16) (cast [1.0 1.0] bf16))", "bf16[] 256.0"),
        ("(roll [[0 1 2] [3 4 5]] [1 -1] :axis [0 1])", "i32[2 3]\n[[4 5 3]\n [1 2 0]]"),
        ("(logical-and [true true] [true false])", "bool[2] [true false]"),
        ("(count-nonzero [0 2 0 3])", "i32[] 2"),
        ("(count-nonzero (> [0 2 0 3] 2))", "i32[] 1"),
        ("(logsumexp (zeros [2 0]) :axis 1)", "f32[2] [-inf -inf]"),
        ("(zeros [2 2])", "f32[2 2]\n[[0.0 0.0]\n [0.0 0.0]]"),
        ("(iota 2000)", "i32[2000] [0 1 2 ... 1997 1998 1999]"),
        ("(values 1 (iota 2))", "1\ni32[2] [0 1]"),
        ("[(iota 2) 1]", "[i32[2] [0 1] 1]"),
        ("(def a 2) (defmacro twice (x) (* 2 x)) (twice a)", "4"),
        ("(dropout (ones [2]) 0.5)", "f32[2] [1.0 1.0]"),
        ("(warmup-cosine 5 :peak 1.0 :warmup 10 :total 100)", "0.5"),
    ],
)
def test_a_form_has_its_value(form: str, text: str) -> None:
    assert evaluated(form) == text


def test_a_tensor_as_json_has_dtype_shape_and_value() -> None:
    made = facts("(softmax [[1 2 3]])")
    assert made["dtype"] == "f32" and made["shape"] == [1, 3]
    np.testing.assert_allclose(made["value"], np.exp([[1.0, 2, 3]]) / np.exp([1.0, 2, 3]).sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("(* 2 3)", {"value": 6}),
        ("[true nil 1.5]", {"value": [True, None, 1.5]}),
        ("(values 1 [2])", {"values": [{"value": 1}, {"value": [2]}]}),
        ("(/ [0.0 1] 0)", {"dtype": "f32", "shape": [2], "value": ["NaN", "Infinity"]}),
        ("[(iota 1)]", {"value": [{"dtype": "i32", "shape": [1], "value": [0]}]}),
    ],
)
def test_a_value_as_json(form: str, value: object) -> None:
    assert facts(form) == value


def test_parameters_and_draws_are_those_of_the_seed() -> None:
    layer, draw = "(linear (ones [1 4]) 2)", "(random-normal [3])"
    assert evaluated(layer) == evaluated(layer) != evaluated(layer, seed=1)
    assert evaluated(draw) == evaluated(draw) != evaluated(draw, seed=1)


def test_the_definitions_of_a_file_are_in_scope(tmp_path: Path) -> None:
    path = tmp_path / "net.sexp"
    path.write_text("(defhyper width 3)(deflayer net (x) (linear x width :init ones))(defmacro inc (x) (+ x 1))")
    assert evaluated("(inc width)", path) == "4"
    assert evaluated("(shape (net (ones [2 4])))", path) == "[2 3]"
    assert evaluated("(shape (net (ones [2 4])))", path, sets=("width=7",)) == "[2 7]"


@pytest.mark.parametrize(
    ("form", "code", "column"),
    [
        ("(softmax (foo 1))", "E-NAME-001", 11),
        ("(softmax [1 2] :axis 3)", "E-SHAPE-004", 1),
        ("(+ 1 (", "E-READ-001", 1),
        ("(def a 1)", "E-SYN-001", 1),
        ("(def a (foo)) a", "E-NAME-001", 9),
        ("(+ 1 step)", "E-NAME-001", 6),
        ("(pow [2 3] -1)", "E-TYPE-001", 1),
        ("(take [1 2 3] [0 3])", "E-NUM-002", 1),
        ("(cross-entropy (zeros [1 2]) [2])", "E-NUM-002", 1),
        ("(assert (= 1 2) \"no\")", "E-ASSERT-001", 1),
    ],
)
def test_a_problem_points_into_the_form(form: str, code: str, column: int) -> None:
    with pytest.raises((Diagnostics, Error)) as problem:
        evaluated(form)
    error = problem.value.errors[0] if isinstance(problem.value, Diagnostics) else problem.value
    assert error.code == code and error.span is not None
    assert (error.span.source.name, error.span.line, error.span.column) == ("<eval>", 1, column)


@pytest.mark.parametrize(("form", "code"), [("", "E-SYN-001"), ("(zeros [100000 100000])", "E-MEM-001")])
def test_nothing_and_too_much_are_problems(form: str, code: str) -> None:
    with pytest.raises(Error) as problem:
        evaluated(form)
    assert problem.value.code == code


def test_a_problem_of_the_file_is_reported_as_the_files(tmp_path: Path) -> None:
    path = tmp_path / "net.sexp"
    path.write_text("(defun f (x)\n  (foo x))\n(defun g (x) (bar x))")
    with pytest.raises(Diagnostics) as problems:
        evaluated("(f 1)", path)
    # What the form does not reach is not looked at.
    assert [(e.code, e.span and e.span.line) for e in problems.value.errors] == [("E-NAME-001", 2)]


def test_the_command_prints_the_value_or_ends_with_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, code, out in ((["(+ 1 2)"], None, "3\n"), (["(+ 1 x)"], 1, ""), (["--json", "(+ 1 2)"], None, '{"value":3}\n')):
        monkeypatch.setattr(sys, "argv", ["sexpgpu", "eval", *words])
        with pytest.raises(SystemExit) as ended:
            cli.start()
        said = capsys.readouterr()
        assert (ended.value.code or None, said.out) == (code, out)
        assert ("error[E-NAME-001]" in said.err) is (code == 1)
