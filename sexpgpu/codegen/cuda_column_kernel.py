"""One CUDA kernel of a column program while it is written: where a thread is, running values, rows, parts, stores.

Letters beside those of `cuda_source.py`: a and j the running value and place of the part at hand, z and y those of the
column, s and t the parts' results in shared or scratch memory, w a row's elements as they are in memory.
"""

from __future__ import annotations

from sexpgpu.codegen.column_task import ColumnTask
from sexpgpu.codegen.cuda_operands import Operand, declare, is_wide, load_element, offset, store_element
from sexpgpu.codegen.cuda_reductions import begin, feed, join
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaLaunch, CudaText, Scratch, c_type, constant_of, loaded, spell
from sexpgpu.codegen.cuda_tracer import C_TYPES, literal
from sexpgpu.codegen.numba_reductions import Reduction
from sexpgpu.codegen.source import describe_lines
from sexpgpu.ir.types import SIZES

# Results of parts that are loaded before the first is used.
PARTS_AHEAD = 32
SCRATCH_ALIGNMENT = 256


class ColumnKernel:
    """`operands`: those that the kernel has; it computes what `task` says, or the first or second half of it."""

    def __init__(self, task: ColumnTask, threads: int, operands: list[Operand]) -> None:
        self.task, self.program = task, task.launch.program
        self.text = CudaText("column", threads)
        self.operands = operands
        self.integer = "long long" if is_wide(task.launch) else "int"
        self.names: dict[int, str] = {}
        declare(self.text, operands)

    def launch(self, blocks: int, how: str, workspace_bytes: int = 0, note: str = "") -> CudaLaunch:
        sizes = " × ".join(map(str, self.task.launch.sizes))
        comment = [f"Columns, along the second-last loop of {sizes}: {how}.", *describe_lines(self.program)]
        kernel = self.text.finish(comment)
        arguments = tuple(self.text.arguments)
        return CudaLaunch(kernel, (blocks, 1, 1), arguments, workspace_bytes=workspace_bytes, note=note)

    # -- where a thread is

    def least(self, name: str, limit: int) -> str:
        return f"min({name}, {limit}{'ll' if self.integer == 'long long' else ''})"

    def unit(self, count: int, digits: tuple[str, ...]) -> None:
        """The thread's number among `count`, and its places: those of `digits`, the innermost first, and the outer loops'."""
        threads = self.text.threads
        self.text.add(f"const {self._unsigned} unit = ({self._unsigned})blockIdx.x * {threads}u + threadIdx.x;")
        if count % threads:
            self.text.add(f"if (unit >= {count}u) return;")
        sizes = {"column": self.task.columns, "part": self.task.parts}
        below = 1
        for digit in digits:
            part = f"unit / {below}u" if below > 1 else "unit"
            below *= sizes[digit]
            part = f"{part} % {sizes[digit]}u" if below < count else part
            self.text.add(f"const {self.integer} {digit} = ({self.integer})({part});")
        self.outer_places(f"(unit / {below}u)")

    @property
    def _unsigned(self) -> str:
        return "unsigned long long" if self.integer == "long long" else "unsigned"

    def outer_places(self, number: str) -> None:
        """The places along the outer loops, from the number of all."""
        below = 1
        for loop in range(len(self.task.outer) - 1, -1, -1):
            part = f"{number} / {below}u" if below > 1 else number
            part = f"{part} % {self.task.outer[loop]}u" if loop else part
            self.text.add(f"const {self.integer} i{loop} = ({self.integer})({part});")
            below *= self.task.outer[loop]

    def offsets(self) -> None:
        """Each operand's offset in the column's first row."""
        places = {loop: f"i{loop}" for loop in range(len(self.task.outer))}
        places[len(places) + 1] = "column"
        for operand in self.operands:
            self.text.add(f"const {self.integer} o{operand.number} = {offset(operand, places)};")

    # -- running values and results

    def begin(self, reductions: list[Reduction], value: str = "a", place: str = "j") -> None:
        for r in reductions:
            begin(r, self.text, value, place)

    def results(self, reductions: list[Reduction], value: str, place: str) -> None:
        """The reductions' results, from running values under these letters."""
        for r in reductions:
            made = f"{place if r.picks else value}{r.value}"
            if r.op == "sum" and self.task.rows == 0:
                # The sum of nothing is +0, though a sum begins with −0.
                made = literal(0, r.dtype)
            self.text.add(f"const {c_type(self.program, r.value)} r{r.value} = {made};")
            self.names[r.value] = f"r{r.value}"

    def shared(self, reductions: list[Reduction]) -> None:
        """Room for the results of a block's parts: s, places t."""
        size = self.task.parts * self.task.tile
        for r in reductions:
            self.text.add(f"__shared__ {C_TYPES[r.dtype]} s{r.value}[{size}];")
            if r.picks:
                self.text.add(f"__shared__ int t{r.value}[{size}];")

    def scratch(self, reductions: list[Reduction], units: int, constant: str) -> int:
        """The same in scratch memory; its bytes."""
        size = 0
        for r in reductions:
            kinds = [(C_TYPES[r.dtype], "s", SIZES[r.dtype]), ("int", "t", 4)]
            for kind, letter, item in kinds[: 1 + r.picks]:
                self.text.parameter(f"{constant}{kind}* __restrict__ {letter}{r.value}", Scratch(size))
                size += -(-units * item // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        return size

    def keep(self, reductions: list[Reduction], at: str) -> None:
        """Leaves a part's result there."""
        for r in reductions:
            self.text.add(f"s{r.value}[{at}] = a{r.value};")
            if r.picks:
                self.text.add(f"t{r.value}[{at}] = j{r.value};")

    def join_parts(self, reductions: list[Reduction], at: str) -> None:
        """The results of the column, from those of its parts in order; part `part` is at `at`."""
        self.begin(reductions, "z", "y")
        self.text.add(f"#pragma unroll {PARTS_AHEAD}")
        self.text.open(f"for (int part = 0; part < {self.task.parts}; ++part)")
        for r in reductions:
            join(r, "z", "y", f"s{r.value}[{at}]", f"t{r.value}[{at}]", self.text)
        self.text.close()
        self.results(reductions, "z", "y")

    # -- elements

    def rows(self, part: str, reductions: list[Reduction]) -> None:
        """Feeds all rows of a part, so many at a time; the last part's rest stands unrolled as well."""
        task, text = self.task, self.text
        if task.rows == 0:
            return
        values = task.needed([r.argument for r in reductions])
        ahead, rest = task.rows_ahead(values), task.rows % task.rows_ahead(values)
        text.add("{")
        text.depth += 1
        names = dict(self.names)
        self._load_steady(values, names)
        text.add(f"{self.integer} row = {'0' if part == '0' else f'({self.integer}){part} * {task.height}'};")
        if task.rows >= ahead:
            if part == "0":
                text.open(f"for (; row < {task.rows - rest}; row += {ahead})")
            else:
                end = f"row + {task.height}"
                end = self.least(end, task.rows - rest) if task.rows % task.height else end
                text.open(f"for (const {self.integer} end = {end}; row < end; row += {ahead})")
            self._some_rows(values, names, reductions, ahead)
            text.close()
        if rest:
            text.open(f"if ({part} == {task.parts - 1})")
            self._some_rows(values, names, reductions, rest)
            text.close()
        text.close()

    def _some_rows(self, values: list[int], names: dict[int, str], reductions: list[Reduction], count: int) -> None:
        """`count` rows from `row` on: all loads, then row after row."""
        moving = [v for v in values if self.task.is_moving(v)]
        text, names = self.text, dict(names)
        for value in moving:
            self._load_rows(value, count)
        text.add("#pragma unroll")
        text.open(f"for (int j = 0; j < {count}; ++j)")
        for value in values:
            if value in moving:
                self._name(value, loaded(f"w{value}[j]", self.program.loads[value].dtype), names)
            else:
                self._element(value, names)
        for r in reductions:
            feed(r, names[r.argument], "row + j", text)
        text.close()

    def _load_rows(self, value: int, count: int) -> None:
        """A load's elements of `count` rows from `row` on, as they are in memory."""
        text, at = self.text, self._at(self.operands[value])
        pointer, width = self.operands[value].pointer, self.task.rows_at_once(value, count)
        text.add(f"{MEMORY_TYPES[self.program.loads[value].dtype]} w{value}[{count}];")
        text.add("#pragma unroll")
        if width == 1:
            text.add(f"for (int j = 0; j < {count}; ++j) w{value}[j] = {pointer}[{at}];")
            return
        text.open(f"for (int j = 0; j < {count}; j += {width})")
        text.add(f"const auto pack = take<{width}>({pointer} + ({at}));")
        for row in range(width):
            text.add(f"w{value}[j + {row}] = pack.at[{row}];")
        text.close()

    def stores(self) -> None:
        """The stored values, from the reductions' results."""
        first = len(self.program.loads)
        values = self.task.needed([store.value for store in self.program.stores])
        self._load_steady(values, self.names)
        for value in values:
            if value not in self.names and value < first:
                self._name(value, load_element(self.operands[value], f"o{value}", self.text), self.names)
            self._element(value, self.names)
        for operand in self.operands[first:]:
            value = self.program.stores[operand.number - first].value
            self.text.add(store_element(operand, f"o{operand.number}", self.names[value]))

    def _load_steady(self, values: list[int], names: dict[int, str]) -> None:
        """Loads that are the same in every row."""
        for value in values:
            if value < len(self.program.loads) and not self.task.step(value):
                self._name(value, load_element(self.operands[value], f"o{value}", self.text), names)

    def _element(self, value: int, names: dict[int, str]) -> None:
        """A line that computes a value, unless it has a name."""
        if value in names:
            return
        constant = constant_of(self.program, value)
        if constant is not None:
            names[value] = constant
        elif value < len(self.program.loads):
            operand = self.operands[value]
            self._name(value, load_element(operand, self._at(operand), self.text), names)
        else:
            instruction = self.program.body[value - len(self.program.loads)]
            self._name(
                value, spell(self.program, instruction, [names[a] for a in instruction.arguments], self.text), names
            )

    def _name(self, value: int, made: str, names: dict[int, str]) -> None:
        names[value] = f"{'x' if value < len(self.program.loads) else 'v'}{value}"
        self.text.add(f"const {c_type(self.program, value)} {names[value]} = {made};")

    def _at(self, operand: Operand) -> str:
        """The offset in row `row + j`."""
        step = operand.access.strides[-2]
        return f"o{operand.number} + (row + j) * {f'({step})' if step < 0 else step}"
