"""Mutated experiments, and what must hold of every one: an experiment or diagnostics with their codes, never a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest.mock import patch

from elaborating import header_of

import sexpgpu
from sexpgpu.catalogue import CATALOGUE
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.layout import formatted
from sexpgpu.lang.program import program_of
from sexpgpu.lang.reader import decode
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.elaboration import machine
from sexpgpu.source import Source

ROOT = Path(sexpgpu.__file__).parents[1]
_TOKEN = re.compile(r'"[^"\n]*"|[()\[\]]|[^()\[\]\s"]+|\s+')
# What stands for a number, a bracket or a name where it does most harm.
_HARMFUL = (
    *"() [] ( ) [ ] : #; #| |# ... _ &key".split(), '"', '""', '"*"', "nil", "true", "inf", "nan", "-1", "0", "1.5", "1e308",
    "-0.0", "9223372036854775807", "100000", "16777216", "f32", "bf16", "i32", "bool", "x", "step", "training", "else",
    "if", "let", "fn", "repeat", "values", "begin", "defmacro", "defun", ":name", ":axis", ":share", "(values 1 2)", "(fn (x) x)",
    "(repeat (i 9000) (v x) [v v])", "(repeat (i 9000) (v step) (+ v v))", "(repeat (i 9000) (v (zeros [2])) (concat [v v]))",
    "[1 2]", "[[1] [2]]", "(zeros [2 3])", "(range 5)", "softmax", "linear", "param", "state", "update", "scan", "grad", "map",
)  # fmt: skip


def seeds() -> list[str]:
    """Whole small files: the examples of the catalogue, the wrong files of the tests, the blocks of the language page."""
    from test_macros import UNLESS, WRONG
    from test_mistakes import MISTAKES

    made = [entry.example for entry in CATALOGUE.values() if entry.example]
    made += [text.replace("▸", "") for _, text, _ in MISTAKES.values()]
    made += [UNLESS, *(text for text, *_ in WRONG.values())]
    page = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
    made += [block.split("```")[0] for block in page.split("```lisp\n")[1:]]
    return made + [path.read_text(encoding="utf-8") for path in sorted((ROOT / "sexpgpu" / "examples").glob("*.sexp"))]


def mutated(draw: Random, texts: Sequence[str], donors: Sequence[str]) -> str:
    """One of the texts with a few of its tokens or forms lost, doubled, moved, or changed for a donor's."""
    tokens = _TOKEN.findall(draw.choice(texts))
    others = _TOKEN.findall(draw.choice(donors))
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        if not tokens:
            break
        start, end = _piece(draw, tokens)
        other = others[slice(*_piece(draw, others))] if others else []
        tokens[start:end] = draw.choice(
            (
                [],
                tokens[start:end] * 2,
                other,
                [draw.choice(_HARMFUL)],
                ["(", *tokens[start:end], ")"],
                [*tokens[start:end], " ", *other],
                tokens[slice(*_piece(draw, tokens))],
            )
        )
    return "".join(tokens)


def respaced(draw: Random, text: str) -> str:
    """The text with other spaces, line ends and comments between its tokens."""
    between = (" ", "\n", "\n\n", "  ", "\t", "\r\n", " ; c\n", "\n; d\n", " #| b |# ", "\n#|\nb|#\n", " #;")
    return "".join(draw.choice(between) if token.isspace() else token for token in _TOKEN.findall(text))


def _piece(draw: Random, tokens: Sequence[str]) -> tuple[int, int]:
    """The range of a token, or of the form that begins with it."""
    start = draw.randrange(len(tokens))
    if tokens[start] not in "([" or draw.random() < 0.2:
        return start, start + 1
    depth = 0
    for end in range(start, len(tokens)):
        depth += (tokens[end] in "([") - (tokens[end] in ")]")
        if depth == 0:
            return start, end + 1
    return start, start + 1


def header(spec: LoaderSpec) -> Header:
    """Of loaders without files; sizes that no file has are an error, as with one."""
    if not all(size is None or 1 <= size <= 10_000 for size in (spec.batch, spec.seq)):
        raise Error("E-DATA-007", "a size that cannot be", spec.span)
    return header_of(spec)


def check(text: str) -> None:
    """The text gives an experiment, or problems that can be shown; laid out twice it is as once.

    Less work is allowed than to users: it is fuzzed often.
    """
    source = Source("fuzzed.sexp", text)
    try:
        laid_out = formatted(source)
        assert formatted(Source("fuzzed.sexp", laid_out)) == laid_out
        with patch.object(machine, "MAXIMUM_WORK", 20_000):
            elaborate(program_of(source), header)
    except Diagnostics as problems:
        for error in problems.errors:
            assert error.render().startswith(f"error[{error.code}]: ")


def check_bytes(data: bytes) -> None:
    """The same of any bytes."""
    try:
        source = decode(data, "fuzzed.sexp")
    except Error as error:
        assert error.code == "E-READ-004" and error.render()
        return
    check(source.text)
