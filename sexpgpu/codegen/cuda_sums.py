"""Sums over whole flat buffers as CUDA C, in the order of `codegen.sums`: the CPU's bits."""

from __future__ import annotations

from functools import cache

from sexpgpu.codegen.cuda_emit import cuda_launches
from sexpgpu.codegen.cuda_source import CudaKernel, CudaLaunch
from sexpgpu.codegen.sums import ADD, BLOCK, LANES
from sexpgpu.plan.kernel import Access, Generated, Place

THREADS = 128
# So few that all of a card's multiprocessors have work: a block's lanes are eight threads.
BLOCKS_OF_A_GRID = THREADS // LANES
# Elements of a thread that are under way at once.
AHEAD = 32

# A thread is a lane of one block of elements. Neighbouring lanes read neighbouring elements.
SQUARES = f"""\
extern "C" __global__ void __launch_bounds__({THREADS}) square_sums(const float* x, double* sums, long long count)
{{
    const int lane = threadIdx.x % {LANES};
    const long long block = blockIdx.x * {BLOCKS_OF_A_GRID}ll + threadIdx.x / {LANES};
    const long long begin = block * {BLOCK};
    const long long left = count - begin;
    const int size = left < 0 ? 0 : left < {BLOCK} ? (int)left : {BLOCK};
    const int whole = size & -{LANES};
    const float* here = x + begin;
    double sum = 0;
    int i = lane;
    if (size == {BLOCK}) {{
        for (; i < {BLOCK}; i += {LANES * AHEAD}) {{
            float w[{AHEAD}];
            #pragma unroll
            for (int j = 0; j < {AHEAD}; ++j) w[j] = here[i + j * {LANES}];
            #pragma unroll
            for (int j = 0; j < {AHEAD}; ++j) sum = sum + (double)w[j] * (double)w[j];
        }}
    }}
    for (; i < whole; i += {LANES}) {{
        const double wide = here[i];
        sum = sum + wide * wide;
    }}
    for (int apart = {LANES // 2}; apart; apart /= 2)
        sum = sum + __shfl_down_sync(0xffffffff, sum, apart, {LANES});
    if (lane == 0 && size) {{
        for (int i = whole; i < size; i++) {{
            const double wide = here[i];
            sum = sum + wide * wide;
        }}
        sums[block] = sum;
    }}
}}
"""


def blocks_of(elements: int) -> int:
    """How many sums `square_sums` gives."""
    return -(-elements // BLOCK)


@cache
def square_sums(elements: int) -> CudaLaunch:
    """Σ x² of every block of buffer 0, into buffer 1 (float64)."""
    grid = -(-blocks_of(elements) // BLOCKS_OF_A_GRID)
    kernel = CudaKernel("square_sums", SQUARES, (), THREADS)
    return CudaLaunch(kernel, (grid, 1, 1), (Place(0), Place(1), elements))


@cache
def add(elements: int) -> CudaLaunch:
    """Buffer 0 += buffer 1, f32."""
    operands = Access(Place(0), (1,)), Access(Place(1), (1,))
    (launch,) = cuda_launches(Generated(ADD, (elements,), operands, operands[:1]), lambda place: 64)
    return launch
