"""Which tile a product takes and into how many parts its sum is cut: by its sizes alone, so that bits depend on no card."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.ir.types import FLOATS
from sexpgpu.plan.kernel import Product


@dataclass(frozen=True)
class Tile:
    """A block's rows and columns of c and its steps at a time; a thread's rows and columns; lanes of a warp along a row.
    `speed`: of the multiply-adds that a multiprocessor could do, the part that it does."""

    rows: int
    columns: int
    depth: int
    high: int
    wide: int
    lanes: int
    speed: float

    @property
    def threads(self) -> int:
        return self.rows * self.columns // (self.high * self.wide)

    @property
    def text(self) -> str:
        numbers = (self.rows, self.columns, self.depth, self.high, self.wide, self.lanes)
        return f"Tile<{', '.join(map(str, numbers))}>"


@dataclass(frozen=True)
class TensorTile:
    """A block's rows and columns of c and its steps at a time; its warps down and across; pieces in shared memory."""

    rows: int
    columns: int
    depth: int
    down: int
    across: int
    stages: int
    speed: float

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    @property
    def text(self) -> str:
        numbers = (self.rows, self.columns, self.depth, self.down, self.across, self.stages)
        return f"TensorTile<{', '.join(map(str, numbers))}>"


TILES = (
    Tile(128, 128, 8, 8, 8, 8, 0.85),
    Tile(64, 64, 8, 8, 4, 8, 0.7),
    Tile(32, 32, 8, 4, 4, 8, 0.45),
    Tile(16, 128, 8, 4, 4, 8, 0.45),
    Tile(128, 16, 8, 4, 4, 4, 0.45),
)
# Tensor cores do 16 times as much as the others; mma.sync reaches half of that.
TENSOR_TILES = (
    TensorTile(128, 128, 32, 2, 4, 3, 8.0),
    TensorTile(64, 64, 32, 2, 2, 3, 5.0),
)
# Integers are rare: one tile, of few registers.
OF_INTEGERS = TILES[2]

# A card as the choice sees it: about an A100 or an H100. Costs are in multiply-adds of one multiprocessor.
MULTIPROCESSORS = 128
WARPS_TO_FILL = 8
MOVED_ELEMENT = 0.25  # of a partial sum, written or read by the whole card
LAUNCH = 800_000
# A sum is cut only where its blocks leave half of the card idle, into no more than twice what fills it.
MOST_BLOCKS, MOST_TURNS, LEAST_STEPS, MOST_PARTS_BYTES = MULTIPROCESSORS // 2, 2, 256, 64 << 20
POWERS = (2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Choice:
    """`parts` of the sum, each of `part_steps` steps (the last of what is left)."""

    tile: Tile | TensorTile
    parts: int
    part_steps: int


def choose(launch: Product) -> Choice:
    """The cheapest way."""
    if launch.dtype not in FLOATS:
        return Choice(OF_INTEGERS, 1, launch.k)
    tiles = TILES if launch.dtype == "f32" else TENSOR_TILES
    ways = [way for tile in tiles for way in _cuts(tile, launch)]
    return min(ways, key=lambda way: _cost(way, launch))


def _blocks(tile: Tile | TensorTile, launch: Product) -> int:
    return -(-launch.m // tile.rows) * -(-launch.n // tile.columns) * len(launch.c.starts)


def _cuts(tile: Tile | TensorTile, launch: Product) -> list[Choice]:
    """The whole sum, and parts of whole pieces of the tile's depth."""
    blocks, results = _blocks(tile, launch), launch.m * launch.n * len(launch.c.starts)
    most = min(MOST_TURNS * MULTIPROCESSORS // blocks, launch.k // LEAST_STEPS, MOST_PARTS_BYTES // (4 * results))
    made = [Choice(tile, 1, launch.k)]
    for parts in (*POWERS, MULTIPROCESSORS // blocks):
        if blocks <= MOST_BLOCKS and 2 <= parts <= most:
            steps = -(-launch.k // (parts * tile.depth)) * tile.depth
            made.append(Choice(tile, -(-launch.k // steps), steps))
    return made


def _cost(way: Choice, launch: Product) -> float:
    tile, entries = way.tile, len(launch.c.starts)
    turns = -(-_blocks(tile, launch) * way.parts // MULTIPROCESSORS)
    filled = min(1.0, turns * tile.threads / 32 / WARPS_TO_FILL)
    time = turns * tile.rows * tile.columns * way.part_steps / (tile.speed * filled)
    if way.parts > 1:
        time += (way.parts + 1) * launch.m * launch.n * entries * MOVED_ELEMENT + LAUNCH
    return time
