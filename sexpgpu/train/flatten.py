"""A program's files as one text: every include replaced by what it includes, comments and layout kept."""

from __future__ import annotations

from pathlib import Path

from sexpgpu.lang.forms import Listing, Text
from sexpgpu.lang.program import Program
from sexpgpu.lang.reader import read
from sexpgpu.source import Source


def flatten(program: Program) -> str:
    """The text of `experiment.sexp` in a run folder; it stands for all files that were read."""
    by_path = {source.path.resolve(): source for source in program.sources if source.path is not None}
    return _flat(program.source, by_path)


def _flat(source: Source, by_path: dict[Path, Source]) -> str:
    pieces, at = [], 0
    for form in read(source):
        if not (isinstance(form, Listing) and form.head == "include" and source.path is not None):
            continue
        name = form.items[1]
        assert isinstance(name, Text)
        included = by_path[(source.path.resolve().parent / name.value).resolve()]
        pieces += [source.text[at : form.span.start], f"; from {name.value}\n", _flat(included, by_path)]
        at = form.span.start + form.span.length
    return "".join([*pieces, source.text[at:]])
