"""Run folders: `<out>/<run>/<id>/`, made by one `mkdir`, written by one process at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec

from sexpgpu.errors import Error
from sexpgpu.train.metrics import not_written
from sexpgpu.train.status import read_status

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
LOCK_NAME = ".lock"


class RunFolder(msgspec.Struct, frozen=True):
    """The files of a run."""

    path: Path

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.sexp"

    @property
    def settings(self) -> Path:
        return self.path / "settings.json"

    @property
    def environment(self) -> Path:
        return self.path / "env.json"

    @property
    def graph(self) -> Path:
        return self.path / "graph.txt"

    @property
    def lowering(self) -> Path:
        return self.path / "lowering.txt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def trace(self) -> Path:
        """Where `--timings` writes the times of the last steps."""
        return self.path / "trace.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stop(self) -> Path:
        """The file whose appearance asks the run to save and stop."""
        return self.path / "STOP"


def create_run_folder(out: Path, run: str, experiment_hash: str, now: datetime | None = None) -> RunFolder:
    """A new folder; its id is the time in UTC and 8 digits of the experiment's hash, with -2, -3 … where that is taken."""
    if not NAME.fullmatch(run):
        raise Error("E-STORE-003", f"the run's name {run!r} cannot be the name of a folder")
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    identifier = f"{moment:%Y%m%d-%H%M%S}-{experiment_hash[:8]}"
    for number in count(1):
        path = out / run / (identifier if number == 1 else f"{identifier}-{number}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError as problem:
            if not path.is_dir():
                raise not_written(path, problem) from problem
        except OSError as problem:
            raise not_written(path, problem) from problem
        else:
            return RunFolder(path)
    raise AssertionError("the numbers do not end")


@contextmanager
def writing(folder: RunFolder) -> Iterator[None]:
    """Hold the folder as its only writer; the lock ends with the process, however it ends."""
    # The lock that the filelock package takes, whose import would take a tenth of a start.
    import fcntl

    try:
        lock = (folder.path / LOCK_NAME).open("a")
    except OSError as problem:
        raise not_written(folder.path / LOCK_NAME, problem) from problem
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            raise Error("E-STORE-001", f"{folder.path} is in use{holder(folder)}") from problem
        except OSError as problem:
            raise not_written(folder.path / LOCK_NAME, problem) from problem
        yield


def holder(folder: RunFolder) -> str:
    """Who writes to the folder, as far as its status tells."""
    status = read_status(folder.status)
    return "" if status is None else f" by process {status.pid} on {status.host}"
