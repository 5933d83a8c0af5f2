"""The bodies of the attention kernels, in f32: a tile of rows by a tile of columns of the scores is there at a time.

Constants: ROWS COLUMNS WIDTH VALUES (of q and k, of v) HEADS GROUP (heads of q that a head of k serves); R and C, rows and
columns of a tile, multiples of 16; CAUSAL, MASKED; strides Q_BATCH Q_HEAD Q_ROW and so on. 256 threads stand as 16 × 16:
thread (ty, tx) has rows ty·R/16 … and columns tx, tx + 16, … of a tile. Sums run over columns (or rows) in order.
"""

from __future__ import annotations

# A tile of an operand from a row on, in shared memory as f32; zeros beyond the last row.
TILE = """\
template <int TILE_ROWS, int LENGTH, int PITCH>
__device__ __forceinline__ void
take_tile(float (*to)[PITCH], const {element}* from, long long step, int first, int rows)
{
    for (int i = threadIdx.x; i < TILE_ROWS * LENGTH; i += 256) {
        const int row = i / LENGTH;
        to[row][i % LENGTH] = first + row < rows ? {loaded} : 0.0f;
    }
}
"""

TILE_ELEMENT = "from[(first + row) * step + i % LENGTH]"

# Whether every element of a head's rows is finite, and'ed into a flag that begins as 1.
FINITE = """\
// Leaving out tiles beyond the diagonal is right only where 0 times everything in them is 0.
const int entry = blockIdx.x / SOURCES, source = blockIdx.x % SOURCES;
bool finite = true;
{checks}
const int all = __syncthreads_and(finite);
if (threadIdx.x == 0) flags[blockIdx.x] = all;
"""
FINITE_CHECK = """\
for (int i = threadIdx.x; i < {rows} * {width}; i += 256) {{
    const float x = {loaded};
    finite = finite && (__float_as_int(x) & 0x7f800000) != 0x7f800000;
}}"""
FINITE_ELEMENT = "{name}[entry * {upper}_BATCH + {head} * {upper}_HEAD + (i / {width}) * {upper}_ROW + i % {width}]"

# Of a causal square whose head is finite: up to which column a tile of rows goes, from which row a tile of columns.
ROWS_BAND = "if (flags[entry * (HEADS / GROUP) + source]) end = min(COLUMNS, first + R);"
COLUMNS_BAND = "if (flags[entry * (HEADS / GROUP) + source]) begin = start / R * R;"

# The scores of the tile that is in qs and ks; hidden ones are −inf.
_SCORES = """\
    float s[R / 16][C / 16] = {};
    for (int d = 0; d < WIDTH; ++d) {
        #pragma unroll
        for (int i = 0; i < R / 16; ++i) {
            #pragma unroll
            for (int j = 0; j < C / 16; ++j) {
                s[i][j] = __fmaf_rn(qs[ty * (R / 16) + i][d], ks[tx + 16 * j][d], s[i][j]);
            }
        }
    }
"""
_SEEN = """\
            const int row = first + ty * (R / 16) + i, column = start + tx + 16 * j;
            bool seen = row < ROWS && column < COLUMNS && (!CAUSAL || column <= row);
            {mask}
"""
SEEN_MASK = "if (seen) seen = mask[entry * MASK_BATCH + head * MASK_HEAD + row * MASK_ROW + column * MASK_COLUMN] != 0;"

FORWARD = (
    """\
__shared__ float qs[R][WIDTH + 1], ks[C][WIDTH + 1], vs[C][VALUES], ps[R][C + 1];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int entry = blockIdx.y / HEADS, head = blockIdx.y % HEADS, source = head / GROUP;
// Of a causal square the last rows have most to do: they begin first.
const int first = (gridDim.x - 1 - blockIdx.x) * R;
const float low = __int_as_float(0xff800000);
int end = COLUMNS;
{band}
take_tile<R, WIDTH>(qs, q + entry * Q_BATCH + head * Q_HEAD, Q_ROW, first, ROWS);
float sums[R / 16][(VALUES + 15) / 16] = {}, top[R / 16], shift[R / 16], total[R / 16];
#pragma unroll
for (int i = 0; i < R / 16; ++i) {
    top[i] = low;
    shift[i] = 0.0f;
    total[i] = 0.0f;
}
for (int start = 0; start < end; start += C) {
    __syncthreads();
    take_tile<C, WIDTH>(ks, k + entry * K_BATCH + source * K_HEAD, K_ROW, start, COLUMNS);
    take_tile<C, VALUES>(vs, v + entry * V_BATCH + source * V_HEAD, V_ROW, start, COLUMNS);
    __syncthreads();
"""
    + _SCORES
    + """\
    #pragma unroll
    for (int i = 0; i < R / 16; ++i) {
        float most = top[i];
        #pragma unroll
        for (int j = 0; j < C / 16; ++j) {
"""
    + _SEEN
    + """\
            s[i][j] = seen ? s[i][j] * scale : low;
            most = fmaxf(most, s[i][j]);
        }
        for (int distance = 8; distance; distance /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
        // What was summed so far is scaled to the greater maximum.
        const float taken = (__float_as_int(most) & 0x7f800000) != 0x7f800000 ? most : 0.0f;
        const float change = top[i] == low ? 1.0f : k_exp(shift[i] - taken);
        top[i] = most;
        shift[i] = taken;
        total[i] *= change;
        #pragma unroll
        for (int x = 0; x < (VALUES + 15) / 16; ++x) sums[i][x] *= change;
        #pragma unroll
        for (int j = 0; j < C / 16; ++j) {
            const float p = k_exp(s[i][j] - taken);
            ps[ty * (R / 16) + i][tx + 16 * j] = p;
            total[i] += p;
        }
    }
    // A row of ps is written and read by the same half of a warp.
    __syncwarp();
    for (int c = 0; c < C; ++c) {
        #pragma unroll
        for (int i = 0; i < R / 16; ++i) {
            #pragma unroll
            for (int x = 0; x < (VALUES + 15) / 16; ++x) {
                if (tx + 16 * x < VALUES) {
                    sums[i][x] = __fmaf_rn(ps[ty * (R / 16) + i][c], vs[c][tx + 16 * x], sums[i][x]);
                }
            }
        }
    }
}
#pragma unroll
for (int i = 0; i < R / 16; ++i) {
    for (int distance = 8; distance; distance /= 2) total[i] += __shfl_xor_sync(0xffffffffu, total[i], distance);
    const int row = first + ty * (R / 16) + i;
    if (row < ROWS) {
        #pragma unroll
        for (int x = 0; x < (VALUES + 15) / 16; ++x) {
            const int place = tx + 16 * x;
            if (place < VALUES) out[entry * OUT_BATCH + head * OUT_HEAD + row * OUT_ROW + place] = sums[i][x] / total[i];
        }
        {lse}
    }
}
"""
)
FORWARD_LSE = "if (tx == 0) lse[(entry * HEADS + head) * (long long)ROWS + row] = shift[i] + k_log(total[i]);"

# δ of every row, by one warp a row: lanes 32 apart, joined by halves.
DELTA = """\
const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
if (row >= BATCH * HEADS * ROWS) return;
const int t = row % ROWS, head = row / ROWS % HEADS, entry = row / ROWS / HEADS;
const float* x = out + entry * OUT_BATCH + head * OUT_HEAD + t * OUT_ROW;
const {element}* y = dout + entry * DOUT_BATCH + head * DOUT_HEAD + t * DOUT_ROW;
float sum = 0.0f;
for (int c = lane; c < VALUES; c += 32) sum += x[c] * {loaded};
for (int distance = 16; distance; distance /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, distance);
if (lane == 0) deltas[row] = sum;
"""

# Probabilities and slopes of a tile, from what was kept of its rows.
_SLOPES = (
    _SCORES
    + """\
    float dp[R / 16][C / 16] = {};
    for (int x = 0; x < VALUES; ++x) {
        #pragma unroll
        for (int i = 0; i < R / 16; ++i) {
            #pragma unroll
            for (int j = 0; j < C / 16; ++j) {
                dp[i][j] = __fmaf_rn(douts[ty * (R / 16) + i][x], vs[tx + 16 * j][x], dp[i][j]);
            }
        }
    }
    #pragma unroll
    for (int i = 0; i < R / 16; ++i) {
        #pragma unroll
        for (int j = 0; j < C / 16; ++j) {
"""
    + _SEEN
    + """\
            const float of_row = row < ROWS ? lse[(entry * HEADS + head) * (long long)ROWS + row] : 0.0f;
            const float delta = row < ROWS ? deltas[(entry * HEADS + head) * (long long)ROWS + row] : 0.0f;
            const bool there = row < ROWS && column < COLUMNS;
            const float p = there ? k_exp((seen ? s[i][j] * scale : low) - of_row) : 0.0f;
            ps[ty * (R / 16) + i][tx + 16 * j] = p;
            slopes[ty * (R / 16) + i][tx + 16 * j] = seen ? p * (dp[i][j] - delta) * scale : 0.0f;
        }
    }
"""
)

BACKWARD_ROWS = (
    """\
__shared__ float qs[R][WIDTH + 1], ks[C][WIDTH + 1], vs[C][VALUES + 1], douts[R][VALUES + 1];
__shared__ float ps[R][C + 1], slopes[R][C + 1];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int entry = blockIdx.y / HEADS, head = blockIdx.y % HEADS, source = head / GROUP;
const int first = (gridDim.x - 1 - blockIdx.x) * R;
const float low = __int_as_float(0xff800000);
int end = COLUMNS;
{band}
take_tile<R, WIDTH>(qs, q + entry * Q_BATCH + head * Q_HEAD, Q_ROW, first, ROWS);
take_tile<R, VALUES>(douts, dout + entry * DOUT_BATCH + head * DOUT_HEAD, DOUT_ROW, first, ROWS);
float sums[R / 16][(WIDTH + 15) / 16] = {};
for (int start = 0; start < end; start += C) {
    __syncthreads();
    take_tile<C, WIDTH>(ks, k + entry * K_BATCH + source * K_HEAD, K_ROW, start, COLUMNS);
    take_tile<C, VALUES>(vs, v + entry * V_BATCH + source * V_HEAD, V_ROW, start, COLUMNS);
    __syncthreads();
"""
    + _SLOPES
    + """\
    // A row of slopes is written and read by the same half of a warp.
    __syncwarp();
    for (int c = 0; c < C; ++c) {
        #pragma unroll
        for (int i = 0; i < R / 16; ++i) {
            #pragma unroll
            for (int x = 0; x < (WIDTH + 15) / 16; ++x) {
                if (tx + 16 * x < WIDTH) {
                    sums[i][x] = __fmaf_rn(slopes[ty * (R / 16) + i][c], ks[c][tx + 16 * x], sums[i][x]);
                }
            }
        }
    }
}
#pragma unroll
for (int i = 0; i < R / 16; ++i) {
    const int row = first + ty * (R / 16) + i;
    #pragma unroll
    for (int x = 0; x < (WIDTH + 15) / 16; ++x) {
        const int place = tx + 16 * x;
        if (row < ROWS && place < WIDTH) dq[entry * DQ_BATCH + head * DQ_HEAD + row * DQ_ROW + place] = sums[i][x];
    }
}
"""
)

BACKWARD_COLUMNS = (
    """\
__shared__ float qs[R][WIDTH + 1], ks[C][WIDTH + 1], vs[C][VALUES + 1], douts[R][VALUES + 1];
__shared__ float ps[R][C + 1], slopes[R][C + 1];
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const int entry = blockIdx.y / (HEADS / GROUP), source = blockIdx.y % (HEADS / GROUP);
// Of a causal square the first columns have most to do.
const int start = blockIdx.x * C;
const float low = __int_as_float(0xff800000);
int begin = 0;
{band}
take_tile<C, WIDTH>(ks, k + entry * K_BATCH + source * K_HEAD, K_ROW, start, COLUMNS);
take_tile<C, VALUES>(vs, v + entry * V_BATCH + source * V_HEAD, V_ROW, start, COLUMNS);
float of_keys[C / 16][(WIDTH + 15) / 16] = {}, of_values[C / 16][(VALUES + 15) / 16] = {};
for (int head = source * GROUP; head < (source + 1) * GROUP; ++head) {
for (int first = begin; first < ROWS; first += R) {
    __syncthreads();
    take_tile<R, WIDTH>(qs, q + entry * Q_BATCH + head * Q_HEAD, Q_ROW, first, ROWS);
    take_tile<R, VALUES>(douts, dout + entry * DOUT_BATCH + head * DOUT_HEAD, DOUT_ROW, first, ROWS);
    __syncthreads();
"""
    + _SLOPES
    + """\
    // Here a thread reads whole columns, which all warps have written.
    __syncthreads();
    for (int r = 0; r < R; ++r) {
        #pragma unroll
        for (int j = 0; j < C / 16; ++j) {
            const float p = ps[r][ty * (C / 16) + j], slope = slopes[r][ty * (C / 16) + j];
            #pragma unroll
            for (int x = 0; x < (VALUES + 15) / 16; ++x) {
                if (tx + 16 * x < VALUES) of_values[j][x] = __fmaf_rn(p, douts[r][tx + 16 * x], of_values[j][x]);
            }
            #pragma unroll
            for (int x = 0; x < (WIDTH + 15) / 16; ++x) {
                if (tx + 16 * x < WIDTH) of_keys[j][x] = __fmaf_rn(slope, qs[r][tx + 16 * x], of_keys[j][x]);
            }
        }
    }
}
}
#pragma unroll
for (int j = 0; j < C / 16; ++j) {
    const int column = start + ty * (C / 16) + j;
    if (column < COLUMNS) {
        #pragma unroll
        for (int x = 0; x < (WIDTH + 15) / 16; ++x) {
            const int place = tx + 16 * x;
            if (place < WIDTH) dk[entry * DK_BATCH + source * DK_HEAD + column * DK_ROW + place] = of_keys[j][x];
        }
        #pragma unroll
        for (int x = 0; x < (VALUES + 15) / 16; ++x) {
            const int place = tx + 16 * x;
            if (place < VALUES) dv[entry * DV_BATCH + source * DV_HEAD + column * DV_ROW + place] = of_values[j][x];
        }
    }
}
"""
)
