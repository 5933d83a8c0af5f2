"""Our own matrix product as LLVM text: c = a · b or c + a · b, from f32, bf16 or f16, to the same or f32, its sums in f32.

A unit is a block of rows and columns of one batch entry. Of a block, `panel_columns` columns and `depth` steps of k at a
time are packed from b; then tile after tile of rows of a, packed or read where they lie, runs over those panels.

Every element of c is the sum over pieces of k, in order, of sums over the piece's steps, in order: it depends on k
alone, not on how rows and columns are cut. Results of 16 bits are summed in scratch and rounded once.

Scratch, in floats: a margin, packed tiles of a, a tile of c, a margin, the packed panels of b, the sums of a block.
"""

from __future__ import annotations

from enum import IntEnum

from sexpgpu.codegen import gemm_pack, gemm_tile
from sexpgpu.codegen.gemm_pack import ELEMENTS, narrowed, widened
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.codegen.llvm_text import ATTRIBUTES, Function
from sexpgpu.ir.types import SIZES

# The argument words. The rows of c are cut into `tiles` of almost equal height: `taller` of them, the first, have one row
# more than the kernel's least. Tables hold offsets in elements. A `step` is the distance along k, for operands that are
# read where they lie (`b_direct`, `a_way`). `sums` is where the block's sums begin in
# scratch.
WORDS = (
    *("n", "k", "tiles", "taller", "block_tiles", "block_columns", "row_blocks", "column_blocks"),
    *("a", "b", "c", "a_starts", "b_starts", "c_starts", "c_row", "adds", "depth", "panel_columns"),
    *("a_way", "b_direct", "a_row", "a_step", "b_step", "a_rows", "a_steps", "b_columns", "b_steps", "sums"),
)
TABLES = {"a": "a_rows", "b": "b_columns"}


class WayOfA(IntEnum):
    """How the inner kernel reads a tile of a: from packed steps of k, where it lies, or from rows copied as they lie, side
    by side and widened to f32."""

    PACKED, IN_PLACE, COPIED = 0, 1, 2


# Tiles of a are packed together, so that whole cache lines are read of an a whose rows lie side by side; and so many
# steps of k at a time, so that a line is still there for the next vector.
MOST_DEPTH, PACKED_TILES, PACKED_STEPS, MARGIN = 384, 8, 64, 16


def scratch_floats(tiling: Tiling, depth: int, panel_columns: int) -> int:
    """Where the sums of a block begin."""
    return _panels(tiling) + depth * panel_columns


def _tile_place(tiling: Tiling) -> int:
    return MARGIN + PACKED_TILES * MOST_DEPTH * tiling.pitch


def _panels(tiling: Tiling) -> int:
    return _tile_place(tiling) + tiling.rows * tiling.columns + MARGIN


def emit_gemm(dtype: str, result: str, tiling: Tiling, rows: int) -> str:
    """`@kernel(args, lo, hi, scratch)` and what it calls, for tiles of `rows` rows and of one more."""
    packed = gemm_pack.PAIRS if tiling.pairs else dtype
    parts = [
        f"; a matrix product of {dtype} to {result}, tiles of {tiling}, {rows} or {rows + 1} rows",
        gemm_tile.declarations(tiling) + gemm_pack.declarations(tiling.lanes),
        gemm_pack.pack(packed, tiling.lanes),
        *(gemm_pack.pack_lines(packed, tiling.lanes, vectors) for vectors in {1, tiling.vectors, tiling.pitch // tiling.lanes}),
        *(gemm_tile.tile(tiling, height) for height in (rows, rows + 1)),
        _Driver(dtype, result, tiling, rows).text(),
        ATTRIBUTES,
    ]
    return "\n".join(parts)


class _Driver:
    """The function that cuts units into tiles."""

    def __init__(self, dtype: str, result: str, tiling: Tiling, rows: int) -> None:
        self.dtype, self.result, self.tiling, self.rows = dtype, result, tiling, rows
        self.f = Function("kernel", "i64 %args, i64 %lo, i64 %hi, i64 %scratch", internal=False)

    def text(self) -> str:
        f = self.f
        args = f.pointer("%args")
        self.word = {name: f.word(args, number) for number, name in enumerate(WORDS)}
        scratch = f.pointer("%scratch")
        self.tiles_of_a = f.at(scratch, MARGIN)
        self.tile_of_c = f.at(scratch, _tile_place(self.tiling))
        self.panels = f.at(scratch, _panels(self.tiling))
        self.sums = f.at(scratch, self.word["sums"])
        with f.loop("%lo", "%hi") as unit:
            self._unit(unit)
        return f.text()

    def _unit(self, unit: str) -> None:
        f, word = self.f, self.word
        blocks = f.mul(word["row_blocks"], word["column_blocks"])
        entry, block = f.divided(unit, blocks), f.remainder(unit, blocks)
        self.first_tile = first = f.mul(f.divided(block, word["column_blocks"]), word["block_tiles"])
        self.tiles = f.least(word["block_tiles"], f.sub(word["tiles"], first))
        self.i0 = self._first_row(first)
        self.height = f.sub(self._first_row(f.add(first, self.tiles)), self.i0)
        # Of the block's tiles so many are taller.
        self.taller = f.sub(word["taller"], first)
        j0 = f.mul(f.remainder(block, word["column_blocks"]), word["block_columns"])
        end = f.add(j0, f.least(word["block_columns"], f.sub(word["n"], j0)))
        element = ELEMENTS[self.result]

        def start(name: str, element: str = ELEMENTS[self.dtype]) -> str:
            return f.at(f.pointer(word[name]), f.word(f.pointer(word[f"{name}_starts"]), entry), element)

        self.a, self.b = start("a"), start("b")
        self.c = f.at(start("c", element), f.mul(self.i0, word["c_row"]), element)
        with f.loop(j0, end, word["panel_columns"]) as j:
            width = f.least(word["panel_columns"], f.sub(end, j))
            # Without steps there is one empty piece, which writes zeros.
            most = f.choose(f.test("eq", word["k"], 0), 1, word["k"])
            with f.loop(0, most, word["depth"]) as k:
                self._piece(j, width, k, f.least(word["depth"], f.sub(word["k"], k)))
            if self.result != "f32":
                self._round(f.at(self.c, j, element), width)

    def _first_row(self, tile: str) -> str:
        return self.f.add(self.f.mul(tile, self.rows), self.f.least(tile, self.word["taller"]))

    def _piece(self, j: str, width: str, k: str, depth: str) -> None:
        """`width` columns from j on, `depth` steps from k on."""
        f, word, columns = self.f, self.word, self.tiling.columns
        direct = f.test("ne", word["b_direct"], 0)
        whole = f.divided(width, columns)
        rest = f.sub(width, f.mul(whole, columns))
        if self.result != "f32":
            rest, whole = "0", f.divided(f.add(width, columns - 1), columns)
        self._pack_b(j, width, k, depth, f.choose(direct, whole, 0))
        # Only f32 is read where it lies.
        there = f.at(f.at(self.b, j), f.mul(k, word["b_step"]))
        b = f.let(f"select i1 {direct}, ptr {there}, ptr {self.panels}")
        b_step = f.choose(direct, word["b_step"], columns)
        b_panel = f.choose(direct, columns, f.mul(depth, columns))
        last = f.at(self.panels, f.choose(direct, 0, f.mul(whole, b_panel)))
        c, c_row, adds = f.at(self.c, j), word["c_row"], f.choose(f.test("sgt", k, 0), 1, word["adds"])
        if self.result != "f32":
            c, c_row, adds = self.sums, f.mul(whole, columns), f.choose(f.test("sgt", k, 0), 1, 0)
        with f.loop(0, self.tiles, PACKED_TILES) as first:
            until = f.least(f.add(first, PACKED_TILES), self.tiles)
            with f.when(f.test("eq", word["a_way"], WayOfA.PACKED)):
                self._pack_a(first, until, k, depth)
            if not self.tiling.pairs:
                with f.when(f.test("eq", word["a_way"], WayOfA.COPIED)):
                    self._copy_a(first, until, k, depth)
            with f.loop(first, until) as number:
                rows, i, kernel = self._tile(number)
                a, a_row, a_step = self._operand_a(i, f.sub(number, first), k, depth)
                of_a = f"i64 {depth}, ptr {a}, i64 {a_row}, i64 {a_step}"
                of_b = f"ptr {b}, i64 {b_step}, i64 {b_panel}, i64 {whole}"
                c_tile = f.at(c, f.mul(i, c_row))
                f.do(f"call void {kernel}({of_a}, {of_b}, ptr {c_tile}, i64 {c_row}, i64 {adds})")
                if self.result == "f32":
                    with f.when(f.test("sgt", rest, 0)):
                        of_b = f"ptr {last}, i64 {columns}, i64 0, i64 1"
                        f.do(f"call void {kernel}({of_a}, {of_b}, ptr {self.tile_of_c}, i64 {columns}, i64 0)")
                        self._edge(f.at(c_tile, f.mul(whole, columns)), rows, rest, adds)

    def _tile(self, number: str) -> tuple[str, str, str]:
        """A tile's rows, its first row in the block, its inner kernel."""
        f = self.f
        tall = f.test("slt", number, self.taller)
        rows = f.choose(tall, self.rows + 1, self.rows)
        low = f.sub(self.height, f.mul(f.sub(self.tiles, number), self.rows))
        kernel = f.let(f"select i1 {tall}, ptr @tile_{self.rows + 1}, ptr @tile_{self.rows}")
        return rows, f.choose(tall, f.mul(number, self.rows + 1), low), kernel

    def _pack_b(self, j: str, width: str, k: str, depth: str, first: str) -> None:
        """The panels from `first` on; those that lines fill last, see `pack`."""
        f, lanes, columns = self.f, self.tiling.lanes, self.tiling.columns
        begin = f.mul(first, columns)
        at, count = f.add(j, begin), f.sub(width, begin)
        panel = f.mul(depth, columns)
        lines = self._lines("b", at, count, f.divided(count, columns))
        there = f.mul(lines, columns)
        left = f.sub(count, there)
        groups = f.divided(f.add(left, lanes - 1), lanes)
        with f.loop(0, depth, PACKED_STEPS) as step, f.loop(0, groups) as number:
            lane = f.add(f.mul(self._last_first(number, groups), lanes), there)
            place = f.at(self.panels, f.mul(f.divided(lane, columns), panel))
            out = f.at(place, f.add(f.mul(step, columns), f.remainder(lane, columns)))
            have = f.least(str(lanes), f.sub(count, lane))
            self._pack("b", (f.add(at, lane), have, self.word["n"]), (k, depth, step), out, columns)
        self._pack_lines("b", at, (k, depth), self.panels, (lines, str(columns), panel), self.tiling.vectors)

    def _pack_a(self, first: str, until: str, k: str, depth: str) -> None:
        """The tiles from `first` on; those that lines fill last, see `pack`."""
        f, pitch, lanes = self.f, self.tiling.pitch, self.tiling.lanes
        m = self._first_row(self.word["tiles"])
        _, i, _ = self._tile(first)
        at = f.add(self.i0, i)
        # Tiles that lines fill: all but the operand's last, whose vectors would reach beyond its end.
        unsafe = -(-pitch // self.rows) - 1
        safe = f.sub(f.sub(self.word["tiles"], unsafe), f.add(self.first_tile, first))
        whole = self._at_least_0(f.least(f.sub(until, first), safe))
        _, end, _ = self._tile(until)
        lines = self._lines("a", at, f.least(f.add(f.sub(end, i), pitch), f.sub(m, at)), whole)
        with f.loop(0, depth, PACKED_STEPS) as step, f.loop(0, f.sub(f.sub(until, first), lines)) as back:
            number = f.sub(f.sub(until, 1), back)
            rows, row, _ = self._tile(number)
            groups = f.divided(f.add(rows, lanes - 1), lanes)
            with f.loop(0, groups) as more:
                lane = f.mul(self._last_first(more, groups), lanes)
                have = f.least(str(lanes), f.sub(rows, lane))
                out = f.at(self._packed_a(f.sub(number, first), depth), f.add(f.mul(step, pitch), lane))
                self._pack("a", (f.add(f.add(self.i0, row), lane), have, m), (k, depth, step), out, pitch)
        tall = self._at_least_0(f.least(lines, f.sub(self.taller, first)))
        panel, vectors = f.mul(depth, pitch), pitch // lanes
        for tiles, start, height in ((tall, "0", self.rows + 1), (f.sub(lines, tall), tall, self.rows)):
            _, row, _ = self._tile(f.add(first, start))
            place = f.at(self.tiles_of_a, f.mul(start, panel))
            self._pack_lines("a", f.add(self.i0, row), (k, depth), place, (tiles, str(height), panel), vectors)

    def _at_least_0(self, count: str) -> str:
        return self.f.choose(self.f.test("sgt", count, 0), count, 0)

    def _lines(self, name: str, at: str, count: str, whole: str) -> str:
        """`whole` where these lanes lie side by side, else 0."""
        f = self.f
        table = f.at(f.pointer(self.word[TABLES[name]]), at, "i64")
        first = f.word(table, 0)
        same = f.variable("i64", "0")
        with f.loop(0, count) as lane:
            off = f.let(f"xor i64 {f.word(table, lane)}, {f.add(first, lane)}")
            f.set("i64", same, f.let(f"or i64 {f.get('i64', same)}, {off}"))
        return f.choose(f.test("eq", f.get("i64", same), 0), whole, 0)

    def _pack_lines(
        self, name: str, at: str, steps: tuple[str, str], out: str, panels: tuple[str, str, str], vectors: int
    ) -> None:
        """Steps (first, how many), panels (how many, lanes between them, floats between them in `out`)."""
        f = self.f
        with f.when(f.test("sgt", panels[0], 0)):
            source, table = self._source(name, at)
            of_steps = f"ptr {self._steps(name, steps[0])}, i64 {steps[1]}"
            of_panels = f"i64 {panels[0]}, i64 {panels[1]}, i64 {panels[2]}"
            first = f.at(source, f.word(table, 0), ELEMENTS[self.dtype])
            of_panels += f", i64 {vectors * self.tiling.lanes}"
            f.do(f"call void @{gemm_pack.lines_name(vectors)}(ptr {first}, {of_steps}, ptr {out}, {of_panels})")

    def _source(self, name: str, at: str) -> tuple[str, str]:
        """An operand's first element and its lanes' table from a lane on."""
        table = self.f.at(self.f.pointer(self.word[TABLES[name]]), at, "i64")
        return (self.a if name == "a" else self.b), table

    def _steps(self, name: str, first: str) -> str:
        each = 2 if self.tiling.pairs else 1
        return self.f.at(self.f.pointer(self.word[f"{name}_steps"]), self.f.mul(first, each), "i64")

    def _last_first(self, turn: str, count: str) -> str:
        """The last group of lanes may fill places of the one before, which is packed later; the others are in order, as
        memory is faster forward."""
        f = self.f
        return f.choose(f.test("eq", turn, 0), f.sub(count, 1), f.sub(turn, 1))

    def _copy_a(self, first: str, until: str, k: str, depth: str) -> None:
        """The rows of the tiles from `first` on as they lie, in f32."""
        f, lanes, element = self.f, self.tiling.lanes, ELEMENTS[self.dtype]
        whole = f.divided(depth, lanes)
        with f.loop(first, until) as number:
            rows, i, _ = self._tile(number)
            source, table = self._source("a", f.add(self.i0, i))
            source, out = f.at(source, k, element), self._packed_a(f.sub(number, first), depth)
            of_panels = f"i64 {whole}, i64 {lanes}, i64 {lanes}, i64 {depth}"
            f.do(f"call void @{gemm_pack.lines_name(1)}(ptr {source}, ptr {table}, i64 {rows}, ptr {out}, {of_panels})")
            with f.loop(f.mul(whole, lanes), depth) as step, f.loop(0, rows) as row:
                place = f.at(f.at(source, f.word(table, row), element), step, element)
                found = widened(f, self.dtype, 1, f.load(f"<1 x {element}>", place, SIZES[self.dtype]))
                f.store("<1 x float>", found, f.at(out, f.add(f.mul(row, depth), step)), 4)

    def _packed_a(self, number: str, depth: str) -> str:
        return self.f.at(self.tiles_of_a, self.f.mul(self.f.mul(number, depth), self.tiling.pitch))

    def _operand_a(self, i: str, number: str, k: str, depth: str) -> tuple[str, str, str]:
        """The place of a tile of a, and its steps between rows and along k."""
        f, word = self.f, self.word
        direct, copied = f.test("eq", word["a_way"], WayOfA.IN_PLACE), f.test("eq", word["a_way"], WayOfA.COPIED)
        packed = self._packed_a(number, depth)
        row, step = f.choose(copied, depth, 1), f.choose(copied, 1, self.tiling.pitch)
        if self.dtype != "f32" and not self.tiling.pairs:
            return packed, row, step
        there = f.at(f.at(self.a, f.mul(f.add(self.i0, i), word["a_row"])), f.mul(k, word["a_step"]))
        return (
            f.let(f"select i1 {direct}, ptr {there}, ptr {packed}"),
            f.choose(direct, word["a_row"], row),
            f.choose(direct, word["a_step"], step),
        )

    def _pack(self, name: str, lanes: tuple[str, str, str], steps: tuple[str, str, str], out: str, width: int) -> None:
        """Lanes (first, how many, all that the table has), steps of a piece (its first, its depth, where in it)."""
        f = self.f
        (at, have, total), (k, depth, step) = lanes, steps
        source, table = self._source(name, at)
        of_lanes = f"ptr {table}, i64 {have}, i64 {at}, i64 {f.sub(total, at)}"
        count = f.least(str(PACKED_STEPS), f.sub(depth, step))
        of_steps = f"ptr {self._steps(name, f.add(k, step))}, i64 {count}"
        f.do(f"call void @pack(ptr {source}, {of_lanes}, {of_steps}, ptr {out}, i64 {width})")

    def _edge(self, c: str, rows: str, width: str, adds: str) -> None:
        """A tile's first `width` columns into c."""
        f = self.f
        adding = f.test("ne", adds, 0)
        with f.loop(0, rows) as i:
            source = f.at(self.tile_of_c, f.mul(i, self.tiling.columns))
            target = f.at(c, f.mul(i, self.word["c_row"]))
            with f.when(adding), f.loop(0, width) as j:
                sum_ = f.let(f"fadd float {f.load('float', f.at(target, j), 4)}, {f.load('float', f.at(source, j), 4)}")
                f.store("float", sum_, f.at(target, j), 4)
            with f.unless(adding), f.loop(0, width) as j:
                f.store("float", f.load("float", f.at(source, j), 4), f.at(target, j), 4)

    def _round(self, c: str, width: str) -> None:
        """The sums of a block into c."""
        f, element, columns = self.f, ELEMENTS[self.result], self.tiling.columns
        size = SIZES[self.result]
        pitch = f.mul(f.divided(f.add(width, columns - 1), columns), columns)
        adding = f.test("ne", self.word["adds"], 0)
        with f.loop(0, self.height) as i:
            source, target = f.at(self.sums, f.mul(i, pitch)), f.at(c, f.mul(i, self.word["c_row"]), element)
            with f.when(adding), f.loop(0, width) as j:
                place = f.at(target, j, element)
                before = widened(f, self.result, 1, f.load(f"<1 x {element}>", place, size))
                scalar = f.let(f"extractelement <1 x float> {before}, i64 0")
                sum_ = f.let(f"fadd float {scalar}, {f.load('float', f.at(source, j), 4)}")
                f.store(element, narrowed(f, self.result, sum_), place, size)
            with f.unless(adding), f.loop(0, width) as j:
                sum_ = f.load("float", f.at(source, j), 4)
                f.store(element, narrowed(f, self.result, sum_), f.at(target, j, element), size)
