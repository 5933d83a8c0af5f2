"""The kernels of attention in blocks: of the scores only one block of rows by columns is ever there, in scratch.

A block of scores lies transposed, [columns rows], so that what is done to every row is a loop over neighbours. Forward,
a unit is a block of rows of one head: its columns come in blocks, the running maximum and sum of each row are kept, the
result is scaled when the maximum grows. Backward, a unit is one head of k and v with all heads of q that it serves:
rows come from the last block to the first, so that the first that is done covers every column. Blocks of columns beyond
the diagonal are left out where all that they would multiply is finite; else 0 · NaN has to be NaN, and nothing is.

Words: 0 cblas_sgemm or our own small_gemm   1 rows   2 columns   3 width   4 width of v   5 heads   6 heads of q a head
of k   7 8 rows and columns of a block   9 blocks of rows   10 scale (f32)   11 … for each operand: address, bytes
between batch entries and between heads, elements between rows; the mask, last, also between columns, and between rows
in bytes.
Operands: q k v out lse, or q k v out lse dout dq dk dv; then the mask. lse may have the address 0: it is not wanted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from sexpgpu.codegen import gemm_small
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.codegen.layout import units_per_block
from sexpgpu.plan.kernel import Attention, Place, attention_flops

HEAD_WORDS = 11
# Rows and columns of a block of scores; rows are a multiple of a vector's elements.
ROWS, COLUMNS, VECTOR = 64, 512, 16

_HEAD = '''"""Attention{title}."""

ZERO = f32(0.0)
ONE = f32(1.0)
LOWEST = f32(float("-inf"))


def kernel(args, lo, hi, scratch):
    t = word(args, 1)
    s = word(args, 2)
    d = word(args, 3)
    e = word(args, 4)
    heads = word(args, 5)
    group = word(args, 6)
    most_rows = word(args, 7)
    most_columns = word(args, 8)
    blocks = word(args, 9)
    scale = load_f32_0(args, 20)
    scores = scratch + {row_bytes}
'''

_FORWARD = """
top = scratch
next = top + most_rows * 4
shift = next + most_rows * 4
total = shift + most_rows * 4
factor = total + most_rows * 4
for step in range(hi - lo):
    unit = lo + step
    pair = quotient(unit, blocks)
    entry = quotient(pair, heads)
    head = remainder(pair, heads)
    source = quotient(head, group)
    first = (blocks - 1 - remainder(unit, blocks)) * most_rows
    rows = least(most_rows, t - first)
    ROWS q entry head
    ROWS k entry source
    ROWS v entry source
    ROWS out entry head
    q = q + first * q_step * 4
    out = out + first * out_step * 4
    end = s
    CAUSAL
        end = least(s, first + rows)
        worst = i32(0)
        FINITE v + end * v_step * 4, s - end, e, v_step
        if worst == 0x7F800000:
            end = s
    for c in range(rows):
        store_f32_1(top, c, LOWEST)
        store_f32_3(shift, c, ZERO)
        store_f32_4(total, c, ZERO)
    start = 0
    while start < end:
        columns = least(most_columns, end - start)
        SCORES
        HIDE scores LOWEST
        for c in range(rows):
            store_f32_2(next, c, load_f32_1(top, c))
        for j in range(columns):
            row = scores + j * most_rows * 4
            for c in range(rows):
                store_f32_2(next, c, k_maximum(load_f32_2(next, c), load_f32_6(row, c)))
        for c in range(rows):
            before = load_f32_1(top, c)
            largest = load_f32_2(next, c)
            taken = k_select(k_isfinite(largest), largest, ZERO)
            change = k_select(before == LOWEST, ONE, k_exp(load_f32_3(shift, c) - taken))
            store_f32_5(factor, c, change)
            store_f32_4(total, c, load_f32_4(total, c) * change)
            store_f32_3(shift, c, taken)
            store_f32_1(top, c, largest)
        for j in range(columns):
            row = scores + j * most_rows * 4
            for c in range(rows):
                p = k_exp(load_f32_6(row, c) - load_f32_3(shift, c))
                store_f32_6(row, c, p)
                store_f32_4(total, c, load_f32_4(total, c) + p)
        if start != 0:
            for y in range(rows):
                for x in range(e):
                    place = y * out_step + x
                    store_f32_7(out, place, load_f32_7(out, place) * load_f32_5(factor, y))
        values = v + start * v_step * 4
        adds = 5 if start != 0 else 1
        PRODUCT adds, ONE, rows, e, columns, scores, most_rows, values, v_step, out, out_step
        start = start + columns
    for y in range(rows):
        for x in range(e):
            place = y * out_step + x
            store_f32_7(out, place, load_f32_7(out, place) / load_f32_4(total, y))
    if word(args, 27) != 0:
        ROWS lse entry head
        for c in range(rows):
            store_f32_8(lse, first + c, load_f32_3(shift, c) + k_log(load_f32_4(total, c)))
"""

_BACKWARD = """
deltas = scratch
lanes = deltas + most_rows * 4
slopes = scores + most_columns * most_rows * 4
for step in range(hi - lo):
    unit = lo + step
    entry = quotient(unit, quotient(heads, group))
    source = remainder(unit, quotient(heads, group))
    ROWS k entry source
    ROWS v entry source
    ROWS dk entry source
    ROWS dv entry source
    worst = i32(0)
    CAUSAL
        FINITE k, s, d, k_step
        FINITE v, s, e, v_step
        for member in range(group):
            head = source * group + member
            ROWS q entry head
            ROWS dout entry head
            ROWS lse entry head
            FINITE q, t, d, q_step
            FINITE dout, t, e, dout_step
            FINITE lse, 1, t, t
    for number in range(group * blocks):
        head = source * group + quotient(number, blocks)
        first = (blocks - 1 - remainder(number, blocks)) * most_rows
        rows = least(most_rows, t - first)
        ROWS q entry head
        ROWS out entry head
        ROWS lse entry head
        ROWS dout entry head
        ROWS dq entry head
        q = q + first * q_step * 4
        out = out + first * out_step * 4
        lse = lse + first * 4
        dout = dout + first * dout_step * 4
        dq = dq + first * dq_step * 4
        end = s
        CAUSAL
            if (number != 0) & (worst != 0x7F800000):
                end = least(s, first + rows)
        for y in range(rows):
            for c in range(32):
                store_f32_2(lanes, c, ZERO)
            x = 0
            while x < e:
                for c in range(least(32, e - x)):
                    product = load_f32_0(out, y * out_step + x + c) * load_f32_4(dout, y * dout_step + x + c)
                    store_f32_2(lanes, c, load_f32_2(lanes, c) + product)
                x = x + 32
            store_f32_1(deltas, y, join_sum_f32(lanes))
        start = 0
        while start < end:
            columns = least(most_columns, end - start)
            SCORES
            HIDE scores LOWEST
            PRODUCT 2, ONE, columns, rows, e, v + start * v_step * 4, v_step, dout, dout_step, slopes, most_rows
            for j in range(columns):
                row = scores + j * most_rows * 4
                slope = slopes + j * most_rows * 4
                for c in range(rows):
                    p = k_exp(load_f32_6(row, c) - load_f32_3(lse, c))
                    store_f32_6(row, c, p)
                    store_f32_7(slope, c, p * (load_f32_7(slope, c) - load_f32_1(deltas, c)) * scale)
            HIDE slopes ZERO
            adds = 4 if number != 0 else 0
            PRODUCT adds, ONE, columns, e, rows, scores, most_rows, dout, dout_step, dv + start * dv_step * 4, dv_step
            PRODUCT adds, ONE, columns, d, rows, slopes, most_rows, q, q_step, dk + start * dk_step * 4, dk_step
            adds = 5 if start != 0 else 1
            PRODUCT adds, ONE, rows, d, columns, slopes, most_rows, k + start * k_step * 4, k_step, dq, dq_step
            start = start + columns
"""

# The scaled scores of a block, transposed.
_SCORES = """
PRODUCT 2, scale, columns, rows, d, k + start * k_step * 4, k_step, q, q_step, scores, most_rows
"""

# The largest exponent of a matrix's elements so far: that of infinities and NaN.
_FINITE = """
for y in range({rows}):
    checked = {address} + y * {step} * 4
    for x in range({width}):
        worst = k_maximum(worst, as_i32(load_i32_9(checked, x) & 0x7F800000))
"""

# What does not count, in a block on the diagonal, or by the mask.
_HIDE_CAUSAL = """
if start + columns > first + 1:
    for j in range(columns):
        row = {block} + j * most_rows * 4
        for c in range(least(rows, k_maximum(start + j - first, 0))):
            store_f32_{group}(row, c, {value})
"""
_HIDE_MASKED = """
ROWS mask entry head
for j in range(columns):
    row = {block} + j * most_rows * 4
    for c in range(rows):
        seen = load_bool_8(mask, (first + c) * mask_step + (start + j) * mask_across)
        store_f32_{group}(row, c, k_select(seen, load_f32_{group}(row, c), {value}))
"""

FORWARD_NAMES = ("q", "k", "v", "out", "lse", "mask")
BACKWARD_NAMES = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv", "mask")


class _Writer:
    """Writes a kernel's lines, those in capitals in full."""

    def __init__(self, backward: bool, causal: bool, masked: bool, small: bool) -> None:
        self.product = "small_gemm" if small else "scaled_sgemm"
        self.names = BACKWARD_NAMES if backward else FORWARD_NAMES
        self.causal = causal
        self.masked = masked
        self.lines: list[str] = []

    def write(self, text: str, depth: int) -> None:
        inside: int | None = None
        for line in text.strip("\n").split("\n"):
            inner = line.lstrip()
            own = len(line) - len(inner)
            if inside is not None and own <= inside:
                inside = None
            if inner == "CAUSAL":
                inside = own
            elif inside is None or self.causal:
                # What is only for causal kernels stands one step to the right of where it belongs.
                self._line(inner, depth + own - (0 if inside is None else 4))

    def _line(self, line: str, depth: int) -> None:
        word, _, rest = line.partition(" ")
        if word == "SCORES":
            self.write(_SCORES, depth)
        elif word == "PRODUCT":
            self.lines.append(f"{' ' * depth}{self.product}(word(args, 0), {rest})")
        elif word == "FINITE":
            address, rows, width, step = rest.split(", ")
            self.write(_FINITE.format(address=address, rows=rows, width=width, step=step), depth)
        elif word == "HIDE":
            block, value = rest.split()
            group = {"scores": 6, "slopes": 7}[block]
            for wanted, text in ((self.causal, _HIDE_CAUSAL), (self.masked, _HIDE_MASKED)):
                if wanted:
                    self.write(text.format(block=block, group=group, value=value), depth)
        elif word == "ROWS":
            self._rows(rest, depth)
        else:
            self.lines.append(" " * depth + line)

    def _rows(self, text: str, depth: int) -> None:
        """The address of an operand's rows of one head, and the step between them."""
        name, entry, head = text.split()
        at = HEAD_WORDS + 4 * self.names.index(name)
        lines = [
            f"{name} = word(args, {at}) + {entry} * word(args, {at + 1}) + {head} * word(args, {at + 2})",
            f"{name}_step = word(args, {at + 3})",
        ]
        lines += [f"{name}_across = word(args, {at + 4})"] if name == "mask" else []
        self.lines += [" " * depth + line for line in lines]


def emit_attention(backward: bool, causal: bool, masked: bool, small: bool) -> str:
    """The source of one of the kernels; `small`: its products are our own."""
    writer = _Writer(backward, causal, masked, small)
    writer.write(_BACKWARD if backward else _FORWARD, 4)
    title = "".join(
        text for given, text in ((backward, ", backward"), (causal, ", causal"), (masked, ", masked")) if given
    )
    row_bytes = "most_rows * 4 + 128" if backward else "most_rows * 20"
    return _HEAD.format(title=title, row_bytes=row_bytes) + "\n".join(writer.lines) + "\n"


def attention_kernel(launch: Attention, tiling: Tiling) -> tuple[bool, bool, bool, bool]:
    """What of a launch decides its kernel, on a CPU whose products have these tiles."""
    assert launch.dtype == "f32", launch
    small = gemm_small.takes(tiling, block_of(launch)[0], launch.width, launch.value_width)
    return launch.backward, launch.causal, launch.masked, small


def block_of(launch: Attention) -> tuple[int, int]:
    """Rows and columns of a block of scores."""
    # Half of a short causal square is beyond the diagonal: two blocks of rows leave out a quarter.
    rows = launch.rows if launch.rows > ROWS or not launch.causal else -(-launch.rows // 2)
    return min(ROWS, -(-rows // VECTOR) * VECTOR), min(COLUMNS, launch.columns)


def attention_arguments(launch: Attention, product: int, address_of: Callable[[Place], int]) -> list[int]:
    """The words of one launch."""
    rows, columns = block_of(launch)
    (scale,) = struct.unpack("<I", struct.pack("<f", launch.scale))
    words = [product, launch.rows, launch.columns, launch.width, launch.value_width, launch.heads, launch.group]
    words += [rows, columns, -(-launch.rows // rows), scale]
    loads = launch.loads[:-1] if launch.masked else launch.loads
    operands = [*loads, *launch.stores]
    for access in operands:
        assert access.place is not None
        words += [address_of(access.place), 4 * access.strides[0], 4 * access.strides[1], access.strides[2]]
    if not launch.backward and len(operands) == 4:
        words += [0, 0, 0, 0]
    if launch.masked:
        access = launch.loads[-1]
        assert access.place is not None
        words += [address_of(access.place), *access.strides]
    return words


def attention_units(launch: Attention) -> tuple[int, int]:
    """(units, units a block)."""
    heads = launch.batch * launch.heads
    units = heads // launch.group if launch.backward else heads * -(-launch.rows // block_of(launch)[0])
    return units, units_per_block(units, attention_flops(launch) // 16)


def attention_scratch_bytes(launch: Attention) -> int:
    """Blocks of scores, and some numbers a row."""
    rows, columns = block_of(launch)
    return (8 if launch.backward else 4) * rows * columns + (4 * rows + 128 if launch.backward else 20 * rows)
