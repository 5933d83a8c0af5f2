"""Arrays made from data files and kept in the cache folder: written whole, mapped when read, made again where damaged.

An entry holds its arrays end to end, each at a multiple of 64 bytes; then a JSON footer with their names, dtypes,
shapes and places and the xxh3_128 of all bytes before it; then the footer's length (u64, little endian) and MAGIC.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu import private

Array = NDArray[Any]

MAGIC = b"sexpgpu1"
SUFFIX = ".arrays"
DIGEST_SUFFIX = ".digest"
ALIGNED = 64
# So many entries are kept, those that were made last; digests are a line each.
MOST_ENTRIES = 256
MOST_DIGESTS = 4096
HASHED_AT_ONCE = 1 << 24


class Place(msgspec.Struct, frozen=True):
    """Where an array stands in an entry."""

    dtype: str
    shape: tuple[int, ...]
    begin: int

    @property
    def count(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))


class Footer(msgspec.Struct, frozen=True):
    places: dict[str, Place]
    digest: str
    end: int


class Kept:
    """The arrays that `make` gives, under a key that says what they are made of. Without a folder: in memory.

    `places` reads the footer alone; `arrays` maps the entry and checks its digest, once.
    """

    def __init__(self, cache: Path | None, key: str, make: Callable[[], Mapping[str, Array]]) -> None:
        folder = folder_in(cache)
        name = hashlib.sha256(key.encode()).hexdigest()[:32] + SUFFIX
        self.path = None if folder is None else folder / name
        self.make = make
        self._arrays: Mapping[str, Array] | None = None
        self._footer: Footer | None = None

    def places(self) -> Mapping[str, Place]:
        """Names, dtypes and shapes."""
        if self._footer is None and self._arrays is None:
            self._footer = self._stored_footer()
        if self._footer is not None:
            return self._footer.places
        return {name: Place(array.dtype.str, array.shape, 0) for name, array in self.arrays().items()}

    def arrays(self) -> Mapping[str, Array]:
        """The arrays, read-only where they are mapped."""
        if self._arrays is None:
            self._arrays = self._stored()
        if self._arrays is None:
            self._arrays = self.make()
            self._keep(self._arrays)
        return self._arrays

    def _stored_footer(self) -> Footer | None:
        """None: there is no entry, or none that ends as one does."""
        if self.path is None:
            return None
        try:
            return footer_of(self.path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as problem:
            self._damaged(problem)
            return None

    def _stored(self) -> Mapping[str, Array] | None:
        footer = self._stored_footer()
        if footer is None or self.path is None:
            return None
        try:
            content = np.memmap(self.path, np.uint8, "r")[: footer.end].view(np.ndarray)
            if digest_of_bytes([content]) != footer.digest:
                raise ValueError("its bytes are not those that were written")
            return {name: array_at(content, place) for name, place in footer.places.items()}
        except (OSError, ValueError) as problem:
            self._damaged(problem)
            return None

    def _damaged(self, problem: Exception) -> None:
        say(f"data: the cache entry {self.path} was damaged and is made again ({problem})")
        assert self.path is not None
        self.path.unlink(missing_ok=True)

    def _keep(self, arrays: Mapping[str, Array]) -> None:
        if self.path is None:
            return
        try:
            private.replace(self.path, *written(arrays))
            private.prune(self.path.parent, SUFFIX, MOST_ENTRIES)
        except OSError as problem:
            say(f"data: {self.path} cannot be written ({problem.strerror}); what it would hold is made at every start")


def folder_in(cache: Path | None) -> Path | None:
    """The folder of entries; None where there is none that can be used, which is said."""
    if cache is None:
        return None
    folder = cache / "data"
    reason = private.refusal(folder)
    if reason:
        say(f"data: nothing is kept in {folder} ({reason})")
    return None if reason else folder


def written(arrays: Mapping[str, Array]) -> list[bytes | memoryview]:
    """An entry in pieces."""
    places, pieces, at = {}, list[bytes | memoryview](), 0
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        places[name] = Place(whole.dtype.str, whole.shape, at)
        filling = bytes(-whole.nbytes % ALIGNED)
        pieces += [whole.reshape(-1).view(np.uint8).data, filling]
        at += whole.nbytes + len(filling)
    footer = msgspec.json.encode(Footer(places, digest_of_bytes(pieces), at))
    return [*pieces, footer, len(footer).to_bytes(8, "little"), MAGIC]


def footer_of(path: Path) -> Footer:
    """ValueError where the file does not end as an entry does."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 16))
        end = file.read(16)
        length = int.from_bytes(end[:8], "little")
        if end[8:] != MAGIC or length > size - 16:
            raise ValueError("it has no footer")
        file.seek(size - 16 - length)
        footer = msgspec.json.decode(file.read(length), type=Footer)
    if footer.end != size - 16 - length:
        raise ValueError("its size is not that of its arrays")
    return footer


def array_at(content: Array, place: Place) -> Array:
    dtype = np.dtype(place.dtype)
    found: Array = content[place.begin : place.begin + place.count * dtype.itemsize].view(dtype).reshape(place.shape)
    return found


def digest_of_bytes(pieces: Iterable[Any]) -> str:
    """The xxh3_128 of byte strings end to end."""
    from xxhash import xxh3_128

    digest = xxh3_128()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def digest_of(path: Path, cache: Path | None) -> str:
    """The xxh3_128 of a file's content, remembered by path, size, times and inode."""
    facts = path.stat()
    known = f"{path.absolute()}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ctime_ns}\0{facts.st_ino}"
    folder = folder_in(cache)
    memo = None
    if folder is not None:
        memo = folder / (hashlib.sha256(known.encode(errors="surrogateescape")).hexdigest()[:32] + DIGEST_SUFFIX)
        if memo.is_file() and len(found := memo.read_text("ascii", "replace")) == 32:
            return found
    with path.open("rb") as file:
        found = digest_of_bytes(iter(lambda: file.read(HASHED_AT_ONCE), b""))
    if memo is not None:
        try:
            private.replace(memo, found.encode())
            private.prune(memo.parent, DIGEST_SUFFIX, MOST_DIGESTS)
        except OSError:
            # It is found again at the next start; that nothing can be written is said where an entry is kept.
            pass
    return found


def say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
