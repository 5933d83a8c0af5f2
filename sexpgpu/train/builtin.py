"""Data that comes with sexpgpu: Python's own sources, a generated text and generated digits."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sexpgpu.randomness import key_of, words_of
from sexpgpu.train.glyphs import GLYPHS
from sexpgpu.train.prose import prose

Bytes = NDArray[Any]

# Tests, other people's code, and files that differ between two installations of one version or hold tables of numbers.
LEFT_OUT_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "__pycache__"}
LEFT_OUT_PREFIXES = ("_sysconfigdata",)


class BuiltinText(Protocol):
    """A text whose size is known without reading it."""

    def size_bytes(self) -> int: ...

    def bytes(self) -> Bytes: ...


class StandardLibrary:
    """The `.py` files of this Python's standard library, end to end, sorted by their path in it.

    With a cache folder the joined text is kept there, under the hash of the listing (path, size, mtime of each file).
    """

    def __init__(self, cache: Path | None, root: Path | None = None) -> None:
        self.root = root or Path(sysconfig.get_path("stdlib"))
        self.listing = own_listing() if root is None else sorted(python_files(str(root), ""))
        described = "".join(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n" for path, status in self.listing)
        name = f"stdlib-{hashlib.sha256(described.encode()).hexdigest()[:24]}.txt"
        self.kept = None if cache is None else cache / "text" / name

    def size_bytes(self) -> int:
        return sum(status.st_size for _, status in self.listing)

    def bytes(self) -> Bytes:
        if self.kept is not None and self.kept.is_file() and self.kept.stat().st_size == self.size_bytes():
            return np.memmap(self.kept, np.uint8, "r").view(np.ndarray)
        joined = b"".join((self.root / path).read_bytes() for path, _ in self.listing)
        if self.kept is not None:
            keep(self.kept, joined)
        return np.frombuffer(joined, np.uint8)


@cache
def own_listing() -> list[tuple[str, os.stat_result]]:
    """This Python's own sources: a file that trains and evaluates on them asks four times."""
    return sorted(python_files(sysconfig.get_path("stdlib"), ""))


def python_files(root: str, inside: str) -> Iterator[tuple[str, os.stat_result]]:
    """Path in `root` (with /) and status of every source that belongs to the text."""
    with os.scandir(os.path.join(root, inside)) as entries:
        for entry in entries:
            path = f"{inside}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in LEFT_OUT_FOLDERS:
                    yield from python_files(root, f"{path}/")
            elif entry.name.endswith(".py") and not entry.name.startswith(LEFT_OUT_PREFIXES):
                yield path, entry.stat()


def keep(path: Path, content: bytes) -> None:
    """Write a cache entry by temporary name and rename, so that nobody reads half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


class GeneratedText:
    """Sentences of a small grammar, the same bytes on every machine."""

    def __init__(self, _cache: Path | None) -> None:
        pass

    def size_bytes(self) -> int:
        return 300_000

    def bytes(self) -> Bytes:
        return np.frombuffer(prose(self.size_bytes()), np.uint8)


TEXTS: dict[str, Callable[[Path | None], BuiltinText]] = {
    "stdlib-text": StandardLibrary,
    "text": GeneratedText,
}
DIGITS = "digits"
DIGITS_COUNT = 1797


def digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """1,797 images of 8 × 8 in sixteenths from 0 to 1, f32[1797 64], and their digits, i32[1797], 0 to 9 in turn.

    A glyph, moved by up to one pixel, drawn with a pen of strength 9 to 15, blurred into its neighbours and overlaid
    with noise: all in integers, so that every machine makes the same images.
    """
    labels = np.arange(DIGITS_COUNT) % 10
    chance = words_of(key_of(0, "digits", purpose="builtin"), DIGITS_COUNT * 72).reshape(DIGITS_COUNT, 72)
    chance = (chance >> np.uint32(8)).astype(np.int64)
    glyphs = np.array([[[pixel == "#" for pixel in row] for row in glyph] for glyph in GLYPHS], np.int64)
    variant = chance[:, 0] % 2
    ink = np.stack([
        np.roll(glyph, (down, right), (0, 1))
        for glyph, down, right in zip(
            glyphs[2 * labels + variant], chance[:, 1] % 3 - 1, chance[:, 2] % 3 - 1, strict=True
        )
    ])  # fmt: skip
    strength = (9 + chance[:, 3] % 7)[:, None, None]
    edged = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
    neighbours = edged[:, :-2, 1:-1] + edged[:, 2:, 1:-1] + edged[:, 1:-1, :-2] + edged[:, 1:-1, 2:]
    noise = chance[:, 8:].reshape(-1, 8, 8) % 7 - 3
    # A third of the pixels of the noise speak; the others keep the background clean, as a scan does.
    heard = chance[:, 8:].reshape(-1, 8, 8) // 7 % 3 == 0
    sixteenths = np.clip(ink * strength + neighbours * (1 - ink) * strength // 6 + noise * heard, 0, 16)
    return (sixteenths / 16).astype(np.float32).reshape(-1, 64), labels.astype(np.int32)
