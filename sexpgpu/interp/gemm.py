"""Launches of our own matrix product: which tiles this CPU takes, how a product is cut, and the tables of its operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sexpgpu.codegen.gemm import MOST_DEPTH, WORDS, emit_gemm, scratch_floats
from sexpgpu.codegen.gemm_pack import ELEMENTS
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.interp.processor import simd_class
from sexpgpu.plan.kernel import Loops, Place, Product

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Table = NDArray[np.int64]

# Floats of b's packed panels: half of a small second-level cache.
PANELS = 65536
TILINGS = {
    "AVX-512": Tiling(16, 2, 14),
    "AVX2": Tiling(8, 2, 6),
    "NEON": Tiling(4, 3, 8),
    "SVE": Tiling(4, 3, 8),
}
# What any CPU with vectors of 128 bits and 16 registers can do.
PLAIN_TILING = Tiling(4, 2, 4)


def tiling() -> Tiling:
    """This CPU's."""
    return TILINGS.get(simd_class(), PLAIN_TILING)




# The largest block of b that is read where it lies: it stays in a core's second-level cache.
DIRECT_BYTES = 128 * 1024
# Multiply-adds of a block where more blocks are wanted, and blocks that no launch exceeds.
BLOCK_WORK, MOST_BLOCKS = 1_000_000, 64
# Below so many a launch is one block of the tape.
SHARED_WORK = 250_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A product's words, tables that the words point at, units, units a block, scratch."""

    words: list[int]
    tables: Any
    units: int
    units_per_block: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows in tiles of almost equal height: `taller` of `count`, the first, have one row more than `least`."""

    count: int
    least: int
    taller: int


def tiles_of(m: int, tiling: Tiling) -> Tiles:
    count = max(-(-m // tiling.rows), 1)
    least = max(min(m // count, tiling.rows - 1), 1)
    return Tiles(count, least, m - least * count)


@lru_cache(maxsize=1024)
def offsets(loops: Loops) -> Table:
    """The offset of every turn of these loops."""
    table = np.zeros(1, np.int64)
    for size, step in loops:
        table = (table[:, None] + np.arange(size, dtype=np.int64) * step).reshape(-1)
    return table


def takes(launch: Product) -> bool:
    """Whether the engine computes it."""
    return launch.dtype in ELEMENTS and (launch.c.column == 1 or launch.n <= 1)


def kernel_of(launch: Product, tiling: Tiling) -> tuple[str, Callable[[], str]]:
    """The text that says the kernel, and the call that writes its source."""
    least = tiles_of(launch.m, tiling).least
    return f"gemm {launch.dtype} {tiling!r} {least}", partial(emit_gemm, launch.dtype, tiling, least)


@dataclass(frozen=True, slots=True)
class Cut:
    """How a product is cut, by its shape alone: a block's tiles and columns, the depth of a piece of k, columns of b
    that are packed together, which operands are read where they lie."""

    block_tiles: int
    block_columns: int
    depth: int
    panel_columns: int
    a_direct: bool
    b_direct: bool


def cut(launch: Product, tiling: Tiling) -> Cut:
    plain = launch.dtype == "f32"
    a_direct = plain and not launch.a.has_loops and (launch.a.column == 1 or launch.k <= 1 or launch.n <= 2 * tiling.columns)
    b_direct = plain and not launch.b.has_loops and (launch.b.column == 1 or launch.n <= 1)
    b_direct = b_direct and 4 * launch.k * launch.n <= DIRECT_BYTES
    block_tiles, block_columns = _blocks(launch, tiling, 0 if a_direct else 1, 0 if b_direct else 1)
    pieces = max(-(-launch.k // MOST_DEPTH), 1)
    depth = max(_whole(-(-launch.k // pieces), 8), 8)
    most = max(PANELS // depth // tiling.columns, 1) * tiling.columns
    return Cut(block_tiles, block_columns, depth, min(most, _whole(block_columns, tiling.columns)), a_direct, b_direct)


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _blocks(launch: Product, tiling: Tiling, a_packed: int, b_packed: int) -> tuple[int, int]:
    """(tiles, columns) of a block: of the ways to make enough blocks, the one that packs and reads the least again."""
    tiles, panels = tiles_of(launch.m, tiling).count, max(-(-launch.n // tiling.columns), 1)
    work = launch.m * launch.n * launch.k
    wanted = 1
    while 2 * wanted * len(launch.c.starts) <= MOST_BLOCKS and work >= 2 * wanted * BLOCK_WORK:
        wanted *= 2
    ways = [(wanted // c, c) for c in (1, 2, 4, 8, 16, 32, 64) if c <= wanted]
    # A split of rows packs b again, one of columns a; what is read where it lies costs less.
    rows, columns = min(ways, key=lambda w: w[0] * launch.n * (1 + 4 * b_packed) + w[1] * launch.m * (1 + 4 * a_packed))
    return -(-tiles // rows), min(-(-panels // columns) * tiling.columns, max(launch.n, 1))


def prepare(launch: Product, tiling: Tiling, address_of: Callable[[Place], int]) -> Prepared:
    """Everything that a record of this product needs."""
    tiles, made = tiles_of(launch.m, tiling), cut(launch, tiling)
    a, b, c = launch.a, launch.b, launch.c
    starts = np.array([m.starts for m in (a, b, c)], np.int64)
    tables = {
        "a_rows": offsets(a.rows or ((launch.m, a.row),)),
        "a_steps": offsets(a.columns or ((launch.k, a.column),)),
        "b_steps": offsets(b.rows or ((launch.k, b.row),)),
        "b_columns": offsets(b.columns or ((launch.n, b.column),)),
    }
    row_blocks, column_blocks = -(-tiles.count // made.block_tiles), -(-launch.n // made.block_columns)
    sums = scratch_floats(tiling, made.depth, made.panel_columns)
    words = {
        "n": launch.n,
        "k": launch.k,
        "tiles": tiles.count,
        "taller": tiles.taller,
        "block_tiles": made.block_tiles,
        "block_columns": made.block_columns,
        "row_blocks": row_blocks,
        "column_blocks": column_blocks,
        "c_row": c.row,
        "adds": int(launch.accumulate),
        "depth": made.depth,
        "panel_columns": made.panel_columns,
        "a_direct": int(made.a_direct),
        "b_direct": int(made.b_direct),
        "a_row": a.row,
        "a_step": a.column,
        "b_step": b.row,
        "sums": sums,
    }
    words |= {name: address_of(matrix.place) for name, matrix in zip("abc", (a, b, c), strict=True)}
    words |= {f"{name}_starts": starts[number].ctypes.data for number, name in enumerate("abc")}
    words |= {name: table.ctypes.data for name, table in tables.items()}
    units = len(c.starts) * row_blocks * column_blocks if launch.m and launch.n else 0
    work = launch.m * launch.n * max(launch.k, 1)
    total = work * len(c.starts)
    per_block = max(SHARED_WORK * units // max(total, 1), 1) if total >= 2 * SHARED_WORK else max(units, 1)
    rows = made.block_tiles * tiling.rows
    scratch = 4 * (sums + (rows * made.panel_columns if launch.dtype != "f32" else 0))
    held = (starts, *tables.values())
    return Prepared([words[name] for name in WORDS], held, units, per_block, scratch)
