"""Stable sorting of places as CUDA C: values become unsigned numbers of the same order, with the place below them."""

from __future__ import annotations

from dataclasses import replace

from sexpgpu.codegen.cuda_fixed import element
from sexpgpu.codegen.cuda_sort import TILE, Keys, sort_launches
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaLaunch
from sexpgpu.plan.kernel import Indexed

# Long rows are sorted in the workspace, at most so many bytes of keys at a time.
MOST_BYTES = 1 << 28

_FLOAT = """\
// The order of floats: both zeros are equal, NaN is the greatest.
__device__ __forceinline__ unsigned ordered(float x)
{
    if (x != x) return 0xffffffffu;
    const int bits = __float_as_int(x == 0.0f ? 0.0f : x);
    return bits < 0 ? ~(unsigned)bits : (unsigned)bits | 0x80000000u;
}
"""
_ORDERED = {
    "f32": ("ordered(x[at])", (_FLOAT,)),
    "bf16": ("ordered(from_bf16(x[at]))", (_FLOAT,)),
    "f16": ("ordered(from_f16(x[at]))", (_FLOAT,)),
    "i32": ("(unsigned)x[at] ^ 0x80000000u", ()),
    "i64": ("(unsigned long long)x[at] ^ (1ull << 63)", ()),
    "u8": ("(unsigned)x[at]", ()),
    "u32": ("x[at]", ()),
    "bool": ("(unsigned)(x[at] != 0)", ()),
}

_MAKE = """\
const Offset line = segment + (Offset)first_line;
        const Offset at = line / INNER * ((Offset)SIZE * INNER) + (Offset)row * INNER + line % INNER;
        const {type} value = {descends}({value});
        {key}"""
_NARROW, _WIDE = (
    "key = (unsigned long long)value << 32 | (unsigned)row;",
    "key.value = value;\n        key.place = row;",
)
_PUT = """\
const Offset line = segment + (Offset)first_line;
        out[line / INNER * ((Offset)SIZE * INNER) + (Offset)place * INNER + line % INNER] = (int)key{place};"""


def emit_argsort(launch: Indexed) -> tuple[CudaLaunch, ...]:
    """The launches of an argsort along the middle axis."""
    lines = launch.outer * launch.inner
    key_bytes = 16 if launch.dtype == "i64" else 8
    group = lines if launch.size <= TILE else min(max(MOST_BYTES // (key_bytes * launch.size), 1), lines)
    note = f"elements of a line are {launch.inner} apart in memory" if launch.inner > 1 else ""
    return tuple(
        replace(made, note=note)
        for first in range(0, lines, group)
        for made in sort_launches(_keys(launch, first, min(group, lines - first)))[0]
    )


def _keys(launch: Indexed, first: int, segments: int) -> Keys:
    """Lines of the operand as keys, from line `first` on."""
    wide = launch.dtype == "i64"
    value, functions = _ORDERED[launch.dtype]
    make = _MAKE.replace("{value}", value).replace("{descends}", "~" if launch.descending else "")
    make = make.replace("{type}", "unsigned long long" if wide else "unsigned")
    make = make.replace("{key}", _WIDE if wide else _NARROW)
    number = ("long long first_line", first)
    return Keys(
        "argsort",
        segments,
        launch.size,
        wide,
        make,
        ((f"const {MEMORY_TYPES[launch.dtype]}* __restrict__ x", launch.inputs[0]), number),
        functions,
        tuple(element(launch.dtype).items()),
        (("INNER", launch.inner),),
        _PUT.replace("{place}", ".place" if wide else ""),
        (("int* __restrict__ out", launch.out), number),
        launch.inner > 1,
        launch.outer * launch.size * launch.inner,
    )
