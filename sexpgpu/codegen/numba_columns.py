"""Column programs as Numba source: chunks of columns, reduced row after row in the order of the rows."""

from __future__ import annotations

from sexpgpu.codegen.numba_kernel import Kernel
from sexpgpu.codegen.numba_reductions import Reduction, address, begin, feed, reductions_of
from sexpgpu.codegen.source import describe
from sexpgpu.codegen.stages import analyse, arguments_of
from sexpgpu.plan.kernel import Program


def emit_column(program: Program) -> str:
    """A chunk of columns a unit. After a pass an accumulator holds its columns' results."""
    kernel, stages = Kernel(program), analyse(program)
    reductions = {r.value: r for r in reductions_of(program, kernel.free_group)}
    kernel.read_words(("n", "chunk", "chunks", "rows"))
    for reduction in reductions.values():
        address(kernel, reduction)
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
    """Feeds one row after the other."""
    begin(kernel, here, "count")
    kernel.add("for i in range(rows):")
    kernel.source.depth += 1
    for number in range(len(kernel.program.loads)):
        kernel.add(f"u{number} = q{number} + i * t{number}")
    kernel.add("for c in range(count):")
    kernel.source.depth += 1
    _values(kernel, reductions, [r.argument for r in here], "u")
    for reduction in here:
        feed(kernel, reduction, "c", "i")
    kernel.source.depth -= 2


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
        kernel.add(f"{name} = load_i32_{r.group + 1}(a{r.array + 1}, c)")
        return
    kernel.add(f"{name} = load_{r.dtype}_{r.group}(a{r.array}, c)")
    if r.op == "sum":
        kernel.add(f"{name} = k_select(rows == 0, {kernel.source.constant(0, r.dtype)}, {name})")
