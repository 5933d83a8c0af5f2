"""Row programs as Numba source: several passes over each row, sums in lanes (see `stages.py` and `layout.py`)."""

from __future__ import annotations

from sexpgpu.codegen.layout import ACCUMULATOR_BYTES, accumulators
from sexpgpu.codegen.numba_kernel import Kernel
from sexpgpu.codegen.numba_reductions import Reduction, address, begin, feed, join_lanes, reductions_of
from sexpgpu.codegen.source import describe, register, result_dtype
from sexpgpu.codegen.stages import Stages, analyse
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Program


def emit_row(program: Program) -> str:
    """One row a unit."""
    kernel, stages = Kernel(program), analyse(program)
    reductions = reductions_of(program, kernel.free_group)
    kernel.read_words(("n", "lanes", "rounds", "kept"))
    for reduction in reductions:
        address(kernel, reduction)
    for number, value in enumerate(stages.kept):
        kernel.add(f"w{value} = scratch + {accumulators(program) * ACCUMULATOR_BYTES} + {number} * kept")
    kernel.begin_units(chunked=False)
    kernel.pointers("")
    for stage in range(len(stages.passes)):
        kernel.whole_values(stages, stage)
        here = [r for r in reductions if stages.stage[r.value] == stage + 1]
        _pass(kernel, stages, stage, here)
        for reduction in here:
            join_lanes(kernel, reduction)
    # Values made of the last pass's reductions, then the stores of one value a row.
    kernel.whole_values(stages, len(stages.passes))
    for number, store in enumerate(program.stores):
        if store.inner == "zero":
            kernel.store(number, "0")
    kernel.end_units()
    return kernel.source.text(describe(program))


def _pass(kernel: Kernel, stages: Stages, stage: int, reductions: list[Reduction]) -> None:
    """One loop over the row: in rounds of lanes where something is reduced, else straight through."""
    stores = stages.stores[stage]
    if not reductions and not stores:
        return
    if reductions:
        begin(kernel, reductions, "lanes")
        kernel.add("for k in range(rounds):")
        kernel.source.depth += 1
        kernel.add("first = k * lanes")
        kernel.add("count = least(lanes, n - first)")
        touched = {v for v in stages.passes[stage] if v < len(kernel.program.loads)}
        touched |= {kernel.target(s) for s in stores}
        for number in sorted(touched):
            kernel.advance("u", number, "first")
        for value in _scratch_rows(stages, stage):
            size = SIZES[register(result_dtype(kernel.program, value))]
            kernel.add(f"y{value} = w{value} + first * {size}")
        kernel.add("for c in range(count):")
        _loop_body(kernel, stages, stage, reductions, "u", "y")
        kernel.source.depth -= 1
    else:
        kernel.add("for c in range(n):")
        _loop_body(kernel, stages, stage, reductions, "q", "w")


def _scratch_rows(stages: Stages, stage: int) -> list[int]:
    """Kept values that this pass reads or writes."""
    return sorted({*stages.reads[stage], *(v for v in stages.passes[stage] if v in stages.kept)})


def _loop_body(
    kernel: Kernel, stages: Stages, stage: int, reductions: list[Reduction], pointer: str, kept: str
) -> None:
    kernel.source.depth += 1
    group = kernel.free_group + accumulators(kernel.program)
    groups = {value: group + number for number, value in enumerate(stages.kept)}
    for value in stages.reads[stage]:
        dtype = register(result_dtype(kernel.program, value))
        kernel.names[value] = f"v{value}"
        kernel.add(f"v{value} = load_{dtype}_{groups[value]}({kept}{value}, c)")
    for value in stages.passes[stage]:
        kernel.elements((value,), "c", pointer)
        if value in groups:
            dtype = register(result_dtype(kernel.program, value))
            kernel.add(f"store_{dtype}_{groups[value]}({kept}{value}, c, {kernel.value(value)})")
    for reduction in reductions:
        feed(kernel, reduction, "c", "first + c")
    for number in stages.stores[stage]:
        kernel.store(number, "c", pointer)
    kernel.source.depth -= 1
