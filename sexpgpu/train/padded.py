"""Records of text, one padded row each: the lines of text files, a text of each line of JSON.

A row of `:seq` places is the record between two boundary tokens: `tokens` begins with the boundary, `targets` ends with
it, and `mask` is true for each of the record's tokens and the boundary after it. A longer record is cut at `:seq`
targets, then without its last boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error, nearest
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.train.datafiles import files_of, guarded, mapped
from sexpgpu.train.encoded import decoded
from sexpgpu.train.kept import Kept, digest_of, digest_of_bytes
from sexpgpu.train.order import Positions
from sexpgpu.train.share import Share, needed
from sexpgpu.train.tokenizers import Bytes, Tokenizer, boundary_of, tokenizer_of

Array = NDArray[Any]

NEWLINE, CARRIAGE = 10, 13
ENCODED_AT_ONCE = 1024
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
    """The lines of text files; empty ones are no records. As bytes they are read where they lie."""
    tokenizer = tokenizer_of(spec)
    boundary = boundary_of(tokenizer, spec, "\n")
    if not isinstance(tokenizer, Bytes):
        return _encoded_source(spec, cache, tokenizer, boundary, line_texts)
    paths = files_of(spec)
    kept = Kept(
        cache, f"lines {_digests(paths, spec, cache)}",
        lambda: places_of_lines([mapped(path, spec) for path in paths]),
    )  # fmt: skip
    return _records(spec, kept, lambda: [mapped(path, spec) for path in paths], tokenizer, boundary)


def jsonl_source(spec: LoaderSpec, cache: Path | None) -> Records:
    """A text of every line's JSON object, under the key `:field`."""
    tokenizer = tokenizer_of(spec)
    return _encoded_source(spec, cache, tokenizer, boundary_of(tokenizer, spec, "\0"), json_texts)


def _encoded_source(
    spec: LoaderSpec,
    cache: Path | None,
    tokenizer: Tokenizer,
    boundary: int,
    texts: Callable[[Path, LoaderSpec], Iterator[str]],
) -> Records:
    """Records whose tokens are made from their texts and kept."""
    paths = files_of(spec)

    def make() -> Mapping[str, Array]:
        return encoded_records(tokenizer, (text for path in paths for text in texts(path, spec)))

    key = f"{spec.kind} {spec.option('field')} {tokenizer.key} {_digests(paths, spec, cache)}"
    kept = Kept(cache, key, make)
    return _records(spec, kept, lambda: [kept.arrays()["tokens"]], tokenizer, boundary)


def _digests(paths: list[Path], spec: LoaderSpec, cache: Path | None) -> list[str]:
    return [guarded(path, spec, partial(digest_of, path, cache)) for path in paths]


def _records(
    spec: LoaderSpec, places: Kept, open_parts: Callable[[], list[Array]], tokenizer: Tokenizer, boundary: int
) -> Records:
    if places.places()["begin"].shape[0] == 0:
        raise Error("E-DATA-002", "the data has no records", spec.span)
    return Records(spec, places, open_parts, tokenizer.vocabulary, boundary)


def encoded_records(tokenizer: Tokenizer, texts: Iterator[str]) -> dict[str, Array]:
    """The records' tokens end to end, and where each begins and ends."""
    found: list[Array] = tokenizer.encode([""])
    lengths: list[int] = []
    while some := list(islice(texts, ENCODED_AT_ONCE)):
        rows = tokenizer.encode(some)
        lengths += [row.size for row in rows]
        found.append(np.concatenate(rows))
    end = np.cumsum(np.array(lengths, np.int64))
    return {"tokens": np.concatenate(found), "begin": end - np.array(lengths, np.int64), "end": end}


def line_texts(path: Path, spec: LoaderSpec) -> Iterator[str]:
    content = mapped(path, spec)
    for begin, end in zip(*lines_in(content)):
        yield decoded(content, int(begin), int(end), str(path), spec.span)


def json_texts(path: Path, spec: LoaderSpec) -> Iterator[str]:
    key, content = str(spec.option("field") or "text"), mapped(path, spec)
    for begin, end in zip(*lines_in(content)):
        line = decoded(content, int(begin), int(end), str(path), spec.span)
        if line.strip():
            try:
                yield json_text(line, key)
            except ValueError as problem:
                number = int(np.count_nonzero(content[:begin] == NEWLINE)) + 1
                raise Error("E-DATA-008", f"{path}:{number}: {problem}", spec.span) from problem


def json_text(line: str, key: str) -> str:
    """The text under a key of a JSON object. ValueError says what is wrong."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise ValueError(f"not JSON: {problem}") from problem
    if not isinstance(record, dict):
        raise ValueError(f"not a JSON object: {line[:40]}")
    if key not in record:
        close = nearest(key, list(record))
        raise ValueError(f"no {key} in it" + (f"; did you mean :field {close!r}?" if close else f", only {', '.join(record)}"))
    if not isinstance(record[key], str):
        raise ValueError(f"{key} is no text: {str(record[key])[:40]}")
    return str(record[key])


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
