"""Checkpoints: folders of tensors and a manifest, whole or not there at all.

A folder is written under a temporary name, every file made anew, hashed while it is written, synced; the manifest, with
size and xxh3_128 of each file, comes last; then the folder is synced and renamed, and its parent synced. What is read
must match the manifest. Tensors are in safetensors' format.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error

if TYPE_CHECKING:
    from queue import SimpleQueue

PARAMETERS, OPTIMIZER, STATE, MANIFEST = "params.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
# The averages of `:ema`, where the run keeps them.
AVERAGES = "ema.safetensors"
NAME = re.compile(r"step-(\d{8})")
SAFETENSORS_DTYPES = {"float32": "F32", "float16": "F16", "int32": "I32", "int64": "I64", "uint8": "U8", "bool": "BOOL"}


class Unread(msgspec.Struct, frozen=True):
    """A tensor on a device that is read when its turn comes to be written, so that one at a time is there twice."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    read: Callable[[], NDArray[Any]]


Tensors = Mapping[str, NDArray[Any] | Unread]
Piece = bytes | memoryview


class Checkpoint(msgspec.Struct, frozen=True):
    """What a checkpoint holds. `states` are by PARAMETER:STATE; `state` is state.json; `averages` are those of `:ema`."""

    path: Path
    parameters: dict[str, NDArray[Any]]
    states: dict[str, NDArray[Any]]
    state: dict[str, Any]
    averages: dict[str, NDArray[Any]] = msgspec.field(default_factory=dict)

    def trained(self, raw: bool = False) -> dict[str, NDArray[Any]]:
        """What predictions are made with: averages in place of the parameters that have one, unless `raw`."""
        return self.parameters if raw else self.parameters | self.averages


def folder_name(step: int) -> str:
    return f"step-{step:08d}"


def save(
    folder: Path,
    step: int,
    parameters: Tensors,
    states: Tensors,
    state: Mapping[str, Any],
    copies: Iterable[Path] = (),
    averages: Tensors | None = None,
) -> Path:
    """Write `folder/step-XXXXXXXX`; `copies` are files that go along. A whole one of this step is replaced."""
    final = folder / folder_name(step)
    temporary = folder / f"{final.name}.tmp-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        temporary.mkdir()
        files = {
            PARAMETERS: _pieces_of(parameters),
            OPTIMIZER: _pieces_of(states),
            **({AVERAGES: _pieces_of(averages)} if averages else {}),
            STATE: [msgspec.json.format(msgspec.json.encode(state))],
            **{source.name: [source.read_bytes()] for source in copies},
        }
        manifest = _write_together(temporary, files)
        _write(temporary / MANIFEST, [msgspec.json.format(msgspec.json.encode({"files": manifest}))])
        _sync(temporary)
        if final.exists():
            remove(final)
        temporary.rename(final)
        _sync(folder)
    except OSError as problem:
        import shutil

        shutil.rmtree(temporary, ignore_errors=True)
        raise Error("E-STORE-003", f"cannot write {final}: {problem.strerror or problem}") from problem
    return final


def _pieces_of(tensors: Tensors) -> Iterable[Piece]:
    """A safetensors file: length of the header, header, tensors end to end."""
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + prod(tensor.shape) * tensor.dtype.itemsize
        header[name] = {
            "dtype": SAFETENSORS_DTYPES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = msgspec.json.encode(header)
    # The header is padded with spaces, so that the first tensor begins at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    return chain([len(text).to_bytes(8, "little"), text], map(_bytes_of, tensors.values()))


def _bytes_of(tensor: NDArray[Any] | Unread) -> memoryview:
    array = np.asarray(tensor.read() if isinstance(tensor, Unread) else tensor, order="C")
    return array.reshape(-1).view(np.uint8).data


def _write_together(folder: Path, files: Mapping[str, Iterable[Piece]]) -> dict[str, dict[str, Any]]:
    """Write files, each by a thread of its own, as copying to the system's cache keeps a core busy; what the manifest says
    of them. A piece is read by this thread, when its file's thread waits for one: a file holds one tensor at a time."""
    from queue import SimpleQueue
    from threading import Thread

    # A file's name when it wants a piece, None when its thread is done.
    asked: SimpleQueue[str | None] = SimpleQueue()
    handed: dict[str, SimpleQueue[Piece | None]] = {name: SimpleQueue() for name in files}
    written: dict[str, dict[str, Any]] = {}
    problems: list[Exception] = []

    def next_piece(name: str) -> Piece | None:
        asked.put(name)
        return handed[name].get()

    def write(name: str) -> None:
        try:
            written[name] = _write(folder / name, iter(partial(next_piece, name), None))
        except Exception as problem:
            problems.append(problem)
        asked.put(None)

    for name in files:
        Thread(target=write, args=(name,), daemon=True).start()
    _hand_over(files, asked, handed, problems)
    if problems:
        raise problems[0]
    return {name: written[name] for name in files}


def _hand_over(
    files: Mapping[str, Iterable[Piece]],
    asked: SimpleQueue[str | None],
    handed: Mapping[str, SimpleQueue[Piece | None]],
    problems: list[Exception],
) -> None:
    """Until every file's thread is done; after the first problem there are no more pieces."""
    pieces = {name: iter(files[name]) for name in files}
    running = len(files)
    while running:
        name = asked.get()
        if name is None:
            running -= 1
            continue
        piece = None
        if not problems:
            try:
                piece = next(pieces[name], None)
            except Exception as problem:
                problems.append(problem)
        handed[name].put(piece)


def _write(path: Path, pieces: Iterable[Piece]) -> dict[str, Any]:
    """Make the file, write, sync; what the manifest says of it."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    size = 0
    with path.open("xb") as file:
        for piece in pieces:
            file.write(piece)
            digest.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return {"size": size, "xxh3_128": digest.hexdigest()}


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Delete a checkpoint: first out of sight by one rename, so that no reader sees half of one."""
    trash = path.with_name(f".trash-{path.name}-{os.getpid()}")
    path.rename(trash)
    import shutil

    shutil.rmtree(trash)


def found(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints in a folder by step, newest first; whether they are whole is not looked at."""
    if not folder.is_dir():
        return []
    named = ((NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted(((int(match[1]), path) for match, path in named if match), reverse=True)


def load(path: Path) -> Checkpoint:
    """Read a checkpoint whose files are as the manifest says. Raises E-CKPT-001 naming what is wrong."""
    import msgspec
    from safetensors.numpy import load as tensors_of

    if not path.is_dir():
        raise Error("E-CKPT-002", f"no checkpoint {path}")
    content = {name: _read_checked(path, name, entry) for name, entry in _manifest(path).items()}
    for name in (PARAMETERS, OPTIMIZER, STATE):
        if name not in content:
            raise Error("E-CKPT-001", f"{path}: the manifest has no {name}")
    state = msgspec.json.decode(content[STATE], type=dict[str, Any])
    averages = tensors_of(content[AVERAGES]) if AVERAGES in content else {}
    return Checkpoint(path, tensors_of(content[PARAMETERS]), tensors_of(content[OPTIMIZER]), state, averages)


def _manifest(path: Path) -> dict[str, dict[str, Any]]:
    import msgspec

    try:
        text = (path / MANIFEST).read_bytes()
        files = msgspec.json.decode(text, type=dict[str, dict[str, dict[str, Any]]])["files"]
    except (OSError, msgspec.DecodeError, KeyError) as problem:
        raise Error("E-CKPT-001", f"{path}: no manifest that can be read ({problem})") from problem
    for name in files:
        if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
            raise Error("E-CKPT-001", f"{path}: the manifest names {name!r}")
    return files


def _read_checked(path: Path, name: str, entry: Mapping[str, Any]) -> bytes:
    from xxhash import xxh3_128

    try:
        content = (path / name).read_bytes()
    except OSError as problem:
        raise Error("E-CKPT-001", f"{path / name}: {problem.strerror or problem}") from problem
    if len(content) != entry.get("size"):
        raise Error("E-CKPT-001", f"{path / name}: {len(content)} bytes, the manifest says {entry.get('size')}")
    if xxh3_128(content).hexdigest() != entry.get("xxh3_128"):
        raise Error("E-CKPT-001", f"{path / name}: the content is not what was written")
    return content


def prune(folder: Path, keep: int, spared: Iterable[Path] = ()) -> None:
    """Remove all but the `keep` newest checkpoints and those spared."""
    for _, path in found(folder)[keep:]:
        if path not in spared:
            remove(path)
