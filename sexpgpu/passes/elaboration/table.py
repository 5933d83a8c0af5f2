"""How a row of the operation tables is written: the usage in the language, what runs, a sentence for the reference.

    row("(sum X :axis nil :keep false)", run, "The sum over the axes.")
The usage is the signature: capitals are positional, a keyword is followed by its default, `[X]` may be left out and
`X…` stands for any number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sexpgpu.passes.elaboration.values import Builtin, DtypeName, Signature, Value

_CONSTANTS: dict[str, Value] = {
    "nil": None, "true": True, "false": False, "f32": DtypeName("f32"), "i32": DtypeName("i32")
}  # fmt: skip


def row(usage: str, run: Callable[..., Any], doc: str) -> Builtin:
    """One operation of the language."""
    words = usage.strip()[1:-1].split()
    names: list[str] = []
    keys: list[tuple[str, Value]] = []
    rest, optional = None, 0
    words_left = iter(words[1:])
    for word in words_left:
        if word.startswith(":"):
            keys.append((word[1:], _default(next(words_left))))
        elif word.endswith("…"):
            rest = word[:-1]
        elif word.startswith("["):
            names.append(word[1:-1].lower())
            optional += 1
        else:
            names.append(word.lower())
    return Builtin(words[0], usage, Signature(tuple(names), tuple(keys), rest, optional), run, doc)


def _default(text: str) -> Value:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    return float(text) if "." in text or "e" in text else int(text)
