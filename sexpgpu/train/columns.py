"""Tables: the columns of CSV and Parquet files as fields, one column each or several side by side.

A Parquet file says in its footer what it holds. A CSV file says nothing: it is parsed once, and its numbers are kept.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error, nearest
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.datafiles import StoredArray, files_of, guarded, mapped, whole
from sexpgpu.train.encoded import decoded
from sexpgpu.train.kept import Kept, digest_of

Array = NDArray[Any]

ROWS_AT_ONCE = 1 << 14


def fields_of(spec: LoaderSpec, columns: Mapping[str, StoredArray]) -> dict[str, StoredArray]:
    """The fields that `:fields` makes of the columns; without it every column is one, under its own name."""
    if spec.columns is None:
        return dict(columns)
    return {field: side_by_side([columns[name] for name in names]) if isinstance(names, tuple) else columns[names]
            for field, names in spec.columns}  # fmt: skip


def side_by_side(columns: Sequence[StoredArray]) -> StoredArray:
    """Columns as one array with them on its last axis, in the dtype that holds all of them."""
    dtype = np.result_type(*[np.dtype(column.stored_dtype) for column in columns])
    shape = (*columns[0].shape, len(columns))
    return StoredArray(
        columns[0].path, dtype.name, shape, lambda: np.stack([column.read() for column in columns], -1).astype(dtype)
    )


def asked_for(spec: LoaderSpec, known: Sequence[str], path: Path) -> list[str] | None:
    """The columns that `:fields` names, each of them known; None: it is not there."""
    if spec.columns is None:
        return None
    names = [n for _, of in spec.columns for n in (of if isinstance(of, tuple) else (of,))]
    for name in names:
        if name not in known:
            close = nearest(name, known)
            notes = [f"did you mean {close!r}?"] if close else [f"its columns: {', '.join(known)}"]
            raise Error("E-DATA-010", f"{path} has no column {name!r}", spec.span, notes=notes)
        if known.count(name) > 1:
            raise Error("E-DATA-010", f"{path} has {known.count(name)} columns {name!r}", spec.span)
    return list(dict.fromkeys(names))


# CSV


def csv_columns(spec: LoaderSpec, cache: Path | None) -> dict[str, StoredArray]:
    """The columns of files that are read as one table, row after row."""
    paths = files_of(spec)

    def make() -> Mapping[str, Array]:
        tables = [CsvTable(path, spec).columns() for path in paths]
        for path, table in zip(paths[1:], tables[1:]):
            if list(table) != list(tables[0]):
                message = f"{path} has the columns {', '.join(table)}, {paths[0]} has {', '.join(tables[0])}"
                raise Error("E-DATA-010", message, spec.span)
        return {name: narrowed(np.concatenate([table[name] for table in tables])) for name in tables[0]}

    digests = [guarded(path, spec, partial(digest_of, path, cache)) for path in paths]
    kept = Kept(cache, f"csv {spec.option('delimiter')} {spec.columns} {digests}", make)
    return {
        name: StoredArray(paths[0], np.dtype(place.dtype).name, place.shape, lambda n=name: kept.arrays()[n])  # type: ignore[misc]
        for name, place in kept.places().items()
    }


def narrowed(column: Array) -> Array:
    """Integers as int32 where all of them fit."""
    small = np.iinfo(np.int32)
    fits = column.dtype == np.int64 and (not column.size or (column.min() >= small.min and column.max() <= small.max))
    return column.astype(np.int32) if fits else column


class CsvTable:
    """One file: a line of names, then rows of as many cells."""

    def __init__(self, path: Path, spec: LoaderSpec) -> None:
        self.path, self.spec = path, spec

    def columns(self) -> dict[str, Array]:
        """Numbers by column. Columns that are not named by `:fields` and do not begin with a number are left out."""
        return guarded(self.path, self.spec, self._read)

    def _read(self) -> dict[str, Array]:
        delimiter = str(self.spec.option("delimiter") or ("\t" if self.path.suffix.lower() == ".tsv" else ","))
        if len(delimiter) != 1:
            raise Error("E-DATA-007", f":delimiter {delimiter!r} is not one character", self.spec.span)
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                return self._table(csv.reader(file, delimiter=delimiter, strict=True))
        except UnicodeDecodeError:
            content = mapped(self.path, self.spec)
            decoded(content, 0, content.size, str(self.path), self.spec.span)
            raise

    def _table(self, reader: Any) -> dict[str, Array]:
        rows = self._rows(reader)
        _, names = next(rows, (1, list[str]()))
        if not names:
            raise Error("E-DATA-002", f"{self.path} is empty", self.spec.span)
        if all(is_number(name) for name in names):
            message = f"{self.path}:1: numbers where the columns' names should stand: {', '.join(names[:5])}"
            raise Error("E-DATA-010", message, self.spec.span)
        wanted: list[str] | None = asked_for(self.spec, names, self.path)
        parts: dict[str, list[Array]] = {}
        while some := list(islice(rows, ROWS_AT_ONCE)):
            for line, row in some:
                if len(row) != len(names):
                    raise self._wrong(line, f"{len(row)} cells in a row of {len(names)} columns")
            if wanted is None:
                wanted = [n for n, cell in zip(names, some[0][1]) if n and is_number(cell) and names.count(n) == 1]
            for name in wanted:
                parts.setdefault(name, []).append(self._numbers(some, names.index(name), name))
        if not parts:
            what = "no rows" if wanted is None or wanted else "no column of numbers"
            raise Error("E-DATA-002", f"{self.path} has {what}", self.spec.span)
        return {name: np.concatenate(found) for name, found in parts.items()}

    def _rows(self, reader: Any) -> Iterator[tuple[int, list[str]]]:
        """Every row that is not blank, with the line that it begins on."""
        while True:
            line = reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as problem:
                raise self._wrong(line, f"not CSV: {problem}") from problem
            if row is None:
                return
            if row:
                yield line, [cell.strip() for cell in row]

    def _numbers(self, rows: list[tuple[int, list[str]]], column: int, name: str) -> Array:
        """One column of some rows: int64 where all cells are integers, else float64."""
        cells = np.array([row[column] for _, row in rows])
        for dtype in (np.int64, np.float64):
            try:
                return cells.astype(dtype)
            except (ValueError, OverflowError):
                continue
        line, cell = next((line, row[column]) for line, row in rows if not is_number(row[column]))
        notes = ["say with :fields which columns to read"] if self.spec.columns is None else []
        raise self._wrong(line, f"column {column + 1} ({name}) is no number: {cell[:40]!r}", notes)

    def _wrong(self, line: int, what: str, notes: Sequence[str] = ()) -> Error:
        return Error("E-DATA-008", f"{self.path}:{line}: {what}", self.spec.span, notes=notes)


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


# Parquet


def parquet_columns(spec: LoaderSpec, _cache: Path | None) -> dict[str, StoredArray]:
    """The columns of files that are read as one table; their footers say what they are."""
    tables = [parquet_table(path, spec) for path in files_of(spec)]
    first = tables[0]
    for table in tables[1:]:
        for name, column in first.items():
            if name not in table or table[name].stored_dtype != column.stored_dtype or table[name].shape[1:] != column.shape[1:]:
                other = next(iter(table.values())).path if table else column.path
                raise Error("E-DATA-010", f"column {name} of {column.path} is not the same in {other}", spec.span)
    return {name: end_to_end([table[name] for table in tables]) for name in first}


def end_to_end(columns: Sequence[StoredArray]) -> StoredArray:
    first = columns[0]
    shape = (sum(column.shape[0] for column in columns), *first.shape[1:])
    return StoredArray(first.path, first.stored_dtype, shape, lambda: np.concatenate([column.read() for column in columns]))


def parquet_table(path: Path, spec: LoaderSpec) -> dict[str, StoredArray]:
    """Columns of numbers, and of lists of a fixed number of them; others are left out unless `:fields` names them."""
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        fix = ["pip install 'sexpgpu[data]'"]
        raise Error("E-DATA-009", "parquet needs the package pyarrow", spec.span, notes=fix) from None

    def footer() -> tuple[Any, int]:
        with ParquetFile(path) as file:
            return file.schema_arrow, file.metadata.num_rows

    schema, rows = whole(path, spec, footer)
    wanted = asked_for(spec, schema.names, path)
    found = {}
    for name in dict.fromkeys(schema.names) if wanted is None else wanted:
        kind = schema.field(schema.names.index(name)).type
        inner = (kind.list_size,) if hasattr(kind, "list_size") and kind.list_size > 0 else ()
        value = kind.value_type if inner else kind
        dtype = numeric_dtype(value)
        if dtype is not None:
            found[name] = StoredArray(path, dtype, (rows, *inner), partial(read_parquet, path, name, inner, spec))
        elif wanted is not None:
            raise Error("E-DATA-004", f"column {name} of {path} is {kind}, which is not read", spec.span)
    return found


def numeric_dtype(kind: Any) -> str | None:
    """NumPy's name of an Arrow type of numbers."""
    from pyarrow import types

    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return None
    return str(np.dtype(kind.to_pandas_dtype()).name)


def read_parquet(path: Path, name: str, inner: tuple[int, ...], spec: LoaderSpec) -> Array:
    from pyarrow.parquet import ParquetFile

    def read() -> Any:
        with ParquetFile(path) as file:
            return file.read(columns=[name]).column(name).combine_chunks()

    column = whole(path, spec, read)
    values = column.flatten() if inner else column
    if column.null_count or values.null_count:
        row = column.is_null().to_pylist().index(True) if column.null_count else 0
        raise Error("E-DATA-008", f"{path}: column {name} has no value in row {row + 1}", spec.span)
    array: Array = values.to_numpy(zero_copy_only=False)
    return array.reshape(len(column), *inner)


TABLES: dict[str, Callable[[LoaderSpec, Path | None], dict[str, StoredArray]]] = {
    "csv": csv_columns,
    "parquet": parquet_columns,
}
