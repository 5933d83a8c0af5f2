"""Running sums along an axis as CUDA C, added strictly in order as the CPU does.

A line is what one running sum goes along. A block takes some lines, a tile of their elements at a time: all threads bring
the next tile in, neighbours in memory by neighbouring threads, while one thread a line adds up the tile in shared memory.
"""

from __future__ import annotations

from sexpgpu.codegen.cuda_fixed import ADDITIONS, Fixed, element, offset_type
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaLaunch
from sexpgpu.plan.kernel import Indexed

# Elements of a tile, and lines of a block where the tiles are long.
TILE, LINES, THREADS = 2048, 32, 256
# Below so many lines, of at least so many elements, most of the processors have nothing to do.
FEW_LINES, LONG_LINE = 4096, 1024

# A line of a tile has an odd number of places more than it needs, so that lines begin in different banks.
_BODY = """
__shared__ Element tile[GROUP * (LENGTH + 1)];
const Offset block = (Offset)blockIdx.x * GROUP;
Element ahead[ITEMS];
Offset from[ITEMS];
int line[ITEMS], place[ITEMS];
#pragma unroll
for (int k = 0; k < ITEMS; ++k) {
    const int item = k * THREADS + threadIdx.x;
    line[k] = {line};
    place[k] = {place};
    const Offset number = block + line[k];
    from[k] = number / INNER * ((Offset)SIZE * INNER) + (Offset)place[k] * INNER + number % INNER;
    if (number >= NUMBER) place[k] = SIZE;
    if (place[k] < SIZE) ahead[k] = x[from[k]];
}
Element sum = 0;
for (int start = 0; start < SIZE; start += LENGTH) {
    #pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (place[k] < SIZE - start) tile[line[k] * (LENGTH + 1) + place[k]] = ahead[k];
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (place[k] < SIZE - start - LENGTH) ahead[k] = x[from[k] + (Offset)LENGTH * INNER];
    }
    if (threadIdx.x < GROUP && block + threadIdx.x < NUMBER) {
        Element* mine = tile + threadIdx.x * (LENGTH + 1);
        const int many = min(LENGTH, SIZE - start);
        // The first element is itself; everything else is added to it.
        int j = start == 0;
        if (j) sum = mine[0];
        #pragma unroll 16
        for (; j < many; ++j) {
            sum = {add}(sum, mine[j]);
            mine[j] = sum;
        }
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (place[k] < SIZE - start) out[from[k]] = tile[line[k] * (LENGTH + 1) + place[k]];
        from[k] += (Offset)LENGTH * INNER;
    }
    // A thread writes the next tile where it alone has read this one.
}
"""


def _power(number: int) -> int:
    """The least power of two that is not below the number."""
    return 1 << max(number - 1, 0).bit_length()


def emit_cumsum(launch: Indexed) -> CudaLaunch:
    """The launch of running sums along the middle axis."""
    number = launch.outer * launch.inner
    length = min(_power(launch.size), TILE // min(LINES, _power(number)))
    group = max(min(_power(number), TILE // length, THREADS), 32 // length)
    items = -(-group * length // THREADS)
    threads = group * length // items
    across = launch.inner >= LINES
    body = _BODY.replace("{line}", f"item % {group}" if across else f"item / {length}")
    body = body.replace("{place}", f"item / {group}" if across else f"item % {length}")
    constants = {"THREADS": threads, "GROUP": group, "LENGTH": length, "ITEMS": items}
    constants |= {"NUMBER": number, "SIZE": launch.size, "INNER": launch.inner}
    kind = MEMORY_TYPES[launch.dtype]
    fixed = Fixed(
        "cumsum",
        threads,
        (f"cumsum: x [{launch.outer} {launch.size} {launch.inner}], one line after the other in order.",),
        ((f"const {kind}* x", launch.inputs[0]), (f"{kind}* out", launch.out)),
        body.replace("{add}", f"add_{launch.dtype}"),
        constants,
        {"Offset": offset_type(number * launch.size)} | element(launch.dtype),
        (ADDITIONS[launch.dtype],),
    )
    few = number < FEW_LINES and launch.size >= LONG_LINE
    note = f"cumsum adds in order: {number} lines are {number} threads that add" if few else ""
    return CudaLaunch(fixed.kernel(), (-(-number // group), 1, 1), fixed.arguments, note=note)
