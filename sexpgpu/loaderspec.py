"""What a `defloader` says, and what the headers of its data say back: the two records that elaboration works with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from sexpgpu.source import Span

LoaderKind = Literal[
    "text", "token-file", "lines", "jsonl", "arrays", "csv", "parquet", "mix", "synthetic", "builtin"
]
Option = int | float | str | bool


class Field(msgspec.Struct, frozen=True):
    """One field of a batch: the language's dtype and the shape, batch included."""

    dtype: str
    shape: tuple[int, ...]


class LoaderSpec(msgspec.Struct, frozen=True):
    """One loader, as written. `paths` are files or globs relative to `base`; a builtin's only path is its name.

    `tokenizer` is the form as a tuple, ("bytes",) or ("bpe", path). `batch` None: the run gives it. `options` are a source's own.
    `columns`: of a table, each field's column or columns; None: every column. `parts`: of a mix, its loaders and weights.
    `declared`: of synthetic data, name, field and limit of integers.
    """

    kind: LoaderKind
    paths: tuple[str, ...]
    name: str = ""
    base: Path = Path()
    batch: int | None = None
    seq: int | None = None
    tokenizer: tuple[str, ...] | None = None
    dtype: str | None = None
    split: tuple[tuple[str, float], ...] | None = None
    part: str | None = None
    limit: int | None = None
    order: Literal["shuffled", "file"] | None = None
    span: Span | None = None
    options: tuple[tuple[str, Option], ...] = ()
    columns: tuple[tuple[str, str | tuple[str, ...]], ...] | None = None
    parts: tuple[tuple[LoaderSpec, float], ...] = ()
    declared: tuple[tuple[str, Field, int], ...] = ()

    def option(self, name: str) -> Option | None:
        """One of a source's own options; None where it is not given."""
        return dict(self.options).get(name)


class Header(msgspec.Struct, frozen=True):
    """What is known of a loader before its contents are read: fields, windows or examples, size of the vocabulary."""

    fields: Mapping[str, Field]
    count: int
    vocabulary: int | None = None
