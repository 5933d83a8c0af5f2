"""What a kernel takes of a card, read from its machine code: an ELF file whose sections say it kernel by kernel.

The bytes that spills store and load stand only in the log of the assembler (`--warn-on-spills`), so it is read too.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

# ident, type, machine, version, entry, place of the program headers and of the sections, flags, then six sizes
_HEADER = struct.Struct("<16sHHIQQQI6H")
# name, type, flags, address, place, size, link, info, alignment, size of an entry
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_ATTRIBUTE = struct.Struct("<BBH")
_PARAMETER = struct.Struct("<IHHI")
_CUDA = 190  # the machine's number in an ELF file
_NO_BYTES = 8  # the type of a section that only has a size
_INFO_OF = ".nv.info."  # then the kernel's name
_WITH_BYTES = 4  # the form of an attribute that is followed by as many bytes as its value says
# Attributes of the sections `.nv.info`, by their numbers.
_MAX_THREADS, _FRAME_SIZE, _PARAMETER_INFO, _PARAMETER_BYTES, _REGISTERS = 0x05, 0x11, 0x17, 0x19, 0x2F
# Every block of a card of compute capability 9.0 or newer gives so much shared memory to the system, and a kernel's
# section counts it; the source's own is the rest.
_RESERVED_BYTES, _RESERVED_FROM = 1024, 90
_SPILLED = re.compile(r"in function '(\w+)', (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Resources:
    """What one kernel takes. `parameters`: (offset, bytes) of each, in order; `max_threads` of its launch bounds."""

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    shared_bytes: int
    parameters: tuple[tuple[int, int], ...]
    parameter_bytes: int
    max_threads: int | None = None


class _Section(NamedTuple):
    name: str
    data: bytes
    size: int


def arch_of(cubin: bytes) -> int:
    """The compute capability that machine code is for, 90 for 9.0."""
    ident, _, machine, *_ = _HEADER.unpack_from(cubin)
    assert ident[:4] == b"\x7fELF" and machine == _CUDA, "this is no cubin"
    flags: int = _HEADER.unpack_from(cubin)[7]
    return flags >> 8 & 0xFF


def resources(cubin: bytes, log: str) -> dict[str, Resources]:
    """Kernel name → what it takes. `log` is what the compile of this cubin said, with `--warn-on-spills`."""
    reserved = _RESERVED_BYTES if arch_of(cubin) >= _RESERVED_FROM else 0
    sections = {section.name: section for section in _sections(cubin)}
    counts = _counts(sections)
    spilled = {name: (int(stores), int(loads)) for name, stores, loads in _SPILLED.findall(log)}
    found = {}
    for name in sorted(name.removeprefix(_INFO_OF) for name in sections if name.startswith(_INFO_OF)):
        shared = sections.get(f".nv.shared.{name}")
        parameters, parameter_bytes, max_threads = _launch(sections[_INFO_OF + name].data)
        found[name] = Resources(
            registers=counts[_REGISTERS, name],
            spill_store_bytes=spilled.get(name, (0, 0))[0],
            spill_load_bytes=spilled.get(name, (0, 0))[1],
            stack_bytes=counts[_FRAME_SIZE, name],
            shared_bytes=shared.size - reserved if shared else 0,
            parameters=parameters,
            parameter_bytes=parameter_bytes,
            max_threads=max_threads,
        )
    return found


def _sections(cubin: bytes) -> list[_Section]:
    *_, start, _, _, _, _, entry_bytes, count, names = _HEADER.unpack_from(cubin)
    rows = [_SECTION.unpack_from(cubin, start + k * entry_bytes) for k in range(count)]
    texts = cubin[rows[names][4] :]
    return [
        _Section(_string(texts, name), b"" if kind == _NO_BYTES else cubin[place : place + size], size)
        for name, kind, _, _, place, size, *_ in rows
    ]


def _string(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _attributes(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number, value, and the bytes that follow, of each attribute of a section `.nv.info`."""
    place = 0
    while place < len(data):
        form, number, value = _ATTRIBUTE.unpack_from(data, place)
        place += _ATTRIBUTE.size
        size = value if form == _WITH_BYTES else 0
        yield number, value, data[place : place + size]
        place += size


def _counts(sections: dict[str, _Section]) -> dict[tuple[int, str], int]:
    """(attribute, kernel) → its number, of the attributes that name their kernel by its symbol."""
    texts = sections[".strtab"].data
    names = [_string(texts, start) for start, *_ in _SYMBOL.iter_unpack(sections[".symtab"].data)]
    found = {}
    for number, _, data in _attributes(sections[".nv.info"].data):
        if number in (_REGISTERS, _FRAME_SIZE):
            symbol, value = struct.unpack("<II", data)
            found[number, names[symbol]] = value
    return found


def _launch(data: bytes) -> tuple[tuple[tuple[int, int], ...], int, int | None]:
    """The parameters of a kernel, all their bytes, and the threads of its launch bounds."""
    parameters, parameter_bytes, max_threads = {}, 0, None
    for number, value, content in _attributes(data):
        if number == _PARAMETER_INFO:
            _, ordinal, offset, facts = _PARAMETER.unpack(content)
            parameters[ordinal] = (offset, facts >> 18)
        elif number == _PARAMETER_BYTES:
            parameter_bytes = value
        elif number == _MAX_THREADS:
            max_threads = math.prod(struct.unpack("<III", content))
    return tuple(parameters[ordinal] for ordinal in sorted(parameters)), parameter_bytes, max_threads
