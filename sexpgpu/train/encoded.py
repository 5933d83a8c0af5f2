"""Texts as tokens of a vocabulary: encoded piece by piece, once for a content and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.source import Span
from sexpgpu.train.datafiles import files_of, guarded, mapped, sized
from sexpgpu.train.kept import Kept, digest_of
from sexpgpu.train.tokenizers import Tokenizer

Array = NDArray[Any]

# A text longer than this is encoded in pieces, which bounds the memory that it takes.
PIECE_BYTES = 1 << 22
NEWLINE = 10


class Content(msgspec.Struct, frozen=True):
    """One of the texts that lie end to end: its size is known without reading it."""

    name: str
    size: int
    digest: Callable[[], str]
    bytes: Callable[[], Array]


def contents_of(spec: LoaderSpec, cache: Path | None) -> list[Content]:
    """The loader's files."""

    def content(path: Path) -> Content:
        return Content(
            str(path),
            sized(path, spec),
            lambda: guarded(path, spec, lambda: digest_of(path, cache)),
            lambda: mapped(path, spec),
        )

    return [content(path) for path in files_of(spec)]


def encoded(
    contents: Sequence[Content], low: int, high: int, tokenizer: Tokenizer, cache: Path | None, span: Span | None
) -> Kept:
    """Array `tokens`: those of the bytes [low, high) of the texts, each of which is encoded by itself."""

    def make() -> Mapping[str, Array]:
        found, start = [np.empty(0, np.uint16)], 0
        for content in contents:
            begin, end = max(0, low - start), min(content.size, high - start)
            start += content.size
            if begin < end:
                found += list(tokens_of(content, begin, end, tokenizer, span))
        return {"tokens": np.concatenate(found)}

    key = f"text {low} {high} {tokenizer.key} {[(content.size, content.digest()) for content in contents]}"
    return Kept(cache, key, make)


def tokens_of(content: Content, begin: int, end: int, tokenizer: Tokenizer, span: Span | None) -> Iterator[Array]:
    """Tokens of the bytes [begin, end). A cut inside a character moves to the next one."""
    data = content.bytes()
    begin, end = next_character(data, begin), next_character(data, end)
    while begin < end:
        cut = begin + piece_bytes(data[begin:end])
        yield tokenizer.encode([decoded(data, begin, cut, content.name, span)])[0]
        begin = cut


def next_character(data: Array, at: int) -> int:
    """The first byte from `at` on that begins a character."""
    while at < data.size and data[at] & 0xC0 == 0x80:
        at += 1
    return at


def piece_bytes(data: Array) -> int:
    """How much is encoded at once: all, or up to the first line end after PIECE_BYTES that stands between two printable
    ASCII characters. There GPT-2's rule splits a text in any case, so that no token is another than in one piece."""
    for at in range(PIECE_BYTES, data.size, PIECE_BYTES):
        block = data[at - 2 : at + PIECE_BYTES + 2]
        printable = (block > 32) & (block < 127)
        found = np.flatnonzero(printable[:-2] & (block[1:-1] == NEWLINE) & printable[2:])
        if found.size:
            return int(found[0]) + at
    return int(data.size)


def decoded(data: Array, begin: int, end: int, name: str, span: Span | None) -> str:
    """Bytes as text; E-DATA-008 with the line of the first that is none."""
    try:
        return data[begin:end].tobytes().decode()
    except UnicodeDecodeError as problem:
        at = begin + problem.start
        line = int(np.count_nonzero(data[:at] == NEWLINE)) + 1
        message = f"{name}:{line}: not UTF-8: byte {at} of the file is 0x{int(data[at]):02x}"
        raise Error("E-DATA-008", message, span) from problem
