"""The CUDA C of tiled products: a block computes a tile of c from pieces of a and b that it keeps in shared memory.

Names: m rows, n columns, k steps of the sum; `side` of an operand is its m or n; s its registers' type. A kernel is an
instance of `product`; sizes and strides are its arguments, what the compiler must know is in its types.
"""

# Where the rows, columns and steps of an operand are; and one element of it.
OPERANDS = """\
// Loops that lead along an operand, the innermost turning fastest: at(i) is where its i-th turn is, in elements.
template <int R> struct Loops {
    int size[R], step[R];
    __device__ __forceinline__ long long at(int i) const
    {
        long long offset = 0;
        unsigned turns = i;
        #pragma unroll
        for (int r = R - 1; r > 0; --r) {
            const unsigned whole = turns / (unsigned)size[r];
            offset += (long long)(int)(turns - whole * size[r]) * step[r];
            turns = whole;
        }
        return offset + (long long)(int)turns * step[0];
    }
};

// An operand: element (i, j), i along its side of c and j along the sum, is from[side.at(i) + steps.at(j)]; packs of
// W neighbours are moved at once, which lie along the sum or along the side.
template <class T, int WIDTH, bool ALONG_SUM, int OF_SIDE, int OF_STEPS> struct Matrix {
    using Element = T;
    static constexpr int W = WIDTH;
    static constexpr bool along_sum = ALONG_SUM, has_loops = OF_STEPS > 1, side_has_loops = OF_SIDE > 1;
    const T* from;
    int size;
    Loops<OF_SIDE> side;
    Loops<OF_STEPS> steps;

    // Where steps are that loops lead along is found once for all threads of a block, and read from a table.
    template <int DEPTH> __device__ __forceinline__ void tell(long long* table, int step0, int thread) const
    {
        if (has_loops && thread >= 0 && thread < DEPTH) table[thread] = steps.at(step0 + thread);
    }
    __device__ __forceinline__ long long at(const long long* table, int step0, int j) const
    {
        return has_loops ? table[j] : steps.at(step0 + j);
    }
};

// Elements of memory as numbers that are computed with, and back. Integers wrap as unsigned ones do.
struct Float32 {
    using Number = float;
    static __device__ __forceinline__ float number(float x) { return x; }
    static __device__ __forceinline__ float element(float x) { return x; }
};
struct Brain16 {
    using Number = float;
    static __device__ __forceinline__ float number(unsigned short x) { return from_bf16(x); }
    static __device__ __forceinline__ unsigned short element(float x) { return to_bf16(x); }
};
struct Half16 {
    using Number = float;
    static __device__ __forceinline__ float number(unsigned short x) { return from_f16(x); }
    static __device__ __forceinline__ unsigned short element(float x) { return to_f16(x); }
};
struct Integer32 {
    using Number = unsigned;
    static __device__ __forceinline__ unsigned number(int x) { return (unsigned)x; }
    static __device__ __forceinline__ int element(unsigned x) { return (int)x; }
};
struct Integer64 {
    using Number = unsigned long long;
    static __device__ __forceinline__ unsigned long long number(long long x) { return (unsigned long long)x; }
    static __device__ __forceinline__ long long element(unsigned long long x) { return (long long)x; }
};
__device__ __forceinline__ float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
template <class S> __device__ __forceinline__ S multiply_add(S a, S b, S c) { return a * b + c; }
"""

PARTS = """\
// Which part of a product a block computes. Tiles follow each other down groups of 8 rows of tiles, so that the blocks
// that run at the same time read the same pieces of a and b.
struct Part {
    int entry, row, column;
};
template <class T> __device__ __forceinline__ Part part_of_block(int m, int n)
{
    const unsigned down = (m + T::ROWS - 1) / T::ROWS, along = (n + T::COLUMNS - 1) / T::COLUMNS;
    const unsigned entry = blockIdx.x / (down * along), tile = blockIdx.x % (down * along);
    const unsigned group = tile / (8 * along), within = tile % (8 * along), high = min(8u, down - 8 * group);
    return {(int)entry, (int)(8 * group + within % high) * T::ROWS, (int)(within / high) * T::COLUMNS};
}
"""

PIECES = """\
// A piece of an operand, SIDE × DEPTH from (side0, step0) on, on its way from memory through registers to shared memory,
// where it lies [DEPTH][SIDE + 4]: the threads of a warp then write to different banks in either direction.
template <class D, class M, int SIDE, int DEPTH, int THREADS> struct Piece {
    using S = typename D::Number;
    static constexpr int W = M::W, PITCH = SIDE + 4;
    static constexpr int PACKS = SIDE * DEPTH / W, COUNT = (PACKS + THREADS - 1) / THREADS;
    // Lanes of a warp that are neighbours along the sum: 8 elements, a sector of f32.
    static constexpr int LANES = M::along_sum ? (DEPTH < 8 ? DEPTH : 8) / W : 1;
    Pack<W, typename M::Element> held[COUNT];
    // Where packs are along the side: each one's place where loops lead there.
    long long of_side[M::side_has_loops ? COUNT : 1];
    int begin;

    // The thread's r-th pack: its first one's place, and a constant distance from there.
    static __device__ __forceinline__ int side(int r)
    {
        const int pack = threadIdx.x;
        return (M::along_sum ? pack / LANES % SIDE : pack % (SIDE / W) * W) + side_apart(r);
    }
    static __device__ __forceinline__ constexpr int side_apart(int r)
    {
        return M::along_sum ? r * THREADS / LANES % SIDE : r * THREADS % (SIDE / W) * W;
    }
    static __device__ __forceinline__ int step(int r)
    {
        const int pack = threadIdx.x;
        return M::along_sum ? (pack % LANES + (pack / (LANES * SIDE) + r * THREADS / (LANES * SIDE)) * LANES) * W
                            : pack / (SIDE / W) + r * THREADS / (SIDE / W);
    }
    // Whether the thread has an r-th pack.
    static __device__ __forceinline__ bool has(int r) { return PACKS % THREADS == 0 || threadIdx.x + r * THREADS < PACKS; }

    __device__ __forceinline__ void start(const M& matrix, int side0)
    {
        begin = side0;
        #pragma unroll
        for (int r = 0; r < sizeof(of_side) / 8; ++r) of_side[r] = matrix.side.at(side0 + side(r));
    }
    __device__ __forceinline__ long long from_side(const M& matrix, int r) const
    {
        return M::side_has_loops ? of_side[r] : of_side[0] + (long long)side_apart(r) * matrix.side.step[0];
    }
    // What is beyond the operand's end is zero.
    __device__ __forceinline__ void load(const M& matrix, const long long* table, int step0, int end)
    {
        #pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            const int j = step(r);
            held[r] = {};
            if (has(r) && begin + side(r) < matrix.size && step0 + j < end)
                held[r] = take<W>(matrix.from + from_side(matrix, r) + matrix.at(table, step0, j));
        }
    }
    __device__ __forceinline__ void store(S* shared) const
    {
        #pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            if (!has(r)) continue;
            S* to = shared + step(r) * PITCH + side(r);
            Pack<W, S> numbers;
            #pragma unroll
            for (int w = 0; w < W; ++w) numbers.at[w] = D::number(held[r].at[w]);
            if (M::along_sum) {
                #pragma unroll
                for (int w = 0; w < W; ++w) to[w * PITCH] = numbers.at[w];
            } else {
                put(to, numbers);
            }
        }
    }
};
"""

TILES = """\
// A tile of c: ROWS × COLUMNS by warps of LANES_Y × LANES_X threads, each of which has HIGH × WIDE elements.
template <int ROWS_, int COLUMNS_, int DEPTH_, int HIGH_, int WIDE_, int LANES_X_> struct Tile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, HIGH = HIGH_, WIDE = WIDE_;
    static constexpr int LANES_X = LANES_X_, LANES_Y = 32 / LANES_X;
    static constexpr int THREADS = ROWS * COLUMNS / (HIGH * WIDE);
    // Steps that are written out in a row: with more of them a thread of 64 elements would have registers to spill.
    static constexpr int UNROLLED = HIGH * WIDE >= 64 ? 2 : DEPTH;
    static constexpr int WARP_ROWS = LANES_Y * HIGH, WARP_COLUMNS = LANES_X * WIDE;
};

// c (m × n, neighbours along n) = a · b over the steps from `first` to `end`, added to what c holds where ADDS.
// TD, CD: what elements of a and b, and of c, are; CW: how many of c are written at once.
template <class T, class TD, class CD, int CW, bool ADDS, class A, class B, class C>
__device__ __forceinline__ void product(const A& a, const B& b, C* c, long long c_row, Part part, int first, int end)
{
    using S = typename TD::Number;
    using PieceA = Piece<TD, A, T::ROWS, T::DEPTH, T::THREADS>;
    using PieceB = Piece<TD, B, T::COLUMNS, T::DEPTH, T::THREADS>;
    constexpr int ROWS = T::DEPTH * PieceA::PITCH, COLUMNS = T::DEPTH * PieceB::PITCH;
    __shared__ alignas(4 * sizeof(S)) S rows[2][ROWS], columns[2][COLUMNS];
    __shared__ long long steps_a[2][T::DEPTH], steps_b[2][T::DEPTH];
    // The first threads find a's steps, others b's.
    const int of_a = threadIdx.x, of_b = threadIdx.x - 32;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = T::COLUMNS / T::WARP_COLUMNS;
    // The thread's elements are quads 4 · LANES apart, so that the lanes' quads are neighbours.
    const int y = warp / across * T::WARP_ROWS + lane / T::LANES_X * 4;
    const int x = warp % across * T::WARP_COLUMNS + lane % T::LANES_X * 4;
    S sums[T::HIGH][T::WIDE] = {};
    PieceA piece_a;
    PieceB piece_b;
    piece_a.start(a, part.row);
    piece_b.start(b, part.column);
    if (A::has_loops || B::has_loops) {
        #pragma unroll
        for (int p = 0; p < 2; ++p) {
            a.template tell<T::DEPTH>(steps_a[p], first + p * T::DEPTH, of_a);
            b.template tell<T::DEPTH>(steps_b[p], first + p * T::DEPTH, of_b);
        }
        __syncthreads();
    }
    piece_a.load(a, steps_a[0], first, end);
    piece_b.load(b, steps_b[0], first, end);
    piece_a.store(rows[0]);
    piece_b.store(columns[0]);
    __syncthreads();
    // Piece after piece; while one is computed with, the next one is on its way, and the steps of the one after are found.
    int now = 0;
    for (int k = first; k < end; k += T::DEPTH) {
        const int next = k + T::DEPTH;
        const bool more = next < end;
        if (more) {
            piece_a.load(a, steps_a[1 - now], next, end);
            piece_b.load(b, steps_b[1 - now], next, end);
            a.template tell<T::DEPTH>(steps_a[now], next + T::DEPTH, of_a);
            b.template tell<T::DEPTH>(steps_b[now], next + T::DEPTH, of_b);
        }
        #pragma unroll T::UNROLLED
        for (int j = 0; j < T::DEPTH; ++j) {
            Pack<4, S> ys[T::HIGH / 4], xs[T::WIDE / 4];
            #pragma unroll
            for (int q = 0; q < T::HIGH / 4; ++q)
                ys[q] = take<4>(rows[now] + j * PieceA::PITCH + y + q * 4 * T::LANES_Y);
            #pragma unroll
            for (int q = 0; q < T::WIDE / 4; ++q)
                xs[q] = take<4>(columns[now] + j * PieceB::PITCH + x + q * 4 * T::LANES_X);
            #pragma unroll
            for (int i = 0; i < T::HIGH; ++i)
                #pragma unroll
                for (int l = 0; l < T::WIDE; ++l)
                    sums[i][l] = multiply_add(ys[i / 4].at[i % 4], xs[l / 4].at[l % 4], sums[i][l]);
        }
        if (more) {
            now = 1 - now;
            piece_a.store(rows[now]);
            piece_b.store(columns[now]);
            __syncthreads();
        }
    }
    #pragma unroll
    for (int i = 0; i < T::HIGH; ++i) {
        const int row = part.row + y + i / 4 * 4 * T::LANES_Y + i % 4;
        if (row >= a.size) continue;
        #pragma unroll
        for (int l = 0; l < T::WIDE; l += CW) {
            const int column = part.column + x + l / 4 * 4 * T::LANES_X + l % 4;
            if (column >= b.size) continue;
            C* to = c + row * c_row + column;
            Pack<CW, C> made = {};
            if (ADDS) made = take<CW>(to);
            #pragma unroll
            for (int w = 0; w < CW; ++w)
                made.at[w] = CD::element(ADDS ? CD::number(made.at[w]) + sums[i][l + w] : sums[i][l + w]);
            put(to, made);
        }
    }
}
"""

# The sums of a product whose steps were shared among blocks.
JOIN = """\
// c = the partial sums of each part, added in their order.
template <class CD, bool ADDS, class C> __device__ __forceinline__ void join_parts(
    const float* parts, int count, long long apart, C* to)
{
    float sum = parts[0];
    for (int part = 1; part < count; ++part) sum += parts[part * apart];
    *to = CD::element(ADDS ? CD::number(*to) + sum : sum);
}
"""

NAMESPACE = "products"


def within(text: str) -> str:
    """The text in the namespace of products, whose names are then nobody else's."""
    return f"namespace {NAMESPACE} {{\n{text}}}\n"


FUNCTIONS = tuple(map(within, (OPERANDS, PARTS, PIECES, TILES)))
JOIN_FUNCTIONS = tuple(map(within, (OPERANDS, JOIN)))
