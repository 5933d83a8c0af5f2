"""The CUDA C of products of narrow floats by tensor cores: mma.sync on fragments that ldmatrix takes from shared memory.

As the tiles of `cuda_product_tiles`, whose operands these are; elements stay narrow until they are multiplied, and are
added up in f32. Packs of 8 go from memory to shared memory by cp.async, several pieces ahead; other operands through
registers, element by element.
"""

from sexpgpu.codegen.cuda_product_tiles import OPERANDS, PARTS, within

INSTRUCTIONS = """\
__device__ __forceinline__ unsigned in_shared(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// 16 bytes from memory to shared memory, there after this group of copies was waited for; zeros where they are not wanted.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool wanted)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 ::"r"(in_shared(to)), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all but the last N groups are there.
template <int N> __device__ __forceinline__ void wait_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// Four 8 × 8 matrices, whose rows of 16 bytes the lanes' addresses are; TURNED: as columns.
template <bool TURNED> __device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void* p)
{
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(in_shared(p)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(in_shared(p)) : "memory");
}
#define MULTIPLY_ADD(DTYPE) \\
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." DTYPE "." DTYPE ".f32 " \\
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \\
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \\
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
// c (16 × 8) += a (16 × 16) · b (16 × 8), fragments that are spread over a warp.
__device__ __forceinline__ void multiply_add(Brain16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    MULTIPLY_ADD("bf16");
}
__device__ __forceinline__ void multiply_add(Half16, float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    MULTIPLY_ADD("f16");
}
#undef MULTIPLY_ADD
"""

PIECES = """\
// A piece of a narrow operand, SIDE × DEPTH from (side0, step0) on. In shared memory it lies as it does in memory:
// [SIDE][DEPTH + 8] along the sum, else [DEPTH][SIDE + 8]; with 8 more, 8 rows of a matrix are in different banks.
template <class M, int SIDE, int DEPTH, int THREADS> struct NarrowPiece {
    using Element = unsigned short;
    static constexpr int W = M::W;
    static constexpr bool ASYNC = W == 8;
    static constexpr int LINE = M::along_sum ? DEPTH : SIDE, LINES = M::along_sum ? SIDE : DEPTH;
    static constexpr int PITCH = LINE + 8, SIZE = LINES * PITCH;
    static constexpr int COUNT = SIDE * DEPTH / (W * THREADS);
    // A thread's packs are so many lines apart, at the same place of their lines.
    static constexpr int APART = THREADS * W / LINE;
    static_assert(APART * LINE == THREADS * W && APART * COUNT == LINES, "threads share whole lines, every one as many");
    Element held[ASYNC ? 1 : COUNT];
    // Where packs are along the side: each one's place where loops lead there.
    long long of_side[M::along_sum && M::side_has_loops ? COUNT : 1];
    int begin;

    // Where the thread's r-th pack begins.
    static __device__ __forceinline__ int line(int r) { return (int)threadIdx.x / (LINE / W) + r * APART; }
    static __device__ __forceinline__ int place() { return (int)threadIdx.x % (LINE / W) * W; }
    static __device__ __forceinline__ int side(int r) { return M::along_sum ? line(r) : place(); }
    static __device__ __forceinline__ int step(int r) { return M::along_sum ? place() : line(r); }
    static __device__ __forceinline__ int at(int side, int step)
    {
        return M::along_sum ? side * PITCH + step : step * PITCH + side;
    }

    __device__ __forceinline__ void start(const M& matrix, int side0)
    {
        begin = side0;
        #pragma unroll
        for (int r = 0; r < sizeof(of_side) / 8; ++r) of_side[r] = matrix.side.at(side0 + side(r));
    }
    __device__ __forceinline__ long long from_side(const M& matrix, int r) const
    {
        if constexpr (!M::along_sum) return of_side[0];
        else if constexpr (M::side_has_loops) return of_side[r];
        else return of_side[0] + (long long)(r * APART) * matrix.side.step[0];
    }
    // Begins to load a piece; what is beyond the operand's end is zero.
    __device__ __forceinline__ void load(const M& matrix, const long long* table, int step0, int end, Element* shared)
    {
        #pragma unroll
        for (int r = 0; r < COUNT; ++r) {
            const bool inside = begin + side(r) < matrix.size && step0 + step(r) < end;
            const Element* from = matrix.from + from_side(matrix, r) + matrix.at(table, step0, step(r));
            if constexpr (ASYNC) {
                copy_async(shared + at(side(r), step(r)), inside ? from : matrix.from, inside);
            } else {
                held[r] = inside ? *from : 0;
            }
        }
    }
    // What was loaded into registers.
    __device__ __forceinline__ void store(Element* shared) const
    {
        if constexpr (!ASYNC) {
            #pragma unroll
            for (int r = 0; r < COUNT; ++r) shared[at(side(r), step(r))] = held[r];
        }
    }
};
"""

TILES = """\
// A tile of c by WARPS_Y × WARPS_X warps; so many pieces of a and of b are in shared memory.
template <int ROWS_, int COLUMNS_, int DEPTH_, int WARPS_Y_, int WARPS_X_, int STAGES_> struct TensorTile {
    static constexpr int ROWS = ROWS_, COLUMNS = COLUMNS_, DEPTH = DEPTH_, STAGES = STAGES_;
    static constexpr int WARPS_X = WARPS_X_, THREADS = 32 * WARPS_Y_ * WARPS_X_;
    // A warp's fragments of c: 16 × 8 each.
    static constexpr int HIGH = ROWS / WARPS_Y_ / 16, WIDE = COLUMNS / WARPS_X_ / 8;
};

extern __shared__ __align__(16) unsigned short pieces[];

// c (m × n, neighbours along n) = a · b over the steps from `first` to `end`, added to what c holds where ADDS.
template <class T, class TD, class CD, int CW, bool ADDS, class A, class B, class C>
__device__ __forceinline__ void product(const A& a, const B& b, C* c, long long c_row, Part part, int first, int end)
{
    using Element = unsigned short;
    using PieceA = NarrowPiece<A, T::ROWS, T::DEPTH, T::THREADS>;
    using PieceB = NarrowPiece<B, T::COLUMNS, T::DEPTH, T::THREADS>;
    __shared__ long long steps_a[T::STAGES][T::DEPTH], steps_b[T::STAGES][T::DEPTH];
    Element* const rows = pieces;
    Element* const columns = pieces + T::STAGES * PieceA::SIZE;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int y = warp / T::WARPS_X * T::HIGH * 16, x = warp % T::WARPS_X * T::WIDE * 8;
    // A lane's address is that of one row of a fragment's matrices: within 8 rows, of which two are along the side and two
    // along the sum.
    const int within = lane % 8, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    const int a_side = A::along_sum ? within + second : second, a_step = A::along_sum ? third : within + third;
    const int b_side = B::along_sum ? within + third : third, b_step = B::along_sum ? second : within + second;
    // Neighbouring threads find a's steps, others b's.
    const int of_a = threadIdx.x, of_b = threadIdx.x - T::DEPTH;
    float sums[T::HIGH][T::WIDE][4] = {};
    PieceA piece_a;
    PieceB piece_b;
    piece_a.start(a, part.row);
    piece_b.start(b, part.column);
    if (A::has_loops || B::has_loops) {
        #pragma unroll
        for (int stage = 0; stage < T::STAGES; ++stage) {
            a.template tell<T::DEPTH>(steps_a[stage], first + stage * T::DEPTH, of_a);
            b.template tell<T::DEPTH>(steps_b[stage], first + stage * T::DEPTH, of_b);
        }
        __syncthreads();
    }
    #pragma unroll
    for (int stage = 0; stage < T::STAGES - 1; ++stage) {
        piece_a.load(a, steps_a[stage], first + stage * T::DEPTH, end, rows + stage * PieceA::SIZE);
        piece_b.load(b, steps_b[stage], first + stage * T::DEPTH, end, columns + stage * PieceB::SIZE);
        piece_a.store(rows + stage * PieceA::SIZE);
        piece_b.store(columns + stage * PieceB::SIZE);
        end_group();
    }
    // Piece after piece; the ones after it are on their way. `now` is where the piece lies, `spare` where the last one lay.
    int now = 0, spare = T::STAGES - 1;
    for (int k = first; k < end; k += T::DEPTH) {
        wait_groups<T::STAGES - 2>();
        __syncthreads();
        const int next = k + (T::STAGES - 1) * T::DEPTH;
        const bool more = next < end;
        Element* const next_a = rows + spare * PieceA::SIZE;
        Element* const next_b = columns + spare * PieceB::SIZE;
        if (more) {
            piece_a.load(a, steps_a[spare], next, end, next_a);
            piece_b.load(b, steps_b[spare], next, end, next_b);
            a.template tell<T::DEPTH>(steps_a[now], next + T::DEPTH, of_a);
            b.template tell<T::DEPTH>(steps_b[now], next + T::DEPTH, of_b);
        }
        end_group();
        const Element* const now_a = rows + now * PieceA::SIZE;
        const Element* const now_b = columns + now * PieceB::SIZE;
        #pragma unroll
        for (int j = 0; j < T::DEPTH; j += 16) {
            unsigned ys[T::HIGH][4], xs[T::WIDE / 2][4];
            #pragma unroll
            for (int i = 0; i < T::HIGH; ++i)
                load_matrices<!A::along_sum>(ys[i], now_a + PieceA::at(y + i * 16 + a_side, j + a_step));
            #pragma unroll
            for (int l = 0; l < T::WIDE / 2; ++l)
                load_matrices<!B::along_sum>(xs[l], now_b + PieceB::at(x + l * 16 + b_side, j + b_step));
            #pragma unroll
            for (int i = 0; i < T::HIGH; ++i)
                #pragma unroll
                for (int l = 0; l < T::WIDE; ++l)
                    multiply_add(TD(), sums[i][l], ys[i], xs[l / 2][l % 2 * 2], xs[l / 2][l % 2 * 2 + 1]);
        }
        if (more) {
            piece_a.store(next_a);
            piece_b.store(next_b);
        }
        spare = now;
        now = now + 1 == T::STAGES ? 0 : now + 1;
    }
    wait_groups<0>();
    #pragma unroll
    for (int i = 0; i < T::HIGH * 2; ++i) {
        const int row = part.row + y + i * 8 + lane / 4;
        if (row >= a.size) continue;
        #pragma unroll
        for (int l = 0; l < T::WIDE * 2; l += CW) {
            const int column = part.column + x + l / 2 * 8 + lane % 4 * 2 + l % 2;
            if (column >= b.size) continue;
            C* to = c + row * c_row + column;
            Pack<CW, C> made = {};
            if (ADDS) made = take<CW>(to);
            #pragma unroll
            for (int w = 0; w < CW; ++w) {
                const float sum = sums[i / 2][l / 2][i % 2 * 2 + (l + w) % 2];
                made.at[w] = CD::element(ADDS ? CD::number(made.at[w]) + sum : sum);
            }
            put(to, made);
        }
    }
}
"""

FUNCTIONS = tuple(map(within, (OPERANDS, PARTS, INSTRUCTIONS, PIECES, "namespace tensor {\n" + TILES + "}\n")))
