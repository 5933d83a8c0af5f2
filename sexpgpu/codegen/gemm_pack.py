"""Packing for our own matrix product: elements from wherever they lie into panels that its inner kernel reads in order.

A panel holds some lanes (rows of a or columns of b) side by side, step of k after step of k. An element lies at the sum
of its lane's offset and its step's offset, both from tables, so an operand may be a matrix in either order, a slice, or
the windows of a convolution. Elements of 16 bits become f32, or two steps of bf16 become one of 32 bits ("pairs").
"""

from __future__ import annotations

from sexpgpu.codegen.llvm_text import Function
from sexpgpu.ir.types import SIZES

ELEMENTS = {"f32": "float", "bf16": "i16", "f16": "half"}
# What is packed: a dtype, or two steps of bf16 at a time.
PAIRS = "pairs"
# Steps of k by which a line is asked for before it is read: the processor foresees no steps of a page and more.
AHEAD = 8
PARAMETERS = "ptr %source, ptr %lanes, i64 %have, i64 %before, i64 %left, ptr %steps, i64 %k, ptr %out, i64 %width"


def declarations(lanes: int) -> str:
    return "".join(f"declare i1 @llvm.vector.reduce.and.v{n}i1(<{n} x i1>)\n" for n in (lanes, 2 * lanes))


def widened(f: Function, dtype: str, lanes: int, value: str) -> str:
    """f32 of the elements of a vector."""
    if dtype == "f32":
        return value
    if dtype == "f16":
        return f.let(f"fpext <{lanes} x half> {value} to <{lanes} x float>")
    whole = f.let(f"zext <{lanes} x i16> {value} to <{lanes} x i32>")
    sixteen = ", ".join(["i32 16"] * lanes)
    return f.let(f"bitcast <{lanes} x i32> {f.let(f'shl <{lanes} x i32> {whole}, <{sixteen}>')} to <{lanes} x float>")


def narrowed(f: Function, dtype: str, value: str) -> str:
    """The element nearest to an f32, ties to even; NaN stays NaN."""
    if dtype == "f32":
        return value
    if dtype == "f16":
        return f.let(f"fptrunc float {value} to half")
    bits = f.let(f"bitcast float {value} to i32")
    odd = f.let(f"and i32 {f.let(f'lshr i32 {bits}, 16')}, 1")
    rounded = f.let(f"add i32 {f.let(f'add i32 {bits}, 32767')}, {odd}")
    quiet = f.let(f"or i32 {bits}, 4194304")
    kept = f.let(f"select i1 {f.let(f'fcmp uno float {value}, {value}')}, i32 {quiet}, i32 {rounded}")
    return f.let(f"trunc i32 {f.let(f'lshr i32 {kept}, 16')} to i16")


class _Source:
    """Reads steps of lanes as vectors of what is packed; `k` counts steps of what is packed."""

    def __init__(self, f: Function, packed: str, steps: str) -> None:
        self.f, self.packed, self.steps = f, packed, steps
        self.dtype = "bf16" if packed == PAIRS else packed
        self.element, self.alignment = ELEMENTS[self.dtype], SIZES[self.dtype]
        # Elements that one of its steps takes.
        self.each = 2 if packed == PAIRS else 1

    def table(self, k: str) -> str:
        return self.f.at(self.steps, self.f.mul(k, self.each), "i64")

    def read(self, source: str, k: str, lanes: int) -> str:
        """Lanes that lie side by side from `source` on."""
        f, table = self.f, self.table(k)
        kind = f"<{lanes} x {self.element}>"
        found = [
            f.load(kind, f.at(source, f.word(table, number), self.element), self.alignment) for number in range(self.each)
        ]
        return _paired(f, lanes, *found) if self.packed == PAIRS else widened(f, self.dtype, lanes, found[0])

    def run(self, source: str, k: str, lanes: int) -> str:
        """So many steps of one lane, which lie side by side."""
        f = self.f
        place = f.at(source, f.word(self.table(k), 0), self.element)
        if self.packed == PAIRS:
            return f.load(f"<{lanes} x float>", place, self.alignment)
        return widened(f, self.dtype, lanes, f.load(f"<{lanes} x {self.element}>", place, self.alignment))


def _paired(f: Function, lanes: int, low: str, high: str) -> str:
    """Two vectors of bf16 as one of 32 bits a lane."""
    narrow, wide = f"<{lanes} x i16>", f"<{lanes} x i32>"
    sixteen = ", ".join(["i32 16"] * lanes)
    upper = f.let(f"shl {wide} {f.let(f'zext {narrow} {high} to {wide}')}, <{sixteen}>")
    whole = f.let(f"or {wide} {f.let(f'zext {narrow} {low} to {wide}')}, {upper}")
    return f.let(f"bitcast {wide} {whole} to <{lanes} x float>")


def _in_a_row(f: Function, table: str, lanes: int) -> str:
    """Whether so many offsets of a table step by 1."""
    kind = f"<{lanes} x i64>"
    found = f.load(kind, table, 8)
    first = f.splat("i64", lanes, f.load("i64", table, 8))
    counted = ", ".join(f"i64 {lane}" for lane in range(lanes))
    same = f.let(f"icmp eq {kind} {f.let(f'sub {kind} {found}, {first}')}, <{counted}>")
    return f.let(f"call i1 @llvm.vector.reduce.and.v{lanes}i1(<{lanes} x i1> {same})")


def transposed(f: Function, lanes: int, rows: list[str]) -> list[str]:
    """Columns of a square of vectors: in each round the halves of the list interleave."""
    half = lanes // 2
    low = [place for lane in range(half) for place in (lane, lane + lanes)]
    high = [place + half for place in low]
    for _ in range(lanes.bit_length() - 1):
        pairs = [(rows[i], rows[i + half]) for i in range(half)]
        rows = [f.shuffle("float", lanes, *pair, mask) for pair in pairs for mask in (low, high)]
    return rows


def pack(packed: str, lanes: int) -> str:
    """`have` lanes (as many as a vector has, or fewer) of every step into `out`, whose steps are `width` floats apart.

    In the table `before` lanes stand before these and `left` from these on. A vector of lanes side by side may be wider
    than what is wanted: it fills places that hold nothing. Where too few are left it begins before them, and what it
    fills there is to be packed later.
    """
    f = Function("pack", PARAMETERS)
    reader, vector = _Source(f, packed, "%steps"), f"<{lanes} x float>"
    shift = f.sub(str(lanes), f.least("%left", lanes))
    enough = f.test("sge", "%before", shift)
    table = f.at("%lanes", f.sub("0", shift), "i64")
    side_by_side = f.variable("i1", "false")
    with f.when(enough):
        f.set("i1", side_by_side, _in_a_row(f, table, lanes))
    together = f.get("i1", side_by_side)
    with f.when(together):
        source = f.at("%source", f.word(table, 0), reader.element)
        out = f.at("%out", f.sub("0", shift))
        with f.loop(0, "%k") as k:
            f.store(vector, reader.read(source, k, lanes), f.at(out, f.mul(k, "%width")), 4)
    with f.unless(together):
        _pack_lanes(f, reader, lanes)
    return f.text()


def lines_name(vectors: int) -> str:
    return f"pack_lines_{vectors}"


def pack_lines(packed: str, lanes: int, vectors: int) -> str:
    """Panels of so many vectors from lanes that lie side by side, `lane_step` lanes from panel to panel: step after
    step, each read from its first lane to its last."""
    f = Function(
        lines_name(vectors),
        "ptr %source, ptr %steps, i64 %k, ptr %out, i64 %panels, i64 %lane_step, i64 %out_panel, i64 %out_step",
    )
    reader = _Source(f, packed, "%steps")
    element = reader.element
    with f.loop(0, "%k") as k:
        here = f.word(reader.table(k), 0)
        line = f.at("%source", here, element)
        later = f.sub(f.word(reader.table(f.least(f.add(k, AHEAD), f.sub("%k", 1))), 0), here)
        out = f.at("%out", f.mul(k, "%out_step"))
        with f.loop(0, "%panels") as panel:
            lane = f.mul(panel, "%lane_step")
            first, place = f.at(line, lane, element), f.at(out, f.mul(panel, "%out_panel"))
            for v in range(vectors):
                found = reader.read(f.at("%source", f.add(lane, lanes * v), element), k, lanes)
                f.do(f"call void @llvm.prefetch.p0(ptr {f.at(first, f.add(later, lanes * v), element)}, i32 0, i32 3, i32 1)")
                f.store(f"<{lanes} x float>", found, f.at(place, lanes * v), 4)
    return f.text()


def _pack_lanes(f: Function, reader: _Source, lanes: int) -> None:
    """Lanes that do not lie side by side: squares where steps do, else one element after the other. Lanes that are not
    there repeat the last."""
    vector = f"<{lanes} x float>"
    last = f.sub("%have", 1)
    sources = [
        f.at("%source", f.word("%lanes", f.least(str(lane), last)), reader.element) for lane in range(lanes)
    ]

    def one(k: str) -> None:
        out = f.at("%out", f.mul(k, "%width"))
        for lane, source in enumerate(sources):
            f.store("<1 x float>", reader.read(source, k, 1), f.at(out, lane), 4)

    whole = f.let(f"and i64 %k, {-lanes}")
    with f.loop(0, whole, lanes) as k:
        run = _in_a_row(f, reader.table(k), reader.each * lanes)
        with f.when(run):
            columns = transposed(f, lanes, [reader.run(source, k, lanes) for source in sources])
            for lane, column in enumerate(columns):
                f.store(vector, column, f.at("%out", f.mul(f.add(k, lane), "%width")), 4)
        with f.unless(run), f.loop(0, lanes) as number:
            one(f.add(k, number))
    with f.loop(whole, "%k") as k:
        one(k)
