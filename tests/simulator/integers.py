"""Integer arithmetic, shifts, bit fields, permutations, carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.dtypes import DTYPES
from tests.simulator.form import Action, Form
from tests.simulator.machine import Machine
from tests.simulator.threads import Threads


def wide_type(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}"


def high_product(x: Any, y: Any) -> Any:
    """The upper half of a full product; 64-bit ones by 32-bit digits."""
    dtype = x.dtype
    if dtype.itemsize < 8:
        wide = np.dtype(f"{dtype.kind}{2 * dtype.itemsize}")
        return (x.astype(wide) * y.astype(wide) >> wide.type(8 * dtype.itemsize)).astype(dtype)
    a, b = x.astype(np.uint64), y.astype(np.uint64)
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    first = (a & low) * (b & low)
    second = (a >> shift) * (b & low) + (first >> shift)
    third = (a & low) * (b >> shift) + (second & low)
    high = (a >> shift) * (b >> shift) + (second >> shift) + (third >> shift)
    if dtype.kind == "i":
        high = high - np.where(x < 0, b, np.uint64(0)) - np.where(y < 0, a, np.uint64(0))
    return high.view(dtype)


def product(form: Form) -> Action:
    """mul and mad: .lo, .hi, .wide."""
    x, y, put = form.source(1), form.source(2), form.target()
    kind = wide_type(form.type) if form.has("wide") else form.type
    wide = DTYPES[kind] if form.has("wide") else None
    addend = form.source(3, kind) if form.instruction.opcode == "mad" else None
    if form.has("hi", "sat") or (form.bits == 64 and wide):
        raise form.unsupported()

    def run(machine: Machine, threads: Threads) -> None:
        a, b = x(machine, threads), y(machine, threads)
        if wide is not None:
            value = a.astype(wide) * b.astype(wide)
        else:
            value = high_product(a, b) if form.has("hi") else a * b
        put(machine, threads, value if addend is None else value + addend(machine, threads))

    return run


def sum_or_difference(form: Form) -> Action:
    if form.has("cc"):
        return carrying(form)
    if form.has("sat"):
        limits = np.iinfo(form.dtype)
        sign = 1 if form.instruction.opcode == "add" else -1

        def saturated(x: Any, y: Any) -> Any:
            return np.clip(x.astype(np.int64) + sign * y.astype(np.int64), limits.min, limits.max).astype(form.dtype)

        return form.elementwise(saturated)
    return form.elementwise(np.add if form.instruction.opcode == "add" else np.subtract)


def carrying(form: Form) -> Action:
    """add.cc, addc, sub.cc, subc, mad.cc, madc: the carry goes from one instruction to the next."""
    opcode = form.instruction.opcode
    reads = [form.source(place, f"u{form.bits}") for place in range(1, form.count)]
    put = form.target()
    uses, makes = opcode in ("addc", "subc", "madc"), form.has("cc")
    unsigned = np.dtype(f"u{form.dtype.itemsize}")
    signed = form.dtype

    def run(machine: Machine, threads: Threads) -> None:
        given = [machine.spread(read(machine, threads), threads) for read in reads]
        carry = machine.carry[threads.pick].astype(unsigned) if uses else np.zeros(threads.count, unsigned)
        if opcode.startswith("mad"):
            a, b = given[0].view(signed), given[1].view(signed)
            given = [(high_product(a, b).view(unsigned) if form.has("hi") else given[0] * given[1]), given[2]]
        x, y = given
        if opcode.startswith("sub"):
            value = x - y - carry
            out = (x < y) | ((x == y) & (carry != 0))
        else:
            value = x + y + carry
            out = (value < x) | ((value == x) & (carry != 0) & (y != 0))
        if makes:
            machine.carry[threads.pick] = out
        put(machine, threads, value)

    return run


def quotient(form: Form) -> Action:
    x, y, put = form.source(1), form.source(2), form.target()
    remainder = form.instruction.opcode == "rem"

    def run(machine: Machine, threads: Threads) -> None:
        a, b = np.broadcast_arrays(x(machine, threads), y(machine, threads))
        if (b == 0).any():
            machine.note("division-by-zero", "integer division by zero")
            b = np.where(b == 0, b.dtype.type(1), b)
        whole = a // b
        if a.dtype.kind == "i":
            inexact = whole * b != a
            whole = whole + (inexact & ((a < 0) != (b < 0)))
        put(machine, threads, np.asarray(a - whole * b if remainder else whole).astype(form.dtype))

    return run


def shift(form: Form) -> Action:
    """Amounts of the width and above give 0, or copies of the sign."""
    x, amount, put = form.source(1), form.source(2, "u32"), form.target()
    left, signed, width, dtype = form.instruction.opcode == "shl", form.dtype.kind == "i", form.bits, form.dtype

    def run(machine: Machine, threads: Threads) -> None:
        value, by = x(machine, threads), amount(machine, threads)
        clipped = np.minimum(by, width - 1).astype(dtype)
        moved = value << clipped if left else value >> clipped
        if not signed or left:
            over = by >= width
            moved = np.where(over, dtype.type(0), moved) if np.any(over) else moved
        put(machine, threads, moved)

    return run


def funnel_shift(form: Form) -> Action:
    low, high, amount, put = form.source(1, "u32"), form.source(2, "u32"), form.source(3, "u32"), form.target()
    left, wrap = form.has("l"), form.has("wrap")

    def run(machine: Machine, threads: Threads) -> None:
        by = amount(machine, threads).astype(np.uint64)
        by = by & np.uint64(31) if wrap else np.minimum(by, np.uint64(32))
        both = high(machine, threads).astype(np.uint64) << np.uint64(32) | low(machine, threads).astype(np.uint64)
        moved = both << by >> np.uint64(32) if left else both >> by
        put(machine, threads, (moved & np.uint64(0xFFFFFFFF)).astype(np.uint32))

    return run


def logic3(form: Form) -> Action:
    table = int(form.text(4), 0)
    reads, put = [form.source(place, "u32") for place in (1, 2, 3)], form.target()

    def run(machine: Machine, threads: Threads) -> None:
        a, b, c = (read(machine, threads) for read in reads)
        value = np.zeros(threads.count, np.uint32)
        for row in range(8):
            if table >> row & 1:
                value |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        put(machine, threads, value)

    return run


def field_mask(length: Any) -> Any:
    """So many low bits of 64, for lengths up to 255."""
    some = (np.uint64(1) << np.minimum(length, 63).astype(np.uint64)) - np.uint64(1)
    return np.where(length >= 64, ~np.uint64(0), some)


def extract_field(form: Form) -> Action:
    """bfe: bits above the field, and above the word, are zeros or copies of the field's sign."""
    x, place, length, put = form.source(1), form.source(2, "u32"), form.source(3, "u32"), form.target()
    width, signed = form.bits, form.dtype.kind == "i"

    def run(machine: Machine, threads: Threads) -> None:
        value = x(machine, threads)
        at, many = place(machine, threads) & np.uint32(255), length(machine, threads) & np.uint32(255)
        bits = value.view(f"u{width // 8}").astype(np.uint64)
        shifted = np.where(at >= 64, np.uint64(0), bits >> np.minimum(at, 63).astype(np.uint64))
        field = shifted & field_mask(many)
        if signed:
            top = np.minimum(at.astype(np.int64) + many - 1, width - 1)
            sign = (bits >> np.maximum(top, 0).astype(np.uint64)) & np.uint64(1)
            inside = np.minimum(many.astype(np.int64), np.maximum(width - at.astype(np.int64), 0))
            field = np.where((sign == 1) & (many > 0), field | ~field_mask(inside), field)
        put(machine, threads, field.astype(f"u{width // 8}"))

    return run


def insert_field(form: Form) -> Action:
    x, y = form.source(1), form.source(2)
    place, length, put = form.source(3, "u32"), form.source(4, "u32"), form.target()
    width = form.bits

    def run(machine: Machine, threads: Threads) -> None:
        at, many = place(machine, threads) & np.uint32(255), length(machine, threads) & np.uint32(255)
        by = np.minimum(at, 63).astype(np.uint64)
        mask = np.where(at >= width, np.uint64(0), field_mask(many) << by)
        inserted = x(machine, threads).astype(np.uint64) << by
        value = (y(machine, threads).astype(np.uint64) & ~mask) | (inserted & mask)
        put(machine, threads, value.astype(f"u{width // 8}"))

    return run


SELECTORS: dict[str, Callable[[int], list[int]]] = {
    "f4e": lambda n: [n, n + 1, n + 2, n + 3],
    "b4e": lambda n: [n, (n + 7) % 8, (n + 6) % 8, (n + 5) % 8],
    "rc8": lambda n: [n] * 4,
    "ecl": lambda n: [max(n, byte) for byte in range(4)],
    "ecr": lambda n: [min(n, byte) for byte in range(4)],
    "rc16": lambda n: [0, 1, 0, 1] if n % 2 == 0 else [2, 3, 2, 3],
}


def permute(form: Form) -> Action:
    """prmt: bytes of two words; bit 3 of a selector copies the byte's sign."""
    reads, put = [form.source(place, "u32") for place in (1, 2, 3)], form.target()
    mode = form.one_of(*SELECTORS)
    rows = [SELECTORS[mode](n) for n in range(4)] if mode else None

    def run(machine: Machine, threads: Threads) -> None:
        a, b, selector = (machine.spread(read(machine, threads), threads).astype(np.uint64) for read in reads)
        both = a | b << np.uint64(32)
        value = np.zeros(threads.count, np.uint64)
        for byte in range(4):
            if rows is None:
                chosen = selector >> np.uint64(4 * byte) & np.uint64(15)
            else:
                chosen = np.array([row[byte] for row in rows], np.uint64)[selector & np.uint64(3)]
            taken = both >> ((chosen & np.uint64(7)) * np.uint64(8)) & np.uint64(255)
            signs = np.where(taken & np.uint64(128), np.uint64(255), np.uint64(0))
            value |= np.where(chosen & np.uint64(8), signs, taken) << np.uint64(8 * byte)
        put(machine, threads, value.astype(np.uint32))

    return run


def reverse_bits(x: Any) -> Any:
    """Swaps neighbours, then pairs, and so on."""
    bits = 8 * x.dtype.itemsize
    step = bits // 2
    while step:
        mask = x.dtype.type(sum(((1 << step) - 1) << at for at in range(0, bits, 2 * step)))
        x = ((x & mask) << x.dtype.type(step)) | ((x >> x.dtype.type(step)) & mask)
        step //= 2
    return x


def highest_bit(x: Any) -> Any:
    """The place of the highest bit that is set; −1 for 0."""
    x = x.astype(np.uint64)
    for step in (1, 2, 4, 8, 16, 32):
        x = x | x >> np.uint64(step)
    return np.bitwise_count(x).astype(np.int64) - 1


def find_bit(form: Form) -> Action:
    """bfind: the place of the highest bit that is not a copy of the sign, counted from the top with .shiftamt."""
    width, from_top = form.bits, form.has("shiftamt")

    def find(x: Any) -> Any:
        bits = np.where(x < 0, ~x, x) if x.dtype.kind == "i" else x
        found = highest_bit(bits.view(f"u{width // 8}"))
        return np.where(found < 0, found, width - 1 - found if from_top else found).astype(np.uint32)

    return form.elementwise(find)


def counted(form: Form, function: Callable[[Any], Any]) -> Action:
    return form.elementwise(lambda x: function(x).astype(np.uint32))


def dot4(form: Form) -> Action:
    """dp4a: four products of bytes and the addend."""
    kinds = [word for word in form.modifiers if word in DTYPES]
    types = [DTYPES["s8" if kind[0] == "s" else "u8"] for kind in kinds]
    x, y, z, put = form.source(1, "b32"), form.source(2, "b32"), form.source(3, "u32"), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        a, b = (
            np.ascontiguousarray(machine.spread(read(machine, threads), threads)).view(dtype).reshape(-1, 4)
            for read, dtype in ((x, types[0]), (y, types[-1]))
        )
        total = (a.astype(np.int64) * b.astype(np.int64)).sum(1) + z(machine, threads).astype(np.int64)
        put(machine, threads, total.astype(np.uint32))

    return run


def dot2(form: Form) -> Action:
    """dp2a: the halves of a word times two bytes of another, and the addend."""
    kinds = [word for word in form.modifiers if word in DTYPES]
    halves, octets = (np.dtype(f"{'i' if kind[0] == 's' else 'u'}{size}") for kind, size in zip(kinds, (2, 1)))
    x, y, z, put = form.source(1, "b32"), form.source(2, "b32"), form.source(3, "u32"), form.target()
    part = slice(2, 4) if form.has("hi") else slice(0, 2)

    def run(machine: Machine, threads: Threads) -> None:
        a, b = (
            np.ascontiguousarray(machine.spread(read(machine, threads), threads)).view(dtype).reshape(threads.count, -1)
            for read, dtype in ((x, halves), (y, octets))
        )
        total = (a.astype(np.int64) * b[:, part].astype(np.int64)).sum(1) + z(machine, threads).astype(np.int64)
        put(machine, threads, total.astype(np.uint32))

    return run


def absolute_difference(form: Form) -> Action:
    return form.elementwise(lambda x, y, z: np.where(x < y, y - x, x - y) + z)


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "add": sum_or_difference,
    "sub": sum_or_difference,
    "addc": carrying,
    "subc": carrying,
    "madc": carrying,
    "mul": product,
    "mad": lambda form: carrying(form) if form.has("cc") else product(form),
    "div": quotient,
    "rem": quotient,
    "sad": absolute_difference,
    "min": lambda form: form.elementwise(np.minimum),
    "max": lambda form: form.elementwise(np.maximum),
    "neg": lambda form: form.elementwise(np.negative),
    "abs": lambda form: form.elementwise(np.abs),
    "and": lambda form: form.elementwise(np.bitwise_and),
    "or": lambda form: form.elementwise(np.bitwise_or),
    "xor": lambda form: form.elementwise(np.bitwise_xor),
    "not": lambda form: form.elementwise(np.invert),
    "cnot": lambda form: form.elementwise(lambda x: (x == 0).astype(x.dtype)),
    "shl": shift,
    "shr": shift,
    "shf": funnel_shift,
    "lop3": logic3,
    "bfe": extract_field,
    "bfi": insert_field,
    "prmt": permute,
    "brev": lambda form: form.elementwise(reverse_bits),
    "bfind": find_bit,
    "popc": lambda form: counted(form, np.bitwise_count),
    "clz": lambda form: counted(form, lambda x: form.bits - 1 - highest_bit(x)),
    "dp4a": dot4,
    "dp2a": dot2,
}
