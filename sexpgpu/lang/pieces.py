"""A file as its writer wrote it: data, brackets, comments and line ends, for `fmt`; the reader says whether it can be read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

_TOKEN = re.compile(r'(;[^\n]*)|(#\|)|(#;)|([(\[])|([)\]])|("[^"\\]*+(?:\\.[^"\\]*+)*+")|([^\s()\[\]";#]+)', re.DOTALL)
_COMMENT, _BLOCK, _DROP, _OPEN, _CLOSE = range(1, 6)
_BLOCK_SIGN = re.compile(r"#\||\|#")


@dataclass(eq=False, slots=True)
class Piece:
    """An atom, a list or a comment.

    text        of an atom or a comment; the opening bracket of a list
    prefix      the `#;` before it
    breaks      line ends before it
    column, end where it began and ended in its line
    width       on one line; None where it has several, or a comment to a line's end
    pad         spaces before it beside the one, in a table
    """

    kind: Literal["atom", "list", "comment"]
    text: str
    prefix: str
    breaks: int
    column: int
    end: int = 0
    items: list[Piece] = field(default_factory=list)
    width: int | None = None
    pad: int = 0

    @property
    def head(self) -> str | None:
        """The atom at the front of a round list."""
        if self.text != "(" or not self.items or self.items[0].kind != "atom" or self.items[0].prefix:
            return None
        return self.items[0].text


def pieces_of(text: str) -> list[Piece]:
    """The pieces at the top of a text that the reader takes."""
    top: list[Piece] = []
    open_lists: list[Piece] = []
    prefix, at, line_start, breaks = "", 0, 0, 0
    # Where the datum began, with its prefix.
    column, first_breaks = 0, 0
    while found := _TOKEN.search(text, at):
        start = found.start()
        breaks, line_start = _lines(text, at, start, breaks, line_start)
        kind, at = found.lastindex, found.end()
        if kind == _BLOCK:
            at = _block_end(text, start)
        if kind == _CLOSE:
            open_lists.pop().end = at - line_start
            breaks = 0
            continue
        if kind == _DROP:
            if not prefix:
                column, first_breaks = start - line_start, breaks
            prefix, breaks = prefix + "#;", 0
            continue
        if not prefix:
            column, first_breaks = start - line_start, breaks
        items = open_lists[-1].items if open_lists else top
        if kind == _COMMENT and prefix:
            # What is dropped stands on a later line.
            items.append(Piece("atom", prefix, "", first_breaks, column, column + len(prefix), [], len(prefix)))
            prefix, first_breaks, column = "", breaks, start - line_start
        made = _piece(kind, text[start:at], prefix, first_breaks, column)
        items.append(made)
        prefix, breaks = "", 0
        if kind == _OPEN:
            open_lists.append(made)
        else:
            _, line_start = _lines(text, start, at, 0, line_start)
            made.end = at - line_start
    return top


def _piece(kind: int | None, token: str, prefix: str, breaks: int, column: int) -> Piece:
    if kind == _OPEN:
        return Piece("list", token, prefix, breaks, column)
    if kind == _COMMENT:
        return Piece("comment", token.rstrip(), prefix, breaks, column)
    width = None if "\n" in token else len(prefix) + len(token)
    return Piece("atom", token, prefix, breaks, column, width=width)


def _lines(text: str, start: int, end: int, breaks: int, line_start: int) -> tuple[int, int]:
    """Line ends between two places, added up, and where the line of the second begins."""
    count = text.count("\n", start, end)
    return breaks + count, text.rfind("\n", start, end) + 1 if count else line_start


def _block_end(text: str, start: int) -> int:
    depth = 0
    for found in _BLOCK_SIGN.finditer(text, start):
        depth += 1 if found.group() == "#|" else -1
        if depth == 0:
            return found.end()
    raise AssertionError("a comment that the reader takes is closed")
