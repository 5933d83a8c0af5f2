"""Products of operands that are no matrices: their rows, columns and steps of k are where loops lead; nothing is copied.

The windows of a convolution are such an operand. The engine of products packs it from the tables of these loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.product import free_axes
from sexpgpu.plan.kernel import Matrix, Place, Product
from sexpgpu.plan.located import Located, Loops, falling, join, narrow_operands, starts_of
from sexpgpu.plan.trace import Storage

# A product is cut into no more entries than this where each has fewer results than that.
MOST_ENTRIES, LEAST_RESULTS = 256, 256


@dataclass(frozen=True)
class _Run:
    """Free axes of an operand that are one loop of the result: its size, its step there, the loops in the operand."""

    size: int
    out_step: int
    loops: Loops


def looped_product(node: Node, sides: Sequence[Located], out: Storage) -> Product | None:
    """The launch; None where the dtype is not the engine's, the result has no columns that lie side by side, or every
    loop is one: such an operand is better copied once for all that read it."""
    batch, contracted = node.attributes["batch"], node.attributes["contracted"]
    runs = _free_runs(node, sides, out)
    column = 0 if not any(run.out_step == 1 for run in runs[1]) and any(run.out_step == 1 for run in runs[0]) else 1
    row = 1 - column
    if node.dtype not in FLOATS or (runs[column] and all(run.out_step != 1 for run in runs[column])):
        return None
    columns = max((run for run in runs[column] if run.out_step == 1), key=lambda run: run.size, default=_Run(1, 1, []))
    rows = max(runs[row], key=lambda run: run.size, default=_Run(1, columns.size, []))
    entries = [(k, run) for k in (0, 1) for run in runs[k] if run is not rows and run is not columns]
    if rows.size * columns.size < LEAST_RESULTS and prod(run.size for _, run in entries) > MOST_ENTRIES:
        return None
    orders = [falling(side, axes) for side, axes in zip(sides, contracted, strict=True)]
    steps = min(
        ([join([loop for i in order for loop in side.loops[axes[i]]]) for side, axes in zip(sides, contracted, strict=True)]
         for order in orders),
        key=lambda found: len(found[0]) + len(found[1]),
    )  # fmt: skip
    starts = [
        starts_of([*(side.loops[axis] for axis in batch[k]), *(_turns(run, k == own) for own, run in entries)])
        for k, side in enumerate(sides)
    ]
    of_batch: list[Loops] = [[(n, step)] for n, step in zip(node.shape[: len(batch[0])], out.strides, strict=False)]
    c = starts_of([*of_batch, *([(run.size, run.out_step)] for _, run in entries)])
    a = _matrix(sides[row].place, rows.loops, steps[row], starts[row])
    b = _matrix(sides[column].place, steps[column], columns.loops, starts[column])
    if not (a.has_loops or b.has_loops):
        return None
    k = prod(size for size, _ in steps[0])
    dtype = narrow_operands(node)[0].dtype
    result = None if node.dtype == dtype else node.dtype
    made = Matrix(out.place, rows.out_step, 1, c)
    return Product(dtype, rows.size, columns.size, k, a, b, made, (node.index,), result=result)


def _free_runs(node: Node, sides: Sequence[Located], out: Storage) -> list[list[_Run]]:
    """The free axes of both operands, neighbours joined along which the result steps evenly."""
    axis = len(node.attributes["batch"][0])
    made: list[list[_Run]] = []
    for k, side in enumerate(sides):
        runs: list[_Run] = []
        for free in free_axes(len(side.loops), node.attributes["batch"][k], node.attributes["contracted"][k]):
            size, step, loops = node.shape[axis], out.strides[axis], side.loops[free]
            axis += 1
            if size == 1:
                continue
            if runs and runs[-1].out_step == step * size:
                runs[-1] = _Run(runs[-1].size * size, step, join([*runs[-1].loops, *loops]))
            else:
                runs.append(_Run(size, step, loops))
        made.append(runs)
    return made


def _turns(run: _Run, own: bool) -> Loops:
    """Batch entries in one operand: its own loops, or no step where they are the other's."""
    return run.loops if own else [(run.size, 0)]


def _matrix(place: Place | None, rows: Loops, columns: Loops, starts: tuple[int, ...]) -> Matrix:
    row, of_rows = _one(rows)
    column, of_columns = _one(columns)
    return Matrix(place or Place(-1), row, column, starts, of_rows, of_columns)


def _one(loops: Loops) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A single loop's step, or the loops."""
    if len(loops) <= 1:
        return loops[0][1] if loops else 1, ()
    return 0, tuple(loops)
