"""The reader: any text gives forms with their places, or diagnostics; never a traceback.

One compiled pattern cuts the text into tokens, a stack builds the lists: no recursion, time linear in the text.
"""

from __future__ import annotations

import re
from operator import attrgetter
from pathlib import Path

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.atoms import MAXIMUM_ATOM, WORDS, read_atom, read_text
from sexpgpu.lang.forms import Form, Listing, Symbol
from sexpgpu.source import Source, Span

# Limits for hostile files.
MAXIMUM_BYTES = 16 << 20
MAXIMUM_DEPTH = 1_000
MAXIMUM_NODES = 1_000_000  # atoms, lists and comments in brackets
MAXIMUM_ERRORS = 20

# What no atom holds: brackets, quotes, signs that are kept free, and characters that are not seen: controls, spaces
# other than U+0020, soft hyphen, zero widths, changes of direction, surrogates, byte order marks.
_FREE = r"\x00-\x20()\[\]{}\"\\;\#,`|\x7f-\xa0\xad\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ud800-\udfff\ufeff"
# Every quantifier over the user's text is possessive: a failure costs no second look.
_TOKEN = re.compile(
    rf"""(?:[ \t\r\n\f\v]++|;[^\n]*+)*+(?:
     ([(\[])                                    # 1 an opening bracket
    |([)\]])                                    # 2 a closing one
    |([A-Za-z*/<>=!?_%&$][^{_FREE}]*+)          # 3 a name or a word
    |([^{_FREE}]++)                             # 4 a number, a keyword, any other name
    |("[^"\\]*+(?:\\.[^"\\]*+)*+")              # 5 a string
    |(\#\|)                                     # 6 a comment in brackets
    |(\#;)                                      # 7 the next datum is dropped
    |(.)                                        # 8 nothing that begins a datum
    |(\Z))                                      # 9 the end""",
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE, _NAME, _ATOM, _STRING, _BLOCK, _DATUM, _WRONG = range(1, 9)
_BLOCK_SIGN = re.compile(r"#\||\|#")
_CLOSING_RUN = re.compile(r"[)\]\s]+")
_CLOSES = {"(": ")", "[": "]"}
_ADVICE = {
    "#": "`#|` and `#;` are comments; the booleans are true and false",
    ",": "data are separated by spaces",
    "|": "a comment is #| … |#",
    "{": "lists are ( … ) and [ … ]",
    "}": "lists are ( … ) and [ … ]",
}


def load_source(path: Path, name: str | None = None) -> Source:
    """The text of a file, or an E-READ error that says why it cannot be read."""
    shown = name or str(path)
    try:
        with path.open("rb") as file:
            # Not by the size that the system says: a device or a pipe has none.
            data = file.read(MAXIMUM_BYTES + 1)
    except IsADirectoryError:
        raise Error("E-READ-006", f"{shown} is a folder, not a file") from None
    except OSError as error:
        raise Error("E-READ-006", f"cannot read {shown}: {error.strerror}") from None
    except ValueError as error:  # a name that no file can have: NUL, surrogates
        raise Error("E-READ-006", f"cannot read {shown!r}: {error}") from None
    if len(data) > MAXIMUM_BYTES:
        raise Error("E-READ-005", f"{shown} is larger than 16 MiB")
    return decode(data, shown, path)


def decode(data: bytes, name: str, path: Path | None = None) -> Source:
    """Bytes as a source: UTF-8 without NUL. A byte order mark at the front is left out."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = _byte_place(data, error.start, name)
        message = f"{name}: byte {error.start} is not UTF-8"
        raise Error("E-READ-004", message, place, notes=["write the file as UTF-8"]) from None
    if "\0" in text:
        at = data.index(0)
        message, note = f"{name}: NUL at byte {at}", "remove it: the file is a text"
        raise Error("E-READ-004", message, _byte_place(data, at, name), notes=[note])
    return Source(name, text.removeprefix("\ufeff"), path)


def _byte_place(data: bytes, offset: int, name: str) -> Span:
    """A byte's place in a text that shows what is no text as U+FFFD."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    return Span(Source(name, text), len(data[:offset].decode("utf-8").removeprefix("\ufeff")), 1)


def read(source: Source) -> list[Form]:
    """The forms of a text in order. Raises Diagnostics with every problem found, in the text's order."""
    if len(source.text) > MAXIMUM_BYTES:
        raise Diagnostics([Error("E-READ-005", f"{source.name} is larger than 16 MiB")])
    reader = _Reader(source)
    try:
        reader.count_nodes()
        reader.run()
        reader.finish()
    except _Unreadable:
        pass
    if reader.errors:
        raise Diagnostics(sorted(reader.errors, key=attrgetter("span.start")))
    return reader.items


class _Unreadable(Exception):
    """What follows cannot be read; the reason is among the reader's errors."""


class _Reader:
    """`items` and `dropped` are those of the innermost open list: its data, and the `#;` that wait for theirs."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.errors: list[Error] = []
        self.items: list[Form] = []
        self.dropped: list[int] = []
        # Of every open list: where it begins, and the items and `#;` around it.
        self.open: list[tuple[int, list[Form], list[int]]] = []
        # For advice: lists at a line's first column inside another list, and the first string over several lines.
        self.outdented: list[int] = []
        self.long_text: int | None = None

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end - start)

    def report(self, error: Error) -> None:
        self.errors.append(error)
        if len(self.errors) == MAXIMUM_ERRORS:
            assert error.span is not None
            message = f"{MAXIMUM_ERRORS} problems are shown: the rest is not read"
            self.errors.append(Error("E-READ-005", message, error.span))
            raise _Unreadable

    def problem(self, code: str, message: str, start: int, end: int, *notes: str) -> None:
        self.report(Error(code, message, self.span(start, end), notes=notes))

    def give_up(self, code: str, message: str, start: int, end: int, *notes: str) -> None:
        self.errors.append(Error(code, message, self.span(start, end), notes=notes))
        raise _Unreadable

    def count_nodes(self) -> None:
        """Refuses a text of too many nodes before any is made; no shorter text than the limit can have them."""
        text, at, nodes, closed = self.source.text, 0, 0, 0
        match = _TOKEN.match
        # A text with more closing brackets than nodes has its problems early: `run` comes to them.
        while nodes <= MAXIMUM_NODES < len(text) and closed <= MAXIMUM_NODES:
            found = match(text, at)
            assert found is not None, at
            kind, at = found.lastindex, found.end()
            if at == len(text) or (kind == _WRONG and text[at - 1] == '"'):
                return
            if kind == _BLOCK:
                at = self._block_end(at - 2)
            closed += kind == _CLOSE
            nodes += kind != _CLOSE
        if nodes > MAXIMUM_NODES:
            self.give_up("E-READ-005", f"more than {MAXIMUM_NODES:,} data in one file", at - 1, at)

    def run(self) -> None:
        text, source, at = self.source.text, self.source, 0
        match = _TOKEN.match
        while True:
            found = match(text, at)
            assert found is not None and found.lastindex is not None, at
            kind = found.lastindex
            start, at = found.span(kind)
            form: Form | None = None
            if kind == _NAME:
                token, span = found[_NAME], Span(source, start, at - start)
                plain = len(token) <= MAXIMUM_ATOM and token not in WORDS
                form = Symbol(token, span) if plain else read_atom(token, span, self.report)
            elif kind == _OPEN:
                self._open(start)
                continue
            elif kind == _CLOSE:
                form = self._close(start)
                if form is None:
                    continue
            elif kind == _ATOM:
                form = read_atom(found[_ATOM], Span(source, start, at - start), self.report)
            elif kind == _STRING:
                form = self._string(found[_STRING], start)
            elif kind == _BLOCK:
                at = self._block_end(start)
                continue
            elif kind == _DATUM:
                self.dropped.append(start)
                continue
            elif kind == _WRONG:
                self._wrong(start)
                continue
            else:
                return
            self._put(form)

    def _put(self, form: Form | None) -> None:
        """A datum at its place; None stands for one that could not be read."""
        if self.dropped:
            self.dropped.pop()
        elif form is not None:
            self.items.append(form)

    def _open(self, start: int) -> None:
        if len(self.open) == MAXIMUM_DEPTH:
            self.give_up("E-READ-005", f"lists nested deeper than {MAXIMUM_DEPTH:,}", start, start + 1)
        if self.open and self.source.text[start - 1] == "\n":
            self.outdented.append(start)
        self.open.append((start, self.items, self.dropped))
        self.items, self.dropped = [], []

    def _close(self, at: int) -> Listing | None:
        """The list that a bracket closes; None where it closes none."""
        text = self.source.text
        closing = text[at]
        if not self.open:
            self.problem("E-READ-001", f"`{closing}` closes no list", at, at + 1, "remove it, or open a list before it")
            return None
        bracket = text[self.open[-1][0]]
        if _CLOSES[bracket] != closing:
            opened = f"opened at {self.span(self.open[-1][0], at).place}"
            message = f"`{bracket}` is closed by `{closing}`"
            self.problem("E-READ-001", message, at, at + 1, opened, f"write `{_CLOSES[bracket]}`")
            # Where it would close the list around, the inner list's bracket was forgotten, and this closes both; not so
            # where as many brackets follow as lists are open.
            if len(self.open) > 1 and _CLOSES[text[self.open[-2][0]]] == closing and self._closing_run(at) < len(self.open):
                self._put(self._made(at))
        return self._made(at + 1)

    def _closing_run(self, at: int) -> int:
        """How many closing brackets follow each other from a place on."""
        found = _CLOSING_RUN.match(self.source.text, at)
        return len("".join(found.group().split())) if found else 0

    def _made(self, end: int) -> Listing:
        """The innermost list, ended."""
        self._no_dropped()
        start, items, dropped = self.open.pop()
        made = Listing(tuple(self.items), self.span(start, end), self.source.text[start] == "[")
        self.items, self.dropped = items, dropped
        return made

    def _no_dropped(self) -> None:
        for place in self.dropped:
            self.problem("E-READ-002", "`#;` has no datum after it to drop", place, place + 2)

    def finish(self) -> None:
        """What the end of the text leaves open."""
        self._no_dropped()
        for start, _, _ in self.open:
            bracket = self.source.text[start]
            notes = [f"write `{_CLOSES[bracket]}` at the list's end"]
            inside = [place for place in self.outdented if place > start]
            if inside:
                place = self.span(inside[0], inside[0] + 1).place
                notes.append(f"the form at {place} stands inside it: perhaps the end is missing before that")
            self.problem("E-READ-001", f"`{bracket}` is never closed", start, start + 1, *notes)

    def _block_end(self, start: int) -> int:
        """The end of a nested `#| … |#` comment."""
        depth = 0
        for count, found in enumerate(_BLOCK_SIGN.finditer(self.source.text, start)):
            depth += 1 if found.group() == "#|" else -1
            if depth == 0:
                return found.end()
            if depth > MAXIMUM_DEPTH or count > MAXIMUM_NODES:
                message = f"comments nested deeper than {MAXIMUM_DEPTH:,}, or more than {MAXIMUM_NODES:,} in one"
                self.give_up("E-READ-005", message, *found.span())
        self.give_up("E-READ-001", "`#|` is never closed", start, start + 2, "write `|#` at the comment's end")
        raise AssertionError

    def _string(self, token: str, start: int) -> Form | None:
        if self.long_text is None and "\n" in token:
            self.long_text = start
        return read_text(token, self.span(start, start + len(token)), self.report)

    def _wrong(self, start: int) -> None:
        """A character that begins no datum, or the quote of a string that does not end."""
        token = self.source.text[start]
        if token == '"':
            notes = ['write `"` at its end']
            if self.long_text is not None:
                place = self.span(self.long_text, self.long_text + 1).place
                notes.append(f"the string at {place} goes over a line's end: perhaps its `\"` is missing there")
            self.give_up("E-READ-001", "a string is never closed", start, start + 1, *notes)
        shown = f"`{token}`" if token.isprintable() and token != "`" else f"the character U+{ord(token):04X}"
        notes = [_ADVICE[token]] if token in _ADVICE else []
        self.problem("E-READ-002", f"{shown} begins no datum", start, start + 1, *notes)
