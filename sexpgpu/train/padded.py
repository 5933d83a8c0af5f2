"""Records of text, one padded row each: the lines of text files.

A row of `:seq` places is the record between two boundary tokens: `tokens` begins with the boundary, `targets` ends with
it, and `mask` is true for each of the record's tokens and the boundary after it. A longer record is cut at `:seq`
targets, then without its last boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.train.datafiles import files_of, guarded, mapped
from sexpgpu.train.kept import Kept, digest_of, digest_of_bytes
from sexpgpu.train.order import Positions
from sexpgpu.train.share import Share, needed

Array = NDArray[Any]

NEWLINE, CARRIAGE = 10, 13
BYTES = ("bytes",)
SCANNED_AT_ONCE = 1 << 26


class Records:
    """Rows made of tokens [begin, end) of the tokens of several parts, laid end to end."""

    def __init__(
        self, spec: LoaderSpec, places: Kept, open_parts: Callable[[], list[Array]], vocabulary: int, boundary: int
    ) -> None:
        self.seq = needed(spec.seq, ":seq", spec)
        self.share = Share(spec, places.places()["begin"].shape[0])
        self.count = self.share.count
        shape = (needed(spec.batch, ":batch", spec), self.seq)
        self.fields: Mapping[str, Field] = {
            "tokens": Field("i32", shape), "targets": Field("i32", shape), "mask": Field("bool", shape),
        }  # fmt: skip
        self.vocabulary: int | None = vocabulary
        self.shift_limit = 1
        self.boundary = boundary
        self.places = places
        self.open_parts = open_parts
        self.parts: list[Array] | None = None

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        assert shift == 0, "examples are not shifted"
        examples = self.share.examples(rows)
        begins, ends = (self.places.arrays()[name][examples] for name in ("begin", "end"))
        # A record with the boundary before and after it, cut to what fits.
        framed = np.zeros((len(rows), self.seq + 1), np.int32)
        framed[:, 0] = self.boundary
        for row, begin, end in zip(framed, begins.tolist(), ends.tolist(), strict=True):
            length = min(end - begin, self.seq)
            row[1 : 1 + length] = self._tokens(begin, length)
            row[1 + length : 2 + length] = self.boundary
        mask = np.arange(self.seq) < (ends - begins + 1)[:, None]
        batch = {"tokens": np.where(mask, framed[:, :-1], 0), "targets": np.ascontiguousarray(framed[:, 1:]), "mask": mask}
        return {name: array for name, array in batch.items() if fields is None or name in fields}

    def identity(self) -> str:
        held = self.places.arrays()
        return digest_of_bytes([held["begin"].tobytes(), held["end"].tobytes(), *(p.data for p in self._opened())])

    def lengths(self) -> Array:
        """How many tokens each record of the part has, its boundaries not counted."""
        held = self.places.arrays()
        examples = self.share.examples(np.arange(self.count))
        return np.asarray((held["end"] - held["begin"])[examples])

    def _opened(self) -> list[Array]:
        if self.parts is None:
            self.parts = self.open_parts()
            self._begins = np.cumsum([0] + [part.size for part in self.parts])
        return self.parts

    def _tokens(self, begin: int, length: int) -> Array:
        parts = self._opened()
        index = int(np.searchsorted(self._begins, begin, side="right")) - 1 if length else 0
        inside = begin - int(self._begins[index]) if length else 0
        found: Array = parts[index][inside : inside + length]
        return found


def line_source(spec: LoaderSpec, cache: Path | None) -> Records:
    """The lines of text files; empty ones are no records."""
    if spec.tokenizer not in (None, BYTES):
        raise Error("E-DATA-007", f"no tokenizer {spec.tokenizer[0]}", spec.span, notes=["there is (bytes)"])
    paths = files_of(spec)
    digests = [guarded(path, spec, partial(digest_of, path, cache)) for path in paths]

    def places() -> Mapping[str, Array]:
        return places_of_lines([mapped(path, spec) for path in paths])

    kept = Kept(cache, f"lines {digests}", places)
    if kept.places()["begin"].shape[0] == 0:
        raise Error("E-DATA-002", "the text has no lines", spec.span)
    return Records(spec, kept, lambda: [mapped(path, spec) for path in paths], 256, NEWLINE)


def places_of_lines(contents: list[Array]) -> dict[str, Array]:
    """Where the lines begin and end, counted over all files; their ends (LF, CR LF) are no part of them."""
    found, start = [], 0
    for content in contents:
        begins, ends = lines_in(content)
        found.append((begins + start, ends + start))
        start += content.size
    return {
        "begin": np.concatenate([begins for begins, _ in found]),
        "end": np.concatenate([ends for _, ends in found]),
    }


def lines_in(content: Array) -> tuple[Array, Array]:
    """Begins and ends of the lines that are not empty."""
    blocks = range(0, content.size, SCANNED_AT_ONCE)
    breaks = [np.flatnonzero(content[at : at + SCANNED_AT_ONCE] == NEWLINE) + at for at in blocks]
    if content.size and content[-1] != NEWLINE:
        breaks.append(np.array([content.size]))
    ends = np.concatenate([np.empty(0, np.int64), *breaks])
    begins = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1] + 1])
    kept = ends > begins
    begins, ends = begins[kept], ends[kept]
    ends -= content[ends - 1] == CARRIAGE
    kept = ends > begins
    return begins[kept], ends[kept]
