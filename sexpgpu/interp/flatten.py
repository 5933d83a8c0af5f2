"""A relocatable ELF object as plain bytes that run wherever they are mapped, where that is possible.

Generated kernels call nothing and read nothing but their own constants. On x86-64 every reference in such an object is
relative to the instruction, so that once code and constants lie behind each other nothing depends on the place. A warm
start then maps the bytes and needs neither Numba nor llvmlite. Other objects stay ELF and are loaded by llvmlite.
"""

from __future__ import annotations

import struct

import msgspec

_X86_64 = 62
_ALLOCATED, _PROGRAM_BITS, _SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 1, 2, 4, 8
# R_X86_64_PC32 and R_X86_64_PLT32: the target's distance from the instruction.
_RELATIVE = (2, 4)


class Section(msgspec.Struct, frozen=True):
    """A section's header, as far as it matters here."""

    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class Flat(msgspec.Struct, frozen=True):
    """Bytes to be mapped executable at a multiple of 64, and where each exported function begins in them."""

    code: bytes
    entries: dict[str, int]


def _sections(data: bytes) -> list[Section]:
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    made = []
    for number in range(count):
        fields = struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * number)
        _, kind, flags, _, offset, size, link, info, alignment, _ = fields
        made.append(Section(kind, flags, offset, size, link, info, alignment))
    return made


def flatten(data: bytes) -> Flat | None:
    """None where the object refers to something outside itself, or is no x86-64 ELF."""
    if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", data, 18)[0] != _X86_64:
        return None
    sections = _sections(data)
    if any(s.flags & _ALLOCATED and s.kind == _NO_BITS and s.size for s in sections):
        return None
    image, places = bytearray(), {}
    for number, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind == _PROGRAM_BITS:
            image += bytes(-len(image) % max(section.alignment, 1))
            places[number] = len(image)
            image += data[section.offset : section.offset + section.size]
    for section in sections:
        if section.kind == _RELOCATIONS and section.info in places:
            symbols = sections[section.link]
            if not _relocate(data, image, places, section, symbols):
                return None
    return Flat(bytes(image), _functions(data, sections, places))


def _relocate(data: bytes, image: bytearray, places: dict[int, int], section: Section, symbols: Section) -> bool:
    """Writes every distance; False where one has no known target."""
    for at in range(section.offset, section.offset + section.size, 24):
        offset, info, addend = struct.unpack_from("<QQq", data, at)
        _, _, _, home, value, _ = struct.unpack_from("<IBBHQQ", data, symbols.offset + 24 * (info >> 32))
        if info & 0xFFFFFFFF not in _RELATIVE or home not in places:
            return False
        place = places[section.info] + offset
        struct.pack_into("<i", image, place, places[home] + value + addend - place)
    return True


def _functions(data: bytes, sections: list[Section], places: dict[int, int]) -> dict[str, int]:
    """The exported functions' names and places."""
    symbols = next(s for s in sections if s.kind == _SYMBOLS)
    names = sections[symbols.link].offset
    found = {}
    for at in range(symbols.offset, symbols.offset + symbols.size, 24):
        name, info, _, home, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        if info == 0x12 and home in places:  # a global function
            end = data.index(b"\0", names + name)
            found[data[names + name : end].decode()] = places[home] + value
    return found
