"""What `sexpgpu explain` prints: one code in full, or the list of all."""

from __future__ import annotations

from sexpgpu.catalogue import CATALOGUE
from sexpgpu.errors import Error, nearest


def explain(code: str | None) -> str:
    """The entry of a code (letters of either case), or the table of codes. An unknown code is E-RUN-006."""
    if code is None:
        width = max(map(len, CATALOGUE))
        return "\n".join(f"{entry.code:<{width}}  {entry.title}" for entry in CATALOGUE.values())
    entry = CATALOGUE.get(code.upper())
    if entry is None:
        near = nearest(code.upper(), list(CATALOGUE))
        raise Error("E-RUN-006", f"no error has the code {code}", notes=[f"did you mean {near}?"] if near else [])
    lines = [f"{entry.code}: {entry.title}", "", f"why  {entry.why}", f"fix  {entry.fix}"]
    if entry.example:
        lines += ["", "for example", *(f"    {line}" for line in entry.example.rstrip().split("\n"))]
    return "\n".join(lines)
