"""Folders of this user's that are closed to others, and their files: whole under their name or not there at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def refusal(folder: Path) -> str:
    """Why the folder, made where there is none, cannot be used; empty where it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = folder.stat()
    except OSError as problem:
        return str(problem)
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid == os.getuid() and mode & 0o077 == 0 and os.access(folder, os.W_OK):
        return ""
    return f"owner {facts.st_uid}, mode {mode:o}; it must be yours with mode 700"


def replace(path: Path, *data: bytes | memoryview) -> None:
    """The pieces end to end. Another name first, so that no reader ever sees half a file."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def prune(folder: Path, suffix: str, most: int) -> None:
    """Removes the oldest files of a kind beyond so many. Other processes may do the same at the same time."""
    paths = list(folder.glob(f"*{suffix}"))
    if len(paths) <= most:
        return
    times = {path: path.stat().st_mtime_ns for path in paths if path.exists()}
    for path in sorted(times, key=times.__getitem__)[: len(paths) - most]:
        path.unlink(missing_ok=True)
