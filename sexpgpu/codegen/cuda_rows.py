"""Row programs as CUDA C: thread l of a row is lane l of its sums (see `layout.lanes_of`), so the bits are the CPU's.

Rows of up to 1024 elements have a warp each (the shortest share one), longer ones a block. Neighbouring lanes take
neighbouring elements, lane l those at l + lanes · round. A row that its threads can hold is read once: what later passes
need stays in registers (`row_values.py`), and all rounds stand unrolled, so that their loads are all under way at once.
Longer rows are read again in every pass, some rounds at a time; where the order allows it, a pass begins where the one
before ended, or ends where the next begins, with what the caches still hold.
"""

from __future__ import annotations

from math import prod

from sexpgpu.codegen.cuda_operands import (
    Operand,
    declare,
    is_wide,
    load_element,
    offset,
    operands_of,
    register_type,
    store_element,
)
from sexpgpu.codegen.cuda_reductions import WARP, begin, feed, is_free_of_order, join_block, join_warp, neutral, share
from sexpgpu.codegen.cuda_source import (
    MEMORY_TYPES,
    CudaKernel,
    CudaLaunch,
    CudaText,
    c_type,
    constant_of,
    loaded,
    spell,
)
from sexpgpu.codegen.cuda_tracer import literal
from sexpgpu.codegen.numba_reductions import Reduction, reductions_of
from sexpgpu.codegen.row_geometry import Geometry, geometry_of
from sexpgpu.codegen.row_values import Passes, passes_keeping_nothing, passes_reading_once
from sexpgpu.codegen.source import describe_lines
from sexpgpu.codegen.stages import EXPENSIVE, analyse
from sexpgpu.plan.kernel import Generated

# Rounds that stand unrolled, registers of a thread for kept elements (with those it computes in, still 3 blocks of 128
# threads a core), and instructions of all rounds.
MOST_ROUNDS, MOST_KEPT, MOST_STEPS, DEAR_STEPS = 64, 128, 4096, 20
# Loads of a thread that are under way at once where rounds are in a loop; twice as many where rows are few.
LOADS_AHEAD, FEW_ROWS, MOST_STEPS_AHEAD = 16, 256, 512


def emit_row(launch: Generated) -> CudaLaunch | None:
    """The launch of a row program; None where there is no row."""
    rows = prod(launch.sizes[:-1])
    if rows == 0:
        return None
    writer = _Row(launch, geometry_of(rows, launch.sizes[-1]))
    kernel = writer.write()
    blocks = -(-rows // writer.shape.rows_per_block)
    factor, reason = writer.traffic()
    return CudaLaunch(kernel, (blocks, 1, 1), tuple(writer.text.arguments), factor=factor, note=reason)


class _Row:
    def __init__(self, launch: Generated, shape: Geometry) -> None:
        self.launch, self.program, self.shape = launch, launch.program, shape
        self.stages = analyse(self.program)
        self.text = CudaText("row", shape.threads)
        self.operands = operands_of(launch)
        self.loads = len(self.program.loads)
        self.reductions = reductions_of(self.program, 0)
        self.integer = "long long" if is_wide(launch) else "int"
        self.names: dict[int, str] = {}
        once = passes_reading_once(self.program, self.stages)
        self.holds = self._can_hold(once)
        self.passes = once if self.holds else passes_keeping_nothing(self.program, self.stages)
        self.backward = self._directions()

    def _can_hold(self, once: Passes) -> bool:
        """Whether the row's elements, and the text of all rounds, are few enough."""
        rounds = self.shape.rounds
        steps = sum(map(self._steps, once.made)) * rounds
        return rounds <= MOST_ROUNDS and once.registers * rounds <= MOST_KEPT and steps <= MOST_STEPS

    def _steps(self, values: tuple[int, ...]) -> int:
        """About how many instructions make these values of one element."""
        computed = [self.program.body[v - self.loads].op for v in values if v >= self.loads]
        return len(values) + DEAR_STEPS * sum(op in EXPENSIVE for op in computed)

    def _directions(self) -> list[bool]:
        """Which passes go from the row's end to its beginning: what the last pass read last is read first."""
        made: list[bool] = []
        for stage in range(len(self.passes.made)):
            turns = not self.holds and any(self.passes.made[1:]) and not (made and made[-1])
            made.append(turns and all(is_free_of_order(r) for r in self._reductions(stage)))
        return made

    def _reductions(self, stage: int) -> list[Reduction]:
        """Those that a pass feeds."""
        return [r for r in self.reductions if self.stages.stage[r.value] == stage + 1]

    def write(self) -> CudaKernel:
        declare(self.text, self.operands)
        self._places()
        for value in sorted(self.passes.kept):
            self._declare_array(value, self.shape.rounds, self.shape.rest > 0)
        for stage in range(len(self.passes.made)):
            self._whole_values(stage)
            self._pass(stage)
            self._join(self._reductions(stage))
        self._whole_values(len(self.passes.made))
        self._whole_stores()
        return self.text.finish([f"Rows of {self.shape.length}.", *describe_lines(self.program)])

    def traffic(self) -> tuple[float, str]:
        """The bytes that it moves to those that it must, and why they are more. What all rows read (gains) is cached."""
        sizes = self.launch.sizes
        must = again = most = 0
        for operand in self.operands:
            strides = operand.access.strides
            count = prod(size for size, step in zip(sizes, strides, strict=True) if step) * operand.item_bytes
            must += count if operand.in_memory else 0
            shared = any(size > 1 and not step for size, step in zip(sizes, strides, strict=True))
            if operand.in_memory and operand.number < self.loads and not shared:
                times = sum(operand.number in made for made in self.passes.made)
                again += max(times - 1, 0) * count
                most = max(most, times)
        reason = f"rows of {self.shape.length} are too long for registers: read {most} times" if again else ""
        return 1 + again / max(must, 1), reason

    # -- where a thread is

    def _places(self) -> None:
        """The thread's row and lane, and each operand's offset at the lane's first element."""
        shape, add = self.shape, self.text.add
        if shape.is_block:
            add(f"const {self.integer} lane = threadIdx.x;")
            add("const int row = blockIdx.x;")
        else:
            add(f"const {self.integer} lane = threadIdx.x % {shape.lanes}u;")
            add(f"const int row = blockIdx.x * {shape.rows_per_block} + threadIdx.x / {shape.lanes}u;")
            if shape.rows % shape.rows_per_block:
                add(f"if (row >= {shape.rows}) return;")
        self._mask()
        places, below = {}, 1
        for loop in range(len(self.launch.sizes) - 2, -1, -1):
            size = self.launch.sizes[loop]
            part = f"row / {below}" if below > 1 else "row"
            add(f"const {self.integer} i{loop} = {f'{part} % {size}' if loop else part};")
            places[loop] = f"i{loop}"
            below *= size
        places[len(self.launch.sizes) - 1] = "lane"
        for operand in self.operands:
            add(f"const {self.integer} o{operand.number} = {offset(operand, places)};")

    def _mask(self) -> None:
        """The lanes of the warp that have not left: rows that share a warp may be too few for the last one."""
        shape = self.shape
        each = WARP // min(shape.lanes, WARP)
        rest = shape.rows % each
        self.mask = "0xffffffffu"
        if rest:
            part = f"0x{(1 << rest * shape.lanes) - 1:x}u"
            self.text.add(f"const unsigned mask = row / {each} == {shape.rows // each} ? {part} : 0xffffffffu;")
            self.mask = "mask"

    # -- values of the whole row

    def _whole_values(self, stage: int) -> None:
        """Values of the whole row that are known from this pass on."""
        for value, varies in enumerate(self.stages.element):
            if varies or self.stages.stage[value] != stage or value in self.names:
                continue
            constant = constant_of(self.program, value)
            if constant is not None:
                self.names[value] = constant
                continue
            if value < self.loads:
                operand = self.operands[value]
                made, kind = load_element(operand, f"o{value}", self.text), register_type(operand)
            else:
                made, kind = self._spelled(value), c_type(self.program, value)
            self.names[value] = f"r{value}"
            self.text.add(f"const {kind} r{value} = {made};")

    def _spelled(self, value: int) -> str:
        instruction = self.program.body[value - self.loads]
        return spell(self.program, instruction, [self.names[a] for a in instruction.arguments], self.text)

    def _join(self, reductions: list[Reduction]) -> None:
        """The pass's running values into the row's values, which every lane gets."""
        if self.shape.is_block and reductions:
            for r in reductions:
                share(r, self.text)
            self.text.add("__syncthreads();")
            for r in reductions:
                join_block(r, self.text)
        for r in reductions:
            if self.shape.length:
                made = join_warp(r, min(self.shape.lanes, WARP), self.mask, self.text)
            else:
                # The sum of nothing is +0, though a lane begins with -0.
                made = f"j{r.value}" if r.picks else literal(0, r.dtype) if r.op == "sum" else neutral(r)
            self.text.add(f"const {c_type(self.program, r.value)} r{r.value} = {made};")
            self.names[r.value] = f"r{r.value}"

    def _whole_stores(self) -> None:
        """Stores of one value a row, by its first lane, once all lanes have read what is overwritten."""
        stores = [o for o, s in zip(self.operands[self.loads :], self.program.stores) if s.inner == "zero"]
        if not stores:
            return
        if any(operand.pointer != f"p{operand.number}" for operand in stores):
            self.text.add("__syncthreads();" if self.shape.is_block else f"__syncwarp({self.mask});")
        self.text.open("if (lane == 0)")
        for operand in stores:
            value = self.program.stores[operand.number - self.loads].value
            self.text.add(store_element(operand, f"o{operand.number}", self.names[value]))
        self.text.close()

    # -- passes over the row

    def _pass(self, stage: int) -> None:
        reductions = self._reductions(stage)
        for r in reductions:
            begin(r, self.text)
        if (not reductions and not self.stages.stores[stage]) or self.shape.length == 0:
            return
        self.text.add("")
        if self.holds:
            self._rounds(stage, "", self.shape.rounds)
            return
        parts = [self._looped_rounds, self._last_rounds]
        for part in reversed(parts) if self.backward[stage] else parts:
            part(stage, self._ahead(stage))

    def _ahead(self, stage: int) -> int:
        """How many rounds' loads are made before their elements are computed with."""
        loads = sum(self.operands[v].in_memory for v in self.passes.made[stage] if v < self.loads)
        ahead = LOADS_AHEAD * (2 if self.shape.rows < FEW_ROWS else 1) // max(loads, 1)
        return max(2, min(ahead, MOST_STEPS_AHEAD // max(self._steps(self.passes.made[stage]), 1)))

    def _looped_rounds(self, stage: int, ahead: int) -> None:
        looped = self.shape.whole // ahead * ahead
        if looped == 0:
            return
        head = f"int k = 0; k < {looped}; k += {ahead}"
        if self.backward[stage]:
            head = f"int k = {looped - ahead}; k >= 0; k -= {ahead}"
        self.text.open(f"for ({head})")
        self._rounds(stage, "k", ahead)
        self.text.close()

    def _last_rounds(self, stage: int, ahead: int) -> None:
        looped = self.shape.whole // ahead * ahead
        if looped < self.shape.rounds:
            self._rounds(stage, str(looped), self.shape.rounds - looped)

    def _rounds(self, stage: int, first: str, count: int) -> None:
        """`count` rounds from one on, unrolled: all loads, then the elements in order. The last may be for some lanes."""
        self.text.add("{")
        self.text.depth += 1
        last = first != "k" and self.shape.rest > 0
        at = f"({first} + j)" if first else "j"
        self._load_rounds(stage, at, count, last)
        self._open_round(count, last, self.backward[stage])
        for value in self.passes.read[stage]:
            self._element(value, f"{self._array(value)}[j]")
        for value in self.passes.made[stage]:
            self._make(value, at)
        for r in self._reductions(stage):
            place = f"lane + {at} * {self.shape.lanes}"
            feed(r, self.names[r.argument], place, self.text, self.backward[stage])
        for number in self.stages.stores[stage]:
            operand = self.operands[self.loads + number]
            stored = self.names[self.program.stores[number].value]
            self.text.add(store_element(operand, self._at(operand, at), stored))
        self._close_round(last)
        self.text.close()

    def _load_rounds(self, stage: int, at: str, count: int, last: bool) -> None:
        """The pass's loads, into arrays."""
        loads = [v for v in self.passes.made[stage] if v < self.loads and self.operands[v].in_memory]
        for value in loads:
            if value not in self.passes.kept:
                self._declare_array(value, count, last)
        if not loads:
            return
        self._open_round(count, last)
        for value in loads:
            operand = self.operands[value]
            self.text.add(f"{self._array(value)}[j] = {operand.pointer}[{self._at(operand, at)}];")
        self._close_round(last)

    def _open_round(self, count: int, last: bool, backward: bool = False) -> None:
        self.text.add("#pragma unroll")
        self.text.open(f"for (int j = {count - 1}; j >= 0; --j)" if backward else f"for (int j = 0; j < {count}; ++j)")
        if last:
            self.text.open(f"if (j < {count - 1} || lane < {self.shape.rest})")

    def _close_round(self, last: bool) -> None:
        self.text.close()
        if last:
            self.text.close()

    def _make(self, value: int, at: str) -> None:
        """An element value that this pass loads or computes."""
        if value >= self.loads:
            self._element(value, self._spelled(value))
            if value in self.passes.kept:
                self.text.add(f"{self._array(value)}[j] = {self.names[value]};")
            return
        operand = self.operands[value]
        self._element(
            value,
            f"{self._array(value)}[j]"
            if operand.in_memory
            else load_element(operand, self._at(operand, at), self.text),
        )

    def _element(self, value: int, made: str) -> None:
        if value < self.loads and self.operands[value].in_memory:
            made = loaded(made, self.program.loads[value].dtype)
        letter = "x" if value < self.loads else "v"
        self.names[value] = f"{letter}{value}"
        self.text.add(f"const {c_type(self.program, value)} {letter}{value} = {made};")

    def _at(self, operand: Operand, at: str) -> str:
        """The offset of the lane's element of a round."""
        step = f"{self.shape.lanes * operand.access.strides[-1]}{'ll' if self.integer == 'long long' else ''}"
        return f"o{operand.number} + {at} * {f'({step})' if step.startswith('-') else step}"

    def _array(self, value: int) -> str:
        """Kept or loaded elements, one a round; loads as they are in memory."""
        return f"{'w' if value < self.loads else 'k'}{value}"

    def _declare_array(self, value: int, count: int, last: bool) -> None:
        """In a round for some lanes the others' element is 0: they may compute with it, but use no result."""
        kind = MEMORY_TYPES[self.program.loads[value].dtype] if value < self.loads else c_type(self.program, value)
        self.text.add(f"{kind} {self._array(value)}[{count}]{' = {}' if last else ''};")
