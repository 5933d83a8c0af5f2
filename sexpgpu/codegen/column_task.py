"""What a launch of a column program is to compute, and the numbers that decide how its CUDA kernels do it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from sexpgpu.codegen.cuda_operands import PACK_BYTES, Alignment
from sexpgpu.codegen.layout import part_rows
from sexpgpu.codegen.numba_reductions import Reduction, reductions_of
from sexpgpu.codegen.stages import EXPENSIVE, analyse, arguments_of, is_reduction
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Generated

# A block's columns are neighbours: of 4 bytes each they fill a cache line, or half of one where blocks are few.
TILE, SMALL_TILE, FEW_BLOCKS = 32, 16, 100
# Loads of a thread that are under way at once, and the fewest rows that stand unrolled.
LOADS_AHEAD, LEAST_AHEAD = 16, 4


@dataclass(frozen=True)
class ColumnTask:
    """What is to be computed: `rows` rows in `parts` parts of up to `height`, of `columns` columns at every outer place.
    `passes`: the reductions that the rows are read for, together."""

    launch: Generated
    alignment: Alignment

    @property
    def outer(self) -> tuple[int, ...]:
        return self.launch.sizes[:-2]

    @property
    def rows(self) -> int:
        return self.launch.sizes[-2]

    @property
    def columns(self) -> int:
        return self.launch.sizes[-1]

    @property
    def height(self) -> int:
        return part_rows(self.rows)

    @property
    def parts(self) -> int:
        return max(-(-self.rows // self.height), 1)

    @property
    def total(self) -> int:
        return prod(self.outer) * self.columns

    @cached_property
    def passes(self) -> list[list[Reduction]]:
        program = self.launch.program
        stage = analyse(program).stage
        every = reductions_of(program, 0)
        return [[r for r in every if stage[r.value] == s] for s in sorted({stage[r.value] for r in every})]

    @property
    def tile(self) -> int:
        """Columns of a block, a power of two."""
        few = prod(self.outer) * -(-self.columns // TILE) < FEW_BLOCKS
        return min(1 << (self.columns - 1).bit_length(), SMALL_TILE if few else TILE)

    def needed(self, roots: list[int]) -> list[int]:
        """The values that these are made of, in order, down to loads and reductions' results, which are not among them."""
        program, found, waiting = self.launch.program, set[int](), list(roots)
        while waiting:
            value = waiting.pop()
            if value not in found and not is_reduction(program, value):
                found.add(value)
                waiting += arguments_of(program, value)
        return sorted(found)

    def step(self, load: int) -> int:
        """A load's step from row to row."""
        return self.launch.loads[load].strides[-2]

    def is_moving(self, value: int) -> bool:
        """Whether it is a load from memory, another in every row."""
        loads = self.launch.loads
        return value < len(loads) and loads[value].place is not None and self.step(value) != 0

    def rows_at_once(self, load: int, count: int) -> int:
        """How many of `count` rows one access of a moving load takes: several where they are neighbours in memory."""
        access, item = self.launch.loads[load], SIZES[self.launch.program.loads[load].dtype]
        assert access.place is not None
        *outer, step, across = access.strides
        width = PACK_BYTES // item if step == 1 else 1
        known = self.alignment(access.place) // item
        while any(number % width for number in (count, known, across, *outer)):
            width //= 2
        return width

    def rows_ahead(self, values: list[int]) -> int:
        """Rows that stand unrolled: a power of two, so that parts are whole multiples."""
        program = self.launch.program
        body = [program.body[v - len(program.loads)] for v in values if v >= len(program.loads)]
        if any(instruction.op in EXPENSIVE for instruction in body):
            return LEAST_AHEAD
        loads = sum(self.is_moving(v) for v in values)
        return max(LEAST_AHEAD, 1 << (LOADS_AHEAD // max(loads, 1)).bit_length() >> 1)

    @property
    def shared_bytes(self) -> int:
        return sum(_result_bytes(r) for reductions in self.passes for r in reductions) * self.parts * self.tile

    @property
    def note(self) -> str:
        times = len(self.passes)
        return f"columns are read {times} times, as reductions need others' results" if times > 1 else ""


def _result_bytes(r: Reduction) -> int:
    """Of a part's result: a value, with argmax and argmin its place as well."""
    return SIZES[r.dtype] + 4 * r.picks
