"""The reader: what each text gives, and where each problem stands."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.reader import decode, load_source, read
from sexpgpu.source import Source


def forms(text: str) -> list[Form]:
    return read(Source("t.sexp", text))


def one(text: str) -> Form:
    (form,) = forms(text)
    return form


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("+3", 3),
        ("50_257", 50257),
        ("0x1f", 31),
        ("-0xFF", -255),
        ("0x7fffffffffffffff", 2**63 - 1),
    ],
)
def test_integers_are_exact(text: str, value: int) -> None:
    form = one(text)
    assert isinstance(form, Number) and form.value == value and isinstance(form.value, int)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("3e-4", 3e-4),
        ("1.", 1.0),
        (".5", 0.5),
        ("-2.5E3", -2500.0),
        ("1e9", 1e9),
        ("inf", math.inf),
        ("-inf", -math.inf),
    ],
)
def test_floats_are_floats(text: str, value: float) -> None:
    form = one(text)
    assert isinstance(form, Number) and form.value == value and isinstance(form.value, float)


def test_nan_is_a_number() -> None:
    form = one("nan")
    assert isinstance(form, Number) and math.isnan(form.value)


@pytest.mark.parametrize("name", ["+", "-", "*", "m'", "...", "a-b", "->x", "run.precision", "π", "=", "!=", "//"])
def test_names_keep_their_signs(name: str) -> None:
    form = one(name)
    assert isinstance(form, Symbol) and form.name == name


def test_words_keywords_and_strings() -> None:
    assert [type(f) for f in forms('true false nil :lr "a\\n\\t\\"\\\\\\u{3c0}"')] == [
        Constant,
        Constant,
        Constant,
        Keyword,
        Text,
    ]
    assert [getattr(f, "value", None) for f in forms("true false nil")] == [True, False, None]
    text = one('"a\\n\\t\\"\\\\\\u{3c0}"')
    assert isinstance(text, Text) and text.value == 'a\n\t"\\π'


def test_brackets_are_kept() -> None:
    form = one("(f [a b])")
    assert isinstance(form, Listing) and not form.square
    inner = form.items[1]
    assert isinstance(inner, Listing) and inner.square and len(inner.items) == 2


def test_comments_are_left_out() -> None:
    text = "a ; to the end\n#| nested #| inner |# still |# b #; (dropped 1) c #; #; d e f"
    assert [f.name for f in forms(text) if isinstance(f, Symbol)] == ["a", "b", "c", "f"]


def test_places_count_code_points_and_take_cr_lf_as_one_line_end() -> None:
    first, second = forms("π x\r\n  (y)")[1:]
    assert (first.span.line, first.span.column, first.span.length) == (1, 3, 1)
    assert (second.span.line, second.span.column, second.span.length) == (2, 3, 3)


PROBLEMS = [
    ("(a", "E-READ-001", 1, 1),
    ("a\n )", "E-READ-001", 2, 2),
    ("(a]", "E-READ-001", 1, 3),
    ('x "abc', "E-READ-001", 1, 3),
    ("x #| a #| b |#", "E-READ-001", 1, 3),
    ("(a #;)", "E-READ-002", 1, 4),
    ("a #b", "E-READ-002", 1, 3),
    ("(a , b)", "E-READ-002", 1, 4),
    ("12abc", "E-READ-003", 1, 1),
    ("1.2.3", "E-READ-003", 1, 1),
    ("1e", "E-READ-003", 1, 1),
    ("1__0", "E-READ-003", 1, 1),
    ("9223372036854775808", "E-READ-003", 1, 1),
    ("9" * 4000, "E-READ-003", 1, 1),
    ('"a\\q"', "E-READ-003", 1, 3),
    ('"\\u{d800}"', "E-READ-003", 1, 2),
    (":", "E-READ-003", 1, 1),
    ("a" * 4097, "E-READ-005", 1, 1),
    ("(" * 1001 + ")" * 1001, "E-READ-005", 1, 1001),
]


@pytest.mark.parametrize(("text", "code", "line", "column"), PROBLEMS)
def test_a_problem_has_its_code_and_place(text: str, code: str, line: int, column: int) -> None:
    with pytest.raises(Diagnostics) as caught:
        forms(text)
    error = caught.value.errors[0]
    assert error.span is not None
    assert (error.code, error.span.line, error.span.column) == (code, line, column)


def test_every_problem_of_a_text_is_reported() -> None:
    with pytest.raises(Diagnostics) as caught:
        forms('(a 1x)\n(b "\\q")\n(c')
    assert [(e.code, e.span.line if e.span else 0) for e in caught.value.errors] == [
        ("E-READ-003", 1), ("E-READ-003", 2), ("E-READ-001", 3),
    ]  # fmt: skip


def test_bytes_that_are_no_text_name_the_offset() -> None:
    with pytest.raises(Error, match="byte 2 is not UTF-8"):
        decode(b"ab\xff", "t")
    with pytest.raises(Error, match="NUL at byte 1"):
        decode(b"a\0", "t")


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(Error, match="is a folder"):
        load_source(tmp_path)
    with pytest.raises(Error, match="No such file"):
        load_source(tmp_path / "missing.sexp")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("()[]\"\\;#|: ab1.0xe_-\n,'")), max_size=60))
def test_any_text_gives_forms_or_diagnostics(text: str) -> None:
    try:
        made = forms(text)
    except Diagnostics as problems:
        assert all(e.code.startswith("E-READ") for e in problems.errors)
        return
    assert forms("\n".join(print_form(f) for f in made)) == made


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_give_forms_or_an_error_of_ours(data: bytes) -> None:
    try:
        read(decode(data, "t"))
    except (Error, Diagnostics) as problem:
        assert "E-READ" in str(problem)


def test_the_message_of_a_wrong_product_is_the_one_of_the_language_page() -> None:
    text = "\n" * 20 + "    (matmul x w)\n"
    source = Source("gpt.sexp", text)
    form = read(source)[0]
    error = Error(
        "E-SHAPE-002",
        "matmul: inner sizes differ, 128 (width) and 96",
        form.span,
        label="x is f32[batch=8 seq=64 width=128], w is f32[96 256]",
        notes=["in layer mlp, called at gpt.sexp:30:12 (repeat i=0)", "did you mean (transpose w)?"],
    )
    assert error.render() == (
        "error[E-SHAPE-002]: matmul: inner sizes differ, 128 (width) and 96\n"
        "  --> gpt.sexp:21:5\n"
        "   |\n"
        "21 |     (matmul x w)\n"
        "   |     ^^^^^^^^^^^^ x is f32[batch=8 seq=64 width=128], w is f32[96 256]\n"
        "   = in layer mlp, called at gpt.sexp:30:12 (repeat i=0)\n"
        "   = did you mean (transpose w)?"
    )
