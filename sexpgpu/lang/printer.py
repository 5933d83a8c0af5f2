"""Forms as text again: `read(print_form(form))` gives the same form."""

from __future__ import annotations

import math

from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text

_ESCAPES = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def print_form(form: Form, width: int = 100) -> str:
    """One form; lists wider than `width` are laid out over several lines."""
    out: list[str] = []
    # Work items: text to write, or a form with its indent. A stack, since forms may nest a thousand deep.
    stack: list[tuple[Form, int] | str] = [(form, 0)]
    flat = _Flat()
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
            continue
        part, indent = item
        if not isinstance(part, Listing) or indent + flat.length(part) <= width:
            out.append(flat.text(part))
            continue
        opening, closing = ("[", "]") if part.square else ("(", ")")
        out.append(opening)
        stack.append(closing)
        inner = min(indent + (1 if part.square else 2), width // 2)
        for k in range(len(part.items) - 1, -1, -1):
            stack.append((part.items[k], inner))
            if k:
                stack.append("\n" + " " * inner)
    return "".join(out)


class _Flat:
    """One-line texts, made from the leaves up and remembered by identity."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}

    def length(self, form: Form) -> int:
        return len(self.text(form))

    def text(self, form: Form) -> str:
        stack: list[Form] = [form]
        while stack:
            part = stack[-1]
            if id(part) in self._texts:
                stack.pop()
                continue
            waiting = [i for i in part.items if id(i) not in self._texts] if isinstance(part, Listing) else []
            if waiting:
                stack.extend(waiting)
                continue
            self._texts[id(part)] = self._list(part) if isinstance(part, Listing) else _atom(part)
            stack.pop()
        return self._texts[id(form)]

    def _list(self, form: Listing) -> str:
        inside = " ".join(self._texts[id(i)] for i in form.items)
        return f"[{inside}]" if form.square else f"({inside})"


def _atom(form: Symbol | Keyword | Number | Text | Constant) -> str:
    if isinstance(form, Symbol):
        return form.name
    if isinstance(form, Keyword):
        return f":{form.name}"
    if isinstance(form, Text):
        return '"' + "".join(_character(c) for c in form.value) + '"'
    if isinstance(form, Constant):
        return {True: "true", False: "false", None: "nil"}[form.value]
    return form.text or number_text(form.value)


def _character(c: str) -> str:
    return _ESCAPES.get(c) or (c if c.isprintable() else f"\\u{{{ord(c):x}}}")


def number_text(value: float) -> str:
    """A number as the reader takes it."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return repr(value)
