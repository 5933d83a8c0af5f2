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


def whole(path: Path, spec: LoaderSpec, read: Callable[[], T]) -> T:
    """What `read` gives. What the readers of a format raise at a damaged file, which is nearly anything, is E-DATA-005."""
    try:
        return guarded(path, spec, read)
    except (Error, AssertionError):
        raise
    except Exception as problem:
        raise Error("E-DATA-005", f"{path}: not a whole {path.suffix} file: {problem}", spec.span) from problem


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
    reader = ARRAY_READERS.get(path.suffix.lower())
    if reader is None:
        known = ", ".join(ARRAY_READERS)
        raise Error("E-DATA-005", f"{path}: arrays are read from {known}", spec.span)
    return whole(path, spec, lambda: reader(path))


def array_in(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...], begin: int, fortran: bool = False) -> Array:
    """An array that stands in a file as it stands in memory, mapped read-only."""
    if 0 in shape:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "r", begin, shape, "F" if fortran else "C").view(np.ndarray)


def npy_arrays(path: Path) -> Mapping[str, StoredArray]:
    with path.open("rb") as file:
        return {path.stem: npy_array(file, path.stat().st_size, path, 0)}


def npz_arrays(path: Path) -> Mapping[str, StoredArray]:
    """Compressed arrays are read whole, others where they lie."""
    import zipfile

    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as plain:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            begin = None
            if member.compress_type == zipfile.ZIP_STORED:
                # A member's bytes follow its local header of 30 bytes, its name and its extra field.
                plain.seek(member.header_offset + 26)
                lengths = np.frombuffer(plain.read(4), "<u2")
                begin = member.header_offset + 30 + int(lengths.sum(dtype=np.int64))
            with archive.open(member) as file:
                found[name] = npy_array(file, member.file_size, path, begin)
    return found


def read_npz(path: Path, name: str) -> Array:
    with np.load(path, allow_pickle=False) as archive:
        array: Array = archive[name]
    return array


def npy_array(file: Any, size: int, path: Path, begin: int | None) -> StoredArray:
    """The header at the beginning of `file`; the `size` bytes must be exactly filled by it and the array. `begin`: where
    in the file they stand as they are; None: nowhere."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(file)
    data_bytes = size - file.tell()
    if not dtype.hasobject and data_bytes != dtype.itemsize * math.prod(shape):
        raise ValueError(f"{data_bytes} bytes of data do not fill {list(shape)} of {dtype}")
    if begin is None:
        return StoredArray(path, dtype.name, shape, partial(read_npz, path, str(file.name).removesuffix(".npy")))
    return StoredArray(path, dtype.name, shape, partial(array_in, path, dtype, shape, begin + file.tell(), fortran))


# The dtypes of safetensors under NumPy's names; others have no NumPy type.
SAFETENSORS_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def safetensors_arrays(path: Path) -> Mapping[str, StoredArray]:
    from safetensors import SafetensorError, safe_open

    try:
        # It checks that the header is one, and that the arrays fill the file.
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as problem:
        raise ValueError(str(problem)) from problem
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        entries = msgspec.json.decode(file.read(length), type=dict[str, dict[str, Any]])
    return {
        name: safetensors_array(path, entry, 8 + length + entry["data_offsets"][0])
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def safetensors_array(path: Path, entry: Mapping[str, Any], begin: int) -> StoredArray:
    dtype = SAFETENSORS_DTYPES.get(entry["dtype"], entry["dtype"])
    shape = tuple(entry["shape"])
    return StoredArray(path, dtype, shape, lambda: array_in(path, dtype_named(dtype), shape, begin))


def dtype_named(name: str) -> np.dtype[Any]:
    import ml_dtypes

    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    return found


ARRAY_READERS: dict[str, Callable[[Path], Mapping[str, StoredArray]]] = {
    ".npy": npy_arrays,
    ".npz": npz_arrays,
    ".safetensors": safetensors_arrays,
}
