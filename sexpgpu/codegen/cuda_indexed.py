"""Indexed operations as CUDA C, contiguous operands seen as [outer, size or count, inner]: which kernels one of them is.

An index out of range: the nearest valid one is taken, and of all such indices the one with the lowest position in the
index operand is written into the flag, unless an earlier launch of the same call has written one.
"""

from __future__ import annotations

from sexpgpu.codegen.cuda_argsort import emit_argsort
from sexpgpu.codegen.cuda_cumsum import emit_cumsum
from sexpgpu.codegen.cuda_fixed import Fixed, element, offset_type, pack_of
from sexpgpu.codegen.cuda_operands import Alignment
from sexpgpu.codegen.cuda_places import index_functions, index_parameters
from sexpgpu.codegen.cuda_scatter import emit_sum
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaLaunch
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Indexed

THREADS = 256
# A thread moves several narrow packs at once where there is work for all processors then too.
SEVERAL, MANY_PACKS = 4, 1 << 19

# All loads of a thread are under way before its first store.
_MOVE = """
const Offset first = (Offset)blockIdx.x * (UNITS * THREADS) + threadIdx.x;
Pack<WIDTH, Element> moved[UNITS];
#pragma unroll
for (int k = 0; k < UNITS; ++k) {
    const Offset unit = first + k * THREADS;
    if (unit < TOTAL) {
        {places}
        const Offset at = (Offset)nearest(indices[position], SIZE);
        moved[k] = take<WIDTH>(x + ((entry * SIZE + at) * INNER + column));
    }
}
#pragma unroll
for (int k = 0; k < UNITS; ++k) {
    const Offset unit = first + k * THREADS;
    if (unit < TOTAL) {
        put(out + unit * WIDTH, moved[k]);{check}
    }
}
"""

_TAKE_PLACES = """\
const Offset row = unit / PACKS, column = unit % PACKS * WIDTH;
        const Offset entry = row / COUNT, position = row % COUNT;"""
_TAKE_CHECK = """
        if (unit % PACKS == 0 && unit / PACKS < COUNT) check(indices, unit / PACKS, SIZE, flag);"""

_GATHER_PLACES = """\
const Offset column = unit % INNER;
        const Offset entry = unit / INNER / COUNT, position = unit;"""
_GATHER_CHECK = """
        check(indices, unit, SIZE, flag);"""


def emit_indexed(launch: Indexed, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """The launches of an indexed operation; none where there is nothing to compute."""
    rows = launch.size if launch.op in ("cumsum", "argsort") else launch.count
    if 0 in (launch.outer, rows, launch.inner, launch.size):
        return ()
    match launch.op:
        case "take" | "gather":
            return (_emit_move(launch, alignment),)
        case "cumsum":
            return (emit_cumsum(launch),)
        case "argsort":
            return emit_argsort(launch)
        case _:
            return emit_sum(launch, alignment)


def _emit_move(launch: Indexed, alignment: Alignment) -> CudaLaunch:
    """Rows (take) or elements (gather) of x where the indices say, moved as they are."""
    takes, kind = launch.op == "take", MEMORY_TYPES[launch.dtype]
    width = pack_of(launch.dtype, launch.inner, (launch.inputs[0], launch.out), alignment) if takes else 1
    elements = launch.outer * launch.count * launch.inner
    total = elements // width
    units = SEVERAL if total >= MANY_PACKS and width * SIZES[launch.dtype] < 16 else 1
    places, check = (_TAKE_PLACES, _TAKE_CHECK) if takes else (_GATHER_PLACES, _GATHER_CHECK)
    constants = {"THREADS": THREADS, "UNITS": units, "TOTAL": total, "WIDTH": width, "SIZE": launch.size}
    constants |= {"COUNT": launch.count, "INNER": launch.inner} | ({"PACKS": launch.inner // width} if takes else {})
    move = Fixed(
        launch.op,
        THREADS,
        (
            f"{launch.op}: x [{launch.outer} {launch.size} {launch.inner}] at {launch.count} {launch.index_dtype} indices.",
        ),
        (
            (f"const {kind}* __restrict__ x", launch.inputs[0]),
            *index_parameters(launch, launch.inputs[1]),
            (f"{kind}* __restrict__ out", launch.out),
        ),
        _MOVE.replace("{places}", places).replace("{check}", check if launch.flag is not None else ""),
        constants,
        {"Offset": offset_type(elements, launch.outer * launch.size * launch.inner)} | element(launch.dtype),
        index_functions(launch),
    )
    return CudaLaunch(move.kernel(), (-(-total // (THREADS * units)), 1, 1), move.arguments)
