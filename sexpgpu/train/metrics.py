"""`metrics.jsonl`: what a run records, one object a line, appended whole and never changed."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sexpgpu.errors import Error

Record = dict[str, Any]

# JSON has no such numbers; a reader in any language gets them as these strings.
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any) -> Any:
    """The value as JSON can hold it: non-finite numbers as strings, in lists and objects too."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def numbers(value: Any) -> Any:
    """The inverse of `plain`."""
    if isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, dict):
        return {key: numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return value


class MetricsWriter:
    """Appends records to a file; each reaches it by one write of a whole line, so that readers never see half of one."""

    def __init__(self, path: Path) -> None:
        import msgspec

        self.path = path
        self._encode = msgspec.json.Encoder().encode
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as problem:
            raise not_written(path, problem) from problem
        cut_torn_line(self._file)

    def write(self, record: Mapping[str, Any]) -> None:
        line = self._encode(plain(record)) + b"\n"
        try:
            written = os.write(self._file, line)
            if written < len(line):
                # The disk is full: the half line goes, so that whoever appends next begins a line.
                os.ftruncate(self._file, os.fstat(self._file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as problem:
            raise not_written(self.path, problem) from problem

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def not_written(path: Path, problem: OSError) -> Error:
    return Error("E-STORE-003", f"cannot write {path}: {problem.strerror or problem}")


def cut_torn_line(file: int) -> None:
    """Cut what stands after the last line end: the line that a crash interrupted."""
    end = size = os.fstat(file).st_size
    block = 1 << 16
    while end > 0:
        start = max(0, end - block)
        at = os.pread(file, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)


def read_metrics(path: Path) -> list[Record]:
    """The records that stand: what a resume superseded and a torn last line are left out, non-finite numbers are floats."""
    import msgspec

    decode = msgspec.json.Decoder(dict[str, Any]).decode
    lines = path.read_bytes().split(b"\n")
    records: list[Record] = []
    # After the last line end there is nothing, or a line that is not whole.
    for number, line in enumerate(lines[:-1], 1):
        try:
            record: Record = numbers(decode(line))
        except msgspec.DecodeError as problem:
            raise Error("E-STORE-004", f"{path}: line {number} is no record: {problem}") from problem
        if record.get("kind") == "annotation" and record.get("name") == "resume":
            records = [earlier for earlier in records if earlier.get("step", 0) <= record["from"]]
        records.append(record)
    return records
