"""Problems that are the user's to mend: one class, one catalogue of codes, one printed form."""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.catalogue import CATALOGUE
from sexpgpu.source import Span

_SHOWN = 120  # characters before, in and after a span
_SHOWN_TEMPLATES = 4
# A file of nothing but problems: the first ones are reported, and the first of these say what may be meant.
MAXIMUM_PROBLEMS, MAXIMUM_SUGGESTIONS = 1_000, 50
FURTHER = f"{MAXIMUM_PROBLEMS:,} problems are shown: the file has more"


class Error(Exception):
    """One problem with its stable code.

    `span` is where the caret stands (None: no place in a file), `label` the words beside the caret,
    `notes` the lines after the excerpt (frames, suggestions, fixes), innermost first.
    """

    def __init__(
        self,
        code: str,
        message: str,
        span: Span | None = None,
        *,
        label: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        assert code in CATALOGUE, code
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.span = span
        self.label = label
        self.notes = [*(note for note in _template_notes(span) if note not in notes), *notes]

    def render(self) -> str:
        """The message as `language.md` gives it: head, place, excerpt with carets, notes."""
        lines = [f"error[{self.code}]: {visible(self.message)}"]
        if self.span is not None:
            lines += excerpt(self.span, visible(self.label))
        lines += [f"   = {visible(note)}" for note in self.notes]
        return "\n".join(lines)


def _template_notes(span: Span | None) -> list[str]:
    """Where the templates have what the macros at a place made, innermost first."""
    notes: list[str] = []
    while span is not None and span.template is not None and span.made_by is not None and len(notes) < _SHOWN_TEMPLATES:
        first = span.template.text.split("\n", 1)[0]
        shown = first if len(first) <= _SHOWN else first[:_SHOWN] + "…"
        notes.append(f"in the template of macro {span.made_by.macro} at {span.template.place}: {shown}")
        span = span.made_by.span
    return notes


def excerpt(span: Span, label: str) -> list[str]:
    """`--> place`, the line of the text and the carets under the span (its first line only)."""
    line, column = span.source.position(span.start)
    text = span.source.line(line)
    width = max(1, min(span.length, len(text) - column + 1))
    before, inside, after = text[: column - 1], text[column - 1 : column - 1 + width], text[column - 1 + width :]
    # One line on a screen, whatever the file holds: the span and what stands near it.
    before = before if len(before) <= _SHOWN else "…" + before[-_SHOWN:]
    inside = inside if len(inside) <= _SHOWN else inside[:_SHOWN] + "…"
    after = after if len(after) <= _SHOWN else after[:_SHOWN] + "…"
    # Tabs are kept in the indent, so that the carets stand under the text whatever a tab's width is.
    indent = "".join(c if c == "\t" else " " * _columns(c) for c in before)
    carets = f"{indent}{'^' * max(1, _columns(inside))} {label}".rstrip()
    number = str(line)
    pad = " " * len(number)
    shown = visible(before + inside + after)
    return [f"{pad}--> {visible(span.place)}", f"{pad} |", f"{number} | {shown}", f"{pad} | {carets}"]


def visible(text: str) -> str:
    """A text that may be written to a terminal: signs that would steer it, or are not seen, are U+FFFD."""
    if text.isprintable():
        return text
    return "".join(c if c in "\t\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _columns(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


class Diagnostics(Exception):
    """Every problem found in one pass over a file; never empty."""

    def __init__(self, errors: Sequence[Error]) -> None:
        assert errors
        super().__init__("\n".join(str(e) for e in errors))
        self.errors = list(errors)

    def render(self) -> str:
        return "\n\n".join(error.render() for error in self.errors)


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that a misspelt one most likely means, or None."""
    import difflib

    # Another case or dash, and letters in another order, are the commonest slips, and the measure rates them low.
    same = [other for other in known if other != name and _plain(other) == _plain(name)]
    swapped = [other for other in known if other != name and sorted(other) == sorted(name)]
    found = same or swapped or difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
