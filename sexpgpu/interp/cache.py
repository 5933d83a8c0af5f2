"""The folder of compiled kernels: one file a kernel, and one that joins all kernels of a plan for the next start.

A key is the hash of a kernel's text (a program's repr) and of everything else that decides its code: the versions of
Numba and LLVM, the CPU's name and features, and our own files that translate. Files are written under another name
and renamed; one that does not hold what it says is made again. The folder holds code, so it is used only if it is this
user's and closed to others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec
import xxhash

from sexpgpu.installed import version_of
from sexpgpu.interp.flatten import flatten
from sexpgpu.interp.processor import processor
from sexpgpu.private import refusal, replace

_KERNEL, _BUNDLE = b"sxkern02", b"sxbund02"
# magic, 1 if flat and 0 if ELF, entry, length of the code, hash of all that follows
_HEAD = struct.Struct("<8sIIQ16s")
# magic, count of kernels, place of the code in the file, hash of all that follows; then (key, entry) of each kernel
_BUNDLE_HEAD = struct.Struct("<8sIIQ16s")
_ROW = struct.Struct("<16sQ")
_ALIGNMENT = 64
# Files that decide how a program becomes code.
_TRANSLATORS = (
    "ops/arithmetic.py",
    "ops/transcendental.py",
    "ops/formulas.py",
    "interp/tracer.py",
    "interp/intrinsics.py",
    "interp/frontend.py",
    "interp/compiling.py",
    "interp/loading.py",
    "interp/flatten.py",
    "ops/pointwise.py",
    "codegen/layout.py",
    "codegen/stages.py",
    "codegen/source.py",
    "codegen/numba_kernel.py",
    "codegen/numba_rows.py",
    "codegen/numba_columns.py",
    "codegen/numba_reductions.py",
    "codegen/numba_indexed.py",
    "codegen/numba_product.py",
    "codegen/llvm_text.py",
    "codegen/gemm.py",
    "codegen/gemm_tile.py",
    "codegen/gemm_pack.py",
)


class Code(msgspec.Struct, frozen=True):
    """A compiled kernel: flat code with its entry, or an ELF object that exports the kernel by its key."""

    flat: bool
    entry: int
    data: bytes


def identity() -> str:
    """Everything but its text that decides a kernel's code."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(processor().encode())
    for name in ("numba", "llvmlite"):
        digest.update(f"{name} {version_of(name)}\n".encode())
    for name in _TRANSLATORS:
        digest.update((package / name).read_bytes())
    return digest.hexdigest()


def _opened(folder: Path) -> tuple[Path, list[str]]:
    """The folder, or a private one where it cannot be trusted, and the lines that say why."""
    reason = refusal(folder)
    if not reason:
        return folder, []
    import tempfile

    private = Path(tempfile.mkdtemp(prefix="sexpgpu-"))
    return private, [f"kernel cache: {folder} is not used ({reason}); this process has its own"]


class Cache:
    """Compiled kernels by key."""

    def __init__(self, folder: Path | str) -> None:
        self.folder, self.report = _opened(Path(folder))

    @cached_property
    def _identity(self) -> str:
        return identity()

    def key(self, text: str) -> str:
        """The key of the kernel that this text says, 32 hexadecimal digits; its function's name is `k_KEY`."""
        return hashlib.sha256(f"{self._identity}\n{text}".encode()).hexdigest()[:32]

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.kernel"

    def write(self, key: str, elf: bytes) -> None:
        """Keeps a kernel's object."""
        flat = flatten(elf)
        entry = flat.entries[f"k_{key}"] if flat else 0
        data = flat.code if flat else elf
        replace(self.path(key), _HEAD.pack(_KERNEL, bool(flat), entry, len(data), _digest(data)) + data)

    def read(self, key: str) -> Code | None:
        """The kernel of this key; None where there is none that is whole."""
        try:
            raw = self.path(key).read_bytes()
        except OSError:
            return None
        if len(raw) < _HEAD.size:
            return None
        magic, flat, entry, length, digest = _HEAD.unpack_from(raw)
        data = raw[_HEAD.size :]
        if magic != _KERNEL or len(data) != length or entry >= max(length, 1) or digest != _digest(data):
            return None
        return Code(bool(flat), entry, data)

    def bundle_path(self, keys: Sequence[str]) -> Path:
        """The file that joins these kernels."""
        name = hashlib.sha256(" ".join(sorted(keys)).encode()).hexdigest()[:32]
        return self.folder / f"{name}.bundle"

    def write_bundle(self, path: Path, kernels: dict[str, Code]) -> bytes:
        """Joins flat kernels in one file; gives its bytes."""
        start = _BUNDLE_HEAD.size + _ROW.size * len(kernels)
        start += -start % _ALIGNMENT
        rows, image = b"", bytearray()
        for key, code in kernels.items():
            image += bytes(-len(image) % _ALIGNMENT)
            rows += _ROW.pack(bytes.fromhex(key), start + len(image) + code.entry)
            image += code.data
        body = rows + bytes(start - _BUNDLE_HEAD.size - len(rows)) + bytes(image)
        whole = _BUNDLE_HEAD.pack(_BUNDLE, len(kernels), start, len(body), _digest(body)) + body
        replace(path, whole)
        return whole


def _digest(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_128_digest(data)


def entries_of(bundle: memoryview) -> dict[str, int] | None:
    """Key → place in the file of every kernel of a bundle; None where the file is not whole."""
    if len(bundle) < _BUNDLE_HEAD.size:
        return None
    magic, count, start, length, digest = _BUNDLE_HEAD.unpack_from(bundle)
    body = bundle[_BUNDLE_HEAD.size :]
    if magic != _BUNDLE or len(body) != length or digest != _digest(body):
        return None
    rows = (_ROW.unpack_from(body, _ROW.size * k) for k in range(count))
    found = {key.hex(): place for key, place in rows}
    return found if all(start <= place < len(bundle) for place in found.values()) else None
