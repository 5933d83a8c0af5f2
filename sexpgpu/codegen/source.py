"""Lines of a generated kernel, and how one value of a program is spelled in it.

A generated kernel is Python that Numba compiles; its vocabulary (`load_f32_0`, `k_exp`, …) stands in
`interp/intrinsics.py`. Names in it: p an operand's address, q its address in this unit, x and v element values,
r values of a whole row, c a place along the last loop, K constants, a accumulators.

The number that ends a load's or store's name is its memory group. The kernel promises that different groups never
overlap, so a store shares the group of the load whose memory it overwrites (its `alias`).
"""

from __future__ import annotations

import math

from sexpgpu.ir.types import FLOATS, INTEGERS
from sexpgpu.ops.table import OPS
from sexpgpu.plan.kernel import Instruction, Program

_WRAPPING = frozenset(("neg", "add", "sub", "mul"))


class Source:
    """Indented lines, and the constants that stand above the function."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}
        self.depth = 1

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def constant(self, number: float, dtype: str) -> str:
        """The name of a constant; the same number has one name."""
        text = literal(number, dtype)
        return self.constants.setdefault(text, f"K{len(self.constants)}")

    def text(self, head: str) -> str:
        constants = [f"{name} = {text}" for text, name in self.constants.items()]
        gap = ["", ""] if constants else []
        return "\n".join([head, *constants, *gap, "def kernel(args, lo, hi, scratch):", *self.lines, ""])


def register(dtype: str) -> str:
    """The dtype that a value has while it is computed with: bf16 and f16 are kept as f32."""
    return "f32" if dtype in FLOATS else dtype


def literal(number: float, dtype: str) -> str:
    """A constant's text; float("…") also writes −0, infinities and NaN."""
    if dtype == "bool":
        return f"bool_({bool(number)})"
    if dtype in INTEGERS:
        return f"{dtype}({int(number)})"
    number = float(number)
    if math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0):
        return f"f32({number!r})"
    return f'f32(float("{number!r}"))'


def result_dtype(program: Program, value: int) -> str:
    """The dtype of a value as the program says it."""
    loads = len(program.loads)
    return program.loads[value].dtype if value < loads else program.body[value - loads].dtype


def spell(program: Program, instruction: Instruction, names: list[str], source: Source) -> str:
    """An instruction as an expression over the names of its arguments."""
    op = instruction.op
    dtypes = [result_dtype(program, a) for a in instruction.arguments]
    if op == "constant":
        return source.constant(dict(instruction.attributes)["value"], instruction.dtype)
    if op == "cast":
        return names[0] if dtypes[0] == instruction.dtype else f"cast_{dtypes[0]}_{instruction.dtype}({names[0]})"
    if op == "random":
        return f"k_random({', '.join(names)})"
    text = OPS[op].numba
    assert text is not None, op
    spelled = text.format(*names)
    # Numba computes narrow integers in 64 bits; the low bits are what wraps.
    return f"as_{instruction.dtype}({spelled})" if op in _WRAPPING and instruction.dtype in INTEGERS else spelled


def describe_lines(program: Program) -> list[str]:
    """The program as text, one value a line."""
    lines = [f"    %{number} = {load.kind} {load.dtype} {load.inner}" for number, load in enumerate(program.loads)]
    for number, instruction in enumerate(program.body, len(program.loads)):
        operands = " ".join(f"%{a}" for a in instruction.arguments)
        attributes = " ".join(f"{k}={v!r}" for k, v in instruction.attributes)
        lines.append(f"    %{number} = {instruction.dtype} {instruction.op} {operands} {attributes}".rstrip())
    for store in program.stores:
        over = "" if store.alias is None else f" over %{store.alias}"
        lines.append(f"    store %{store.value} {store.dtype} {store.inner}{over}")
    return lines


def describe(program: Program) -> str:
    """The docstring of a program's kernel."""
    return "\n".join([f'"""A {program.kind} of {program.rank} loops.', "", *describe_lines(program), '"""', ""])
