"""The reader: any text gives forms with their places, or diagnostics; never a traceback.

One compiled pattern cuts the text into tokens, a stack builds the lists: no recursion, time linear in the text.
"""

from __future__ import annotations

import re
from pathlib import Path

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text
from sexpgpu.source import Source, Span

# Limits for hostile files.
MAXIMUM_BYTES = 16 << 20
MAXIMUM_DEPTH = 1_000
MAXIMUM_NODES = 1_000_000
MAXIMUM_ATOM = 4_096
MAXIMUM_ERRORS = 20

_TOKEN = re.compile(
    r"""(?P<space>\s+|;[^\n]*)
    |(?P<open>[(\[])
    |(?P<close>[)\]])
    |(?P<text>"[^"\\]*(?:\\.[^"\\]*)*")
    |(?P<block>\#\|)
    |(?P<datum>\#;)
    |(?P<atom>[^\s()\[\]";\#,]+)
    |(?P<wrong>.)""",
    re.VERBOSE | re.DOTALL,
)
_BLOCK = re.compile(r"#\||\|#")
_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*\Z")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*\Z")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?(?:[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_NUMERIC = re.compile(r"[+-]?\.?[0-9]")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_FLOATS = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
_CLOSES = {"(": ")", "[": "]"}


def load_source(path: Path, name: str | None = None) -> Source:
    """The text of a file, or an E-READ error that says why it cannot be read."""
    shown = name or str(path)
    try:
        data = path.read_bytes() if path.stat().st_size <= MAXIMUM_BYTES else None
    except IsADirectoryError:
        raise Error("E-READ-006", f"{shown} is a folder, not a file") from None
    except OSError as error:
        raise Error("E-READ-006", f"cannot read {shown}: {error.strerror}") from None
    if data is None:
        raise Error("E-READ-005", f"{shown} is larger than 16 MiB")
    return decode(data, shown, path)


def decode(data: bytes, name: str, path: Path | None = None) -> Source:
    """Bytes as a source: UTF-8 without NUL."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Error("E-READ-004", f"{name}: byte {error.start} is not UTF-8", notes=["write the file as UTF-8"]) from None
    if "\0" in text:
        raise Error("E-READ-004", f"{name}: NUL at byte {data.index(0)}", notes=["remove it: the file is a text"])
    return Source(name, text, path)


def read(source: Source) -> list[Form]:
    """The forms of a text in order. Raises Diagnostics with every problem found."""
    if len(source.text) > MAXIMUM_BYTES:
        raise Diagnostics([Error("E-READ-005", f"{source.name} is larger than 16 MiB")])
    reader = _Reader(source)
    try:
        forms = reader.run()
    except Error as error:
        raise Diagnostics([*reader.errors, error]) from None
    if reader.errors:
        raise Diagnostics(reader.errors)
    return forms


class _Frame:
    """A list that is still open: where, by which bracket, and the `#;` that wait for their datum."""

    __slots__ = ("start", "bracket", "items", "dropped")

    def __init__(self, start: int, bracket: str) -> None:
        self.start = start
        self.bracket = bracket
        self.items: list[Form] = []
        self.dropped: list[int] = []


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.errors: list[Error] = []
        self.nodes = 0

    def span(self, start: int, end: int) -> Span:
        return Span(self.source, start, end - start)

    def problem(self, code: str, message: str, start: int, end: int, *notes: str) -> None:
        self.errors.append(Error(code, message, self.span(start, end), notes=notes))
        if len(self.errors) >= MAXIMUM_ERRORS:
            raise Error("E-READ-002", f"more than {MAXIMUM_ERRORS} problems: the rest is not read", self.span(end, end))

    def run(self) -> list[Form]:
        text = self.source.text
        frames = [_Frame(0, "")]
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None, at
            kind, end = found.lastgroup, found.end()
            if kind == "open":
                self._count(at, end)
                if len(frames) > MAXIMUM_DEPTH:
                    raise Error("E-READ-005", f"lists nested deeper than {MAXIMUM_DEPTH:,}", self.span(at, end))
                frames.append(_Frame(at, text[at]))
            elif kind == "close":
                self._close(frames, at)
            elif kind == "block":
                end = self._block(at)
            elif kind == "datum":
                frames[-1].dropped.append(at)
            elif kind != "space":
                self._put(frames[-1], self._single(kind or "", found.group(), at, end))
            at = end
        self._finish(frames)
        return frames[0].items

    def _count(self, start: int, end: int) -> None:
        self.nodes += 1
        if self.nodes > MAXIMUM_NODES:
            raise Error("E-READ-005", f"more than {MAXIMUM_NODES:,} data in one file", self.span(start, end))

    def _put(self, frame: _Frame, form: Form | None) -> None:
        if form is None:
            return
        if frame.dropped:
            frame.dropped.pop()
        else:
            frame.items.append(form)

    def _close(self, frames: list[_Frame], at: int) -> None:
        closing = self.source.text[at]
        if len(frames) == 1:
            self.problem("E-READ-001", f"`{closing}` closes no list", at, at + 1, "remove it, or open a list before it")
            return
        frame = frames.pop()
        if _CLOSES[frame.bracket] != closing:
            opened = self.span(frame.start, frame.start + 1).place
            message = f"`{frame.bracket}` is closed by `{closing}`"
            self.problem("E-READ-001", message, at, at + 1, f"opened at {opened}", f"write `{_CLOSES[frame.bracket]}`")
        self._no_dropped(frame)
        made = Listing(tuple(frame.items), self.span(frame.start, at + 1), frame.bracket == "[")
        self._put(frames[-1], made)

    def _no_dropped(self, frame: _Frame) -> None:
        for place in frame.dropped:
            self.problem("E-READ-002", "`#;` has no datum after it to drop", place, place + 2)

    def _finish(self, frames: list[_Frame]) -> None:
        for frame in frames[:0:-1]:
            note = f"write `{_CLOSES[frame.bracket]}` at the list's end"
            self.problem("E-READ-001", f"`{frame.bracket}` is never closed", frame.start, frame.start + 1, note)
        self._no_dropped(frames[0])

    def _block(self, start: int) -> int:
        """The end of a nested `#| … |#` comment."""
        depth = 0
        for found in _BLOCK.finditer(self.source.text, start):
            depth += 1 if found.group() == "#|" else -1
            if depth == 0:
                return found.end()
        self.problem("E-READ-001", "`#|` is never closed", start, start + 2, "write `|#` at the comment's end")
        return len(self.source.text)

    def _single(self, kind: str, token: str, start: int, end: int) -> Form | None:
        self._count(start, end)
        if kind == "wrong":
            if token == '"':
                raise Error("E-READ-001", 'a string is never closed: `"` is missing', self.span(start, start + 1))
            self.problem("E-READ-002", f"`{token}` begins no datum", start, end, "`#|` and `#;` are comments")
            return None
        if len(token) > MAXIMUM_ATOM:
            self.problem("E-READ-005", f"an atom of {len(token):,} characters: at most {MAXIMUM_ATOM:,}", start, end)
            return None
        return self._text(token, start, end) if kind == "text" else self._atom(token, start, end)

    def _text(self, token: str, start: int, end: int) -> Form:
        def escape(found: re.Match[str]) -> str:
            if found.group(1):
                code = int(found.group(1), 16)
                if code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF and code:
                    return chr(code)
            elif found.group(2) in _ESCAPES:
                return _ESCAPES[found.group(2)]
            at = start + 1 + found.start()
            note = r'known are \n \t \" \\ and \u{…} with a Unicode scalar value that is not 0'
            self.problem("E-READ-003", f"unknown escape {found.group()!r} in a string", at, at + len(found.group()), note)
            return ""

        body = token[1:-1]
        value = _ESCAPE.sub(escape, body) if "\\" in body else body
        return Text(value, self.span(start, end))

    def _atom(self, token: str, start: int, end: int) -> Form | None:
        span = self.span(start, end)
        if token in _WORDS:
            return Constant(_WORDS[token], span)
        if token in _FLOATS:
            return Number(_FLOATS[token], span, token)
        if token[0] == ":":
            if len(token) > 1:
                return Keyword(token[1:], span)
            self.problem("E-READ-003", "a keyword needs a name after `:`", start, end)
            return None
        if not _NUMERIC.match(token):
            return Symbol(token, span)
        return self._number(token, span)

    def _number(self, token: str, span: Span) -> Form | None:
        start, end = span.start, span.start + span.length
        hexadecimal = _HEXADECIMAL.match(token)
        if hexadecimal or _INTEGER.match(token):
            digits = token.replace("_", "")
            # By the count of digits first: converting a long run of them would cost quadratic time.
            value = int(digits, 16 if hexadecimal else 10) if len(digits.lstrip("+-0xX")) <= 20 else 1 << 64
            if -(1 << 63) <= value < 1 << 63:
                return Number(value, span, token)
            self.problem("E-READ-003", f"the integer {token[:40]} does not fit in 64 bits", start, end)
            return None
        if _FLOAT.match(token):
            return Number(float(token.replace("_", "")), span, token)
        note = "numbers are 12, -3, 50_257, 0x1f, 0.5, 3e-4; a name does not begin with a digit"
        self.problem("E-READ-003", f"`{token[:40]}` is no number", start, end, note)
        return None
