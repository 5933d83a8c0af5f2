"""How running values of reductions are begun, fed and joined in generated kernels."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from sexpgpu.codegen.layout import ACCUMULATOR_BYTES
from sexpgpu.codegen.numba_kernel import Kernel
from sexpgpu.codegen.source import register, result_dtype
from sexpgpu.codegen.stages import arguments_of, is_reduction
from sexpgpu.ir.types import INTEGERS
from sexpgpu.plan.kernel import Program

_LEAST = {"f32": -inf, "i32": -(2**31), "i64": -(2**63), "u8": 0, "u32": 0}
_GREATEST = {"f32": inf, "i32": 2**31 - 1, "i64": 2**63 - 1, "u8": 255, "u32": 2**32 - 1}


@dataclass(frozen=True, slots=True)
class Reduction:
    """One reduction of a program: which value it makes of which, how, in which accumulator and memory group."""

    value: int
    argument: int
    op: str
    dtype: str
    array: int
    group: int

    @property
    def picks(self) -> bool:
        """argmax and argmin have a second array, of i32 places."""
        return self.op.startswith("arg")

    @property
    def begin(self) -> float:
        """The neutral value; −0 is the sum's, because −0 + x has the bits of x for every x."""
        if self.op in ("sum", "any"):
            return -0.0 if self.dtype == "f32" else 0
        if self.op in ("prod", "all"):
            return 1
        return (_LEAST if self.op in ("max", "argmax") else _GREATEST)[self.dtype]


def reductions_of(program: Program, first_group: int) -> list[Reduction]:
    """Every reduction in order, with places for its running values."""
    made: list[Reduction] = []
    array = 0
    for value in range(len(program.loads) + len(program.body)):
        if is_reduction(program, value):
            argument = arguments_of(program, value)[0]
            op = program.body[value - len(program.loads)].op.removeprefix("reduce_")
            dtype = register(result_dtype(program, argument))
            made.append(Reduction(value, argument, op, dtype, array, first_group + array))
            array += 2 if made[-1].picks else 1
    return made


def address(kernel: Kernel, reduction: Reduction, letter: str = "a", first: int = 0) -> None:
    """Where the running values lie; `first`: accumulators before them."""
    for array in range(reduction.array, reduction.array + 1 + reduction.picks):
        kernel.add(f"{letter}{array} = scratch + {(first + array) * ACCUMULATOR_BYTES}")


def begin(kernel: Kernel, reductions: list[Reduction], count: str) -> None:
    """Fills the accumulators with neutral values."""
    if not reductions:
        return
    kernel.add(f"for l in range({count}):")
    kernel.source.depth += 1
    for r in reductions:
        kernel.add(f"store_{r.dtype}_{r.group}(a{r.array}, l, {kernel.source.constant(r.begin, r.dtype)})")
        if r.picks:
            far = kernel.source.constant(2**31 - 1, "i32")
            kernel.add(f"store_i32_{r.group + 1}(a{r.array + 1}, l, {far})")
    kernel.source.depth -= 1


def feed(kernel: Kernel, r: Reduction, lane: str, place: str) -> None:
    """Joins the element `argument` into its lane; `place` is the element's own place (for argmax)."""
    _join(kernel, r, "a", lane, kernel.value(r.argument), f"as_i32({place})")


def join_part(kernel: Kernel, r: Reduction, lane: str) -> None:
    """Joins the part's running value, at a, into the parts' before it, at z."""
    kernel.add(f"d{r.array} = load_{r.dtype}_{r.group}(a{r.array}, {lane})")
    if r.picks:
        kernel.add(f"h{r.array} = load_i32_{r.group + 1}(a{r.array + 1}, {lane})")
    _join(kernel, r, "z", lane, f"d{r.array}", f"h{r.array}")


def _join(kernel: Kernel, r: Reduction, into: str, lane: str, new: str, place: str) -> None:
    """Joins a value (of argmax and argmin with its place) into a lane of the accumulator at `into`."""
    n = r.array
    kernel.add(f"b{n} = load_{r.dtype}_{r.group}({into}{n}, {lane})")
    if not r.picks:
        kernel.add(f"store_{r.dtype}_{r.group}({into}{n}, {lane}, {_joined(r, f'b{n}', new)})")
        return
    kernel.add(f"j{n} = load_i32_{r.group + 1}({into}{n + 1}, {lane})")
    kernel.add(f"g{n} = {r.op}_{r.dtype}({new}, {place}, b{n}, j{n})")
    kernel.add(f"store_{r.dtype}_{r.group}({into}{n}, {lane}, k_select(g{n}, {new}, b{n}))")
    kernel.add(f"store_i32_{r.group + 1}({into}{n + 1}, {lane}, k_select(g{n}, {place}, j{n}))")


def _joined(r: Reduction, old: str, new: str) -> str:
    operator = {"sum": "+", "prod": "*", "any": "|", "all": "&"}.get(r.op)
    if operator is None:
        return f"k_{r.op}imum({old}, {new})"
    text = f"{old} {operator} {new}"
    return f"as_{r.dtype}({text})" if r.dtype in INTEGERS else text


def join_lanes(kernel: Kernel, r: Reduction) -> None:
    """All lanes into one value, by halves: lane l takes in lane l + half."""
    if r.picks:
        kernel.add(f"r{r.value} = join_{r.op}_{r.dtype}(a{r.array}, a{r.array + 1}, lanes)")
    else:
        kernel.add("if lanes > 32:")
        kernel.source.depth += 1
        kernel.add(f"narrow_{r.op}_{r.dtype}(a{r.array})")
        kernel.source.depth -= 1
        kernel.add(f"r{r.value} = join_{r.op}_{r.dtype}(a{r.array})")
    if r.op in ("sum", "prod"):
        # No lane was begun; the sum's neutral value is −0, and its value 0.
        empty = kernel.source.constant(int(r.op == "prod"), r.dtype)
        kernel.add(f"r{r.value} = k_select(n == 0, {empty}, r{r.value})")
    kernel.names[r.value] = f"r{r.value}"
