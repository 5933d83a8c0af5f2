"""The inner kernel of our own matrix product: a tile of some rows of c against panels of b, its sums in registers."""

from __future__ import annotations

import msgspec

from sexpgpu.codegen.llvm_text import Function

# Steps of k in one turn of the loop.
UNROLLED = 2
_PAIRS = "<32 x bfloat>"


class Tiling(msgspec.Struct, frozen=True):
    """The shape of a tile: `vectors` of `lanes` f32 side by side, at most `rows` below each other. Its sums,
    a row of b and one broadcast element of a have to fit into the registers.

    `pairs`: of bf16, two steps of k are one: a lane of 32 bits holds both elements, which `vdpbf16ps` multiplies and adds."""

    lanes: int
    vectors: int
    rows: int
    pairs: bool = False

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.lanes * self.vectors

    @property
    def pitch(self) -> int:
        """Floats between steps of k in a packed tile of a: its rows in whole vectors."""
        return -(-self.rows // self.lanes) * self.lanes

    def __str__(self) -> str:
        return f"{self.rows}×{self.columns}{' vdpbf16ps' if self.pairs else ''}"


PARAMETERS = (
    "i64 %k, ptr %a, i64 %a_row, i64 %a_step, ptr %b, i64 %b_step, i64 %b_panel, i64 %panels, ptr %c, i64 %c_row, i64 %adds"
)


def declarations(tiling: Tiling) -> str:
    vector = f"<{tiling.lanes} x float>"
    if tiling.pairs:
        assert tiling.lanes == 16
        return (
            f"declare {vector} @llvm.x86.avx512bf16.dpbf16ps.512({vector}, <32 x bfloat>, <32 x bfloat>)\n"
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
        )
    return (
        f"declare {vector} @llvm.fmuladd.v{tiling.lanes}f32({vector}, {vector}, {vector})\n"
        "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)\n"
    )


def tile(tiling: Tiling, rows: int) -> str:
    """c (rows × panels of columns) = a · b, or c + a · b. An element's products are added one after the other in the
    order of k, whatever the rows and the columns beside it. Steps count elements, or pairs of them."""
    f = Function(f"tile_{rows}", PARAMETERS)
    lanes, columns = tiling.lanes, tiling.columns
    vector = f"<{lanes} x float>"
    places = [(r, v) for r in range(rows) for v in range(tiling.vectors)]
    offsets = ["0"] + [f.mul("%a_row", r) for r in range(1, rows)]
    with f.loop(0, "%panels") as panel:
        b = f.at("%b", f.mul(panel, "%b_panel"))
        c = f.at("%c", f.mul(panel, columns))
        c_rows = [f.at(c, f.mul("%c_row", r)) for r in range(rows)]
        for c_row in c_rows:
            f.do(f"call void @llvm.prefetch.p0(ptr {c_row}, i32 1, i32 3, i32 1)")
        sums = {place: f.variable(vector, "zeroinitializer") for place in places}

        def as_factor(value: str) -> str:
            return f.let(f"bitcast {vector} {value} to {_PAIRS}") if tiling.pairs else value

        def added(old: str, left: str, right: str) -> str:
            if tiling.pairs:
                call = f"call {vector} @llvm.x86.avx512bf16.dpbf16ps.512"
                return f.let(f"{call}({vector} {old}, {_PAIRS} {left}, {_PAIRS} {right})")
            return f.let(f"call {vector} @llvm.fmuladd.v{lanes}f32({vector} {left}, {vector} {right}, {vector} {old})")

        def steps(first: str, count: int) -> None:
            b_at = f.at(b, f.mul(first, "%b_step"))
            a_at = f.at("%a", f.mul(first, "%a_step"))
            for number in range(count):
                if number:
                    a_at, b_at = f.at(a_at, "%a_step"), f.at(b_at, "%b_step")
                row = [as_factor(f.load(vector, f.at(b_at, lanes * v), 4)) for v in range(tiling.vectors)]
                for r in range(rows):
                    left = as_factor(f.splat("float", lanes, f.load("float", f.at(a_at, offsets[r]), 4)))
                    for v in range(tiling.vectors):
                        f.set(vector, sums[r, v], added(f.get(vector, sums[r, v]), left, row[v]))

        whole = f.let(f"and i64 %k, {-UNROLLED}")
        with f.loop(0, whole, UNROLLED) as k:
            steps(k, UNROLLED)
        with f.loop(whole, "%k") as k:
            steps(k, 1)
        adds = f.test("ne", "%adds", 0)
        with f.when(adds):
            for r, v in places:
                before = f.load(vector, f.at(c_rows[r], lanes * v), 4)
                f.set(vector, sums[r, v], f.let(f"fadd {vector} {before}, {f.get(vector, sums[r, v])}"))
        for r, v in places:
            f.store(vector, f.get(vector, sums[r, v]), f.at(c_rows[r], lanes * v), 4)
    return f.text()
