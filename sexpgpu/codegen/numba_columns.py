"""Column programs as Numba source: chunks of columns, reduced row after row, part after part (see `layout.part_rows`).

The first part's accumulator is the column's own, at z; each further part has another, at y, which then joins it. Both are
of one memory group, as the accumulator of the part at hand, at a, is either.
"""

from __future__ import annotations

from sexpgpu.codegen.layout import FEW_ROWS, LONG_COLUMN, MANY_ROWS, accumulators
from sexpgpu.codegen.numba_kernel import Kernel
from sexpgpu.codegen.numba_reductions import Reduction, address, begin, feed, join_part, reductions_of
from sexpgpu.codegen.source import describe
from sexpgpu.codegen.stages import EXPENSIVE, analyse, arguments_of
from sexpgpu.plan.kernel import Program


def emit_column(program: Program) -> str:
    """A chunk of columns a unit. After a pass the accumulators at z hold its columns' results."""
    kernel, stages = Kernel(program), analyse(program)
    reductions = {r.value: r for r in reductions_of(program, kernel.free_group)}
    kernel.read_words(("n", "chunk", "chunks", "rows"))
    kernel.add(f"height = {FEW_ROWS} if rows <= {LONG_COLUMN} else {MANY_ROWS}")
    kernel.add("parts = 1 if rows == 0 else quotient(rows + height - 1, height)")
    for reduction in reductions.values():
        address(kernel, reduction, "z")
        address(kernel, reduction, "y", accumulators(program))
    kernel.begin_units(chunked=True)
    kernel.add("first = k * chunk")
    kernel.add("count = least(chunk, n - first)")
    kernel.pointers("first")
    for stage in range(len(stages.passes)):
        here = [r for r in reductions.values() if stages.stage[r.value] == stage + 1]
        if here:
            _pass(kernel, reductions, here)
    kernel.add("for c in range(count):")
    kernel.source.depth += 1
    _values(kernel, reductions, [store.value for store in program.stores], "q")
    for number in range(len(program.stores)):
        kernel.store(number, "c")
    kernel.source.depth -= 1
    kernel.end_units()
    return kernel.source.text(describe(program))


def _pass(kernel: Kernel, reductions: dict[int, Reduction], here: list[Reduction]) -> None:
    """Feeds the rows of a part, then joins the part."""
    kernel.add("for part in range(parts):")
    kernel.source.depth += 1
    for reduction in here:
        for array in range(reduction.array, reduction.array + 1 + reduction.picks):
            kernel.add(f"a{array} = z{array} if part == 0 else y{array}")
    begin(kernel, here, "count")
    kernel.add("row = part * height")
    kernel.add("last = least(row + height, rows)")
    if _is_cheap(kernel.program):
        # Two rows at a time: the accumulators are loaded and stored half as often.
        _rows(kernel, reductions, here, "quotient(last - row, 2)", 2)
        _rows(kernel, reductions, here, "remainder(last - row, 2)", 1)
    else:
        _rows(kernel, reductions, here, "last - row", 1)
    kernel.add("if part > 0:")
    kernel.source.depth += 1
    kernel.add("for c in range(count):")
    kernel.source.depth += 1
    for reduction in here:
        join_part(kernel, reduction, "c")
    kernel.source.depth -= 3


def _is_cheap(program: Program) -> bool:
    return not any(instruction.op in EXPENSIVE for instruction in program.body)


def _rows(kernel: Kernel, reductions: dict[int, Reduction], here: list[Reduction], rounds: str, together: int) -> None:
    """So many rounds of so many rows each, from `row` on."""
    kernel.add(f"for _ in range({rounds}):")
    kernel.source.depth += 1
    for j in range(together):
        for number in range(len(kernel.program.loads)):
            kernel.add(f"u{j}_{number} = q{number} + (row + {j}) * t{number}")
    kernel.add("for c in range(count):")
    kernel.source.depth += 1
    for j in range(together):
        _values(kernel, reductions, [r.argument for r in here], f"u{j}_")
        for reduction in here:
            feed(kernel, reduction, "c", f"row + {j}")
    kernel.source.depth -= 1
    kernel.add(f"row = row + {together}")
    kernel.source.depth -= 1


def _values(kernel: Kernel, reductions: dict[int, Reduction], roots: list[int], pointer: str) -> None:
    """Everything the roots need: loads, finished reductions, instructions, in order."""
    needed: set[int] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            waiting += [] if value in reductions else arguments_of(kernel.program, value)
    for value in sorted(needed):
        if value in reductions:
            _finished(kernel, reductions[value])
        else:
            kernel.elements((value,), "c", pointer)


def _finished(kernel: Kernel, r: Reduction) -> None:
    name = kernel.names[r.value] = f"r{r.value}"
    if r.picks:
        kernel.add(f"{name} = load_i32_{r.group + 1}(z{r.array + 1}, c)")
        return
    kernel.add(f"{name} = load_{r.dtype}_{r.group}(z{r.array}, c)")
    if r.op == "sum":
        kernel.add(f"{name} = k_select(rows == 0, {kernel.source.constant(0, r.dtype)}, {name})")
