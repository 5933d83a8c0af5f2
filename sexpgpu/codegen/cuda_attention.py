"""Attention as CUDA launches: forward one pass over tiles of columns, backward the rows' δ, then the gradients of q, then
those of k and v; nothing is added by atomics. Numbers a head that has infinities or NaN are found first, where it matters."""

from __future__ import annotations

from sexpgpu.codegen import cuda_attention_text as text
from sexpgpu.codegen.cuda_fixed import Fixed
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, Argument, CudaLaunch, Scratch, loaded
from sexpgpu.codegen.cuda_tracer import formula_function, literal
from sexpgpu.codegen.numba_attention import BACKWARD_NAMES, FORWARD_NAMES
from sexpgpu.plan.kernel import Access, Attention

THREADS = 256
# Rows and columns of a tile, the first whose tiles fit into the shared memory that every card has.
TILES = ((64, 32), (32, 32), (32, 16), (16, 16))
SHARED_BYTES = 48 << 10
# Wider heads are computed by their body.
WIDEST_HEAD = 176
EXP, LOG = (formula_function(name, ("f32",)) for name in ("k_exp", "k_log"))


def tile_of(width: int, value_width: int, backward: bool) -> tuple[int, int]:
    """Rows and columns of a tile."""
    for rows, columns in TILES:
        floats = (rows + columns) * (width + 1) + columns * (value_width + backward)
        floats += rows * (columns + 1) * (2 if backward else 1) + (rows * (value_width + 1) if backward else 0)
        if 4 * floats <= SHARED_BYTES and not (backward and rows > 32):
            return rows, columns
    raise AssertionError((width, value_width))


def emit_attention(launch: Attention) -> tuple[CudaLaunch, ...]:
    """The launches, one after the other; none where there is nothing to compute."""
    if 0 in (launch.batch, launch.heads, launch.rows, launch.columns):
        return ()
    return _Writer(launch).launches()


class _Writer:
    def __init__(self, launch: Attention) -> None:
        self.launch = launch
        loads = launch.loads[:-1] if launch.masked else launch.loads
        names = BACKWARD_NAMES if launch.backward else FORWARD_NAMES
        self.operands: dict[str, Access] = dict(zip(names, (*loads, *launch.stores)))
        if launch.masked:
            self.operands["mask"] = launch.loads[-1]
        self.rows, self.columns = tile_of(launch.width, launch.value_width, launch.backward)
        self.sources = launch.batch * launch.heads // launch.group
        # The flags of heads, then the rows' δ.
        self.deltas = Scratch(-(-4 * self.sources // 256) * 256)
        deltas = 4 * launch.batch * launch.heads * launch.rows if launch.backward else 0
        self.workspace_bytes = self.deltas.offset_bytes + deltas

    def launches(self) -> tuple[CudaLaunch, ...]:
        given, made = self.launch, []
        if given.causal:
            made.append(self._finite())
        heads, blocks = given.batch * given.heads, -(-given.rows // self.rows)
        if not given.backward:
            stores = ("out", "lse") if "lse" in self.operands else ("out",)
            body = text.FORWARD.replace("{lse}", text.FORWARD_LSE if "lse" in stores else "")
            return (*made, self._tiled("", body, text.ROWS_BAND, ("q", "k", "v"), stores, (blocks, heads, 1)))
        rows = given.batch * given.heads * given.rows
        delta = text.DELTA.replace("{element}", self._element("dout")).replace("{loaded}", self._loaded("dout", "y[c]"))
        made.append(self._launch("delta", delta, ("out", "dout"), ("deltas",), (-(-rows // 8), 1, 1)))
        loads = ("q", "k", "v", "lse", "dout", "deltas")
        made.append(self._tiled("rows", text.BACKWARD_ROWS, text.ROWS_BAND, loads, ("dq",), (blocks, heads, 1)))
        grid = (-(-given.columns // self.columns), self.sources, 1)
        made.append(self._tiled("columns", text.BACKWARD_COLUMNS, text.COLUMNS_BAND, loads, ("dk", "dv"), grid))
        return tuple(made)

    def _finite(self) -> CudaLaunch:
        """What 0 is multiplied by beyond the diagonal: forward the rows of v, backward everything."""
        given = self.launch
        names = ("q", "k", "v", "lse", "dout") if given.backward else ("v",)
        checks: list[str] = []
        for name in names:
            rows, width = ("COLUMNS" if name in ("k", "v") else "ROWS"), self._width(name)
            of_q = name not in ("k", "v")
            head = "head" if of_q else "source"
            element = text.FINITE_ELEMENT.format(name=name, upper=name.upper(), head=head, width=width)
            check = text.FINITE_CHECK.format(rows=rows, width=width, loaded=self._loaded(name, element))
            if of_q:
                loop = "for (int head = source * GROUP; head < (source + 1) * GROUP; ++head)"
                check = f"{loop} {{\n{check}\n}}"
            checks.append(check)
        body = text.FINITE.replace("{checks}", "\n".join(checks))
        return self._launch("finite", body, names, ("flags",), (self.sources, 1, 1))

    @staticmethod
    def _width(name: str) -> str:
        return {"q": "WIDTH", "k": "WIDTH", "v": "VALUES", "dout": "VALUES", "lse": "1"}[name]

    def _tiled(
        self, part: str, body: str, band: str, loads: tuple[str, ...], stores: tuple[str, ...], grid: tuple[int, int, int]
    ) -> CudaLaunch:
        """A kernel that goes through tiles of scores; `band`: the line that leaves out those beyond the diagonal."""
        given = self.launch
        loads += (("mask",) if given.masked else ()) + (("flags",) if given.causal else ())
        body = body.replace("{mask}", text.SEEN_MASK if given.masked else "")
        body = body.replace("{band}", band if given.causal else "")
        # A module may have the tiles of several dtypes.
        body = body.replace("take_tile", f"take_{given.dtype}_tile")
        body = f"const float scale = {literal(given.scale, 'f32')};\n{body}"
        return self._launch(part, body, loads, stores, grid, (EXP, LOG, self._tile()))

    def _launch(
        self,
        part: str,
        body: str,
        loads: tuple[str, ...],
        stores: tuple[str, ...],
        grid: tuple[int, int, int],
        functions: tuple[str, ...] = (),
    ) -> CudaLaunch:
        parameters = [self._parameter(name, "const ") for name in loads]
        parameters += [self._parameter(name, "") for name in stores]
        kind = f"attention_{part}" if part else "attention"
        constants = self._constants((*loads, *stores))
        made = Fixed(kind, THREADS, self._comment(), tuple(parameters), body, constants, functions=functions)
        return CudaLaunch(made.kernel(), grid, made.arguments, workspace_bytes=self.workspace_bytes)

    def _parameter(self, name: str, constant: str) -> tuple[str, Argument]:
        """An operand, or what the launches of a region hand on to each other in scratch memory."""
        if name == "flags":
            return f"{constant}int* __restrict__ flags", Scratch()
        if name == "deltas":
            return f"{constant}float* __restrict__ deltas", self.deltas
        place = self.operands[name].place
        assert place is not None
        return f"{constant}{self._element(name)}* __restrict__ {name}", place

    def _dtype(self, name: str) -> str:
        return "bool" if name == "mask" else self.launch.dtype if name in ("q", "k", "v", "dout") else "f32"

    def _element(self, name: str) -> str:
        return MEMORY_TYPES[self._dtype(name)]

    def _loaded(self, name: str, element: str) -> str:
        """An element of an operand as the number that is computed with."""
        return loaded(element, self._dtype(name))

    def _tile(self) -> str:
        made = text.TILE.replace("take_tile", f"take_{self.launch.dtype}_tile").replace("{element}", self._element("q"))
        return made.replace("{loaded}", self._loaded("q", text.TILE_ELEMENT))

    def _constants(self, names: tuple[str, ...]) -> dict[str, int]:
        given = self.launch
        made = {"ROWS": given.rows, "COLUMNS": given.columns, "WIDTH": given.width, "VALUES": given.value_width}
        made |= {"BATCH": given.batch, "HEADS": given.heads, "GROUP": given.group, "R": self.rows, "C": self.columns}
        made |= {"CAUSAL": int(given.causal), "SOURCES": given.heads // given.group}
        for name in (name for name in names if name in self.operands):
            steps = self.operands[name].strides
            if name == "lse":
                steps = (given.heads * given.rows, given.rows, 1)
            ends = ("BATCH", "HEAD", "ROW", "COLUMN")
            made |= {f"{name.upper()}_{end}": step for end, step in zip(ends, steps)}
        return made

    def _comment(self) -> tuple[str, ...]:
        given = self.launch
        how = f"{'causal ' if given.causal else ''}{'masked ' if given.masked else ''}attention"
        of = f"{given.batch} × {given.heads} heads, {given.rows} rows, {given.columns} columns of {given.width}, {given.dtype}"
        return (f"{'Backward of ' if given.backward else ''}{how}: {of}.",)
