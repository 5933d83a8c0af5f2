"""Forms as text again: `read(print_form(form))` gives the same form."""

from __future__ import annotations

import math

from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text

_ESCAPES = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
# Work of the two loops below, which stand in for recursion (forms nest a thousand deep): a form with its indent
# and with how many brackets close behind it on its last line, or text.
_Work = tuple[Form, int, int] | str


def print_form(form: Form, width: int = 100) -> str:
    """One form; a list wider than `width` is laid out over several lines.

    Its head and what stands beside it keep one line, a keyword and its value another, every other datum its own.
    """
    lengths = _lengths(form)
    out: list[str] = []
    stack: list[_Work] = [(form, 0, 0)]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
        elif not isinstance(item[0], Listing) or item[1] + lengths[id(item[0])] + item[2] <= width:
            out.append(_flat(item[0]))
        else:
            stack += reversed(_laid_out(item[0], item[1], item[2], lengths, width))
    return "".join(out)


def _laid_out(form: Listing, indent: int, behind: int, lengths: dict[int, int], width: int) -> list[_Work]:
    # Deep lists stop moving to the right, so that the text stays linear in the form.
    inner = min(indent + (2 if form.head else 1), width // 2)
    work: list[_Work] = ["[" if form.square else "("]
    for place, line in enumerate(_lines(form, lengths, width - inner)):
        if place:
            work.append("\n" + " " * inner)
        column = inner if place else indent + 1
        for number, part in enumerate(line):
            last = part is form.items[-1]
            work += [" "] * (number > 0)
            work.append((part, column, behind + 1 if last else 0))
            column += lengths[id(part)] + 1
    work.append("]" if form.square else ")")
    return work


def _lines(form: Listing, lengths: dict[int, int], room: int) -> list[list[Form]]:
    """A list's data by the line that they begin on."""
    lines: list[list[Form]] = []
    for place, part in enumerate(form.items):
        beside = lines[-1] if lines else []
        follows_keyword = len(beside) == 1 and isinstance(beside[0], Keyword) and not isinstance(part, Keyword)
        if follows_keyword or _follows_head(form, place, sum(lengths[id(b)] + 1 for b in beside) + lengths[id(part)], room):
            beside.append(part)
        else:
            lines.append([part])
    return lines


def _follows_head(form: Listing, place: int, length: int, room: int) -> bool:
    """Whether a datum stands on the first line: a definition's name and arguments, what `let` binds, an operand."""
    if not form.head or isinstance(form.items[place], Keyword):
        return False
    if place == 1 and form.head in ("let", "let*"):
        return True
    names = 2 if form.head in ("defun", "deflayer", "defoptimizer", "defregion", "defmacro", "repeat") else 1
    return 0 < place <= names and length + 1 <= (room if names == 2 else room // 2)


def _lengths(form: Form) -> dict[int, int]:
    """The length of every part's one-line text, by identity."""
    order: list[Form] = [form]
    for part in order:  # grows while it is walked: parts come after what they stand in
        if isinstance(part, Listing):
            order.extend(part.items)
    made: dict[int, int] = {}
    for part in reversed(order):
        if isinstance(part, Listing):
            made[id(part)] = sum(made[id(item)] for item in part.items) + max(len(part.items) - 1, 0) + 2
        else:
            made[id(part)] = len(_atom(part))
    return made


def _flat(form: Form) -> str:
    """A form on one line."""
    out: list[str] = []
    stack: list[Form | str] = [form]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, Listing):
            out.append("[" if item.square else "(")
            stack.append("]" if item.square else ")")
            for place in range(len(item.items) - 1, -1, -1):
                stack.append(item.items[place])
                if place:
                    stack.append(" ")
        else:
            out.append(_atom(item))
    return "".join(out)


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
