"""Forms as text: on one line where they fit, else laid out as they are written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import sexpgpu
from sexpgpu.lang.forms import Form, Number, Text
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.reader import load_source, read
from sexpgpu.source import Source, command_line_span

FILES = sorted(Path(sexpgpu.__file__).parent.rglob("*.sexp"))


def one(text: str) -> Form:
    (form,) = read(Source("t.sexp", text))
    return form


def test_a_form_that_fits_keeps_one_line_and_its_writing() -> None:
    assert print_form(one("(f  50_257\n[0x1f .5]  :k true ; no\n nil m')")) == "(f 50_257 [0x1f .5] :k true nil m')"


def test_what_is_not_seen_in_a_string_is_escaped() -> None:
    assert print_form(Text('a"\\\n\t\x1b\u200bπ', command_line_span(""))) == r'"a\"\\\n\t\u{1b}\u{200b}π"'


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (-0.0, "-0.0"), (1e22, "1e+22"), (float("-inf"), "-inf"), (float("nan"), "nan"), (0.1, "0.1")],
)
def test_a_number_that_was_never_written_prints_as_it_is_read(value: float, text: str) -> None:
    assert print_form(Number(value, command_line_span(""))) == text
    assert repr(getattr(one(text), "value", None)) == repr(value)


def test_a_wide_form_is_laid_out_as_by_hand() -> None:
    text = """
(deflayer block (x &key (k 1))
  (let* ((first (linear x 128 :name "first"))
         (second (linear first 64)))
    (probe
      "residual"
      [first second])))
(defrun r
  :data d
  :loss (cross-entropy
          (net tokens)
          targets
          :ignore 0)
  :steps 1)
"""
    laid_out = "\n".join(print_form(form, 46) for form in read(Source("t", text)))
    assert laid_out == (
        '(deflayer block (x &key (k 1))\n'
        '  (let* ((first (linear x 128 :name "first"))\n'
        '         (second (linear first 64)))\n'
        '    (probe "residual" [first second])))\n'
        '(defrun r\n'
        '  :data d\n'
        '  :loss (cross-entropy\n'
        '          (net tokens)\n'
        '          targets\n'
        '          :ignore 0)\n'
        '  :steps 1)'
    )  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@pytest.mark.parametrize("width", [100, 40, 1])
def test_every_file_that_ships_prints_and_reads_back(path: Path, width: int) -> None:
    for form in read(load_source(path)):
        text = print_form(form, width)
        assert read(Source("t", text)) == [form]
        assert width < 100 or all(len(line) <= width for line in text.split("\n"))


def test_a_form_a_thousand_deep_is_printed() -> None:
    text = print_form(one("(a " * 999 + "x" + ")" * 999))
    assert text.replace("\n", " ").split() == ["(a"] * 999 + ["x" + ")" * 999]
