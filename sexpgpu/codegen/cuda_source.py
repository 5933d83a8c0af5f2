"""The text of one CUDA kernel while it is written: lines, the device functions it calls, how values are spelled.

Names in a kernel: p an operand's address, o its offset in elements, x element values (arrays where a thread has several
neighbours), v values computed from them, r values of a whole row, i places along loops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256

from sexpgpu.codegen.cuda_tracer import C_TYPES, cast_function, formula_function, literal
from sexpgpu.codegen.source import register, result_dtype
from sexpgpu.ir.types import INTEGERS
from sexpgpu.ops.table import OPS
from sexpgpu.plan.kernel import Instruction, Place, Program

# What an element is in memory.
MEMORY_TYPES = {
    "f32": "float",
    "bf16": "unsigned short",
    "f16": "unsigned short",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u32": "unsigned",
    "bool": "unsigned char",
}

# Every module begins with this: conversions between memory and registers, and packs of neighbours that are moved at once.
PREAMBLE = """\
#pragma nv_diag_suppress 177
__device__ __forceinline__ float from_bf16(unsigned short x) { return __int_as_float((int)x << 16); }
__device__ __forceinline__ unsigned short to_bf16(float x)
{
    const int bits = __float_as_int(x);
    const int rounded = (int)((unsigned)bits + 0x7fffu + ((unsigned)(bits >> 16) & 1u));
    return (unsigned short)((unsigned)(x != x ? bits | 0x00400000 : rounded) >> 16);
}
__device__ __forceinline__ float from_f16(unsigned short x)
{
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
__device__ __forceinline__ unsigned short to_f16(float x)
{
    unsigned short y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
template <int N, class T> struct alignas(N * sizeof(T)) Pack { T at[N]; };
template <int N, class T> __device__ __forceinline__ Pack<N, T> take(const T* p)
{
    return *reinterpret_cast<const Pack<N, T>*>(p);
}
template <int N, class T> __device__ __forceinline__ void put(T* p, const Pack<N, T>& x)
{
    *reinterpret_cast<Pack<N, T>*>(p) = x;
}
"""

_WRAPPING = frozenset(("neg", "add", "sub", "mul"))
_WIDE = {"i32": "unsigned", "i64": "unsigned long long"}
_NAME = "KERNEL_NAME"


@dataclass(frozen=True)
class Scratch:
    """A place in the workspace that a launch shares with no other that runs at the same time."""

    offset_bytes: int = 0


@dataclass(frozen=True)
class Words:
    """A parameter of several 64-bit words, each an address or a number."""

    words: tuple[Place | Scratch | int, ...]


# What a kernel is given: an address or a number, each of 64 bits, or several of them as one parameter.
Argument = Place | Scratch | int | Words


@dataclass(frozen=True)
class CudaKernel:
    """A kernel's definition. `functions`: the device functions that it calls, in order. `threads` of a block."""

    name: str
    text: str
    functions: tuple[str, ...]
    threads: int


@dataclass(frozen=True)
class CudaLaunch:
    """A launch of a kernel over a grid of blocks. `workspace_bytes`: scratch that it needs; `factor`: the bytes that it
    moves, to those that its region must (every input read once, every output written once); `note`: why it is more than
    1, where it is."""

    kernel: CudaKernel
    grid: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    _: KW_ONLY
    shared_bytes: int = 0
    workspace_bytes: int = 0
    factor: float = 1.0
    note: str = ""


@dataclass
class CudaText:
    """A kernel that is being written. `blocks`: how many a multiprocessor must have the registers for, where that is told."""

    kind: str
    threads: int
    parameters: list[str] = field(default_factory=list)
    arguments: list[Argument] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    functions: dict[str, None] = field(default_factory=dict)
    depth: int = 1
    blocks: int = 0

    def add(self, line: str) -> None:
        self.lines.append("    " * self.depth + line if line else "")

    def open(self, line: str) -> None:
        """A line that opens a block: `if (…) {`."""
        self.add(line + " {")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.add("}")

    def parameter(self, declaration: str, argument: Argument) -> None:
        self.parameters.append(declaration)
        self.arguments.append(argument)

    def call(self, function: str) -> None:
        """Makes sure that a device function stands above the kernel."""
        self.functions.setdefault(function)

    def finish(self, comment: Iterable[str] = ()) -> CudaKernel:
        """The kernel; its name is its kind and a hash of its text, so that the same text is the same kernel."""
        bounds = f"{self.threads}, {self.blocks}" if self.blocks else str(self.threads)
        head = f'extern "C" __global__ void __launch_bounds__({bounds}) {_NAME}({", ".join(self.parameters)})'
        text = "\n".join([*(f"// {line}".rstrip() for line in comment), head, "{", *self.lines, "}", ""])
        functions = tuple(self.functions)
        digest = sha256("\n".join([*functions, text]).encode()).hexdigest()[:12]
        name = f"{self.kind}_{digest}"
        return CudaKernel(name, text.replace(_NAME, name), functions, self.threads)


def module_source(kernels: Iterable[CudaKernel]) -> str:
    """The source of a module of several kernels: what they share stands once."""
    made = list({kernel.name: kernel for kernel in kernels}.values())
    functions = dict.fromkeys(function for kernel in made for function in kernel.functions)
    return "\n".join([PREAMBLE, *functions, *(kernel.text for kernel in made)])


def loaded(text: str, dtype: str) -> str:
    """A memory element as a register's value."""
    if dtype in ("bf16", "f16"):
        return f"from_{dtype}({text})"
    return f"({text} != 0)" if dtype == "bool" else text


def stored(text: str, dtype: str) -> str:
    """A register's value as a memory element."""
    if dtype in ("bf16", "f16"):
        return f"to_{dtype}({text})"
    return f"({text} ? 1 : 0)" if dtype == "bool" else text


def c_type(program: Program, value: int) -> str:
    """The register type of a value."""
    return C_TYPES[result_dtype(program, value)]


def constant_of(program: Program, value: int) -> str | None:
    """A constant's text; None for other values."""
    made = value - len(program.loads)
    if made < 0 or program.body[made].op != "constant":
        return None
    instruction = program.body[made]
    return literal(dict(instruction.attributes)["value"], register(instruction.dtype))


def spell(program: Program, instruction: Instruction, names: list[str], text: CudaText) -> str:
    """A pointwise instruction as an expression over the names of its arguments."""
    op = instruction.op
    dtypes = tuple(result_dtype(program, a) for a in instruction.arguments)
    if op == "cast":
        if dtypes[0] == instruction.dtype:
            return names[0]
        text.call(cast_function(dtypes[0], instruction.dtype))
        return f"cast_{dtypes[0]}_{instruction.dtype}({names[0]})"
    if op == "random":
        text.call(formula_function("k_random", ("i64", "u32", "u32", "u32", "u32", "u32")))
        return f"k_random({', '.join(names)})"
    spelling = OPS[op].cuda
    assert spelling, op
    if op in _WRAPPING and instruction.dtype in INTEGERS:
        return _wrapped(op, instruction.dtype, names)
    found = re.match(r"(k_\w+)\(", spelling)
    if found:
        text.call(formula_function(found.group(1), tuple(register(dtype) for dtype in dtypes)))
    return spelling.format(*names)


def _wrapped(op: str, dtype: str, names: list[str]) -> str:
    """Integers wrap; signed ones do so as unsigned ones."""
    wide = _WIDE.get(dtype, C_TYPES[dtype])
    if op == "neg":
        return f"({C_TYPES[dtype]})(({wide})0 - ({wide}){names[0]})"
    sign = {"add": "+", "sub": "-", "mul": "*"}[op]
    return f"({C_TYPES[dtype]})(({wide}){names[0]} {sign} ({wide}){names[1]})"
