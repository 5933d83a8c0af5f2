"""Sums at computed places as CUDA C (scatter_add, gather_add: gradients of embeddings and of gathers), without atomics.

Whatever is added to one place is added by one thread, in the order of the indices, rounded to the dtype at every step, as
the CPU does. Which way is by sizes alone:
  columns   a thread a column of the result goes through all indices: gather_add of few rows or many columns
  few       a thread a pack of an index's row; the first of equal indices adds all of them: scatter_add of few indices
  sorted    (place, position) pairs are sorted; the first of equal places adds all of them, but long sequences
            are added by a block that brings rows into shared memory ahead of the one warp that adds
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sexpgpu.codegen.cuda_fixed import ADDITIONS, Fixed, element, offset_type, pack_of
from sexpgpu.codegen.cuda_operands import Alignment
from sexpgpu.codegen.cuda_places import index_functions, index_parameters
from sexpgpu.codegen.cuda_sort import Keys, sort_launches
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, Argument, CudaLaunch, Scratch
from sexpgpu.plan.kernel import Indexed

THREADS = 256
# Up to so many indices each looks at all others; up to so many rows, or more columns than rows, go column by column.
FEW_INDICES, FEW_ROWS, MANY_COLUMNS = 256, 64, 4
# Sequences longer than this are a block's; a stage of it has so many elements, of at most so many columns.
LONG, STAGE, STAGE_COLUMNS = 128, 4096, 32
# Keys hold places and positions in 32 bits each, of which arithmetic leaves 30.
LIMIT = 1 << 30

_COLUMNS = """
const Offset column = (Offset)blockIdx.x * THREADS + threadIdx.x;
if (column >= OUTER * INNER) return;
const Offset entry = column / INNER, inner = column % INNER;
#pragma unroll 4
for (Offset row = 0; row < COUNT; ++row) {
    const Offset position = {position};
    const Offset target = (entry * SIZE + (Offset)nearest(indices[position], SIZE)) * INNER + inner;
    out[target] = {add}(out[target], updates[(entry * COUNT + row) * INNER + inner]);
}
{check}
"""

_FEW = """
const Offset unit = (Offset)blockIdx.x * THREADS + threadIdx.x;
if (unit >= OUTER * COUNT * PACKS) return;
const Offset column = unit % PACKS * WIDTH, entry = unit / PACKS / COUNT;
const int position = (int)(unit / PACKS % COUNT);{check}
const long long place = nearest(indices[position], SIZE);
bool is_first = true;
for (int other = 0; other < position; ++other) is_first &= nearest(indices[other], SIZE) != place;
if (!is_first) return;
Element* target = out + ((entry * SIZE + (Offset)place) * INNER + column);
Pack<WIDTH, Element> sum = take<WIDTH>((const Element*)target);
for (int other = position; other < COUNT; ++other) {
    if (nearest(indices[other], SIZE) == place) {
        const auto row = take<WIDTH>(updates + ((entry * COUNT + other) * INNER + column));
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) sum.at[j] = {add}(sum.at[j], row.at[j]);
    }
}
put(target, sum);
"""

# Rows of the next indices are on their way together; those of another place are left out.
_SHORT = """
const Offset unit = (Offset)blockIdx.x * THREADS + threadIdx.x;
if (unit >= OUTER * COUNT * PACKS) return;
const Offset column = unit % PACKS * WIDTH, entry = unit / PACKS / COUNT;
int at = (int)(unit / PACKS % COUNT);
const unsigned place = (unsigned)(keys[at] >> 32);
if (at > 0 && (unsigned)(keys[at - 1] >> 32) == place) return;
if (at < COUNT - LONG && (unsigned)(keys[at + LONG] >> 32) == place) return;
Element* target = out + ((entry * SIZE + place) * INNER + column);
Pack<WIDTH, Element> sum = take<WIDTH>((const Element*)target);
bool goes_on = true;
while (goes_on) {
    Pack<WIDTH, Element> rows[AHEAD] = {};
    bool counts[AHEAD];
    #pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        const unsigned long long key = keys[min(at + k, COUNT - 1)];
        counts[k] = at + k < COUNT && (unsigned)(key >> 32) == place;
        if (counts[k]) rows[k] = take<WIDTH>(updates + ((entry * COUNT + (unsigned)key) * INNER + column));
    }
    #pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        #pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
            if (counts[k]) sum.at[j] = {add}(sum.at[j], rows[k].at[j]);
        }
    }
    goes_on = counts[AHEAD - 1];
    at += AHEAD;
}
put(target, sum);
"""

# A window of LONG sorted keys holds the beginning of at most one long sequence.
_LONG = """
__shared__ Element stage[ROWS * COLUMNS];
__shared__ int found;
const int window = blockIdx.x % WINDOWS * LONG;
const int chunk = blockIdx.x / WINDOWS % CHUNKS * COLUMNS;
const Offset entry = blockIdx.x / WINDOWS / CHUNKS;
const int own = window + threadIdx.x;
if (threadIdx.x == 0) found = -1;
__syncthreads();
if (threadIdx.x < LONG && own < COUNT - LONG) {
    const unsigned place = (unsigned)(keys[own] >> 32);
    const bool begins = own == 0 || (unsigned)(keys[own - 1] >> 32) != place;
    if (begins && (unsigned)(keys[own + LONG] >> 32) == place) found = own;
}
__syncthreads();
const int begin = found;
if (begin < 0) return;
const unsigned place = (unsigned)(keys[begin] >> 32);
// The end, by a search that every thread makes alike.
int end = begin + LONG;
for (int step = SEARCH; step > 0; step /= 2) {
    if (end + step < COUNT && (unsigned)(keys[end + step] >> 32) == place) end += step;
}
++end;
const int column = chunk + threadIdx.x % COLUMNS, first_row = threadIdx.x / COLUMNS;
const bool is_inside = column < INNER;
const Element* from = updates + (entry * COUNT * INNER + column);
unsigned next[ITEMS];
Element ahead[ITEMS];
#pragma unroll
for (int k = 0; k < ITEMS; ++k) {
    const int at = begin + first_row + k * (THREADS / COLUMNS);
    if (at < end && is_inside) ahead[k] = from[(Offset)(unsigned)keys[at] * INNER];
}
#pragma unroll
for (int k = 0; k < ITEMS; ++k) {
    const int at = begin + ROWS + first_row + k * (THREADS / COLUMNS);
    if (at < end) next[k] = (unsigned)keys[at];
}
const bool adds = threadIdx.x < COLUMNS && is_inside;
Element* target = out + ((entry * SIZE + place) * INNER + column);
Element sum = 0;
if (adds) sum = *target;
for (int start = begin; start < end; start += ROWS) {
    #pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        if (start + first_row + k * (THREADS / COLUMNS) < end && is_inside) stage[k * THREADS + threadIdx.x] = ahead[k];
    }
    __syncthreads();
    // The next stage's rows and the positions of those after it, while one warp adds.
    #pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int at = start + ROWS + first_row + k * (THREADS / COLUMNS);
        if (at < end && is_inside) ahead[k] = from[(Offset)next[k] * INNER];
        if (at < end - ROWS) next[k] = (unsigned)keys[at + ROWS];
    }
    if (adds) {
        const int many = min(ROWS, end - start);
        #pragma unroll 16
        for (int row = 0; row < many; ++row) sum = {add}(sum, stage[row * COLUMNS + threadIdx.x]);
    }
    __syncthreads();
}
if (adds) *target = sum;
"""


@dataclass(frozen=True)
class Sum:
    """What is added where. `outer` entries of `count` rows of `inner` elements go to as many of `size` rows."""

    outer: int
    size: int
    count: int
    inner: int

    @property
    def elements(self) -> int:
        return max(self.outer * self.count * self.inner, self.outer * self.size * self.inner)


def emit_sum(launch: Indexed, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """The launches of a scatter_add or gather_add."""
    writer = _Sums(launch, alignment)
    scatters = launch.op == "scatter_add"
    if max(writer.flat.count, writer.flat.size) >= LIMIT:
        note = f"{launch.op}: too many places to be sorted; a thread a column adds all rows"
        return (replace(writer.columns(), note=note),)
    if scatters and launch.count <= FEW_INDICES:
        return (writer.few(),)
    if not scatters and launch.count <= max(FEW_ROWS, launch.outer * launch.inner // MANY_COLUMNS):
        return (writer.columns(),)
    return writer.by_order()


class _Sums:
    def __init__(self, launch: Indexed, alignment: Alignment) -> None:
        self.launch = launch
        self.scatters = launch.op == "scatter_add"
        self.indices, self.updates = launch.inputs
        outer, size, count, inner = launch.outer, launch.size, launch.count, launch.inner
        self.given = Sum(outer, size, count, inner)
        # The elements of gather_add go each its own way: places are elements of the result, positions of the updates.
        self.flat = self.given if self.scatters else Sum(1, outer * size * inner, outer * count * inner, 1)
        places = (self.updates, launch.out)
        self.width = pack_of(launch.dtype, inner, places, alignment) if self.scatters else 1

    def columns(self) -> CudaLaunch:
        position = "row" if self.scatters else "(entry * COUNT + row) * INNER + inner"
        who = "if (column == 0) " if self.scatters else ""
        check = f"{who}for (Offset row = 0; row < COUNT; ++row) check(indices, {position}, SIZE, flag);"
        body = _COLUMNS.replace("{position}", position)
        return self._on_indices(body, check, self.given.outer * self.given.inner)

    def few(self) -> CudaLaunch:
        check = "\nif (entry == 0 && column == 0) check(indices, position, SIZE, flag);"
        units = self.given.outer * self.given.count * (self.given.inner // self.width)
        return self._on_indices(_FEW, check, units)

    def by_order(self) -> tuple[CudaLaunch, ...]:
        sorts, at = sort_launches(self._keys())
        note = f"the {self.flat.count} indices are sorted, so that what is added to a place has an order"
        made = [*(replace(launch, note=note) for launch in sorts), self._short(at)]
        if self.flat.count > LONG:
            made.append(self._long(at))
        return tuple(replace(launch, workspace_bytes=sorts[0].workspace_bytes) for launch in made)

    # -- kernels

    def _on_indices(self, body: str, check: str, units: int) -> CudaLaunch:
        """A kernel that needs no order of the indices."""
        body = body.replace("{check}", check if self.launch.flag is not None else "")
        parameters = index_parameters(self.launch, self.indices)
        return self._launch("", body, parameters, self.given, -(-units // THREADS), index_functions(self.launch))

    def _short(self, at: Scratch) -> CudaLaunch:
        units = self.flat.outer * self.flat.count * (self.flat.inner // self.width)
        return self._launch("_short", _SHORT, _sorted(at), self.flat, -(-units // THREADS))

    def _long(self, at: Scratch) -> CudaLaunch:
        columns = min(STAGE_COLUMNS, 1 << (self.flat.inner - 1).bit_length())
        windows, chunks = -(-(self.flat.count - LONG) // LONG), -(-self.flat.inner // columns)
        constants = {"WINDOWS": windows, "CHUNKS": chunks, "COLUMNS": columns, "ROWS": STAGE // columns}
        constants |= {"ITEMS": STAGE // THREADS, "SEARCH": 1 << self.flat.count.bit_length() - 1}
        blocks = self.flat.outer * windows * chunks
        return self._launch("_long", _LONG, _sorted(at), self.flat, blocks, (), constants)

    def _launch(
        self,
        suffix: str,
        body: str,
        order: tuple[tuple[str, Argument], ...],
        sizes: Sum,
        blocks: int,
        functions: tuple[str, ...] = (),
        more: dict[str, int] | None = None,
    ) -> CudaLaunch:
        launch = self.launch
        kind = MEMORY_TYPES[launch.dtype]
        constants = {"THREADS": THREADS, "OUTER": sizes.outer, "SIZE": sizes.size, "COUNT": sizes.count}
        constants |= {"INNER": sizes.inner, "WIDTH": self.width, "PACKS": sizes.inner // self.width}
        constants |= {"AHEAD": 4, "LONG": LONG} | (more or {})
        fixed = Fixed(
            f"{launch.op}{suffix}",
            THREADS,
            (f"{launch.op} of [{launch.outer} {launch.count} {launch.inner}] into {launch.size} rows.",),
            (
                *order,
                (f"const {kind}* __restrict__ updates", self.updates),
                (f"{kind}* __restrict__ out", launch.out),
            ),
            body.replace("{add}", f"add_{launch.dtype}"),
            constants,
            {"Offset": offset_type(self.given.elements)} | element(launch.dtype),
            (ADDITIONS[launch.dtype], *functions),
        )
        return CudaLaunch(fixed.kernel(), (blocks, 1, 1), fixed.arguments)

    def _keys(self) -> Keys:
        """(place, position) pairs of all indices."""
        given = self.given
        row = "(unsigned)nearest(indices[row], LIMIT)"
        place = row if self.scatters else f"(row / INNER / COUNT * LIMIT + {row}) * INNER + row % INNER"
        check = "check(indices, row, LIMIT, flag);\n        " if self.launch.flag is not None else ""
        constants = (("LIMIT", given.size), ("COUNT", given.count), ("INNER", given.inner))
        return Keys(
            f"{self.launch.op}_order",
            1,
            self.flat.count,
            False,
            f"{check}key = (unsigned long long)({place}) << 32 | (unsigned)row;",
            index_parameters(self.launch, self.indices),
            index_functions(self.launch),
            constants=constants,
            elements=self.given.elements,
        )


def _sorted(at: Scratch) -> tuple[tuple[str, Argument], ...]:
    return (("const unsigned long long* __restrict__ keys", at),)
