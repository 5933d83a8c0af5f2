"""Kernels that are written by hand: constants of one launch, above a body of CUDA C that is the same for every size.

A body's names: `Offset` counts elements (32 bits where all of the launch's operands allow), `Element` is what is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sexpgpu.codegen.cuda_operands import PACK_BYTES, Alignment
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, Argument, CudaKernel, CudaText
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Place

_INT_LIMIT = 1 << 31
_INTEGER = "__device__ __forceinline__ {0} add_{1}({0} a, {0} b) {{ return ({0})(({2})a + ({2})b); }}\n"
_HALF = (
    "__device__ __forceinline__ unsigned short add_{0}(unsigned short a, unsigned short b)\n"
    "{{\n    return to_{0}(from_{0}(a) + from_{0}(b));\n}}\n"
)
# Sums of what is in memory, rounded to the dtype after every step; integers wrap, of booleans one suffices.
ADDITIONS = {
    "f32": "__device__ __forceinline__ float add_f32(float a, float b) { return a + b; }\n",
    "bf16": _HALF.format("bf16"),
    "f16": _HALF.format("f16"),
    "i32": _INTEGER.format("int", "i32", "unsigned"),
    "i64": _INTEGER.format("long long", "i64", "unsigned long long"),
    "u8": _INTEGER.format("unsigned char", "u8", "unsigned"),
    "u32": _INTEGER.format("unsigned", "u32", "unsigned"),
    "bool": "__device__ __forceinline__ unsigned char add_bool(unsigned char a, unsigned char b) { return (a | b) != 0; }\n",
}


@dataclass(frozen=True)
class Fixed:
    """A hand-written kernel. `parameters` are declarations with their arguments; `names` are types that the body uses."""

    kind: str
    threads: int
    comment: tuple[str, ...]
    parameters: tuple[tuple[str, Argument], ...]
    body: str
    constants: Mapping[str, int] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    functions: Iterable[str] = ()

    def kernel(self) -> CudaKernel:
        text = CudaText(self.kind, self.threads)
        for declaration, argument in self.parameters:
            text.parameter(declaration, argument)
        for function in self.functions:
            text.call(function)
        for name, spelled in self.names.items():
            text.add(f"using {name} = {spelled};")
        for name, number in self.constants.items():
            text.add(f"constexpr {'int' if number < _INT_LIMIT else 'long long'} {name} = {number};")
        for line in self.body.strip("\n").split("\n"):
            text.add(line)
        return text.finish(self.comment)

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return tuple(argument for _, argument in self.parameters)


def offset_type(*elements: int) -> str:
    """The type that counts so many elements; half of its range is left for a grid's last block."""
    return "unsigned" if max(elements, default=0) < _INT_LIMIT else "unsigned long long"


def pack_of(dtype: str, row: int, places: Iterable[Place], alignment: Alignment) -> int:
    """How many neighbours of rows of this length can be moved at once at every place."""
    size = SIZES[dtype]
    width = PACK_BYTES // size
    known = min(alignment(place) for place in places)
    while width > 1 and (row % width or known % (width * size)):
        width //= 2
    return width


def element(dtype: str) -> dict[str, str]:
    """The names of a dtype's element."""
    return {"Element": MEMORY_TYPES[dtype]}
