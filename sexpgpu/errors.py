"""Problems that are the user's to mend: one class, one catalogue of codes, one printed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sexpgpu.catalogue import CATALOGUE
from sexpgpu.source import Span


@dataclass(frozen=True)
class Note:
    """A line under the excerpt: `= in layer mlp, called at gpt.sexp:30:12`."""

    text: str


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
        self.notes = list(notes)

    def render(self) -> str:
        """The message as `language.md` gives it: head, place, excerpt with carets, notes."""
        lines = [f"error[{self.code}]: {self.message}"]
        if self.span is not None:
            lines += excerpt(self.span, self.label)
        lines += [f"   = {note}" for note in self.notes]
        return "\n".join(lines)


def excerpt(span: Span, label: str) -> list[str]:
    """`--> place`, the line of the text and the carets under the span (its first line only)."""
    line, column = span.source.position(span.start)
    text = span.source.line(line)
    number = str(line)
    pad = " " * len(number)
    width = max(1, min(span.length, len(text) - column + 1))
    # Tabs are kept in the indent, so that the carets stand under the text whatever a tab's width is.
    indent = "".join(c if c == "\t" else " " for c in text[: column - 1])
    carets = f"{indent}{'^' * width} {label}".rstrip()
    return [f"{pad}--> {span.place}", f"{pad} |", f"{number} | {text}", f"{pad} | {carets}"]


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

    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None
