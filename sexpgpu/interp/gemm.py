"""Launches of our own matrix product: which tiles this CPU takes, how a product is cut, and the tables of its operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sexpgpu.codegen.gemm import MOST_DEPTH, WORDS, WayOfA, emit_gemm, scratch_floats
from sexpgpu.codegen.gemm_pack import ELEMENTS
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.interp.processor import features, simd_class
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
# Pairs of bf16 by vdpbf16ps.
PAIRED_TILING = Tiling(16, 2, 14, pairs=True)
# What any CPU with vectors of 128 bits and 16 registers can do.
PLAIN_TILING = Tiling(4, 2, 4)


def tiling() -> Tiling:
    """This CPU's."""
    return TILINGS.get(simd_class(), PLAIN_TILING)


def tiling_of(launch: Product) -> Tiling:
    """This CPU's for a product: of bf16 in pairs where it can multiply them, and no step is left over."""
    in_pairs = launch.dtype == "bf16" and launch.k % 2 == 0 and "avx512_bf16" in features()
    return PAIRED_TILING if in_pairs else tiling()

# Floats of a page, and rows that a set of the smallest first-level caches holds.
PAGE, MOST_CROWDED = 1024, 8
# The least multiply-adds of a block, and the most blocks of a launch.
BLOCK_WORK, MOST_BLOCKS = 1_000_000, 64
# Multiply-adds in whose time an element is packed, is copied as it lies, or is read where it lies.
PACKED, COPIED, READ = 24.0, 12.0, 3.0
COST_OF_A = {WayOfA.PACKED: PACKED, WayOfA.COPIED: COPIED, WayOfA.IN_PLACE: READ}
# What of a block's time may go into packing: so much to make a block for each worker, less to make more.
SPENT_ON_FEW, SPENT = 0.8, 0.05
# Below so many a launch is one block of the tape.
SHARED_WORK = 250_000


class Prepared(msgspec.Struct, frozen=True):
    """A product's words, tables that the words point at, units, units a block, scratch."""

    words: list[int]
    tables: Any
    units: int
    units_per_block: int
    scratch_bytes: int


class Tiles(msgspec.Struct, frozen=True):
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
    dtypes = launch.dtype, launch.c_dtype
    return f"gemm {dtypes} {tiling!r} {least}", partial(emit_gemm, *dtypes, tiling, least)


class Cut(msgspec.Struct, frozen=True):
    """How a product is cut, by its shape and the number of workers, on which no sum depends: a block's tiles and columns,
    the depth of a piece of k, columns of b that are packed together, which operands are read where they lie."""

    block_tiles: int
    block_columns: int
    depth: int
    panel_columns: int
    a_way: WayOfA
    b_direct: bool


def cut(launch: Product, tiling: Tiling, workers: int) -> Cut:
    few_columns, few_rows = launch.n <= 2 * tiling.columns, launch.m <= tiling.rows
    # Rows a page apart share sets of the first-level cache: many of a tile would push each other out of it.
    crowded = tiling.rows > MOST_CROWDED and launch.a.row % (2 * PAGE if tiling.pairs else PAGE) == 0
    in_rows = launch.a.column == 1 and not launch.a.columns
    if tiling.pairs:
        # A row's pairs are words of 32 bits where they lie, if all rows begin with a whole one.
        in_place = in_rows and not launch.a.rows and launch.a.row % 2 == 0 and not crowded
        a_way, b_direct = WayOfA.IN_PLACE if in_place else WayOfA.PACKED, False
    elif launch.dtype == "f32":
        in_place = not launch.a.has_loops and ((in_rows and not crowded) or launch.k <= 1 or few_columns)
        a_way = WayOfA.IN_PLACE if in_place else WayOfA.COPIED if in_rows else WayOfA.PACKED
        b_direct = not launch.b.has_loops and (launch.b.column == 1 or launch.n <= 1) and few_rows
    else:
        a_way, b_direct = WayOfA.COPIED if in_rows else WayOfA.PACKED, False
    block_tiles, block_columns = _blocks(launch, tiling, workers, (COST_OF_A[a_way], READ if b_direct else PACKED))
    steps = launch.k // 2 if tiling.pairs else launch.k
    pieces = max(-(-steps // MOST_DEPTH), 1)
    depth = max(_whole(-(-steps // pieces), 8), 8)
    # About so many floats at a time: a short last part would pack all of a again for itself.
    parts = max(round(depth * block_columns / PANELS), 1)
    panel_columns = _whole(-(-block_columns // parts), tiling.columns)
    return Cut(block_tiles, block_columns, depth, panel_columns, a_way, b_direct)


def _whole(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _blocks(launch: Product, tiling: Tiling, workers: int, costs: tuple[float, float]) -> tuple[int, int]:
    """(tiles, columns) of a block: as many blocks as are worth it, cut so that packing takes the least. Every cut packs
    operands again that lie beyond the caches, which costs more than a block that ends later than the others."""
    tiles, panels = tiles_of(launch.m, tiling).count, max(-(-launch.n // tiling.columns), 1)
    entries = max(len(launch.c.starts), 1)

    def sizes(rows: int, columns: int) -> tuple[int, int]:
        return -(-tiles // rows), -(-panels // columns)

    def spent(way: tuple[int, int]) -> float:
        """On packing, for each multiply-add. A block's columns share its rows of a, its rows its columns of b."""
        high, wide = sizes(*way)
        return costs[0] / (wide * tiling.columns) + costs[1] / (high * tiling.rows)

    best, count = (1, 1), 2
    while count * entries <= MOST_BLOCKS and launch.m * launch.n * launch.k >= count * BLOCK_WORK:
        ways = [(count // c, c) for c in (1, 2, 4, 8, 16, 32, 64) if c <= count and c <= panels and count // c <= tiles]
        way = min(ways, key=spent, default=(1, 1))
        if spent(way) > (SPENT_ON_FEW if count // 2 * entries < workers else SPENT) or way == (1, 1):
            break
        best, count = way, 2 * count
    high, wide = sizes(*best)
    return high, min(wide * tiling.columns, max(launch.n, 1))


def prepare(launch: Product, tiling: Tiling, workers: int, address_of: Callable[[Place], int]) -> Prepared:
    """Everything that a record of this product needs."""
    tiles, made = tiles_of(launch.m, tiling), cut(launch, tiling, workers)
    each = 2 if tiling.pairs else 1
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
        "k": launch.k // each,
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
        "a_way": int(made.a_way),
        "b_direct": int(made.b_direct),
        "a_row": a.row // each,
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
    scratch = 4 * (sums + (rows * made.panel_columns if launch.c_dtype != "f32" else 0))
    held = (starts, *tables.values())
    return Prepared([words[name] for name in WORDS], held, units, per_block, scratch)
