"""`status.json`: how a run stands, for whoever looks from outside; replaced whole, at most once a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from sexpgpu.train.metrics import not_written, numbers, plain

State = Literal["starting", "running", "checkpointing", "done", "failed", "interrupted"]
INTERVAL_S = 1.0


class Status(msgspec.Struct, frozen=True):
    """`of`: the run's steps; `loss`: of the newest step; `eta`: seconds to the end; `code`: of the error, if it failed."""

    state: State
    step: int
    of: int
    pid: int
    host: str
    ranks: int = 1
    loss: float | None = None
    eta: float | None = None
    code: str | None = None


class StatusWriter:
    """Writes a status when its state has changed or a second has passed; `clock` is monotonic, in seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._state: State | None = None
        self._written = -INTERVAL_S

    def update(self, status: Status) -> None:
        now = self._clock()
        if status.state == self._state and now - self._written < INTERVAL_S:
            return
        replace_json(self.path, asdict(status))
        self._state, self._written = status.state, now


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Replace a JSON file by a new one, so that a reader sees the old or the new."""
    import msgspec

    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.write_bytes(msgspec.json.encode(plain(content)) + b"\n")
        temporary.replace(path)
    except OSError as problem:
        raise not_written(path, problem) from problem


def read_status(path: Path) -> Status | None:
    """The status of a run; None where none was written."""
    import msgspec

    if not path.is_file():
        return None
    return Status(**numbers(msgspec.json.decode(path.read_bytes())))
