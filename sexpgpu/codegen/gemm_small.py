"""Products of blocks that lie in the caches already, for kernels that multiply between other work, as attention does.

Nothing is packed but a transposed b; there are no tables and no cutting, and a call costs some nanoseconds.
"""

from __future__ import annotations

from sexpgpu.codegen import gemm_tile
from sexpgpu.codegen.gemm_pack import transposed
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.codegen.llvm_text import ATTRIBUTES, Function

# Floats of the packed b: a block of rows by the widest head.
MOST_PACKED = 64 * 256
PARAMETERS = "i64 %flags, float %alpha, i64 %m, i64 %n, i64 %k, i64 %a, i64 %lda, i64 %b, i64 %ldb, i64 %c, i64 %ldc"


def takes(tiling: Tiling, rows: int, width: int, value_width: int) -> bool:
    """Whether blocks of so many rows of heads so wide are whole panels, and fit."""
    whole = all(size % tiling.columns == 0 for size in (rows, width, value_width))
    return whole and rows * max(width, value_width) <= MOST_PACKED


def emit_small_gemm(tiling: Tiling) -> str:
    """`@kernel(flags, alpha, m, n, k, a, lda, b, ldb, c, ldc)`, all row-major f32: c = a · b.

    Flag 1: a lies transposed; flag 4: the product is added to c. Flag 2: b lies transposed, is packed and multiplied by
    alpha (else 1); k is then whole vectors, and c has room for n in whole panels. Without it n is whole panels.
    An element's products are added one after the other in the order of k.
    """
    heights = [tiling.rows, *(h for h in (8, 4, 2, 1) if h < tiling.rows)]
    parts = ["; a product of small blocks", gemm_tile.declarations(tiling)]
    parts += [gemm_tile.tile(tiling, height) for height in heights]
    return "\n".join([*parts, _pack(tiling), _driver(tiling, heights), ATTRIBUTES])


def _pack(tiling: Tiling) -> str:
    """alpha · bᵀ into panels, by squares of vectors; columns beyond n repeat the last."""
    f = Function("pack", "ptr %b, i64 %ldb, i64 %n, i64 %k, float %alpha, ptr %out")
    lanes, columns = tiling.lanes, tiling.columns
    factor, vector = f.splat("float", lanes, "%alpha"), f"<{lanes} x float>"
    last = f.sub("%n", 1)
    with f.loop(0, "%n", lanes) as lane:
        rows = [f.at("%b", f.mul(f.least(f.add(lane, number), last), "%ldb")) for number in range(lanes)]
        panel = f.at("%out", f.mul(f.mul(f.divided(lane, columns), columns), "%k"))
        place = f.at(panel, f.remainder(lane, columns))
        with f.loop(0, "%k", lanes) as step:
            square = transposed(f, lanes, [f.load(vector, f.at(row, step), 4) for row in rows])
            for number, column in enumerate(square):
                scaled = f.let(f"fmul {vector} {column}, {factor}")
                f.store(vector, scaled, f.at(place, f.mul(f.add(step, number), columns)), 4)
    return f.text()


def _driver(tiling: Tiling, heights: list[int]) -> str:
    f = Function("kernel", PARAMETERS, internal=False)
    columns = tiling.columns
    packed = f.let(f"alloca [{MOST_PACKED} x float], align 64")
    a, b, c = f.pointer("%a"), f.pointer("%b"), f.pointer("%c")
    across = f.test("ne", f.let("and i64 %flags, 2"), 0)
    with f.when(across):
        f.do(f"call void @pack(ptr {b}, i64 %ldb, i64 %n, i64 %k, float %alpha, ptr {packed})")
    b_at = f.let(f"select i1 {across}, ptr {packed}, ptr {b}")
    b_step, b_panel = f.choose(across, columns, "%ldb"), f.choose(across, f.mul("%k", columns), columns)
    panels = f.divided(f.add("%n", columns - 1), columns)
    turned = f.test("ne", f.let("and i64 %flags, 1"), 0)
    a_row, a_step = f.choose(turned, 1, "%lda"), f.choose(turned, "%lda", 1)
    adds = f.let("and i64 %flags, 4")
    done = f.variable("i64", "0")
    for height in heights:
        first = f.get("i64", done)
        end = f.add(first, f.mul(f.divided(f.sub("%m", first), height), height))
        with f.loop(first, end, height) as row:
            of_a = f"i64 %k, ptr {f.at(a, f.mul(row, a_row))}, i64 {a_row}, i64 {a_step}"
            of_b = f"ptr {b_at}, i64 {b_step}, i64 {b_panel}, i64 {panels}"
            f.do(f"call void @tile_{height}({of_a}, {of_b}, ptr {f.at(c, f.mul(row, '%ldc'))}, i64 %ldc, i64 {adds})")
        f.set("i64", done, end)
    return f.text()
