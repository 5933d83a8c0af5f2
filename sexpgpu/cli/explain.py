"""What `sexpgpu explain` prints: one code in full, a family of codes, or the list of all."""

from __future__ import annotations

from collections.abc import Iterable

from sexpgpu.catalogue import CATALOGUE, Entry
from sexpgpu.errors import Error, nearest


def explain(code: str | None) -> str:
    """The entry of a code (letters of either case, `E-` or not), or the table of a family or of all codes.

    An unknown code is E-RUN-006.
    """
    if code is None:
        return _table(CATALOGUE.values())
    asked = code.upper()
    asked = asked if asked.startswith("E-") else f"E-{asked}"
    if asked in CATALOGUE:
        return _in_full(CATALOGUE[asked])
    family = [entry for entry in CATALOGUE.values() if entry.code.rpartition("-")[0] == asked]
    if family:
        return _table(family)
    near = nearest(asked, list(CATALOGUE))
    notes = [f"did you mean {near}?"] if near else ["sexpgpu explain lists every code"]
    raise Error("E-RUN-006", f"no error has the code {code}", notes=notes)


def _table(entries: Iterable[Entry]) -> str:
    width = max(map(len, CATALOGUE))
    return "\n".join(f"{entry.code:<{width}}  {entry.title}" for entry in entries)


def _in_full(entry: Entry) -> str:
    lines = [f"{entry.code}: {entry.title}", "", f"why  {entry.why}", f"fix  {entry.fix}"]
    if entry.example:
        lines += ["", "for example", *(f"    {line}" for line in entry.example.rstrip().split("\n"))]
    return "\n".join(lines)
