"""Sorting keys on the GPU: a bitonic sort of tiles in shared memory, then merges of eight runs at a time.

All keys of a segment differ (their low half is the place that they came from), so their order is the only one there is: a
sort by them is stable. A merge needs no cooperation: a key's place is the number of keys of every run that are before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sexpgpu.codegen.cuda_fixed import Fixed, offset_type
from sexpgpu.codegen.cuda_source import Argument, CudaLaunch, Scratch

# Keys that a block sorts, those of a block of short segments, runs that a merge takes.
TILE, SMALL_TILE, RUNS, THREADS = 2048, 512, 8, 256
# Up to so many blocks have a processor each: more threads, which sort their tile sooner.
FEW_BLOCKS, MANY_THREADS = 64, 1024

_KEYS = """\
// Twice 64 bits, for what does not fit into one word with its place.
struct alignas(16) WideKey { unsigned long long value, place; };
__device__ __forceinline__ bool is_before(unsigned long long a, unsigned long long b) { return a < b; }
__device__ __forceinline__ bool is_before(const WideKey& a, const WideKey& b)
{
    return a.value < b.value || (a.value == b.value && a.place < b.place);
}
__device__ __forceinline__ void greatest(unsigned long long& key) { key = ~0ull; }
__device__ __forceinline__ void greatest(WideKey& key) { key.value = key.place = ~0ull; }
"""

# A block has PARTS segments (TILES is 1 then), or one of the TILES tiles of a segment. What is missing sorts to the end.
_TILES = """
__shared__ Key keys[PARTS * LENGTH];
const Offset first = blockIdx.x / TILES * PARTS;
const int start = blockIdx.x % TILES * LENGTH;
for (int item = threadIdx.x; item < PARTS * LENGTH; item += THREADS) {
    const int part = {part}, local = {local};
    const Offset segment = first + part;
    const int row = start + local;
    Key key;
    greatest(key);
    if (segment < SEGMENTS && row < SIZE) {
        {make}
    }
    keys[part * LENGTH + local] = key;
}
__syncthreads();
#pragma unroll 1
for (int length = 2; length <= LENGTH; length *= 2) {
    #pragma unroll 1
    for (int distance = length / 2; distance > 0; distance /= 2) {
        // At distances up to 32 a warp's 32 pairs are the same 64 keys at every step.
        if (distance >= 32) __syncthreads(); else __syncwarp();
        for (int pair = threadIdx.x; pair < PARTS * LENGTH / 2; pair += THREADS) {
            const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
            const bool ascends = (low & (LENGTH - 1) & length) == 0;
            const Key a = keys[low], b = keys[high];
            if (is_before(b, a) == ascends) {
                keys[low] = b;
                keys[high] = a;
            }
        }
    }
}
__syncthreads();
for (int item = threadIdx.x; item < PARTS * LENGTH; item += THREADS) {
    const int part = {part}, local = {local};
    const Offset segment = first + part;
    const int place = start + local;
    if (segment < SEGMENTS && place < SIZE) {
        const Key key = keys[part * LENGTH + local];
        {put}
    }
}
"""

# The runs' searches go on side by side, so that their loads are under way together.
_MERGE = """
const Offset unit = (Offset)blockIdx.x * THREADS + threadIdx.x;
if (unit >= (Offset)SEGMENTS * SIZE) return;
const Offset segment = unit / SIZE;
const int row = (int)(unit % SIZE);
const Key* run = from + segment * SIZE;
const Key key = run[row];
const unsigned group = (unsigned)WIDTH * RUNS;
const int start = (int)(row / group * group);
int before[RUNS];
#pragma unroll
for (int r = 0; r < RUNS; ++r) before[r] = 0;
#pragma unroll 1
for (int step = WIDTH; step > 0; step /= 2) {
    #pragma unroll
    for (int r = 0; r < RUNS; ++r) {
        const int next = before[r] + step;
        const Offset last = (Offset)start + (Offset)r * WIDTH + (next - 1);
        if (next <= WIDTH && last < SIZE && is_before(run[last], key)) before[r] = next;
    }
}
int place = start;
#pragma unroll
for (int r = 0; r < RUNS; ++r) place += before[r];
{put}
"""

_KEEP = "to[segment * SIZE + place] = key;"


@dataclass(frozen=True)
class Keys:
    """What is sorted: `segments` of `size` keys each. `make`: lines that give `key` of (segment, row); `put`: lines that
    write the sorted `key` at (segment, place), None for the workspace. `across`: neighbouring segments are neighbours
    in memory. `elements`: the most that an offset counts."""

    kind: str
    segments: int
    size: int
    wide: bool
    make: str
    makers: tuple[tuple[str, Argument], ...]
    functions: tuple[str, ...]
    names: tuple[tuple[str, str], ...] = ()
    constants: tuple[tuple[str, int], ...] = ()
    put: str | None = None
    putters: tuple[tuple[str, Argument], ...] = ()
    across: bool = False
    elements: int = 0

    @property
    def key_bytes(self) -> int:
        return 16 if self.wide else 8

    @property
    def key(self) -> str:
        return "WideKey" if self.wide else "unsigned long long"

    @property
    def run_bytes(self) -> int:
        """All keys once, as far as they are sorted."""
        return -(-self.segments * self.size * self.key_bytes // 256) * 256


def tiles_of(size: int) -> int:
    return -(-size // TILE)


def _power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def sort_launches(keys: Keys) -> tuple[tuple[CudaLaunch, ...], Scratch]:
    """The launches of a sort, and where in the workspace its keys are at the end (where they are not put elsewhere)."""
    spare = [Scratch(0), Scratch(keys.run_bytes)]
    long = keys.size > TILE
    made = [_tiles(keys, spare[0], last=not long)]
    width = TILE
    while width < keys.size:
        runs = min(RUNS, -(-keys.size // width))
        made.append(_merge(keys, width, runs, spare[0], spare[1], last=width * runs >= keys.size))
        width *= RUNS
        spare.reverse()
    workspace = 0 if not long and keys.put is not None else (2 if long else 1) * keys.run_bytes
    return tuple(replace(launch, workspace_bytes=workspace) for launch in made), spare[0]


def _ending(keys: Keys, to: Scratch, last: bool) -> tuple[str, tuple[tuple[str, Argument], ...]]:
    """How a kernel writes its keys: into the workspace, or where the last kernel puts them."""
    if last and keys.put is not None:
        return keys.put, keys.putters
    return _KEEP, ((f"{keys.key}* __restrict__ to", to),)


def _names(keys: Keys) -> dict[str, str]:
    offset = offset_type(keys.segments * keys.size, keys.elements)
    return {"Offset": offset, "Key": keys.key, **dict(keys.names)}


def _tiles(keys: Keys, to: Scratch, last: bool) -> CudaLaunch:
    """Sorts short segments, some of them a block, or the tiles of long ones."""
    length = min(_power(keys.size), TILE)
    parts = max(min(SMALL_TILE // length, _power(keys.segments)), 1)
    tiles = tiles_of(keys.size)
    put, putters = _ending(keys, to, last)
    body = _TILES.replace("{make}", keys.make).replace("{put}", put)
    for name, across, along in (("part", f"item % {parts}", f"item / {length}"),
                                ("local", f"item / {parts}", f"item % {length}")):  # fmt: skip
        body = body.replace("{" + name + "}", across if keys.across else along)
    blocks = -(-keys.segments // parts) * tiles
    threads = max(min(parts * length // 2, MANY_THREADS if blocks <= FEW_BLOCKS else THREADS), 32)
    constants = {"THREADS": threads, "PARTS": parts, "LENGTH": length, "TILES": tiles}
    constants |= {"SEGMENTS": keys.segments, "SIZE": keys.size} | dict(keys.constants)
    fixed = Fixed(
        f"{keys.kind}_tiles",
        threads,
        (f"{keys.kind}: sorts {keys.segments} segments of {keys.size} keys in tiles of {length}.",),
        tuple(dict.fromkeys((*keys.makers, *putters))),
        body,
        constants,
        _names(keys),
        (_KEYS, *keys.functions),
    )
    return CudaLaunch(fixed.kernel(), (blocks, 1, 1), fixed.arguments)


def _merge(keys: Keys, width: int, runs: int, source: Scratch, to: Scratch, last: bool) -> CudaLaunch:
    """Merges every `runs` neighbouring runs of this width."""
    put, putters = _ending(keys, to, last)
    constants = {"THREADS": THREADS, "WIDTH": width, "RUNS": runs}
    constants |= {"SEGMENTS": keys.segments, "SIZE": keys.size} | dict(keys.constants)
    fixed = Fixed(
        f"{keys.kind}_merge",
        THREADS,
        (f"{keys.kind}: merges {runs} runs of {width} of {keys.size} keys.",),
        ((f"const {keys.key}* __restrict__ from", source), *putters),
        _MERGE.replace("{put}", put),
        constants,
        _names(keys),
        (_KEYS, *keys.functions),
    )
    blocks = -(-keys.segments * keys.size // THREADS)
    return CudaLaunch(fixed.kernel(), (blocks, 1, 1), fixed.arguments)
