"""The operands of a generated CUDA kernel: its pointers, their offsets from places along loops, loads and stores.

Sizes and strides are part of the text (layers of one shape share a kernel, divisions are by constants); addresses and
the first numbers of index loads are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaText, loaded, stored
from sexpgpu.codegen.cuda_tracer import C_TYPES, cast_function
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Access, Generated, Load, Place, Store

# The largest number of bytes that a thread moves at once.
PACK_BYTES = 16
# A place's alignment in bytes, a power of two.
Alignment = Callable[[Place], int]


@dataclass(frozen=True)
class Operand:
    """A load or store of a launch. `pointer`: its name in the kernel; that of the load that it overwrites, where it does."""

    number: int
    description: Load | Store
    access: Access
    pointer: str

    @property
    def in_memory(self) -> bool:
        return self.access.place is not None

    @property
    def item_bytes(self) -> int:
        return SIZES[self.description.dtype]


def operands_of(launch: Generated) -> list[Operand]:
    """Loads first, then stores."""
    program = launch.program
    made = [
        Operand(n, load, access, f"p{n}")
        for n, (load, access) in enumerate(zip(program.loads, launch.loads, strict=True))
    ]
    for store, access in zip(program.stores, launch.stores, strict=True):
        number = len(made)
        made.append(Operand(number, store, access, f"p{number if store.alias is None else store.alias}"))
    return made


def is_wide(launch: Generated) -> bool:
    """Whether offsets or numbers of points need 64 bits."""
    # The last block's threads may stand beyond the end, by less than this.
    if prod(launch.sizes) >= (1 << 31) - (1 << 16):
        return True
    extents = (
        sum((n - 1) * abs(step) for n, step in zip(launch.sizes, access.strides, strict=True))
        for access in (*launch.loads, *launch.stores)
    )
    return any(extent >= 1 << 31 for extent in extents)


def declare(text: CudaText, operands: list[Operand]) -> None:
    """The kernel's parameters: a pointer an operand in memory, a first number an index load."""
    overwritten = {o.pointer for o in operands if isinstance(o.description, Store)}
    for operand in operands:
        if not operand.in_memory:
            text.parameter(f"long long {operand.pointer}", operand.access.start)
        elif operand.pointer == f"p{operand.number}":
            kind = MEMORY_TYPES[operand.description.dtype]
            constant = "" if operand.pointer in overwritten else "const "
            assert operand.access.place is not None
            text.parameter(f"{constant}{kind}* __restrict__ {operand.pointer}", operand.access.place)


def offset(operand: Operand, places: Mapping[int, str]) -> str:
    """An operand's offset in elements at a place of each loop given; loops that are not given stand at 0."""
    terms = []
    for loop, name in places.items():
        step = operand.access.strides[loop]
        if step:
            terms.append(name if step == 1 else f"{name} * {step}" if step > 0 else f"{name} * ({step})")
    return " + ".join(terms) or "0"


def load_element(operand: Operand, at: str, text: CudaText) -> str:
    """The value of a load's element at an offset, as a register's value."""
    if operand.in_memory:
        return loaded(f"{operand.pointer}[{at}]", operand.description.dtype)
    number = f"({operand.pointer} + ({at}))"
    if operand.description.dtype == "i64":
        return number
    text.call(cast_function("i64", operand.description.dtype))
    return f"cast_i64_{operand.description.dtype}({number})"


def store_element(operand: Operand, at: str, value: str) -> str:
    return f"{operand.pointer}[{at}] = {stored(value, operand.description.dtype)};"


def register_type(operand: Operand) -> str:
    return C_TYPES[operand.description.dtype]


def pack_width(launch: Generated, operands: list[Operand], alignment: Alignment) -> int:
    """How many neighbours along the last loop a thread takes: as many as every unit-stride operand can move at once."""
    last = launch.sizes[-1]
    unit = [o for o in operands if o.in_memory and o.access.strides[-1] == 1]
    if not unit or any(o.in_memory and o.access.strides[-1] not in (0, 1) for o in operands):
        return 1
    width = min(8, PACK_BYTES // max(o.item_bytes for o in unit))
    while width > 1 and not (
        (last % width == 0 or len(launch.sizes) == 1) and all(_is_aligned(o, width, alignment) for o in unit)
    ):
        width //= 2
    return width


def _is_aligned(operand: Operand, width: int, alignment: Alignment) -> bool:
    assert operand.access.place is not None
    even = all(step % width == 0 for step in operand.access.strides[:-1])
    return even and alignment(operand.access.place) % (width * operand.item_bytes) == 0
