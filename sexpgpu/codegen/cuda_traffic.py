"""How many bytes a launch's kernels ask of memory, to those that it must move, and why it is more where it is.

Rows and maps say it where they are written. What tiles read again comes from the card's cache where it is large enough:
for products and attention the factor is what they ask for, not what reaches memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sexpgpu.codegen.column_task import ColumnTask
from sexpgpu.codegen.cuda_attention import tile_of
from sexpgpu.codegen.cuda_operands import Alignment
from sexpgpu.codegen.cuda_product_choice import choose
from sexpgpu.codegen.cuda_reductions import WARP
from sexpgpu.codegen.cuda_sort import RUNS
from sexpgpu.codegen.cuda_source import CudaLaunch
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Attention, Generated, Indexed, Kernel, Product
from sexpgpu.plan.work import bytes_of


def with_factor(launch: Kernel, made: tuple[CudaLaunch, ...], alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """The launches with their region's factor and its reason; rows and maps have theirs."""
    if not made or (isinstance(launch, Generated) and launch.program.kind != "column"):
        return made
    least = max(bytes_of(launch), 1)
    if isinstance(launch, Generated):
        moved, reason = _of_column(launch, made, alignment, least)
    elif isinstance(launch, Product):
        moved, reason = _of_product(launch, made)
    elif isinstance(launch, Attention):
        moved, reason = _of_attention(launch)
    else:
        moved, reason = _of_indexed(launch, made, least)
    factor = moved / least
    if factor <= 1.005:
        return made
    return tuple(replace(each, factor=factor, note="; ".join(filter(None, (each.note, reason)))) for each in made)


def _of_column(launch: Generated, made: Sequence[CudaLaunch], alignment: Alignment, least: int) -> tuple[float, str]:
    task = ColumnTask(launch, alignment)
    loads = zip(launch.loads, launch.program.loads, strict=True)
    rows = sum(SIZES[load.dtype] * task.total * task.rows for access, load in loads if access.strides[-2])
    again = max(len(task.passes) - 1, 0) * rows
    scratch = 2 * sum(each.workspace_bytes for each in made[:1])
    reasons = [f"rows are read {len(task.passes)} times"] if again else []
    reasons += [f"the results of {task.parts} parts go through memory"] if scratch else []
    return least + again + scratch, "; ".join(reasons)


def _of_product(launch: Product, made: Sequence[CudaLaunch]) -> tuple[float, str]:
    """Every tile of c reads a band of a and one of b; parts of a sum are written and read in f32."""
    tile = choose(launch).tile
    down, along = -(-launch.m // tile.rows), -(-launch.n // tile.columns)
    size, entries = SIZES[launch.dtype], len(launch.c.starts)
    operands = (launch.m * launch.k * along + launch.k * launch.n * down) * size
    results = launch.m * launch.n * SIZES[launch.c_dtype] * (2 if launch.accumulate else 1)
    parts = 2 * made[0].workspace_bytes
    reason = f"tiles of {tile.rows} × {tile.columns}: a is asked for {along} times, b {down} times"
    return entries * (operands + results) + parts, reason


def _of_attention(launch: Attention) -> tuple[float, str]:
    """Tiles of rows ask for all columns up to the diagonal; backward tiles of columns for all rows from it on, too."""
    rows, columns = tile_of(launch.width, launch.value_width, launch.backward)
    heads, sources, width = launch.batch * launch.heads, launch.batch * launch.heads // launch.group, _width(launch)
    bands = [min(launch.columns, first + rows) if launch.causal else launch.columns for first in range(0, launch.rows, rows)]
    finite = sources * launch.columns * launch.value_width if launch.causal else 0
    # Numbers in the dtype of q, k, v and dout, and numbers in f32.
    narrow, wide = heads * (launch.rows * launch.width + sum(bands) * width) + finite, 0
    if not launch.backward:
        wide = heads * launch.rows * (launch.value_width + 1)
    else:
        firsts = [first // rows * rows if launch.causal else 0 for first in range(0, launch.columns, columns)]
        narrow += heads * (launch.rows * launch.value_width + sum(launch.rows - first for first in firsts) * width)
        narrow += sources * launch.columns * width + heads * launch.rows * launch.value_width
        # δ of every row; dq, and dk and dv; what is kept of a row is asked for by every 16 columns of a tile.
        wide = heads * launch.rows * (launch.value_width + 1 + launch.width) + sources * launch.columns * width
        wide += 2 * heads * launch.rows * (columns // 16) * (len(firsts) + -(-launch.columns // columns))
        if launch.causal:
            narrow += sources * launch.columns * launch.width + heads * launch.rows * width
            wide += heads * launch.rows
    mask = bytes_of(launch) if launch.masked else 0
    moved = SIZES[launch.dtype] * narrow + SIZES["f32"] * wide + mask
    return moved, f"tiles of {rows} rows × {columns} columns: the others are asked for once a tile"


def _width(launch: Attention) -> int:
    return launch.width + launch.value_width


def _of_indexed(launch: Indexed, made: Sequence[CudaLaunch], least: int) -> tuple[float, str]:
    """At most: keys that are sorted are written and read by every kernel, and a merge looks at the other runs."""
    if made[0].workspace_bytes:
        keys = made[0].workspace_bytes / (2 if len(made) > 2 else 1)
        return least + keys * (2 * len(made) + (RUNS - 1) * (len(made) - 2)), "keys go through memory while they are sorted"
    if launch.op == "scatter_add":
        warps = -(-launch.outer * launch.count * launch.inner // WARP)
        looks = 2 * warps * launch.count * SIZES[launch.index_dtype]
        return least + looks, "each index is compared with all others"
    if launch.op == "gather" and launch.flag is not None:
        indices = launch.outer * launch.count * launch.inner * SIZES[launch.index_dtype]
        return least + indices, "indices are read once to be checked and once to be used"
    return least, ""
