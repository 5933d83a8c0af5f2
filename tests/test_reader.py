"""The reader: what each text gives, and where each problem stands."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text
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


NAMES = "+ - * // ~ ^ @ ' . .. ... m' -x +x ->x x_1 a-b a.b run.precision held-out/loss = != π"


@pytest.mark.parametrize("name", NAMES.split())
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
    ("_ 1_", "E-READ-003", 1, 3),
    ("0x", "E-READ-003", 1, 1),
    ("1/2", "E-READ-003", 1, 1),
    ("+5a", "E-READ-003", 1, 1),
    ("(- 1-)", "E-READ-003", 1, 4),
    ("-1e999", "E-READ-003", 1, 1),
    ("-9223372036854775809", "E-READ-003", 1, 1),
    ("0x8000000000000000", "E-READ-003", 1, 1),
    ("9223372036854775808", "E-READ-003", 1, 1),
    ("9" * 4000, "E-READ-003", 1, 1),
    ('"a\\q"', "E-READ-003", 1, 3),
    ('"\\u{d800}"', "E-READ-003", 1, 2),
    ('"\\u{110000}"', "E-READ-003", 1, 2),
    ('"\\u{0}"', "E-READ-003", 1, 2),
    ('"\\u41"', "E-READ-003", 1, 2),
    (":", "E-READ-003", 1, 1),
    ("a |# b", "E-READ-002", 1, 3),
    ("(f {a})", "E-READ-002", 1, 4),
    ("a`b", "E-READ-002", 1, 2),
    ("a\\b", "E-READ-002", 1, 2),
    ("a\u00a0b", "E-READ-002", 1, 2),
    ("a\u200bb", "E-READ-002", 1, 2),
    ("a\x1bb", "E-READ-002", 1, 2),
    ("a\ud800b", "E-READ-002", 1, 2),
    ("#; 1x)", "E-READ-003", 1, 4),
    ("(a\n#|b", "E-READ-001", 2, 1),
    ("a" * 4097, "E-READ-005", 1, 1),
    (" :" + "a" * 4096, "E-READ-005", 1, 2),
    (" \"" + "a" * 4095 + '"', "E-READ-005", 1, 2),
    ("#|" * 1001 + "|#" * 1001, "E-READ-005", 1, 2001),
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


def test_problems_stand_in_the_order_of_the_text() -> None:
    with pytest.raises(Diagnostics) as caught:
        forms("(a\n(b 1x\n(c ,)")
    assert [(e.code, e.span.line if e.span else 0) for e in caught.value.errors] == [
        ("E-READ-001", 1), ("E-READ-001", 2), ("E-READ-003", 2), ("E-READ-002", 3),
    ]  # fmt: skip


def test_a_text_of_nothing_but_problems_is_cut_short() -> None:
    with pytest.raises(Diagnostics) as caught:
        forms(", " * 1000)
    assert len(caught.value.errors) == 21
    assert caught.value.errors[-1].message == "20 problems are shown: the rest is not read"


def notes_of(text: str) -> list[str]:
    with pytest.raises(Diagnostics) as caught:
        forms(text)
    (error,) = caught.value.errors
    return error.notes


def test_a_forgotten_bracket_is_looked_for_before_the_next_form_at_the_margin() -> None:
    notes = notes_of("(def a (f 1)\n\n(def b 2)\n(def c 3)")
    assert notes[-1] == "the form at t.sexp:3:1 stands inside it: perhaps the end is missing before that"


def test_a_forgotten_inner_bracket_is_one_problem() -> None:
    assert notes_of("(let ([a 1) b)") == ["opened at t.sexp:1:7", "write `]`"]
    assert notes_of("(f [(g 1])\n(h)") == ["opened at t.sexp:1:5", "write `)`"]


def test_a_forgotten_quote_is_looked_for_where_a_string_goes_over_a_line() -> None:
    notes = notes_of('(a "b)\n(c "d")')
    assert notes[-1] == 'the string at t.sexp:1:4 goes over a line\'s end: perhaps its `"` is missing there'


def test_a_dropped_datum_may_be_a_list_and_several_may_be_dropped() -> None:
    form = one("(f #; (g [1 2]) #; #; a b c)")
    assert isinstance(form, Listing)
    assert [item.name for item in form.items if isinstance(item, Symbol)] == ["f", "c"]


def test_the_limits_themselves_are_allowed() -> None:
    assert forms("(" * 1000 + ")" * 1000)[0].span.length == 2000
    assert one("a" * 4096).span.length == 4096
    assert one("#|" * 1000 + "|#" * 1000 + "a").span.length == 1
    assert one("0" * 30 + "7").span.length == 31


def test_a_string_goes_over_lines_and_keeps_their_ends() -> None:
    text = one('"a\n; b\n"')
    assert isinstance(text, Text) and text.value == "a\n; b\n"


def test_data_need_no_space_where_brackets_or_quotes_part_them() -> None:
    assert len(forms('a(b)c"d"e[f]')) == 6


def test_a_byte_order_mark_at_the_front_is_left_out() -> None:
    (form,) = read(decode(b"\xef\xbb\xbfa", "t"))
    assert isinstance(form, Symbol) and (form.name, form.span.column) == ("a", 1)


def test_bytes_that_are_no_text_name_the_offset() -> None:
    with pytest.raises(Error, match="byte 5 is not UTF-8") as caught:
        decode("π\n(a".encode()[:4] + b"a\xff", "t")
    assert caught.value.span is not None and caught.value.span.place == "t:2:3"
    with pytest.raises(Error, match="NUL at byte 3") as caught:
        decode("π\n\0".encode(), "t")
    assert caught.value.span is not None and caught.value.span.place == "t:2:1"


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(Error, match="is a folder"):
        load_source(tmp_path)
    with pytest.raises(Error, match="No such file"):
        load_source(tmp_path / "missing.sexp")
    with pytest.raises(Error, match="name too long"):
        load_source(tmp_path / ("a" * 300))
    with pytest.raises(Error, match="cannot read"):
        load_source(tmp_path / "a\0b")
    with pytest.raises(Error, match="cannot read"):
        load_source(tmp_path / "a\ud800")


def test_a_file_of_more_than_sixteen_mebibytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.sexp"
    path.write_bytes(b" " * ((16 << 20) + 1))
    with pytest.raises(Error, match="E-READ-005.*larger than 16 MiB"):
        load_source(path)
    path.write_bytes(b" " * (16 << 20))
    assert read(load_source(path)) == []


def test_a_device_without_an_end_is_refused() -> None:
    with pytest.raises(Error, match="larger than 16 MiB"):
        load_source(Path("/dev/zero"))
