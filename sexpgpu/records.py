"""Records to bytes and back, for files that are read at every start: nested lists and plain values, written by marshal
under a hash of them.

Only this user's own folders hold such files: marshal trusts what it reads.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_PLAIN = (type(None), bool, int, float, str)
# What stands first in the list of something that is not plain; records and foreign types have their number there.
_TUPLE, _SET, _DICT = -1, -2, -3
_DIGEST_BYTES = 16

# To a value of which every part can be written, and back.
Foreign = tuple[Callable[[Any], Any], Callable[[Any], Any]]


class Codec:
    """Of these records, by their number, and of types that are written as something else."""

    def __init__(self, records: Sequence[type], foreign: Mapping[type, Foreign] | None = None) -> None:
        self._records = tuple(records)
        self._foreign = dict(foreign or {})
        self._numbers = {kind: number for number, kind in enumerate([*records, *self._foreign])}
        self._names: list[tuple[str, ...]] = [record.__match_args__ for record in records]  # type: ignore[attr-defined]
        self._back = [back for _, back in self._foreign.values()]

    def encoded(self, value: Any, known: dict[str, Any] | None = None) -> Any:
        """A record, or any part of it, as nested lists and plain values; what is written alike is one object (0.0 and
        -0.0 are not), and marshal keeps it one."""
        known = {} if known is None else known
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is frozenset:
            made: Any = [_SET, *sorted(value)]
        elif kind is dict:
            made = [_DICT, *(self.encoded(part, known) for pair in value.items() for part in pair)]
        elif kind is tuple:
            parts = tuple(self.encoded(part, known) for part in value)
            made = [_TUPLE, *parts] if any(type(part) is list for part in parts) else parts
        elif kind in self._foreign:
            made = [self._numbers[kind], self.encoded(self._foreign[kind][0](value), known)]
        elif kind in self._numbers:
            number = self._numbers[kind]
            made = [number, *(self.encoded(getattr(value, name), known) for name in self._names[number])]
        else:
            # A number or text that knows more than its value, such as where it was written.
            plain = next((plain for plain in (int, float, str) if isinstance(value, plain)), None)
            assert plain is not None, f"{kind} is no record of this codec"
            return plain(value)
        return known.setdefault(repr(made), made)

    def decoded(self, value: Any, known: dict[int, Any] | None = None) -> Any:
        """What `encoded` was given."""
        if type(value) is not list:
            return value
        known = {} if known is None else known
        found = known.get(id(value))
        if found is None:
            parts = [self.decoded(x, known) if type(x) is list else x for x in value[1:]]
            found = known[id(value)] = self._made(value[0], parts)
        return found

    def _made(self, number: int, parts: list[Any]) -> Any:
        if number == _TUPLE:
            return tuple(parts)
        if number == _SET:
            return frozenset(parts)
        if number == _DICT:
            return dict(zip(parts[::2], parts[1::2], strict=True))
        if number >= len(self._records):
            return self._back[number - len(self._records)](*parts)
        return self._records[number](*parts)

    def written(self, value: Any) -> bytes:
        """The content of a file."""
        import xxhash

        data = marshal.dumps(self.encoded(value))
        return xxhash.xxh3_128_digest(data) + data

    def read(self, content: bytes) -> Any:
        """What `written` was given. ValueError where the content is not whole."""
        import xxhash

        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != xxhash.xxh3_128_digest(data):
            raise ValueError("not the content that was written")
        return self.decoded(marshal.loads(data))  # noqa: S302 only this user writes to the folder
