"""Whatever stands in a file, the reader gives forms or diagnostics, and what it gives prints and reads back."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.forms import Form, Listing
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.reader import decode, read
from sexpgpu.source import Source

WHOLE = """
(defhyper width 50_257) ; "not a string"
#| a #| nested |# comment |#
(deflayer mlp (x &key (k -3e-4))
  (let* ((m' [x 0x1f .5 inf]) #; (dropped) (s "a\\n\\u{3c0}\\"")) (linear m' k :bias true)))
"""


def read_or_diagnose(text: str) -> list[Form] | None:
    """The forms; None for diagnostics, each of which has its code, lies in the text and can be shown."""
    source = Source("t.sexp", text)
    try:
        return read(source)
    except Diagnostics as problems:
        for error in problems.errors:
            assert error.code.startswith("E-READ-")
            assert error.span is not None and 0 <= error.span.start <= len(text)
            assert error.code in error.render()
        return None


def check(text: str) -> None:
    made = read_or_diagnose(text)
    if made is None:
        return
    for width in (100, 12):
        assert read(Source("t", "\n".join(print_form(form, width) for form in made))) == made
    for form in made:
        check_spans(form, text)


def check_spans(form: Form, text: str) -> None:
    """A list's span begins and ends with its brackets and holds its items in order; every atom's reads as the atom."""
    assert 0 <= form.span.start < form.span.start + form.span.length <= len(text)
    if not isinstance(form, Listing):
        assert read(Source("t", form.span.text)) == [form]
        return
    assert form.span.text[0] + form.span.text[-1] == ("[]" if form.square else "()")
    at = form.span.start + 1
    for item in form.items:
        assert item.span.start >= at
        at = item.span.start + item.span.length
        check_spans(item, text)
    assert at < form.span.start + form.span.length


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("()[]\"\\;#|: ab1.0xe_-+\n\r,'u{}")), max_size=60))
def test_text_of_the_readers_own_signs_gives_forms_or_diagnostics(text: str) -> None:
    check(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=[]), max_size=40))
def test_any_text_gives_forms_or_diagnostics(text: str) -> None:
    check(text)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_give_forms_or_diagnostics(data: bytes) -> None:
    try:
        source = decode(data, "t.sexp")
    except Error as error:
        assert error.code == "E-READ-004" and "-->" in error.render()
        return
    read_or_diagnose(source.text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 12), st.text(alphabet='()[]"#|;\\ a1', max_size=3))
def test_a_whole_file_with_a_wound_gives_forms_or_diagnostics(at: int, cut: int, inserted: str) -> None:
    check(WHOLE[:at] + inserted + WHOLE[at + cut :])


def test_tokens_in_any_order_give_forms_or_diagnostics() -> None:
    tokens = ["(", ")", "[", "]", "#|", "|#", "#;", '"a"', '"', ";\n", " ", "\r\n", "nil", ":k", "-1", "1e9", "π'"]
    draw = random.Random(20)
    for _ in range(500):
        check("".join(draw.choices(tokens, weights=[4, 4, 2, 2, *[1] * 13], k=draw.randrange(40))))


SIZE = 16 << 20
# What begins the file, and what then fills it.
HOSTILE = {
    "opening brackets": ("", "("),
    "closing brackets": ("", ")"),
    "one atom": ("", "a"),
    "one integer": ("", "9"),
    "a string that does not end": ('"', "a"),
    "a string of escapes that does not end": ('"', "\\a"),
    "strings that do not end": ("", '"\n'),
    "comments inside comments": ("", "#|"),
    "comments side by side": ("", "#||#"),
    "comments side by side in a comment": ("#|", "#||#"),
    "nothing but `#;`": ("", "#;"),
    "signs that begin nothing": ("", "#"),
    "more than a million atoms": ("", "a "),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_sixteen_hostile_mebibytes_are_refused_without_much_work(what: str) -> None:
    # A second of an idle core, with room for a busy one; anything quadratic would take hours.
    beginning, unit = HOSTILE[what]
    source = Source("t", (beginning + unit * (SIZE // len(unit)))[:SIZE])
    begin = time.process_time()
    with pytest.raises(Diagnostics):
        read(source)
    assert time.process_time() - begin < 10


def test_comments_and_spaces_may_fill_a_file() -> None:
    assert read(Source("t", ";\n" * (SIZE // 2))) == []
    assert read(Source("t", " " * SIZE)) == []
