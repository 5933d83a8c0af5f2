"""A shared object made without a compiler: its functions jump through a table, which Python fills with its own."""

from __future__ import annotations

import platform
import struct
from collections.abc import Sequence

TABLE = "functions"
_EXECUTABLE, _WRITABLE = 5, 6
_PAGE = 0x10000
_HEADER, _SEGMENT, _SYMBOL, _STEP = 64, 56, 24, 16
# Of a dynamic section: the object's name, and where hash table, strings and symbols are.
_SONAME, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT, _END = 14, 4, 5, 6, 10, 11, 0


def shared_object(name: str, functions: Sequence[str]) -> bytes:
    """ELF for this machine: `functions` and the table of their addresses, `TABLE`, are what it exports."""
    strings, where = _strings((name, TABLE, *functions))
    count = len(functions) + 2
    symbols_at = _HEADER + 3 * _SEGMENT
    strings_at = symbols_at + _SYMBOL * count
    hash_at = _aligned(strings_at + len(strings), 8)
    code_at = _aligned(hash_at + 4 * (3 + count), _STEP)
    code_end = code_at + _STEP * len(functions)
    dynamic_at = _aligned(code_end, _PAGE)
    table_at = dynamic_at + 16 * 8
    end = table_at + 8 * len(functions)
    symbols = bytes(_SYMBOL) + struct.pack("<IBBHQQ", where[TABLE], 0x11, 0, 1, table_at, 8 * len(functions))
    code = b""
    for k, function in enumerate(functions):
        here = code_at + _STEP * k
        symbols += struct.pack("<IBBHQQ", where[function], 0x12, 0, 1, here, _STEP)
        code += _jump(here, table_at + 8 * k).ljust(_STEP, b"\0")
    dynamic = (
        (_SONAME, where[name]), (_HASH, hash_at), (_STRTAB, strings_at), (_SYMTAB, symbols_at),
        (_STRSZ, len(strings)), (_SYMENT, _SYMBOL), (_END, 0), (_END, 0),
    )  # fmt: skip
    segments = (
        (1, _EXECUTABLE, 0, code_end, _PAGE),
        (1, _WRITABLE, dynamic_at, end - dynamic_at, _PAGE),
        (2, _WRITABLE, dynamic_at, 16 * len(dynamic), 8),
    )
    image = bytearray(end)
    for at, part in (
        (0, _header()),
        (_HEADER, b"".join(struct.pack("<IIQQQQQQ", k, f, at, at, at, n, n, a) for k, f, at, n, a in segments)),
        (symbols_at, symbols),
        (strings_at, strings),
        # One bucket: every symbol leads to the next.
        (hash_at, struct.pack(f"<{3 + count}I", 1, count, 1, 0, *range(2, count), 0)),
        (code_at, code),
        (dynamic_at, b"".join(struct.pack("<QQ", *entry) for entry in dynamic)),
    ):
        image[at : at + len(part)] = part
    return bytes(image)


def _header() -> bytes:
    machine = {"x86_64": 62, "aarch64": 183}[platform.machine()]
    ident = b"\x7fELF\2\1\1" + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, _HEADER, 0, 0, _HEADER, _SEGMENT, 3, 64, 0, 0)


def _strings(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    made, where = b"\0", {}
    for name in names:
        where[name] = len(made)
        made += name.encode() + b"\0"
    return made, where


def _jump(here: int, entry: int) -> bytes:
    """To the address that stands in an entry of the table."""
    if platform.machine() == "x86_64":
        return b"\xff\x25" + struct.pack("<i", entry - (here + 6))  # jmp *[rip + …]
    pages = (entry >> 12) - (here >> 12)
    adrp = 0x90000010 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5  # adrp x16, entry's page
    load = 0xF9400210 | (entry & 0xFFF) >> 3 << 10  # ldr x16, [x16, …]
    return struct.pack("<III", adrp, load, 0xD61F0200)  # br x16


def _aligned(at: int, to: int) -> int:
    return -(-at // to) * to
