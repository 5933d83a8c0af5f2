"""Matrix products as CUDA C: which tile, which parts of the sum, and the arguments that say sizes and strides.

What is in a kernel's text is what its compiler must know (tile, dtypes, how operands lie); sizes, strides and batch are
arguments, so the products of a model share a few kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.codegen import cuda_product_tensor
from sexpgpu.codegen.cuda_operands import PACK_BYTES, Alignment
from sexpgpu.codegen.cuda_product_choice import Choice, TensorTile, choose
from sexpgpu.codegen.cuda_product_tiles import FUNCTIONS, JOIN_FUNCTIONS, NAMESPACE
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaLaunch, CudaText, Scratch
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Loops, Matrix, Place, Product

# What elements of a dtype are in the kernels' text.
ELEMENTS = {"f32": "Float32", "bf16": "Brain16", "f16": "Half16", "i32": "Integer32", "i64": "Integer64"}
LIMIT = 1 << 31
JOINING_THREADS = 256
# As many loops lead along the windows of an image.
FEW_LOOPS = 3
# Of a multiprocessor's 65,536 registers each of so many threads has 128.
THREADS_TO_HOLD = 512


def emit_product(launch: Product, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """The launches of a product, two where blocks share its sum; none where there is nothing to compute or to add."""
    if launch.m == 0 or launch.n == 0 or (launch.k == 0 and launch.accumulate):
        return ()
    assert max(launch.m, launch.n, launch.k) < LIMIT, (launch.m, launch.n, launch.k)
    choice = choose(launch)
    made = _Tiled(launch, alignment, choice).write()
    return (made,) if choice.parts == 1 else (made, _join(launch, choice))


@dataclass(frozen=True)
class Operand:
    """How a or b lies: the loops of its side of c and of the sum; packs of `width` neighbours, along the sum or the side."""

    name: str
    side: Loops
    steps: Loops
    along_sum: bool
    width: int


def _loops(loops: Loops, size: int, step: int) -> Loops:
    """Without loops of one turn, whose step means nothing; several are filled up to a common number of them."""
    made = tuple(loop for loop in loops or ((size, step),) if loop[0] != 1) or ((1, 1),)
    return ((1, 0),) * (FEW_LOOPS - len(made)) + made if len(made) > 1 else made


def operand_of(launch: Product, name: str, width: int, alignment: Alignment) -> Operand:
    """How it lies; it moves in packs of `width` where they are whole and aligned, else element by element."""
    if name == "a":
        matrix = launch.a
        side = _loops(matrix.rows, launch.m, matrix.row)
        steps = _loops(matrix.columns, launch.k, matrix.column)
    else:
        matrix = launch.b
        side = _loops(matrix.columns, launch.n, matrix.column)
        steps = _loops(matrix.rows, launch.k, matrix.row)
    # Threads read neighbours, or what is nearest.
    along_sum = (steps[-1][1], -steps[-1][0]) < (side[-1][1], -side[-1][0])
    fast, slow = (steps, side) if along_sum else (side, steps)
    packs = _moves(matrix, fast, slow, width, SIZES[launch.dtype], alignment)
    return Operand(name, side, steps, along_sum, width if packs else 1)


def _moves(matrix: Matrix, fast: Loops, slow: Loops, width: int, item: int, alignment: Alignment) -> bool:
    """Whether packs of `width` along the fast loops are whole and aligned."""
    (size, step), others = fast[-1], (*fast[:-1], *slow)
    return (
        width * item <= PACK_BYTES
        and step == 1
        and size % width == 0
        and all(other % width == 0 for n, other in others if n > 1)
        and all((start - matrix.starts[0]) % width == 0 for start in matrix.starts)
        and alignment(_first(matrix, item)) % (width * item) == 0
    )


def _first(matrix: Matrix, item: int) -> Place:
    """The place of the first batch entry."""
    return Place(matrix.place.buffer, matrix.place.offset + matrix.starts[0] * item)


@dataclass(frozen=True)
class Entries:
    """Batch entries as two loops: `inner` turns, and the steps of a, b and c along the inner and the outer loop."""

    inner: int
    inner_steps: tuple[int, ...]
    outer_steps: tuple[int, ...]


def entries_of(tables: tuple[tuple[int, ...], ...]) -> Entries | None:
    """The batch as two loops; None where it is none."""
    count = len(tables[0])
    for inner in (n for n in range(count, 0, -1) if count % n == 0):
        steps = tuple(table[1] - table[0] if inner > 1 else 0 for table in tables)
        outer = tuple(table[inner] - table[0] if inner < count else 0 for table in tables)
        if all(
            start - table[0] == z % inner * step + z // inner * far
            for table, step, far in zip(tables, steps, outer, strict=True)
            for z, start in enumerate(table)
        ):
            return Entries(inner, steps, outer)
    return None


class _Tiled:
    """Writes the kernel whose blocks compute tiles."""

    def __init__(self, launch: Product, alignment: Alignment, choice: Choice) -> None:
        self.launch, self.choice, self.tile = launch, choice, choice.tile
        self.tensor = isinstance(choice.tile, TensorTile)
        self.operands = [operand_of(launch, name, 8 if self.tensor else 4, alignment) for name in "ab"]
        # Left alone, ptxas may prefer more blocks and spill a few registers. Operands that are moved element by element
        # take more of them than the largest tile leaves.
        crowded = (self.tensor or choice.tile.threads == THREADS_TO_HOLD // 2) and any(
            operand.width == 1 for operand in self.operands
        )
        blocks = 1 if crowded else THREADS_TO_HOLD // choice.tile.threads
        self.text = CudaText("product", choice.tile.threads, blocks=blocks)
        self.space = "tensor::" if self.tensor else ""
        self.count = len(launch.c.starts)
        self.shared = choice.parts > 1
        self.c_width = self._c_width(alignment)

    def _c_width(self, alignment: Alignment) -> int:
        """How many neighbours of c a thread writes at once, of those that it has."""
        width, c = 2 if self.tensor else 4, self.launch.c
        item = 4 if self.shared else SIZES[self.launch.c_dtype]
        steps = () if self.shared else (c.row, *(start - c.starts[0] for start in c.starts))
        aligned = self.shared or alignment(_first(c, item)) % (width * item) == 0
        fits = self.launch.n % width == 0 and width * item <= PACK_BYTES
        return width if aligned and fits and all(step % width == 0 for step in steps) else 1

    def write(self) -> CudaLaunch:
        launch, text = self.launch, self.text
        for function in cuda_product_tensor.FUNCTIONS if self.tensor else FUNCTIONS:
            text.call(function)
        self._pointers()
        for name in "mnk":
            text.parameter(f"long long {name}", getattr(launch, name))
        text.add(f"using namespace {NAMESPACE};")
        text.add(f"using T = {self.space}{self.tile.text};")
        text.add("const Part part = part_of_block<T>((int)m, (int)n);")
        self._entry()
        for operand in self.operands:
            self._operand(operand)
        self._product()
        down, along = -(-launch.m // self.tile.rows), -(-launch.n // self.tile.columns)
        kernel = text.finish(self._comment())
        workspace = self.choice.parts * self.count * launch.m * launch.n * 4 if self.shared else 0
        grid = (down * along * self.count, self.choice.parts, 1)
        note = f"the sum is cut into {self.choice.parts} parts, which are added afterwards" if self.shared else ""
        return CudaLaunch(
            kernel, grid, tuple(text.arguments), shared_bytes=self._shared_bytes(), workspace_bytes=workspace, note=note
        )

    def _shared_bytes(self) -> int:
        """What a block's pieces of narrow operands take; those of others are in the text."""
        tile = self.tile
        if not isinstance(tile, TensorTile):
            return 0
        a, b = self.operands
        return sum(
            2 * tile.stages * (side * (tile.depth + 8) if operand.along_sum else tile.depth * (side + 8))
            for side, operand in ((tile.rows, a), (tile.columns, b))
        )

    def _comment(self) -> list[str]:
        tile = self.tile
        lines = [f"A product of {self.launch.dtype} by tiles of {tile.rows} × {tile.columns}."]
        for operand in self.operands:
            way = "along the sum" if operand.along_sum else "along its side of c"
            lines.append(f"{operand.name}: {operand.width} neighbours {way} at once.")
        return lines

    def _pointers(self) -> None:
        launch = self.launch
        kind = MEMORY_TYPES[launch.dtype]
        for name, matrix in (("a", launch.a), ("b", launch.b)):
            self.text.parameter(f"const {kind}* __restrict__ {name}", _first(matrix, SIZES[launch.dtype]))
        if self.shared:
            self.text.parameter("float* __restrict__ c", Scratch())
        else:
            target = _first(launch.c, SIZES[launch.c_dtype])
            self.text.parameter(f"{MEMORY_TYPES[launch.c_dtype]}* __restrict__ c", target)

    def _entry(self) -> None:
        """Moves the pointers to the block's batch entry."""
        text, launch = self.text, self.launch
        names = "ab" if self.shared else "abc"
        tables = (launch.a.starts, launch.b.starts, launch.c.starts)[: len(names)]
        found = entries_of(tables)
        if self.count == 1:
            return
        if found is None:
            for name, table in zip(names, tables, strict=True):
                numbers = ", ".join(str(start - table[0]) for start in table)
                text.add(f"static const long long {name}_starts[{self.count}] = {{{numbers}}};")
                text.add(f"{name} += {name}_starts[part.entry];")
            return
        text.parameter("long long inner", found.inner)
        text.add(
            "const long long near = (unsigned)part.entry % (unsigned)inner, far = (unsigned)part.entry / (unsigned)inner;"
        )
        for name, near, far in zip(names, found.inner_steps, found.outer_steps, strict=True):
            text.parameter(f"long long {name}_near", near)
            text.parameter(f"long long {name}_far", far)
            text.add(f"{name} += near * {name}_near + far * {name}_far;")

    def _operand(self, operand: Operand) -> None:
        """Declares the operand's matrix."""
        kind = MEMORY_TYPES[self.launch.dtype]
        along = "true" if operand.along_sum else "false"
        type_ = f"Matrix<{kind}, {operand.width}, {along}, {len(operand.side)}, {len(operand.steps)}>"
        packs = operand.width > 1
        side = self._loops(f"{operand.name}_side", operand.side, packs and not operand.along_sum)
        steps = self._loops(f"{operand.name}_sum", operand.steps, packs and operand.along_sum)
        size = "m" if operand.name == "a" else "n"
        self.text.add(f"const {type_} of_{operand.name} = {{{operand.name}, (int){size}, {side}, {steps}}};")

    def _loops(self, name: str, loops: Loops, unit: bool) -> str:
        """Loops as an initializer; where the last one's step must be 1 it stands in the text."""
        sizes, steps = [], []
        for number, (size, step) in enumerate(loops):
            assert size < LIMIT and abs(step) < LIMIT, (size, step)
            sizes.append("0" if number == 0 else f"(int){name}_size{number}")
            known = unit and number == len(loops) - 1
            steps.append("1" if known else f"(int){name}_step{number}")
            if number:
                self.text.parameter(f"long long {name}_size{number}", size)
            if not known:
                self.text.parameter(f"long long {name}_step{number}", step)
        return f"{{{{{', '.join(sizes)}}}, {{{', '.join(steps)}}}}}"

    def _product(self) -> None:
        text, launch = self.text, self.launch
        c_dtype = "f32" if self.shared else launch.c_dtype
        adds = launch.accumulate and not self.shared
        options = f"T, {ELEMENTS[launch.dtype]}, {ELEMENTS[c_dtype]}, {self.c_width}, {'true' if adds else 'false'}"
        if self.shared:
            text.parameter("long long entries", self.count)
            text.parameter("long long part_steps", self.choice.part_steps)
            text.add("c += (blockIdx.y * entries + part.entry) * m * n;")
            text.add("const int first = blockIdx.y * (int)part_steps, end = min(first + (int)part_steps, (int)k);")
            text.add(f"{self.space}product<{options}>(of_a, of_b, c, n, part, first, end);")
        else:
            text.parameter("long long c_row", launch.c.row)
            text.add(f"{self.space}product<{options}>(of_a, of_b, c, c_row, part, 0, (int)k);")


def _join(launch: Product, choice: Choice) -> CudaLaunch:
    """Adds the parts' sums, a thread an element of c."""
    text = CudaText("product_join", JOINING_THREADS)
    for function in JOIN_FUNCTIONS:
        text.call(function)
    count = launch.m * launch.n * len(launch.c.starts)
    text.parameter("const float* __restrict__ parts", Scratch())
    text.parameter(f"{MEMORY_TYPES[launch.c_dtype]}* __restrict__ c", _first(launch.c, SIZES[launch.c_dtype]))
    for name, number in (("m", launch.m), ("n", launch.n), ("count", choice.parts), ("c_row", launch.c.row)):
        text.parameter(f"long long {name}", number)
    text.parameter("long long apart", count)
    text.add(f"using namespace {NAMESPACE};")
    text.add(f"const long long element = (long long)blockIdx.x * {JOINING_THREADS} + threadIdx.x;")
    text.add("if (element >= apart) return;")
    text.add("const long long row = element / n % m, column = element % n, entry = element / (m * n);")
    found = entries_of((launch.c.starts,))
    if found is None:
        numbers = ", ".join(str(start - launch.c.starts[0]) for start in launch.c.starts)
        text.add(f"static const long long starts[{len(launch.c.starts)}] = {{{numbers}}};")
        text.add("c += starts[entry];")
    else:
        text.parameter("long long inner", found.inner)
        text.parameter("long long c_near", found.inner_steps[0])
        text.parameter("long long c_far", found.outer_steps[0])
        text.add("c += entry % inner * c_near + entry / inner * c_far;")
    adds = "true" if launch.accumulate else "false"
    text.add(f"join_parts<{ELEMENTS[launch.c_dtype]}, {adds}>")
    text.lines[-1] += "(parts + element, (int)count, apart, c + row * c_row + column);"
    kernel = text.finish(["Adds the sums of the parts of a product."])
    workspace = choice.parts * count * 4
    return CudaLaunch(kernel, (-(-count // JOINING_THREADS), 1, 1), tuple(text.arguments), workspace_bytes=workspace)
