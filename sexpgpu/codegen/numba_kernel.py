"""A program as the Python source of one Numba kernel: pure text, the same for every size.

`emit` writes maps here, rows and columns in `numba_rows.py` and `numba_columns.py`; how it is called stands in
`layout.py`, its vocabulary in `source.py`.
"""

from __future__ import annotations

from sexpgpu.codegen.layout import HEAD_WORDS, operand_words, outer_rank
from sexpgpu.codegen.source import Source, describe, result_dtype, spell
from sexpgpu.codegen.stages import Stages, analyse
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Load, Program, Store


class Kernel:
    """A kernel that is being written."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.source = Source()
        self.add = self.source.add
        self.operands: list[Load | Store] = [*program.loads, *program.stores]
        self.names: dict[int, str] = {}

    def group(self, operand: int) -> int:
        """The memory group of an operand (loads first, then stores)."""
        loads = len(self.program.loads)
        alias = self.program.stores[operand - loads].alias if operand >= loads else None
        return operand if alias is None else alias

    @property
    def free_group(self) -> int:
        """The first group that no operand uses."""
        return len(self.operands)

    def value(self, value: int) -> str:
        """The name of a value that has been computed (constants have theirs without)."""
        loads = len(self.program.loads)
        if value >= loads and self.program.body[value - loads].op == "constant":
            return spell(self.program, self.program.body[value - loads], [], self.source)
        return self.names[value]

    def compute(self, value: int, letter: str) -> None:
        """A line that computes an instruction; one that changes nothing only hands its name on."""
        instruction = self.program.body[value - len(self.program.loads)]
        if instruction.op == "constant":
            return
        text = spell(self.program, instruction, [self.value(a) for a in instruction.arguments], self.source)
        if text.isidentifier():
            self.names[value] = text
            return
        self.names[value] = f"{letter}{value}"
        self.add(f"{letter}{value} = {text}")

    # -- words, units and pointers

    def read_words(self, names: tuple[str, str, str, str]) -> None:
        """The fixed words and every operand's: address p, outer strides s, reduced stride t, last stride e."""
        for number, name in enumerate(names):
            if name:
                self.add(f"{name} = word(args, {number})")
        outer = outer_rank(self.program)
        for loop in range(outer):
            self.add(f"n{loop} = word(args, {HEAD_WORDS + loop})")
        place = HEAD_WORDS + outer
        for number, operand in enumerate(self.operands):
            letters = ["p", *(f"s{loop}_" for loop in range(outer))]
            letters += ["t"] if self.program.kind == "column" else []
            letters += ["e"] if operand.inner == "any" else []
            for letter in letters:
                self.add(f"{letter}{number} = word(args, {place})")
                place += 1
            assert len(letters) == operand_words(self.program, operand)

    def begin_units(self, chunked: bool) -> None:
        """The loop over units; i… are the outer loops' places and k the chunk's, counted on from the first unit."""
        digits = [("k", "chunks")] if chunked else []
        digits += [(f"i{loop}", f"n{loop}") for loop in range(outer_rank(self.program))]
        if digits:
            self.add("rest = lo")
        for name, size in reversed(digits[1:]):
            self.add(f"{name} = remainder(rest, {size})")
            self.add(f"rest = quotient(rest, {size})")
        if digits:
            self.add(f"{digits[0][0]} = rest")
        self.digits = digits
        self.add("for _ in range(hi - lo):")
        self.source.depth += 1

    def end_units(self) -> None:
        """Counts the places on, the innermost first."""
        for number in range(len(self.digits) - 1, -1, -1):
            name, size = self.digits[number]
            self.add(f"{name} = {name} + 1")
            if number == 0:
                break
            self.add(f"if {name} == {size}:")
            self.source.depth += 1
            self.add(f"{name} = 0")
        self.source.depth = 1

    def pointers(self, first: str) -> None:
        """Every operand's address q in this unit; `first`: the chunk's first place along the last loop, or nothing."""
        for number, operand in enumerate(self.operands):
            terms = [f"p{number}"]
            terms += [f"i{loop} * s{loop}_{number}" for loop in range(outer_rank(self.program))]
            if first and operand.inner != "zero":
                terms.append(self._step(number, operand, first))
            self.add(f"q{number} = {' + '.join(terms)}")

    def _step(self, number: int, operand: Load | Store, places: str) -> str:
        """The distance of so many places along the last loop."""
        index = isinstance(operand, Load) and operand.kind == "index"
        size = "" if index or SIZES[operand.dtype] == 1 else f" * {SIZES[operand.dtype]}"
        return f"{places}{f' * e{number}' if operand.inner == 'any' else ''}{size}"

    def advance(self, letter: str, number: int, places: str) -> None:
        """Another address, `letter`, so many places further along the last loop."""
        operand = self.operands[number]
        moved = "" if operand.inner == "zero" else f" + {self._step(number, operand, places)}"
        self.add(f"{letter}{number} = q{number}{moved}")

    # -- single elements

    def place(self, number: int, at: str) -> str:
        """`at` along the last loop as an index from an operand's address."""
        inner = self.operands[number].inner
        return "0" if inner == "zero" else f"{at} * e{number}" if inner == "any" else at

    def load(self, number: int, at: str, name: str, pointer: str = "q") -> None:
        load = self.program.loads[number]
        self.names[number] = name
        if load.kind == "memory":
            call = f"load_{load.dtype}_{self.group(number)}({pointer}{number}, {self.place(number, at)})"
        else:
            place = self.place(number, at)
            call = f"{pointer}{number}" if place == "0" else f"{pointer}{number} + {place}"
            call = call if load.dtype == "i64" else f"cast_i64_{load.dtype}({call})"
        self.add(f"{name} = {call}")

    def target(self, number: int) -> int:
        """The operand whose address a store writes to: the load's own where it overwrites one, or LLVM would find that
        the two overlap and compute element after element."""
        alias = self.program.stores[number].alias
        return len(self.program.loads) + number if alias is None else alias

    def store(self, number: int, at: str, pointer: str = "q") -> None:
        store = self.program.stores[number]
        operand = self.target(number)
        place = self.place(operand, at)
        value = self.value(self._unrounded(store))
        self.add(f"store_{store.dtype}_{self.group(operand)}({pointer}{operand}, {place}, {value})")

    def _unrounded(self, store: Store) -> int:
        """A store rounds to bf16 or f16 itself: what a cast to it would round is handed on."""
        made = store.value - len(self.program.loads)
        if made < 0 or store.dtype not in ("bf16", "f16"):
            return store.value
        instruction = self.program.body[made]
        narrows = instruction.op == "cast" and result_dtype(self.program, instruction.arguments[0]) == "f32"
        return instruction.arguments[0] if narrows else store.value

    def elements(self, values: tuple[int, ...], at: str, pointer: str = "q") -> None:
        """Loads and computes element values in order."""
        for value in values:
            if value < len(self.program.loads):
                self.load(value, at, f"x{value}", pointer)
            else:
                self.compute(value, "v")

    def whole_values(self, stages: Stages, stage: int) -> None:
        """The values of a whole unit that are known from this pass on: loads and instructions without reductions."""
        loads = len(self.program.loads)
        for value, varies in enumerate(stages.element):
            if varies or stages.stage[value] != stage:
                continue
            if value < loads:
                self.load(value, "0", f"r{value}")
            elif not self.program.body[value - loads].op.startswith("reduce_"):
                self.compute(value, "r")


def _emit_map(program: Program) -> str:
    kernel, stages = Kernel(program), analyse(program)
    kernel.read_words(("n", "chunk", "chunks", ""))
    kernel.begin_units(chunked=True)
    kernel.add("first = k * chunk")
    kernel.add("count = least(chunk, n - first)")
    kernel.pointers("first")
    kernel.whole_values(stages, 0)
    kernel.add("for c in range(count):")
    kernel.source.depth += 1
    kernel.elements(stages.passes[0], "c")
    for number in range(len(program.stores)):
        kernel.store(number, "c")
    kernel.source.depth -= 1
    kernel.end_units()
    return kernel.source.text(describe(program))


def emit(program: Program) -> str:
    """The source of the program's kernel."""
    from sexpgpu.codegen.numba_columns import emit_column
    from sexpgpu.codegen.numba_rows import emit_row

    return {"map": _emit_map, "row": emit_row, "column": emit_column}[program.kind](program)
