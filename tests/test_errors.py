"""How a problem is shown: its head, its place, the line with carets, its notes."""

from __future__ import annotations

from sexpgpu.errors import Diagnostics, Error, excerpt, nearest
from sexpgpu.lang.reader import read
from sexpgpu.source import Source, Span, command_line_span


def shown(text: str, start: int, length: int, label: str = "") -> list[str]:
    """The line with its gutter and the carets under it."""
    return excerpt(Span(Source("t.sexp", text), start, length), label)[2:]


def test_the_message_of_the_language_page() -> None:
    source = Source("gpt.sexp", "\n" * 20 + "    (matmul x w)\n")
    error = Error(
        "E-SHAPE-002",
        "matmul: inner sizes differ, 128 (width) and 96",
        read(source)[0].span,
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


def test_an_error_without_a_place_is_its_head_and_notes() -> None:
    error = Error("E-RUN-005", "no run", notes=["runs: a, b"])
    assert error.render() == "error[E-RUN-005]: no run\n   = runs: a, b"


def test_all_problems_of_a_file_are_shown_with_a_line_between() -> None:
    made = Diagnostics([Error("E-RUN-005", "first"), Error("E-RUN-006", "second")])
    assert made.render() == "error[E-RUN-005]: first\n\nerror[E-RUN-006]: second"


def test_a_span_over_lines_has_carets_under_its_first() -> None:
    assert shown("(a\n b)", 0, 6, "here") == ["1 | (a", "  | ^^ here"]


def test_cr_lf_is_one_line_end() -> None:
    assert shown("a\r\n(b\r\n c)", 3, 7) == ["2 | (b", "  | ^^"]


def test_a_place_at_the_end_of_the_text_has_one_caret() -> None:
    assert shown("ab", 2, 0) == ["1 | ab", "  |   ^"]
    assert shown("", 0, 1) == ["1 | ", "  | ^"]


def test_tabs_stay_tabs_so_that_carets_stand_under_the_text() -> None:
    assert shown("\t(a\tb)", 4, 1) == ["1 | \t(a\tb)", "  | \t  \t^"]


def test_carets_are_as_wide_as_the_text_on_a_terminal() -> None:
    assert shown("(漢字 x)", 1, 2) == ["1 | (漢字 x)", "  |  ^^^^"]
    assert shown("(漢字 x)", 4, 1) == ["1 | (漢字 x)", "  |       ^"]
    assert shown("(e\u0301 x)", 4, 1) == ["1 | (e\u0301 x)", "  |    ^"]


def test_a_long_line_is_shown_around_the_span() -> None:
    text = "a" * 1000 + "(b)" + "c" * 1000
    assert shown(text, 1000, 3) == [f"1 | …{'a' * 120}(b){'c' * 120}…", f"  | {' ' * 121}^^^"]


def test_signs_that_steer_a_terminal_are_not_sent_to_it() -> None:
    error = Error(
        "E-READ-002", "a\x1b[2J", Span(Source("t\x07.sexp", "(a \x1b[31m\u202e b)"), 3, 1), label="\x9b", notes=["\r"]
    )
    assert all(c.isprintable() or c == "\n" for c in error.render())
    assert "(a �[31m� b)" in error.render()


def test_a_value_of_the_command_line_says_so() -> None:
    error = Error("E-NAME-006", "no hyperparameter widht", command_line_span("widht=3"))
    assert error.render().split("\n")[1:] == [
        " --> <command line>:1:1", "  |", "1 | widht=3", "  | ^^^^^^^",
    ]  # fmt: skip


def test_the_nearest_known_name_is_found_where_one_is_near() -> None:
    assert nearest("widht", ["heads", "width", "depth"]) == "width"
    assert nearest("sdg", ["std", "sgd"]) == "sgd"
    assert nearest("zzz", ["heads", "width"]) is None
