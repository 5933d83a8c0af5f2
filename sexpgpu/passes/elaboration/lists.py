"""The table of lists and functions on them, all at elaboration."""

from __future__ import annotations

from typing import Any

from sexpgpu.ir.graph import Node
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import (
    POISON,
    Builtin,
    Problem,
    Value,
    describe,
    fold,
    integer,
    is_number,
    listed,
    number_text,
    several,
)

# No list or text of an experiment is longer; what would be is a mistake that should not take the machine's memory.
_LONGEST = 1_000_000


def _short(m: Machine, count: int, name: str) -> None:
    if count > _LONGEST:
        raise Problem("E-TYPE-001", f"{name}: {count:,} elements, at most {_LONGEST:,}")
    assert m.here is not None
    m.spend(count // 16, m.here)


def _items(value: Value, name: str) -> tuple[Any, ...]:
    if not isinstance(value, tuple):
        raise Problem("E-TYPE-001", f"{name} takes a list, not {describe(value)}")
    return value


def _map(m: Machine, f: Value, first: Value, rest: tuple[Value, ...]) -> Value:
    lists = [_items(v, "map") for v in (first, *rest)]
    if len({len(items) for items in lists}) > 1:
        raise Problem("E-TYPE-001", f"map: lists of {', '.join([str(len(items)) for items in lists])} elements")
    span = m.here
    assert span is not None
    made = listed([m.call(f, list(arguments), span) for arguments in zip(*lists)])
    return POISON if any([v is POISON for v in made]) else made


def _fold(m: Machine, f: Value, start: Value, items: Value) -> Value:
    """F takes what has been folded so far, then an element."""
    span = m.here
    assert span is not None
    for item in _items(items, "fold"):
        start = m.call(f, [start, item], span)
    return start


def _range(m: Machine, first: Value, end: Value, step: Value) -> tuple[int, ...]:
    low, high = (0, first) if end is None else (first, end)
    by = 1 if step is None else integer(step, "range")
    if by == 0:
        raise Problem("E-TYPE-001", "range: a step is not 0")
    made = range(integer(low, "range"), integer(high, "range"), by)
    _short(m, len(made), "range")
    return tuple(made)


def _nth(m: Machine, items: Value, index: Value) -> Value:
    found = _items(items, "nth")
    i = integer(index, "nth: the index")
    if not -len(found) <= i < len(found):
        raise Problem("E-TYPE-001", f"nth: no element {int(i)} in a list of {len(found)}")
    return found[i]


def _length(m: Machine, items: Value) -> int:
    return len(items) if isinstance(items, str) else len(_items(items, "length"))


def _append(m: Machine, lists: tuple[Value, ...]) -> tuple[Any, ...]:
    parts = [_items(items, "append") for items in lists]
    _short(m, sum([len(part) for part in parts]), "append")
    return listed([item for part in parts for item in part])


def _text(m: Machine, parts: tuple[Value, ...]) -> str:
    made = "".join([_text_of(part) for part in parts])
    _short(m, len(made), "str")
    return made


def _text_of(value: Value) -> str:
    value = fold(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nil"
    if is_number(value):
        return number_text(value) if isinstance(value, int) else repr(float(value))
    if isinstance(value, tuple):
        return f"[{' '.join([_text_of(v) for v in value])}]"
    if isinstance(value, Node):
        return str(value.type)
    raise Problem("E-TYPE-001", f"str: {describe(value)} has no text")


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(map F LIST MORE…)", _map, "The list of F of each element (of several lists in step)."),
        row("(fold F INIT LIST)", _fold, "F of what is folded so far and each element, from the left."),
        row("(range A [END] [STEP])", _range, "The integers from 0 to A − 1, or from A to END − 1."),
        row("(list X…)", lambda m, items: listed(items), "A list of the values, as [X …] is."),
        row("(nth LIST I)", _nth, "Element I, from 0; negative from the end."),
        row("(length LIST)", _length, "How many elements a list has."),
        row("(append LIST…)", _append, "The lists joined."),
        row("(str X…)", _text, "The values as one text."),
        row("(values X…)", lambda m, items: several(items), "Several values, for `let` and `repeat`."),
    ]
