"""Where examples come from: a table from a loader's kind to the class that reads it.

A source is opened in two stages. Constructed, it has read headers only: fields, count and vocabulary are known.
`gather` then reads contents, as far as it needs them. A new kind of loader is a class and a row of `SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error, nearest
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.train.builtin import DIGITS, TEXTS, BuiltinText, digits
from sexpgpu.train.columns import TABLES, fields_of
from sexpgpu.train.datafiles import (
    TOKEN_DTYPES,
    StoredArray,
    TokenFile,
    files_of,
    mapped,
    stored_arrays,
    token_file,
    whole,
)
from sexpgpu.train.encoded import Content, contents_of, encoded
from sexpgpu.train.kept import digest_of_bytes
from sexpgpu.train.mix import Mix
from sexpgpu.train.order import Positions
from sexpgpu.train.padded import jsonl_source, line_source
from sexpgpu.train.share import Share, cut, limited, needed
from sexpgpu.train.synthetic import Synthetic
from sexpgpu.train.tokenizers import Bytes, tokenizer_of

Array = NDArray[Any]


class ExampleSource(Protocol):
    """`count` rows, a window of tokens or an example each; `shift` is the offset of an epoch's windows."""

    fields: Mapping[str, Field]
    count: int
    vocabulary: int | None
    shift_limit: int

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        """The rows as a batch: each field (or those asked for) a contiguous array of its dtype."""
        ...

    def identity(self) -> str:
        """A hash of the contents, the same wherever they lie."""
        ...


class Windows:
    """Windows of seq + 1 tokens with stride seq over what lies inside the bounds of token arrays laid end to end."""

    def __init__(
        self,
        spec: LoaderSpec,
        bounds: tuple[int, int],
        vocabulary: int | None,
        unit: str,
        open_parts: Callable[[], list[Array]],
    ) -> None:
        seq, batch = needed(spec.seq, ":seq", spec), needed(spec.batch, ":batch", spec)
        self.low, self.high = bounds
        self.tokens = self.high - self.low
        if self.tokens < seq + 1:
            which = f" in part {spec.part}" if spec.part else ""
            message = f"one window of :seq {seq} needs {seq + 1} {unit}, found {self.tokens}{which}"
            raise Error("E-DATA-002", message, spec.span)
        self.seq = seq
        self.fields: Mapping[str, Field] = {name: Field("i32", (batch, seq)) for name in ("tokens", "targets")}
        self.count = limited((self.tokens - 1) // seq, spec)
        self.vocabulary = vocabulary
        self.shift_limit = seq
        self.open_parts = open_parts
        self.parts: list[Array] | None = None

    def opened(self) -> list[Array]:
        """The token arrays of the loader's part of the data."""
        if self.parts is None:
            self.parts, start = [], 0
            for array in self.open_parts():
                piece = array[max(0, self.low - start) : max(0, self.high - start)]
                if piece.size:
                    self.parts.append(piece)
                start += array.size
            assert sum(part.size for part in self.parts) == self.tokens, "the data changed while it was opened"
        return self.parts

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        # Shifted windows must not run past the end: the last one ends at the last token and overlaps its neighbour.
        starts = np.minimum(rows * self.seq + shift, self.tokens - 1 - self.seq)
        windows = windows_at(self.opened(), starts, self.seq + 1)
        batch = {"tokens": windows[:, :-1], "targets": windows[:, 1:]}
        return {name: array.astype(np.int32) for name, array in batch.items() if fields is None or name in fields}

    def identity(self) -> str:
        from xxhash import xxh3_128

        digest = xxh3_128()
        for part in self.opened():
            digest.update(part.view(np.uint8).data)
        return digest.hexdigest()


def windows_at(parts: list[Array], starts: Positions, length: int) -> Array:
    """`length` tokens from each start on, across the ends of the parts."""
    if len(parts) == 1:
        found: Array = np.lib.stride_tricks.sliding_window_view(parts[0], length)[starts]
        return found
    begins = np.cumsum([0] + [part.size for part in parts])
    windows = np.empty((len(starts), length), parts[0].dtype)
    for window, start in zip(windows, starts.tolist(), strict=True):
        filled = 0
        index = int(np.searchsorted(begins, start, side="right")) - 1
        while filled < length:
            inside = start + filled - int(begins[index])
            piece = parts[index][inside : inside + length - filled]
            window[filled : filled + piece.size] = piece
            filled += piece.size
            index += 1
    return windows


def text_source(spec: LoaderSpec, cache: Path | None) -> Windows:
    return text_windows(spec, contents_of(spec, cache), cache)


def text_windows(spec: LoaderSpec, contents: list[Content], cache: Path | None) -> Windows:
    """A text as tokens: with (bytes) they are read where they lie, else encoded and kept. A split cuts the bytes."""
    tokenizer = tokenizer_of(spec)
    total = sum(content.size for content in contents)
    if total == 0:
        raise Error("E-DATA-002", "the text is empty", spec.span)
    if isinstance(tokenizer, Bytes):
        return Windows(spec, cut(total, spec), 256, "bytes", lambda: [content.bytes() for content in contents])
    kept = encoded(contents, *cut(total, spec), tokenizer, cache, spec.span)
    tokens = kept.places()["tokens"].shape[0]
    return Windows(spec, (0, tokens), tokenizer.vocabulary, "tokens", lambda: [kept.arrays()["tokens"]])


def token_source(spec: LoaderSpec, _cache: Path | None) -> Windows:
    if spec.dtype is not None and spec.dtype not in TOKEN_DTYPES:
        raise Error("E-DATA-004", f"token files hold {' or '.join(TOKEN_DTYPES)}, not {spec.dtype}", spec.span)
    files = [token_file(path, spec) for path in files_of(spec)]
    if len({file.dtype for file in files}) > 1:
        raise Error("E-DATA-005", "the token files have different dtypes", spec.span)
    total = sum(file.count for file in files)
    # What made the tokens knows their vocabulary better than llm.c's magic number.
    vocabulary = files[0].vocabulary if spec.tokenizer is None else tokenizer_of(spec).vocabulary
    return Windows(spec, cut(total, spec), vocabulary, "tokens", lambda: [tokens_of(file, spec) for file in files])


def tokens_of(file: TokenFile, spec: LoaderSpec) -> Array:
    return mapped(file.path, spec, TOKEN_DTYPES[file.dtype], file.skip_bytes)


# What an array in a file is read as: f64 as f32, small integers widened.
READ_AS = {
    "bool": "bool", "int8": "i32", "uint8": "i32", "int16": "i32", "uint16": "i32", "int32": "i32", "uint32": "u32",
    "int64": "i64", "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f32",
}  # fmt: skip


class Arrays:
    """Examples along the first axis of named arrays."""

    def __init__(self, spec: LoaderSpec, stored: Mapping[str, StoredArray]) -> None:
        batch = needed(spec.batch, ":batch", spec)
        self.spec = spec
        self.share = Share(spec, first_axis(stored, spec))
        self.count = self.share.count
        self.fields: Mapping[str, Field] = {
            name: Field(READ_AS[array.stored_dtype], (batch, *array.shape[1:])) for name, array in stored.items()
        }
        self.vocabulary: int | None = None
        self.shift_limit = 1
        self.stored = stored
        self.arrays: dict[str, Array] = {}

    def array(self, name: str) -> Array:
        if name not in self.arrays:
            stored = self.stored[name]
            read = whole(stored.path, self.spec, stored.read)
            if read.shape != stored.shape:
                shapes = f"{name} is {list(read.shape)}, its header says {list(stored.shape)}"
                raise Error("E-DATA-005", f"{stored.path}: {shapes}", self.spec.span)
            self.arrays[name] = read
        return self.arrays[name]

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        assert shift == 0, "examples are not shifted"
        examples = self.share.examples(rows)
        return {
            name: np.take(self.array(name), examples, axis=0).astype(numpy_dtype(field.dtype), order="C")
            for name, field in self.fields.items()
            if fields is None or name in fields
        }

    def identity(self) -> str:
        from xxhash import xxh3_128

        digest = xxh3_128()
        for name in sorted(self.fields):
            array = np.ascontiguousarray(self.array(name))
            digest.update(f"{name} {array.dtype} {array.shape};".encode())
            digest.update(array.view(np.uint8).data)
        return digest.hexdigest()


def first_axis(stored: Mapping[str, StoredArray], spec: LoaderSpec) -> int:
    """The number of examples that all arrays agree on, each of a dtype that the language has."""
    if not stored:
        raise Error("E-DATA-002", "no arrays in the data", spec.span)
    for name, array in stored.items():
        if array.stored_dtype not in READ_AS:
            message = f"array {name} of {array.path} is {array.stored_dtype}, which is not read"
            raise Error("E-DATA-004", message, spec.span, notes=["arrays of bool, i8 to i64, u8 to u32, floats are"])
        if not array.shape:
            raise Error("E-DATA-006", f"array {name} of {array.path} is one number: it has no first axis", spec.span)
    lengths = {name: array.shape[0] for name, array in stored.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise Error("E-DATA-006", f"the arrays have different numbers of examples: {shown}", spec.span)
    return next(iter(lengths.values()))


def array_source(spec: LoaderSpec, _cache: Path | None) -> Arrays:
    stored: dict[str, StoredArray] = {}
    for path in files_of(spec):
        for name, array in stored_arrays(path, spec).items():
            if name in stored:
                raise Error("E-DATA-006", f"array {name} stands in {stored[name].path} and in {path}", spec.span)
            stored[name] = array
    return Arrays(spec, stored)


def table_source(spec: LoaderSpec, cache: Path | None) -> Arrays:
    return Arrays(spec, fields_of(spec, TABLES[spec.kind](spec, cache)))


def mix_source(spec: LoaderSpec, cache: Path | None) -> Mix:
    return Mix(spec, [SOURCES[part.kind](part, cache) for part, _ in spec.parts])


def builtin_source(spec: LoaderSpec, cache: Path | None) -> ExampleSource:
    name = spec.paths[0]
    if name in TEXTS:
        text: BuiltinText = TEXTS[name](cache)
        content = Content(name, text.size_bytes(), lambda: digest_of_bytes([text.bytes().data]), text.bytes)
        return text_windows(spec, [content], cache)
    if name == DIGITS:
        here = Path("digits")
        return Arrays(
            spec,
            {
                "x": StoredArray(here, "float32", (1797, 64), lambda: digits()[0]),
                "y": StoredArray(here, "int32", (1797,), lambda: digits()[1]),
            },
        )
    known = [*TEXTS, DIGITS]
    close = nearest(name, known)
    notes = [f"did you mean {close}?"] if close else [f"there are {', '.join(known)}"]
    raise Error("E-DATA-007", f"no builtin data {name}", spec.span, notes=notes)


SOURCES: dict[str, Callable[[LoaderSpec, Path | None], ExampleSource]] = {
    "text": text_source,
    "token-file": token_source,
    "lines": line_source,
    "jsonl": jsonl_source,
    "arrays": array_source,
    "csv": table_source,
    "parquet": table_source,
    "mix": mix_source,
    "synthetic": Synthetic,
    "builtin": builtin_source,
}
