"""Pointwise regions with transposed operands as CUDA C: whose neighbours in memory are along another loop than the last.

A block takes a tile of that loop and the last one. Transposed loads are staged in shared memory, read along their own loop;
transposed stores are staged there too and written along it. So both sides move neighbours by neighbouring threads.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from sexpgpu.codegen.cuda_map import THREADS, MapWriter
from sexpgpu.codegen.cuda_operands import (
    Alignment,
    Operand,
    declare,
    load_element,
    offset,
    operands_of,
    register_type,
    store_element,
)
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaKernel, CudaLaunch, loaded, stored
from sexpgpu.codegen.source import describe_lines
from sexpgpu.plan.kernel import Generated

# A tile's side; its rows are one element apart more, so that neither rows nor columns meet in one bank.
TILE, PITCH = 32, 33
ROUNDS = TILE * TILE // THREADS
# A loop shorter than this is not worth a tile; more shared memory than this would leave too few blocks a processor.
SHORTEST, MOST_SHARED_BYTES = 8, 36 << 10


def transposed_loop(launch: Generated) -> int | None:
    """The loop along which most bytes of transposed operands are neighbours; None where there is none worth a tile."""
    sizes = launch.sizes
    if len(sizes) < 2 or sizes[-1] < SHORTEST:
        return None
    weights: Counter[int] = Counter()
    for operand in operands_of(launch):
        strides = operand.access.strides
        if operand.in_memory and abs(strides[-1]) > 1:
            loops = (n for n in range(len(sizes) - 1) if abs(strides[n]) == 1 and sizes[n] >= SHORTEST)
            weights.update(dict.fromkeys(loops, operand.item_bytes))
    return max(weights, key=lambda loop: weights[loop]) if weights else None


def emit_transposed(launch: Generated, alignment: Alignment) -> CudaLaunch | None:
    """The launch of a map that has transposed operands; None for any other."""
    loop = transposed_loop(launch)
    if loop is None or prod(launch.sizes) == 0:
        return None
    writer = _Transposed(launch, alignment, loop)
    kernel = writer.write()
    return CudaLaunch(kernel, (prod(writer.tiles), 1, 1), tuple(writer.text.arguments))


class _Transposed(MapWriter):
    def __init__(self, launch: Generated, alignment: Alignment, loop: int) -> None:
        super().__init__(launch, alignment)
        self.loop, self.inner = loop, len(launch.sizes) - 1
        self.staged = self._staged()
        # Blocks along every loop.
        self.tiles = [-(-n // TILE) if k in (loop, self.inner) else n for k, n in enumerate(launch.sizes)]

    def _staged(self) -> list[Operand]:
        """The transposed operands, as many as the shared memory holds."""
        room, made = MOST_SHARED_BYTES, []
        for operand in self.operands:
            strides = operand.access.strides
            size = TILE * PITCH * operand.item_bytes
            if operand.in_memory and abs(strides[-1]) > 1 and abs(strides[self.loop]) == 1 and size <= room:
                room -= size
                made.append(operand)
        return made

    def write(self) -> CudaKernel:
        declare(self.text, self.operands)
        loads = [o for o in self.staged if o.number < len(self.program.loads)]
        stores = [o for o in self.staged if o.number >= len(self.program.loads)]
        self._tile()
        if loads:
            self._rounds(across=True)
            for operand in loads:
                self.text.add(f"{self._place(operand, across=True)} = {operand.pointer}[{self._offset(operand)}];")
            self._end()
            self.text.add("__syncthreads();")
        self._rounds(across=False)
        self._tile_point()
        self._end()
        if stores:
            self.text.add("__syncthreads();")
            self._rounds(across=True)
            for operand in stores:
                self.text.add(f"{operand.pointer}[{self._offset(operand)}] = {self._place(operand, across=True)};")
            self._end()
        sizes = " × ".join(map(str, self.launch.sizes))
        head = f"A map over {sizes}; neighbours of {len(self.staged)} operands are along loop {self.loop}."
        return self.text.finish([head, *describe_lines(self.program)])

    def _tile(self) -> None:
        """The shared memory, the block's place along every loop, the thread's in the tile."""
        add, integer = self.text.add, self.integer
        for operand in self.staged:
            add(f"__shared__ {MEMORY_TYPES[operand.description.dtype]} s{operand.number}[{TILE * PITCH}];")
        add(f"const int along = threadIdx.x % {TILE}, first = threadIdx.x / {TILE};")
        below = 1
        for loop in range(self.inner, -1, -1):
            part = f"blockIdx.x / {below}u" if below > 1 else "blockIdx.x"
            part = f"{part} % {self.tiles[loop]}u" if loop else part
            name, step = (f"b{loop}", f" * {TILE}") if loop in (self.loop, self.inner) else (f"i{loop}", "")
            add(f"const {integer} {name} = ({integer})({part}){step};")
            below *= self.tiles[loop]

    def _rounds(self, across: bool) -> None:
        """Opens the loop over a thread's points of the tile, those that are inside; across: neighbours along the other loop."""
        text, sizes = self.text, self.launch.sizes
        fast, slow = (self.loop, self.inner) if across else (self.inner, self.loop)
        text.add("#pragma unroll")
        text.open(f"for (int k = 0; k < {ROUNDS}; ++k)")
        text.add(f"const int other = first + k * {THREADS // TILE};")
        text.add(f"const {self.integer} i{fast} = b{fast} + along, i{slow} = b{slow} + other;")
        text.open(f"if (i{fast} < {sizes[fast]} && i{slow} < {sizes[slow]})")

    def _end(self) -> None:
        self.text.close()
        self.text.close()

    def _place(self, operand: Operand, across: bool) -> str:
        """An operand's element in shared memory: its rows are along its own loop."""
        row, column = ("other", "along") if across else ("along", "other")
        return f"s{operand.number}[{row} * {PITCH} + {column}]"

    def _offset(self, operand: Operand) -> str:
        return offset(operand, {loop: f"i{loop}" for loop in range(self.inner + 1)})

    def _tile_point(self) -> None:
        """One point: transposed operands are in shared memory, the others where they are."""
        names = {}
        for operand in self.operands[: len(self.program.loads)]:
            names[operand.number] = f"x{operand.number}"
            if operand in self.staged:
                value = loaded(self._place(operand, across=False), operand.description.dtype)
            else:
                value = load_element(operand, self._offset(operand), self.text)
            self.text.add(f"const {register_type(operand)} x{operand.number} = {value};")
        self._body(names)
        for operand, value in self._stored(names):
            if operand in self.staged:
                there = stored(value, operand.description.dtype)
                self.text.add(f"{self._place(operand, across=False)} = {there};")
            else:
                self.text.add(store_element(operand, self._offset(operand), value))
