"""One token as an atom: a number, a word, a keyword, a name or a string, or the problem it has."""

from __future__ import annotations

import re
from collections.abc import Callable

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Constant, Form, Keyword, Number, Symbol, Text
from sexpgpu.source import Span

MAXIMUM_ATOM = 4_096  # characters

_INTEGER = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*\Z")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+(?:_[0-9a-fA-F]+)*\Z")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+(?:_[0-9]+)*\.?(?:[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")
_NUMERIC = re.compile(r"[+-]?\.?[0-9]")
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-fA-F]{1,6})\}|(.))", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "nil": None}
_FLOATS = {"inf": float("inf"), "+inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}
WORDS = frozenset([*_CONSTANTS, *_FLOATS])
# The most digits that 64 bits can need; a longer run is refused before it is converted, which costs quadratic time.
_MAXIMUM_DIGITS = 19
_NUMBERS = "numbers are 12, -3, 50_257, 0x1f, 0.5, 3e-4; a name does not begin with a digit"
_KNOWN_ESCAPES = r"known are \n \t \" \\ and \u{…} with a Unicode scalar value that is not 0"

Report = Callable[[Error], None]


def read_atom(token: str, span: Span, report: Report) -> Form | None:
    """The atom of a token that is no string; None where a problem was reported."""
    if _too_long(token, span, report):
        return None
    if token in _CONSTANTS:
        return Constant(_CONSTANTS[token], span)
    if token in _FLOATS:
        return Number(_FLOATS[token], span, token)
    if token[0] == ":":
        if len(token) > 1:
            return Keyword(token[1:], span)
        report(Error("E-READ-003", "a keyword needs a name after `:`", span))
        return None
    if _NUMERIC.match(token):
        return _number(token, span, report)
    return Symbol(token, span)


def _too_long(token: str, span: Span, report: Report) -> bool:
    if len(token) <= MAXIMUM_ATOM:
        return False
    report(Error("E-READ-005", f"an atom of {len(token):,} characters: at most {MAXIMUM_ATOM:,}", span))
    return True


def _number(token: str, span: Span, report: Report) -> Number | None:
    shown = token if len(token) <= 40 else token[:39] + "…"
    hexadecimal = _HEXADECIMAL.match(token)
    if hexadecimal or _INTEGER.match(token):
        value = _integer(token.replace("_", ""), 16 if hexadecimal else 10)
        if value is not None:
            return Number(value, span, token)
        report(Error("E-READ-003", f"the integer {shown} does not fit in 64 bits", span))
        return None
    if not _FLOAT.match(token):
        report(Error("E-READ-003", f"`{shown}` is no number", span, notes=[_NUMBERS]))
        return None
    number = float(token.replace("_", ""))
    if abs(number) == float("inf"):
        report(Error("E-READ-003", f"the float {shown} does not fit in 64 bits", span, notes=["infinity is inf"]))
        return None
    return Number(number, span, token)


def _integer(digits: str, base: int) -> int | None:
    if len(digits.lstrip("+-0xX")) > _MAXIMUM_DIGITS:
        return None
    value = int(digits, base)
    return value if -(1 << 63) <= value < 1 << 63 else None


def read_text(token: str, span: Span, report: Report) -> Text | None:
    """The string of a token with its quotes; None where a problem was reported."""
    if _too_long(token, span, report):
        return None
    body = token[1:-1]
    if "\\" not in body:
        return Text(body, span)
    wrong: list[re.Match[str]] = []

    def meaning(found: re.Match[str]) -> str:
        character = _character(found)
        if character is None:
            wrong.append(found)
        return character or ""

    value = _ESCAPE.sub(meaning, body)
    for found in wrong:
        place = Span(span.source, span.start + 1 + found.start(), len(found.group()))
        report(Error("E-READ-003", f"unknown escape {found.group()!r} in a string", place, notes=[_KNOWN_ESCAPES]))
    return None if wrong else Text(value, span)


def _character(escape: re.Match[str]) -> str | None:
    """What an escape stands for; surrogates and NUL are no characters of a text."""
    if escape.group(1) is None:
        return _ESCAPES.get(escape.group(2))
    code = int(escape.group(1), 16)
    return chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF else None
