"""Kernels of products: one that calls the BLAS engine, and plain loops for integers.

A unit is one block of rows and columns of one batch entry; blocks are cut by shape alone, because the bits of a BLAS
product may depend on how it is cut.

Words of a BLAS product: 0 cblas_sgemm   1 flags (1: a is transposed, 2: b, 4: add to c)   2 m   3 n   4 k   5 – 7 leading
dimensions   8 9 rows and columns of a block   10 11 blocks of rows and of columns   12 – 14 addresses of a, b, c
15 16 bytes between rows of a, between columns of b   17 – 19 tables of the batch entries' byte offsets
Words of plain loops: the same; 0 whether to add to c, 1 elements between columns of a, 5 6 between rows of a, of b, 7 of c,
16 elements between columns of b.
"""

from __future__ import annotations

from sexpgpu.ir.types import SIZES

_HEAD = '''"""{title}"""

def kernel(args, lo, hi, scratch):
    m = word(args, 2)
    n = word(args, 3)
    k = word(args, 4)
    rows = word(args, 8)
    columns = word(args, 9)
    row_blocks = word(args, 10)
    column_blocks = word(args, 11)
    for step in range(hi - lo):
        unit = lo + step
        entry = quotient(unit, row_blocks * column_blocks)
        block = remainder(unit, row_blocks * column_blocks)
        i = quotient(block, column_blocks) * rows
        j = remainder(block, column_blocks) * columns
        height = least(rows, m - i)
        width = least(columns, n - j)
        a = word(args, 12) + word(word(args, 17), entry) + i * word(args, 15)
        b = word(args, 13) + word(word(args, 18), entry) + j * word(args, 16){column_bytes}
        c = word(args, 14) + word(word(args, 19), entry) + (i * word(args, 7) + j) * {size}
'''

_BLAS = """\
        sgemm(word(args, 0), word(args, 1), height, width, k, a, word(args, 5), b, word(args, 6), c, word(args, 7))
"""

# Element after element of k in order; the row of sums lies in scratch.
_LOOPS = """\
        adding = word(args, 0) != 0
        for y in range(height):
            for x in range(width):
                store_{d}_3(scratch, x, load_{d}_2(c, y * word(args, 7) + x) if adding else ZERO)
            for z in range(k):
                left = load_{d}_0(a, y * word(args, 5) + z * word(args, 1))
                q = b + z * word(args, 6) * {size}
                for x in range(width):
                    product = as_{d}(left * load_{d}_1(q, {column}))
                    store_{d}_3(scratch, x, as_{d}(load_{d}_3(scratch, x) + product))
            for x in range(width):
                store_{d}_2(c, y * word(args, 7) + x, load_{d}_3(scratch, x))
"""


def emit_blas_product() -> str:
    """f32 products through cblas_sgemm."""
    return _HEAD.format(title="A product by cblas_sgemm.", size=4, column_bytes="") + _BLAS


def emit_plain_product(dtype: str, unit_columns: bool) -> str:
    """Products of integers of any strides; `unit_columns`: b's columns lie side by side, so the loop is vectorised."""
    size = SIZES[dtype]
    head = _HEAD.format(title=f"A product of {dtype}.", size=size, column_bytes=f" * {size}")
    column = "x" if unit_columns else "x * word(args, 16)"
    body = _LOOPS.format(d=dtype, size=size, column=column)
    return f"ZERO = {dtype}(0)\n\n\n{head}{body}"
