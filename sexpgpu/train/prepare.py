"""Token files made from texts, as `(token-file …)` reads them: nanoGPT's bare tokens, or llm.c's behind a header."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sexpgpu.errors import Error
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.datafiles import LLM_C_HEADER_BYTES, LLM_C_MAGIC, TOKEN_DTYPES
from sexpgpu.train.encoded import Array, Content, contents_of, tokens_of
from sexpgpu.train.tokenizers import Bytes, Tokenizer, tokenizer_of

WRITTEN_AT_ONCE = 1 << 24


class Prepared(msgspec.Struct, frozen=True):
    """A token file that was written. `vocabulary`: one more than the tokenizer's largest token."""

    path: Path
    tokenizer: tuple[str, ...]
    tokens: int
    dtype: str
    vocabulary: int
    bytes_read: int

    @property
    def loader(self) -> str:
        """How it is read."""
        made_by = " ".join([self.tokenizer[0], *(f'"{path}"' for path in self.tokenizer[1:])])
        return f'(token-file "{self.path}" :dtype {self.dtype} :tokenizer ({made_by}) :seq N :batch B)'


def prepare(texts: Sequence[str], tokenizer: str, out: Path, header: bool = False) -> Prepared:
    """Tokens of the texts (paths or globs, in sorted order) end to end: u16 where all of the vocabulary fit, else u32.

    `tokenizer` is "bytes" or the path of a tokenizer.json. The file appears whole under its name or not at all.
    """
    form = ("bytes",) if tokenizer == "bytes" else ("bpe", tokenizer)
    spec = LoaderSpec("text", tuple(texts), tokenizer=form)
    contents = contents_of(spec, None)
    if any(out.exists() and out.samefile(content.name) for content in contents):
        raise Error("E-DATA-007", f"{out} is one of the texts")
    made = tokenizer_of(spec)
    dtype = "u16" if made.vocabulary <= 1 << 16 else "u32"
    magic, most = next((magic, most) for magic, (of, most) in LLM_C_MAGIC.items() if of == dtype)
    if header and made.vocabulary > most:
        message = f"llm.c's header of {dtype} says tokens below {most}, the tokenizer has {made.vocabulary}"
        raise Error("E-DATA-007", message, notes=["leave --header out"])
    count = _written(out, pieces(contents, made), np.dtype(TOKEN_DTYPES[dtype]), magic if header else None)
    return Prepared(out, form, count, dtype, made.vocabulary, sum(content.size for content in contents))


def pieces(contents: Sequence[Content], tokenizer: Tokenizer) -> Iterator[Array]:
    for content in contents:
        if isinstance(tokenizer, Bytes):
            data = content.bytes()
            yield from (data[at : at + WRITTEN_AT_ONCE] for at in range(0, content.size, WRITTEN_AT_ONCE))
        else:
            yield from tokens_of(content, 0, content.size, tokenizer, None)


def _written(out: Path, tokens: Iterator[Array], dtype: np.dtype[Any], magic: int | None) -> int:
    """Another name first; how many tokens there are stands in the header, which is written last."""
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    count = 0
    try:
        try:
            with temporary.open("xb") as file:
                file.seek(0 if magic is None else LLM_C_HEADER_BYTES)
                for piece in tokens:
                    file.write(piece.astype(dtype).data)
                    count += piece.size
                if magic is not None:
                    head = np.zeros(256, "<i4")
                    head[:3] = magic, 1, count
                    file.seek(0)
                    file.write(head.data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(out)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as problem:
        raise Error("E-DATA-001", f"cannot write {out}: {problem.strerror or problem}") from problem
    return count
