"""Data files: which ones a loader names, and what stands in the headers of token files, `.npy`, `.npz`, `.safetensors`.

Nothing here trusts a file: sizes and offsets are checked against the file before anything is allocated or mapped.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping
from functools import partial
from glob import glob
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error
from sexpgpu.loaderspec import LoaderSpec

Array = NDArray[Any]
T = TypeVar("T")

# The first number of llm.c's header: (the dtype of the tokens, their vocabulary).
LLM_C_MAGIC = {20240520: ("u16", 50257), 20240801: ("u32", 128256)}
LLM_C_HEADER_BYTES = 1024
TOKEN_DTYPES = {"u16": "<u2", "u32": "<u4"}


def files_of(spec: LoaderSpec) -> list[Path]:
    """The loader's files, globs expanded, in sorted order."""
    found: list[Path] = []
    for pattern in spec.paths:
        path = spec.base / pattern
        matches = [path] if path.exists() else [Path(match) for match in glob(str(path), recursive=True)]
        if not matches:
            what = "no file matches" if any(c in pattern for c in "*?[") else "there is no file"
            raise Error("E-DATA-001", f"{what} {pattern}", spec.span, notes=[f"looked for {path.absolute()}"])
        found += [match for match in matches if match.is_file() or match == path]
    for path in found:
        if not path.is_file():
            raise Error("E-DATA-001", f"{path} is not a file", spec.span)
    return sorted(found, key=Path.as_posix)


def sized(path: Path, spec: LoaderSpec) -> int:
    """The size of a file in bytes."""
    return guarded(path, spec, lambda: path.stat().st_size)


def mapped(path: Path, spec: LoaderSpec, dtype: str = "u1", skip_bytes: int = 0) -> Array:
    """The file's contents after `skip_bytes`, memory-mapped, read-only."""

    def open_map() -> Array:
        with path.open("rb") as file:
            if path.stat().st_size <= skip_bytes:
                return np.empty(0, dtype)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype, offset=skip_bytes)

    return guarded(path, spec, open_map)


def guarded(path: Path, spec: LoaderSpec, read: Callable[[], T]) -> T:
    """What `read` gives; a failure of the system becomes E-DATA-001 at the loader."""
    try:
        return read()
    except OSError as problem:
        raise Error("E-DATA-001", f"cannot read {path}: {problem.strerror or problem}", spec.span) from problem


class TokenFile(msgspec.Struct, frozen=True):
    """Where the tokens stand in a token file."""

    path: Path
    dtype: str
    skip_bytes: int
    count: int
    vocabulary: int | None


def token_file(path: Path, spec: LoaderSpec) -> TokenFile:
    """nanoGPT's bare tokens, or llm.c's after a header of 256 int32: magic, version, number of tokens."""
    size = sized(path, spec)
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12), "<i4") if size >= LLM_C_HEADER_BYTES else np.empty(0, "<i4")
    if not (head.size and int(head[0]) in LLM_C_MAGIC):
        dtype = spec.dtype or "u16"
        width = np.dtype(TOKEN_DTYPES[dtype]).itemsize
        if size % width:
            raise Error("E-DATA-005", f"{path}: {size} bytes are no whole number of {dtype} tokens", spec.span)
        return TokenFile(path, dtype, 0, size // width, None)
    dtype, vocabulary = LLM_C_MAGIC[int(head[0])]
    if spec.dtype not in (None, dtype):
        raise Error("E-DATA-005", f"{path}: its header says {dtype}, the loader says {spec.dtype}", spec.span)
    count = (size - LLM_C_HEADER_BYTES) // np.dtype(TOKEN_DTYPES[dtype]).itemsize
    if int(head[2]) != count:
        raise Error("E-DATA-005", f"{path}: its header says {int(head[2])} tokens, it holds {count}", spec.span)
    return TokenFile(path, dtype, LLM_C_HEADER_BYTES, count, vocabulary)


class StoredArray(msgspec.Struct, frozen=True):
    """One array of a file: its header, and how to read it."""

    path: Path
    stored_dtype: str
    shape: tuple[int, ...]
    read: Callable[[], Array]


def stored_arrays(path: Path, spec: LoaderSpec) -> Mapping[str, StoredArray]:
    """The arrays of a `.npy` (named after the file), `.npz` or `.safetensors`, by name."""
    import zipfile

    reader = ARRAY_READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(ARRAY_READERS)
        raise Error("E-DATA-005", f"{path}: arrays are read from {known}", spec.span)
    try:
        return guarded(path, spec, lambda: reader(path))
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as problem:
        raise Error("E-DATA-005", f"{path}: not a whole {path.suffix} file: {problem}", spec.span) from problem


def npy_arrays(path: Path) -> Mapping[str, StoredArray]:
    with path.open("rb") as file:
        return {path.stem: npy_array(file, path.stat().st_size, path, partial(read_npy, path))}


def read_npy(path: Path) -> Array:
    return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def npz_arrays(path: Path) -> Mapping[str, StoredArray]:
    import zipfile

    found = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as file:
                found[name] = npy_array(file, member.file_size, path, partial(read_npz, path, name))
    return found


def read_npz(path: Path, name: str) -> Array:
    with np.load(path, allow_pickle=False) as archive:
        array: Array = archive[name]
    return array


def npy_array(file: Any, size: int, path: Path, read: Callable[[], Array]) -> StoredArray:
    """The header at the beginning of `file`; the `size` bytes must be exactly filled by it and the array."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(file)
    data_bytes = size - file.tell()
    if not dtype.hasobject and data_bytes != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{data_bytes} bytes of data do not fill {list(shape)} of {dtype}")
    return StoredArray(path, dtype.name, shape, read)


# The dtypes of safetensors under NumPy's names; others have no NumPy type.
SAFETENSORS_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def safetensors_arrays(path: Path) -> Mapping[str, StoredArray]:
    from safetensors import SafetensorError, safe_open

    found = {}
    try:
        with safe_open(path, framework="numpy") as archive:
            for name in archive.keys():  # noqa: SIM118
                entry = archive.get_slice(name)
                dtype = SAFETENSORS_DTYPES.get(entry.get_dtype(), entry.get_dtype())
                found[name] = StoredArray(path, dtype, tuple(entry.get_shape()), partial(read_safetensors, path, name))
    except SafetensorError as problem:
        raise ValueError(str(problem)) from problem
    return found


def read_safetensors(path: Path, name: str) -> Array:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as archive:
        array: Array = archive.get_tensor(name)
    return array


ARRAY_READERS: dict[str, Callable[[Path], Mapping[str, StoredArray]]] = {
    ".npy": npy_arrays,
    ".npz": npz_arrays,
    ".safetensors": safetensors_arrays,
}
