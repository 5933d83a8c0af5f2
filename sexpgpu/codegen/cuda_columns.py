"""Column programs as CUDA C: a thread has one column of one part of the rows (see `layout.part_rows`), so the bits are
the CPU's. Neighbouring threads take neighbouring columns, and many rows' loads are under way before the first is used.

How the parts come together:
  walk    one part, or columns enough for all threads of a device: a thread takes one part of its column after the other
  block   up to LONG_COLUMN rows: a block has all parts of some columns and joins them in shared memory
  stages  more rows: one kernel writes every part's result to scratch memory, another joins them and stores
A reduction that needs another one's result reads the rows again, in one kernel however many they are.
"""

from __future__ import annotations

from math import prod

from sexpgpu.codegen.column_task import ColumnTask
from sexpgpu.codegen.cuda_column_kernel import ColumnKernel
from sexpgpu.codegen.cuda_operands import Alignment, operands_of
from sexpgpu.codegen.cuda_reductions import WARP, join
from sexpgpu.codegen.cuda_source import CudaLaunch
from sexpgpu.codegen.layout import LONG_COLUMN
from sexpgpu.plan.kernel import Generated

# So many columns keep every core busy, a thread each.
MANY_COLUMNS = 1 << 17
BLOCK_THREADS, THREADS, FEW_THREADS = 512, 128, 32
SHARED_BYTES = 48 << 10


def emit_column(launch: Generated, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """The launches of a column program, one after the other; none where there is no column."""
    task = ColumnTask(launch, alignment)
    if task.total == 0:
        return ()
    if task.parts > 1 and task.passes and task.total < MANY_COLUMNS:
        is_once = len(task.passes) == 1
        if task.shared_bytes <= SHARED_BYTES and (task.rows <= LONG_COLUMN or not is_once):
            return (_block(task),)
        if is_once:
            return _stages(task)
    return (_walk(task),)


def _walk(task: ColumnTask) -> CudaLaunch:
    threads = THREADS if task.total >= MANY_COLUMNS // 8 else FEW_THREADS
    writer = ColumnKernel(task, threads, operands_of(task.launch))
    writer.unit(task.total, ("column",))
    writer.offsets()
    for reductions in task.passes:
        if task.parts == 1:
            writer.begin(reductions)
            writer.rows("0", reductions)
            writer.results(reductions, "a", "j")
            continue
        writer.begin(reductions, "z", "y")
        writer.text.open(f"for (int part = 0; part < {task.parts}; ++part)")
        writer.begin(reductions)
        writer.rows("part", reductions)
        for r in reductions:
            join(r, "z", "y", f"a{r.value}", f"j{r.value}", writer.text)
        writer.text.close()
        writer.results(reductions, "z", "y")
    writer.stores()
    return writer.launch(-(-task.total // threads), "a thread a column", note=task.note)


def _block(task: ColumnTask) -> CudaLaunch:
    tile, tiles = task.tile, -(-task.columns // task.tile)
    # Whole warps; threads of a line beyond the last part only wait.
    lines = min(-(-task.parts * tile // WARP) * WARP, BLOCK_THREADS) // tile
    writer = ColumnKernel(task, tile * lines, operands_of(task.launch))
    text, integer = writer.text, writer.integer
    block = f"blockIdx.x % {tiles}u" if task.outer else "blockIdx.x"
    text.add(f"const unsigned line = threadIdx.x / {tile}u;")
    text.add(f"const {integer} first = ({integer})({block}) * {tile};")
    start, leaves = "line", "line > 0"
    if task.columns % tile:
        # Threads without a column of their own take no part; they see the last column's results.
        text.add(f"const {integer} own = first + threadIdx.x % {tile}u;")
        text.add(f"const {integer} column = {writer.least('own', task.columns - 1)};")
        start, leaves = f"own < {task.columns} ? line : {task.parts}u", f"line > 0 || own >= {task.columns}"
    else:
        text.add(f"const {integer} column = first + threadIdx.x % {tile}u;")
    writer.outer_places(f"(blockIdx.x / {tiles}u)")
    writer.offsets()
    for reductions in task.passes:
        writer.shared(reductions)
        text.open(f"for (unsigned part = {start}; part < {task.parts}u; part += {lines}u)")
        writer.begin(reductions)
        writer.rows("part", reductions)
        writer.keep(reductions, f"part * {tile}u + (column - first)")
        text.close()
        text.add("__syncthreads();")
        if reductions is task.passes[-1]:
            text.add(f"if ({leaves}) return;")
        writer.join_parts(reductions, f"part * {tile}u + (column - first)")
    writer.stores()
    return writer.launch(prod(task.outer) * tiles, f"a block {tile} columns", note=task.note)


def _stages(task: ColumnTask) -> tuple[CudaLaunch, ...]:
    (reductions,) = task.passes
    units = task.total * task.parts
    operands = operands_of(task.launch)
    loads = len(task.launch.program.loads)
    first = ColumnKernel(task, THREADS, operands[:loads])
    workspace = first.scratch(reductions, units, "")
    first.unit(units, ("column", "part"))
    first.offsets()
    first.begin(reductions)
    first.rows("part", reductions)
    first.keep(reductions, "unit")
    second = ColumnKernel(task, FEW_THREADS, operands)
    second.scratch(reductions, units, "const ")
    second.unit(task.total, ("column",))
    second.offsets()
    around = f"(unit / {task.columns}u) * {task.parts * task.columns}u + " if task.outer else ""
    second.join_parts(reductions, f"{around}part * {task.columns}u + column")
    second.stores()
    note = f"the results of {task.parts} parts go through scratch memory"
    return (
        first.launch(-(-units // THREADS), f"a thread {task.height} rows of a column", workspace, note),
        second.launch(-(-task.total // FEW_THREADS), "the parts' results", workspace, note),
    )
