"""How a generated kernel is called: `kernel(args, lo, hi, scratch)`, the words at `args`, its units and its scratch.

A unit is the least piece of work: map, a chunk of the last loop at one point of the outer loops; row, one row; column,
a chunk of columns at one point of the outer loops. The words, all i64, in order:

    0 size of the last loop   1 map, column: its chunk; row: lanes   2 map, column: chunks; row: rounds of lanes
    3 row: bytes of a kept row; column: size of the reduced loop     4 … sizes of the outer loops
    then for each load and each store: address (or start, for an index load), strides of the outer loops, column: the
    stride of the reduced loop, and the stride of the last loop where its class is `any`

Strides of memory count bytes, but that of the last loop counts elements; those of index loads count elements.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import msgspec

from sexpgpu.codegen.stages import EXPENSIVE, analyse, is_reduction
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Access, Generated, Load, Place, Program, Store

HEAD_WORDS = 4
# Lanes of a row's sums (fixed by its length, the same on every device).
FEW_LANES, MANY_LANES, LONG_ROW = 32, 256, 1024
# Rows of a part of a column's sums (likewise).
FEW_ROWS, MANY_ROWS, LONG_COLUMN = 32, 128, 4096
# An accumulator of a row or of a chunk of columns: at most MANY_LANES or COLUMN_CHUNK elements of 8 bytes. A column has
# two for each array: of its parts that are done, and of the part at hand.
COLUMN_CHUNK = 512
ACCUMULATOR_BYTES = 8 * COLUMN_CHUNK
MAP_CHUNK = 8192
# Where an operand is transposed: so many columns of all rows at a time, so that each cache line is fetched once.
TILE_CHUNK, TILED_ELEMENTS = 16, 1 << 18
# In elements times instructions: work below which a launch is not worth sharing, and that of a block of a larger one.
SHARED_WORK, BLOCK_WORK, MOST_BLOCKS = 1 << 17, 1 << 14, 4096


def lanes_of(length: int) -> int:
    """Lanes that a row of this length is summed in."""
    return FEW_LANES if length <= LONG_ROW else MANY_LANES


def part_rows(rows: int) -> int:
    """Rows of a part of a column of so many rows: each part is reduced in order, then the parts' results are, in order,
    both from the neutral value. One part's result is the column's own, bit for bit."""
    return FEW_ROWS if rows <= LONG_COLUMN else MANY_ROWS


class Shape(msgspec.Struct, frozen=True):
    """The sizes of a launch as its kernel sees them."""

    outer: tuple[int, ...]
    reduced: int
    last: int


def shape_of(program: Program, sizes: tuple[int, ...]) -> Shape:
    """A program without loops has one loop of size 1."""
    sizes = sizes or (1,)
    if program.kind == "column":
        return Shape(sizes[:-2], sizes[-2], sizes[-1])
    return Shape(sizes[:-1], 1, sizes[-1])


def outer_rank(program: Program) -> int:
    """Loops around a unit."""
    return max(program.rank - (2 if program.kind == "column" else 1), 0)


def operand_words(program: Program, operand: Load | Store) -> int:
    """How many words one operand takes."""
    return 1 + outer_rank(program) + (program.kind == "column") + (operand.inner == "any")


def _chunk(launch: Generated, last: int) -> int:
    if launch.program.kind == "column":
        return min(max(last, 1), COLUMN_CHUNK)
    if (
        prod(launch.sizes) >= TILED_ELEMENTS
        and last > TILE_CHUNK
        and any(_transposed(access) for access in (*launch.loads, *launch.stores))
    ):
        return TILE_CHUNK
    return last if last <= 2 * MAP_CHUNK else MAP_CHUNK


def _transposed(access: Access) -> bool:
    """Steps far along the last loop and to the neighbour along the one around it."""
    return access.place is not None and len(access.strides) > 1 and access.strides[-2] == 1 and access.strides[-1] >= 16


def _split(launch: Generated) -> tuple[int, int]:
    """Words 1 and 2."""
    last = shape_of(launch.program, launch.sizes).last
    if launch.program.kind == "row":
        lanes = lanes_of(last)
        return lanes, -(-last // lanes)
    chunk = max(_chunk(launch, last), 1)
    return chunk, -(-last // chunk)


def kept_row_bytes(last: int) -> int:
    """A kept row begins on a cache line."""
    return -(-last * 8 // 64) * 64


def accumulators(program: Program) -> int:
    """Accumulator arrays of the kernel: one a reduction, two for argmax and argmin."""
    ops = [i.op for i in program.body if i.op.startswith("reduce_")]
    return sum(2 if op.startswith("reduce_arg") else 1 for op in ops)


def scratch_bytes(launch: Generated) -> int:
    """Scratch that a worker needs."""
    program = launch.program
    if program.kind == "map":
        return 0
    kept = len(analyse(program).kept) * kept_row_bytes(shape_of(program, launch.sizes).last)
    sets = 2 if program.kind == "column" else 1
    return sets * accumulators(program) * ACCUMULATOR_BYTES + kept


def _operand(program: Program, operand: Load | Store, access: Access, address: int) -> list[int]:
    strides = access.strides or (0,)
    size = SIZES[operand.dtype] if access.place is not None else 1
    words = [address, *(s * size for s in strides[: outer_rank(program)])]
    if program.kind == "column":
        words.append(strides[-2] * size)
    return words + ([strides[-1]] if operand.inner == "any" else [])


def arguments(launch: Generated, address_of: Callable[[Place], int]) -> list[int]:
    """The words that this launch's kernel reads."""
    program, shape = launch.program, shape_of(launch.program, launch.sizes)
    third = kept_row_bytes(shape.last) if program.kind == "row" else shape.reduced
    words = [shape.last, *_split(launch), third, *shape.outer]
    operands: list[Load | Store] = [*program.loads, *program.stores]
    for operand, access in zip(operands, (*launch.loads, *launch.stores), strict=True):
        address = access.start if access.place is None else address_of(access.place)
        words += _operand(program, operand, access, address)
    return words


def units(launch: Generated) -> tuple[int, int]:
    """(units of the launch, units of a block): by shape alone. Every unit has the same bits wherever it is computed."""
    program, shape = launch.program, shape_of(launch.program, launch.sizes)
    count = prod(shape.outer) * (1 if program.kind == "row" else _split(launch)[1])
    if prod(launch.sizes) == 0 and program.kind == "map":
        return 0, 1
    elements = prod(launch.sizes)
    weight = len(program.loads) + len(program.stores) + sum(12 if i.op in EXPENSIVE else 1 for i in program.body)
    return count, units_per_block(count, elements * weight)


def units_per_block(units: int, work: int) -> int:
    """How many units make a block of a launch with so much work."""
    if work < SHARED_WORK:
        return max(units, 1)
    return max(BLOCK_WORK * units // work, -(-units // MOST_BLOCKS), 1)


__all__ = ["arguments", "is_reduction", "lanes_of", "part_rows", "scratch_bytes", "units"]
