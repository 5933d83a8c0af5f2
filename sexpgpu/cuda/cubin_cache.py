"""The folder of compiled CUDA modules: one file a module, found by all that decides its code and never by the code."""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import xxhash

from sexpgpu.cuda.library import BUILTINS, NVRTC, find
from sexpgpu.cuda.nvrtc import Compiled, version
from sexpgpu.private import refusal, replace

_MAGIC = b"sxcubin1"
# magic, bytes of the image, bytes of the log, hash of both
_HEAD = struct.Struct("<8sQQ16s")


@dataclass(frozen=True)
class Module:
    """What the driver loads: machine code, or PTX that ends in a 0 where the arch is a virtual one; and NVRTC's log."""

    image: bytes
    log: str

    @staticmethod
    def of(made: Compiled) -> Module:
        return Module(made.cubin or made.ptx.encode() + b"\0", made.log)


class Damaged(Exception):
    """An entry that does not hold what its head says."""


def toolchain() -> str:
    """Everything of the compiler that decides code: NVRTC's version and its builtins. Raises E-DEV-003 without them."""
    major, minor = version()
    compiler, builtins = find(NVRTC), find(BUILTINS)
    assert compiler and builtins, "they were just loaded"
    digest = xxhash.xxh3_128_hexdigest(builtins.path.read_bytes())
    return f"NVRTC {major}.{minor} {compiler.version} of {compiler.path.stat().st_size} bytes, builtins {digest}"


class CubinCache:
    """Compiled modules by key. `compiler` stands for the installed one where it is given."""

    def __init__(self, folder: Path | str, compiler: str = "") -> None:
        self.folder = Path(folder)
        self.report: list[str] = []
        self._compiler = compiler
        reason = refusal(self.folder)
        if reason:
            self.report.append(f"kernel cache: {folder} is not used ({reason}); every start compiles its kernels anew")
            self._own = tempfile.TemporaryDirectory(prefix="sexpgpu-")
            self.folder = Path(self._own.name)

    @cached_property
    def compiler(self) -> str:
        return self._compiler or toolchain()

    def key(self, source: str, arch: str, options: Sequence[str]) -> str:
        """The key of what a source becomes, 64 hexadecimal digits."""
        parts = (self.compiler, arch, *options, source)
        digest = hashlib.sha256()
        for part in parts:
            # Its length first: parts that are joined otherwise are other parts.
            data = part.encode()
            digest.update(struct.pack("<Q", len(data)) + data)
        return digest.hexdigest()

    def path(self, key: str) -> Path:
        return self.folder / f"{key}.cubin"

    def write(self, key: str, module: Module) -> None:
        log = module.log.encode()
        head = _HEAD.pack(_MAGIC, len(module.image), len(log), xxhash.xxh3_128_digest(module.image + log))
        replace(self.path(key), head + module.image + log)

    def read(self, key: str) -> Module | None:
        """The module of this key, None where there is none. Raises Damaged where the file is not whole."""
        try:
            raw = self.path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise Damaged(str(problem)) from None
        if len(raw) < _HEAD.size:
            raise Damaged(f"{len(raw)} bytes")
        magic, image_bytes, log_bytes, digest = _HEAD.unpack_from(raw)
        data = raw[_HEAD.size :]
        if magic != _MAGIC or len(data) != image_bytes + log_bytes or digest != xxhash.xxh3_128_digest(data):
            raise Damaged("its content is not what was written")
        return Module(data[:image_bytes], data[image_bytes:].decode())
