"""Launches of products: which engine computes each, and what its kernel needs.

`own` (interp/gemm.py) takes floats in whatever place, `blas` f32 matrices of its two orders, `loops` the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Literal

import msgspec
import numpy as np

from sexpgpu.codegen.numba_product import emit_blas_product, emit_plain_product
from sexpgpu.interp import gemm
from sexpgpu.interp.gemm import Prepared
from sexpgpu.interp.native import Blas
from sexpgpu.interp.processor import simd_class
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Matrix, Place, Product

# Blocks of one matrix product, by its operations alone: each cut packs operands again, which a small product feels.
BLOCKS = ((3_000_000, 2), (64_000_000, 4), (512_000_000, 8), (2_000_000_000, 16))
MOST_BLOCKS = BLOCKS[-1][1]
LEAST_RESULTS = 128 * 128
# Operations below which a launch is not worth sharing; then a block has at least so many.
SHARED_OPERATIONS, BLOCK_OPERATIONS = 2_000_000, 500_000
# Rows and columns of a block are multiples of this, the size of the engines' inner tiles.
TILE = 16


class Cut(msgspec.Struct, frozen=True):
    """Rows and columns of a block, blocks along both."""

    rows: int
    columns: int
    row_blocks: int
    column_blocks: int


def _pieces(size: int, count: int) -> tuple[int, int]:
    """(size of a piece, pieces) of about `count` pieces in whole tiles."""
    piece = max(-(-size // count), 1)
    piece = min(-(-piece // TILE) * TILE, max(size, 1))
    return piece, -(-size // piece) if size else 1


def cut(launch: Product) -> Cut:
    """Few large blocks; of the ways to cut, the one that packs the least of a and b again."""
    operations = 2 * launch.m * launch.n * max(launch.k, 1)
    each = max([1, *(count for least, count in BLOCKS if operations >= least)])
    # The entries of a batch share the work already, and a block of few results reads as much as one of many.
    while each > 1 and (each * len(launch.c.starts) > MOST_BLOCKS or launch.m * launch.n < each * LEAST_RESULTS):
        each //= 2
    ways = [(each // c, c) for c in (1, 2, 4, 8, 16) if c <= each]
    row_count, column_count = min(ways, key=lambda w: launch.m * w[1] + launch.n * w[0])
    rows, row_blocks = _pieces(launch.m, row_count)
    columns, column_blocks = _pieces(launch.n, column_count)
    return Cut(rows, columns, row_blocks, column_blocks)


def _leading(matrix: Matrix, rows: int, columns: int) -> tuple[bool, int] | None:
    """(transposed, leading dimension) as BLAS wants it; None where the strides are none of its."""
    if matrix.column == 1 or columns <= 1:
        leading = matrix.row if rows > 1 else max(columns, 1)
        return (False, leading) if leading >= max(columns, 1) and (columns <= 1 or matrix.column == 1) else None
    if matrix.row == 1 or rows <= 1:
        leading = matrix.column if columns > 1 else max(rows, 1)
        return (True, leading) if leading >= max(rows, 1) else None
    return None


Engine = Literal["own", "blas", "loops"]


def takes_blas(launch: Product) -> bool:
    """Whether BLAS computes it. Without k there is nothing to add, and plain loops write the zeros."""
    a, b = _leading(launch.a, launch.m, launch.k), _leading(launch.b, launch.k, launch.n)
    contiguous = launch.c.column == 1 and (launch.c.row >= launch.n or launch.m <= 1)
    loops = launch.a.has_loops or launch.b.has_loops
    return launch.dtype == "f32" and launch.k > 0 and a is not None and b is not None and contiguous and not loops


# Multiply-adds of a product below which our own engine computes it though OpenBLAS could (`scripts/bench products`). On
# AVX2, beside its Haswell kernels, ours is as fast on one thread, is cut finer without packing anything twice, and has no
# call to pay: 1.1 to 1.3 of OpenBLAS's speed on two threads; above, OpenBLAS gains up to a tenth. On AVX-512 ours is 0.97
# to 1.3 times as fast as OpenBLAS's blocks at every size. Elsewhere ours is not measured, and takes what a call would
# cost most of.
OWN_BELOW = {"AVX2": 64_000_000.0, "AVX-512": inf}
OWN_BELOW_ELSEWHERE = 500_000.0


def own_below() -> float:
    """This CPU's bound."""
    return OWN_BELOW.get(simd_class(), OWN_BELOW_ELSEWHERE)


def engine_of(launch: Product, blas: Blas | None) -> Engine:
    """Who computes it, by its shape and the CPU's class alone."""
    return _choice(launch, blas)[0]


def _choice(launch: Product, blas: Blas | None) -> tuple[Engine, str]:
    """The engine and the reason."""
    if not gemm.takes(launch):
        return "loops", "integers"
    if blas is None:
        return "own", "no BLAS is found"
    if launch.dtype != "f32":
        return "own", "bf16 by vdpbf16ps" if gemm.tiling_of(launch).pairs else "bf16 or f16"
    if not takes_blas(launch):
        return "own", "strides that BLAS has not"
    bound = own_below()
    if bound == inf:
        return "own", "at every size"
    small = launch.m * launch.n * launch.k < bound
    return ("own", f"below {bound / 1e6:g} M multiply-adds") if small else ("blas", f"from {bound / 1e6:g} M multiply-adds")


def described(launches: Sequence[Product], blas: Blas | None) -> str:
    """Which engines a plan's products take, how many go to each, and why."""
    counts = Counter(_choice(launch, blas) for launch in launches)
    names: dict[Engine, str] = {"own": f"own {simd_class()} {gemm.tiling()}", "loops": "plain loops"}
    if blas is not None:
        names["blas"] = blas.name
    return "; ".join(f"{count} {names[engine]}, {reason}" for (engine, reason), count in counts.most_common())


def wanted(launch: Product, blas: Blas | None) -> tuple[str, Callable[[], str]]:
    """The text that says the kernel, and the call that writes its source."""
    match engine_of(launch, blas):
        case "own":
            return gemm.kernel_of(launch, gemm.tiling_of(launch))
        case "blas":
            return "product blas", emit_blas_product
    unit_columns = launch.b.column == 1 or launch.n == 1
    return f"product {launch.dtype} {unit_columns}", partial(emit_plain_product, launch.dtype, unit_columns)


def prepare(launch: Product, blas: Blas | None, workers: int, address_of: Callable[[Place], int]) -> Prepared:
    """Everything that a record of this product needs."""
    engine = engine_of(launch, blas)
    if engine == "own":
        return gemm.prepare(launch, gemm.tiling_of(launch), workers, address_of)
    size = SIZES[launch.dtype]
    pieces = cut(launch)
    tables = np.array([m.starts for m in (launch.a, launch.b, launch.c)], np.int64) * size
    head = _blas_head(launch, blas) if engine == "blas" and blas is not None else _plain_head(launch)
    row_bytes = launch.a.row * size
    column_step = launch.b.column * (size if engine == "blas" else 1)
    words = [
        *head,
        *(pieces.rows, pieces.columns, pieces.row_blocks, pieces.column_blocks),
        *(address_of(m.place) for m in (launch.a, launch.b, launch.c)),
        *(row_bytes, column_step),
        *(tables.ctypes.data + 8 * len(launch.c.starts) * number for number in range(3)),
    ]
    empty = launch.m == 0 or launch.n == 0
    units = 0 if empty else len(launch.c.starts) * pieces.row_blocks * pieces.column_blocks
    work = 2 * pieces.rows * pieces.columns * max(launch.k, 1)
    shared = work * units >= SHARED_OPERATIONS
    per_block = max(BLOCK_OPERATIONS // max(work, 1), 1) if shared else max(units, 1)
    scratch = 0 if engine == "blas" else 8 * pieces.columns
    return Prepared(words, tables, units, per_block, scratch)


def _blas_head(launch: Product, blas: Blas) -> list[int]:
    """Words 0 – 7 of a BLAS product."""
    a, b = _leading(launch.a, launch.m, launch.k), _leading(launch.b, launch.k, launch.n)
    assert a is not None and b is not None
    flags = (1 if a[0] else 0) + (2 if b[0] else 0) + (4 if launch.accumulate else 0)
    return [blas.sgemm, flags, launch.m, launch.n, launch.k, a[1], b[1], max(launch.c.row, launch.n)]


def _plain_head(launch: Product) -> list[int]:
    """Words 0 – 7 of plain loops."""
    return [int(launch.accumulate), launch.a.column, launch.m, launch.n, launch.k, launch.a.row, launch.b.row, launch.c.row]
