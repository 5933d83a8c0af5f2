"""The fixed kernels of indexed operations, one text a dtype, seen as [outer, size or count, inner] and contiguous.

Words: 0 outer   1 size   2 count   3 inner   4 chunk of inner   5 chunks   6 x or updates   7 indices   8 out
9 flag or 0   10 descending. A unit of take and gather is one row of out, of the others a chunk of inner columns of one
outer entry (argsort: one column), so that what is added to a place is added by one worker in order.
"""

from __future__ import annotations

from collections.abc import Callable

from sexpgpu.codegen.layout import units_per_block
from sexpgpu.ir.types import INTEGERS, SIZES
from sexpgpu.plan.kernel import Indexed, Place

# What an index out of range adds to its own number in the flag, so that 0 means that all was well.
FLAG_BASE = 1 + (1 << 40)
INNER_CHUNK = 64

_HEAD = """
def kernel(args, lo, hi, scratch):
    size = word(args, 1)
    count = word(args, 2)
    inner = word(args, 3)
    chunk = word(args, 4)
    chunks = word(args, 5)
    x = word(args, 6)
    indices = word(args, 7)
    out = word(args, 8)
    flag = word(args, 9)
    for n in range(hi - lo):
        unit = lo + n
"""

# The nearest valid index; the first one out of range is written into the flag.
_INDEX = """
given = cast_{i}_i64(load_{i}_1(indices, {at}))
wanted = k_select(given < 0, given + size, given)
at = least(k_maximum(wanted, 0), size - 1)
if at != wanted:
    if flag != 0:
        if word(flag, 0) == 0:
            store_i64_3(flag, 0, given + BASE)
            store_i64_3(flag, 1, size)
"""

_TAKE = """
entry = quotient(unit, count)
row = remainder(unit, count)
INDEX row
q = x + (entry * size + at) * inner * {bytes}
r = out + unit * inner * {bytes}
for c in range(inner):
    store_{d}_2(r, c, load_{d}_0(q, c))
"""

_GATHER = """
entry = quotient(unit, count)
q = x + entry * size * inner * {bytes}
for c in range(inner):
    INDEX unit * inner + c
    store_{d}_2(out, unit * inner + c, load_{d}_0(q, at * inner + c))
"""

_COLUMNS = """
entry = quotient(unit, chunks)
first = remainder(unit, chunks) * chunk
columns = least(chunk, inner - first)
"""

_SCATTER_ADD = (
    _COLUMNS
    + """
for row in range(count):
    INDEX row
    q = x + ((entry * count + row) * inner + first) * {bytes}
    r = out + ((entry * size + at) * inner + first) * {bytes}
    for c in range(columns):
        store_{d}_2(r, c, {add}(load_{d}_2(r, c) + load_{d}_0(q, c)))
"""
)

_GATHER_ADD = (
    _COLUMNS
    + """
for row in range(count):
    for c in range(columns):
        place = (entry * count + row) * inner + first + c
        INDEX place
        target = (entry * size + at) * inner + first + c
        store_{d}_2(out, target, {add}(load_{d}_2(out, target) + load_{d}_0(x, place)))
"""
)

_CUMSUM = (
    _COLUMNS
    + """
start = (entry * size * inner + first) * {bytes}
for c in range(columns):
    store_{d}_0(out + start, c, load_{d}_0(x + start, c))
for row in range(size - 1):
    q = x + start + (row + 1) * inner * {bytes}
    p = out + start + row * inner * {bytes}
    r = out + start + (row + 1) * inner * {bytes}
    for c in range(columns):
        store_{d}_0(r, c, {add}(load_{d}_0(p, c) + load_{d}_0(q, c)))
"""
)

# A merge sort of places: `left` stays before `right` unless right goes strictly before it. NaN is the greatest.
_ARGSORT = """
descending = word(args, 10)
entry = quotient(unit, inner)
column = remainder(unit, inner)
start = entry * size * inner + column
a = scratch
b = scratch + size * 4
for row in range(size):
    store_i32_1(a, row, as_i32(row))
width = 1
while width < size:
    first = 0
    while first < size:
        middle = least(first + width, size)
        last = least(middle + width, size)
        left = first
        right = middle
        for k in range(last - first):
            use_left = left < middle
            if use_left & (right < last):
                m = load_i32_1(a, left)
                n_ = load_i32_1(a, right)
                v = load_{d}_0(x, start + cast_i32_i64(m) * inner)
                w = load_{d}_0(x, start + cast_i32_i64(n_) * inner)
                if descending != 0:
                    use_left = k_not((w > v) | ((w != w) & (v == v)))
                else:
                    use_left = k_not((w < v) | ((v != v) & (w == w)))
            if use_left:
                store_i32_2(b, first + k, load_i32_1(a, left))
                left = left + 1
            else:
                store_i32_2(b, first + k, load_i32_1(a, right))
                right = right + 1
        first = last
    spare = a
    a = b
    b = spare
    width = width * 2
for row in range(size):
    store_i32_3(out, start + row * inner, load_i32_1(a, row))
"""

_BODIES = {
    "take": _TAKE,
    "gather": _GATHER,
    "scatter_add": _SCATTER_ADD,
    "gather_add": _GATHER_ADD,
    "cumsum": _CUMSUM,
    "argsort": _ARGSORT,
}


def _indented(text: str, depth: int) -> str:
    return "\n".join(" " * depth + line for line in text.strip("\n").split("\n"))


def _with_index(body: str, index_dtype: str) -> str:
    """Writes the lines that read an index where `INDEX place` stands."""
    lines = []
    for line in body.strip("\n").split("\n"):
        if line.strip().startswith("INDEX "):
            depth = len(line) - len(line.lstrip())
            text = _INDEX.format(i=index_dtype, at=line.strip().removeprefix("INDEX ")).replace("BASE", str(FLAG_BASE))
            lines.append(_indented(text, depth))
        else:
            lines.append(line)
    return "\n".join(lines)


def emit_indexed(op: str, dtype: str, index_dtype: str) -> str:
    """The source of an indexed operation's kernel."""
    add = f"as_{dtype}" if dtype in INTEGERS else ""
    body = _with_index(_BODIES[op], index_dtype)
    names = {"d": dtype, "bytes": str(SIZES[dtype]), "add": add}
    for name, text in names.items():
        body = body.replace("{" + name + "}", text)
    return f'"""{op} of {dtype} at {index_dtype}."""\n{_HEAD}{_indented(body, 8)}\n'


def _chunk(launch: Indexed) -> int:
    return min(max(launch.inner, 1), INNER_CHUNK)


def indexed_arguments(launch: Indexed, address_of: Callable[[Place], int]) -> list[int]:
    """The words of one launch."""
    chunk = _chunk(launch)
    addresses = [address_of(place) for place in launch.inputs]
    first, indices = (addresses[1], addresses[0]) if launch.op.endswith("_add") else (addresses[0], 0)
    if launch.op in ("take", "gather"):
        indices = addresses[1]
    flag = address_of(launch.flag) if launch.flag is not None else 0
    sizes = [launch.outer, launch.size, launch.count, launch.inner, chunk, -(-launch.inner // chunk)]
    return [*sizes, first, indices, address_of(launch.out), flag, int(launch.descending)]


def indexed_units(launch: Indexed) -> tuple[int, int]:
    """(units, units a block)."""
    chunks = -(-launch.inner // _chunk(launch))
    if launch.op in ("take", "gather"):
        units, work = launch.outer * launch.count, 4 * launch.inner
    elif launch.op == "argsort":
        units, work = launch.outer * launch.inner, 20 * launch.size * max(launch.size.bit_length(), 1)
    else:
        rows = launch.size if launch.op == "cumsum" else launch.count
        units, work = launch.outer * chunks, 4 * rows * _chunk(launch)
    empty = 0 in (launch.inner, launch.outer) or (launch.op == "cumsum" and launch.size == 0)
    return (0 if empty else units), units_per_block(units, units * work)


def indexed_scratch_bytes(launch: Indexed) -> int:
    """A sort moves places between two arrays."""
    return 8 * launch.size if launch.op == "argsort" else 0
