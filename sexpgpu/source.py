"""Source texts and the places inside them that every message points to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class Source:
    """One text: a file, the prelude, or a value from the command line.

    `name` is what messages show; `path` is None for texts that are no file.
    Line ends are LF or CR LF; lines and columns are 1-based, columns count code points.
    """

    name: str
    text: str
    path: Path | None = None
    prelude: bool = False
    _starts: list[int] = field(default_factory=list, repr=False, compare=False)

    def _line_starts(self) -> list[int]:
        if not self._starts:
            self._starts.append(0)
            at = self.text.find("\n")
            while at >= 0:
                self._starts.append(at + 1)
                at = self.text.find("\n", at + 1)
        return self._starts

    def position(self, offset: int) -> tuple[int, int]:
        """(line, column) of a code-point offset."""
        from bisect import bisect_right

        starts = self._line_starts()
        line = bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        starts = self._line_starts()
        end = starts[number] - 1 if number < len(starts) else len(self.text)
        return self.text[starts[number - 1] : end].rstrip("\r")


class MacroCall(NamedTuple):
    """A call that was expanded: of which macro, where it stood, and how deep in what other expansions made."""

    macro: str
    span: Span
    depth: int


class Span(NamedTuple):
    """A range of code points in a source: where a datum stands.

    What a macro made stands at the user's call: `made_by` is the call, `template` the place in the macro's template.
    """

    source: Source
    start: int
    length: int
    template: Span | None = None
    made_by: MacroCall | None = None

    @property
    def line(self) -> int:
        return self.source.position(self.start)[0]

    @property
    def column(self) -> int:
        return self.source.position(self.start)[1]

    @property
    def place(self) -> str:
        line, column = self.source.position(self.start)
        return f"{self.source.name}:{line}:{column}"

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.start + self.length]

    @property
    def written(self) -> str:
        """The datum's own text: the template's where a macro made it."""
        return (self.template or self).text


COMMAND_LINE = Source("<command line>", "")


def command_line_span(text: str) -> Span:
    """The place of a value typed on the command line."""
    return Span(Source("<command line>", text), 0, max(len(text), 1))
