"""Every error code with its meaning, cause, fix and an example: `explain` and the docs page are made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One code. `example` is a file (or a command line) that gives the error; '' where none can be typed."""

    code: str
    title: str
    why: str
    fix: str
    example: str = ""


def _table(*entries: Entry) -> dict[str, Entry]:
    table = {entry.code: entry for entry in entries}
    assert len(table) == len(entries), "the same code twice"
    return table


CATALOGUE: dict[str, Entry] = _table(
    Entry("E-READ-001", "unbalanced bracket", "a list is not closed, or closed by the other bracket", "close it"),
)
