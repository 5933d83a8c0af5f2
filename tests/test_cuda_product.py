"""CUDA products in the simulator: every tile, tail, order and dtype against NumPy in float64, and nothing is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sexpgpu.codegen import cuda_product
from sexpgpu.codegen.cuda_emit import cuda_launches
from sexpgpu.codegen.cuda_product import Entries, entries_of
from sexpgpu.codegen.cuda_product_choice import TENSOR_TILES, TILES, Choice, TensorTile, Tile, choose
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Buffer, Loops, Matrix, Place, Plan, Product
from tests.on_simulator import Simulated

UNIT = 2.0**-24
# One rounding of a result; f16's smallest step below its normal range.
ROUNDING = {"f32": 0.0, "bf16": 2.0**-8, "f16": 2.0**-11}
LEAST_STEP = {"f32": 0.0, "bf16": 0.0, "f16": 2.0**-24}
RNG = np.random.default_rng(17)
TURNED = [(False, False), (False, True), (True, False), (True, True)]
ORDERS = ["nn", "nt", "tn", "tt"]


def simulate(launch: Product, arrays: list[Any]) -> Simulated:
    """Runs a product of buffers 0, 1, 2 in the simulator; what is in c then is in the last array."""
    dtypes = (launch.dtype, launch.dtype, launch.c_dtype)
    buffers = tuple(Buffer(f"b{n}", array.nbytes, "external") for n, array in enumerate(arrays))
    types = {f"b{n}": TensorType(d, a.shape) for n, (a, d) in enumerate(zip(arrays, dtypes, strict=True))}  # type: ignore[arg-type]
    made = Simulated(Plan((launch,), buffers, 0, types, {}))
    for number, array in enumerate(arrays):
        made.bind(f"b{number}", array)
    made.run()
    assert made.findings == []
    arrays[2][...] = made.read(Place(2), arrays[2].shape, launch.c_dtype)
    return made


def operand(rows: int, columns: int, turned: bool, dtype: str, count: int = 1, spare: int = 0) -> tuple[Any, Any, Any]:
    """(memory, view [count rows columns], strides) of a matrix, its lines `spare` elements apart."""
    lines, line = (columns, rows) if turned else (rows, columns)
    if dtype in ("i32", "i64"):
        memory = RNG.integers(-(2**31), 2**31, size=(count, lines, line + spare)).astype(dtype.replace("i", "int"))
        memory *= 1 if dtype == "i32" else 2**31 + 7
    else:
        memory = RNG.normal(size=(count, lines, line + spare)).astype(numpy_dtype(dtype))
    view = memory[:, :, :line]
    return memory, view.swapaxes(1, 2) if turned else view, ((1, line + spare) if turned else (line + spare, 1))


def agree(launch: Product, left: Any, right: Any, before: Any, result: Any) -> None:
    """What is in `result` is before + left · right within what rounding can do: γ_k of Σ |a||b|, and one of the result."""
    if launch.dtype in ("i32", "i64"):
        assert np.array_equal(result, before + left @ right)
        return
    left, right, before, result = (x.astype(float) for x in (left, right, before, result))
    steps = (launch.k + 2) * UNIT
    exact = before + left @ right
    bound = steps / (1 - steps) * (np.abs(left) @ np.abs(right) + np.abs(before))
    bound += ROUNDING[launch.c_dtype] * (np.abs(exact) + bound) + LEAST_STEP[launch.c_dtype]
    assert (np.abs(result - exact) <= bound).all()


def check(
    shape: tuple[int, int, int], turned: tuple[bool, bool] = (False, False), dtype: str = "f32", **more: Any
) -> Simulated:
    """A batch of such products; `result`, `accumulate`, `spare`, `count` and `broadcast` (b is one for all) as told."""
    m, n, k = shape
    count, spare, adds = more.get("count", 1), more.get("spare", 0), more.get("accumulate", False)
    shared = more.get("broadcast", False)
    a, left, a_steps = operand(m, k, turned[0], dtype, count, spare)
    b, right, b_steps = operand(k, n, turned[1], dtype, 1 if shared else count, spare)
    c, result, c_steps = operand(m, n, False, more.get("result") or dtype, count, spare)
    if not adds and dtype not in ("i32", "i64"):
        result[:] = np.nan
    before = result.copy() if adds else np.zeros_like(result)
    around = c[:, :, n:].copy()
    matrices = [
        Matrix(Place(p), *steps, tuple(z * (x[0].size if len(x) > 1 else 0) for z in range(count)))
        for p, (x, steps) in enumerate(((a, a_steps), (b, b_steps), (c, c_steps)))
    ]
    launch = Product(dtype, m, n, k, *matrices, accumulate=adds, result=more.get("result"))
    made = simulate(launch, [a, b, c])
    agree(launch, left, right, before, result)
    assert np.array_equal(c[:, :, n:], around)
    return made


def takes(monkeypatch: pytest.MonkeyPatch, tile: Tile | TensorTile, parts: int = 1) -> None:
    """Products take this tile, whatever their sizes, and so many parts of whole pieces."""

    def chosen(launch: Product) -> Choice:
        steps = -(-launch.k // (parts * tile.depth)) * tile.depth
        return Choice(tile, parts, steps if parts > 1 else launch.k)

    monkeypatch.setattr(cuda_product, "choose", chosen)


def named(tile: Tile | TensorTile) -> str:
    return f"{tile.rows}x{tile.columns}"


# Each operand lies both ways and moves both in packs and element by element; of one tile, in all combinations.
WAYS = [(turned, turned[0] == turned[1]) for turned in TURNED]
OTHERS = [(turned, turned[0] != turned[1]) for turned in TURNED]
SMALL = [(tile, *way) for tile, ways in ((TILES[2], OTHERS), (TENSOR_TILES[1], OTHERS)) for way in ways]


@pytest.mark.parametrize(
    "tile, turned, packs",
    [*((tile, *way) for tile in (*TILES, *TENSOR_TILES) for way in WAYS), *SMALL],
    ids=lambda x: named(x) if isinstance(x, Tile | TensorTile) else ORDERS[TURNED.index(x)] if x in TURNED else str(x),
)
def test_every_tile_takes_every_order_and_tail(
    monkeypatch: pytest.MonkeyPatch, tile: Tile | TensorTile, turned: tuple[bool, bool], packs: bool
) -> None:
    takes(monkeypatch, tile)
    rows, columns, depth = tile.rows, tile.columns, tile.depth
    dtype, pack, pieces = ("bf16", 8, 2 * tile.stages) if isinstance(tile, TensorTile) else ("f32", 4, 2)
    if packs:
        # As many pieces as have their turn in shared memory twice, and one that ends early.
        check((rows - pack, columns + pack, pieces * depth + pack), turned, dtype, spare=pack)
    else:
        check((rows + 1, columns - 1, depth + 1), turned, dtype, accumulate=True, spare=3)


@pytest.mark.parametrize("size", (1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 127, 128, 129))
def test_every_size_of_each_axis(size: int) -> None:
    for dtype in ("f32", "bf16"):
        check((size, 5, 3), (False, False), dtype)
        check((5, size, 3), (False, True), dtype)
        check((3, 5, size), (True, False), dtype)


def test_without_steps_the_product_is_zero() -> None:
    check((3, 5, 0))
    made = check((3, 5, 0), accumulate=True)
    assert made.outcomes == []


@pytest.mark.parametrize("shape", [(0, 5, 3), (5, 0, 3)])
def test_without_elements_nothing_is_launched(shape: tuple[int, int, int]) -> None:
    places = [Matrix(Place(n), 1, 1, (0,)) for n in range(3)]
    assert cuda_launches(Product("f32", *shape, *places), lambda place: 256) == ()


@pytest.mark.parametrize("dtype", ["i32", "i64"])
def test_integers_wrap(dtype: str) -> None:
    check((33, 35, 40), (False, True), dtype)
    check((4, 36, 20), (True, False), dtype, accumulate=True, count=2)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_narrow_floats_are_summed_in_f32_and_rounded_once(dtype: str) -> None:
    check((33, 40, 1000), (False, True), dtype, count=2)
    check((33, 40, 1000), (False, True), dtype, count=2, result="f32")


def test_a_batch_shares_an_operand_that_is_broadcast() -> None:
    check((20, 12, 9), count=5, broadcast=True)
    check((20, 12, 8), (True, True), count=3, broadcast=True, accumulate=True)


@pytest.mark.parametrize("starts", [(0, 10, 100, 110, 200, 210), (0, 30, 10, 90), (12, 12, 60)], ids=str)
def test_batch_entries_lie_wherever_their_starts_say(starts: tuple[int, ...]) -> None:
    m, n, k = 2, 3, 4
    a = RNG.normal(size=300).astype(np.float32)
    b, c = RNG.normal(size=(len(starts), k, n)).astype(np.float32), np.full((len(starts), m, n), np.nan, np.float32)
    matrices = (
        Matrix(Place(0), k, 1, starts),
        Matrix(Place(1), n, 1, tuple(k * n * z for z in range(len(starts)))),
        Matrix(Place(2), n, 1, tuple(m * n * z for z in range(len(starts)))),
    )
    launch = Product("f32", m, n, k, *matrices)
    simulate(launch, [a, b, c])
    left = np.stack([a[start : start + m * k].reshape(m, k) for start in starts])
    agree(launch, left, b, np.zeros_like(c), c)


def test_a_batch_is_two_loops_where_it_can_be() -> None:
    assert entries_of(((5, 15, 25),)) == Entries(3, (10,), (0,))
    assert entries_of(((0, 10, 100, 110), (0, 1, 0, 1))) == Entries(2, (10, 1), (100, 0))
    assert entries_of(((0, 10, 30),)) is None


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("adds", [False, True])
def test_parts_of_a_sum_are_joined(monkeypatch: pytest.MonkeyPatch, count: int, adds: bool) -> None:
    takes(monkeypatch, TILES[2], 3)
    made = check((33, 35, 77), (True, False), count=count, accumulate=adds, spare=1)
    assert len(made.outcomes) == 2
    takes(monkeypatch, TENSOR_TILES[1], 3)
    check((33, 36, 272), (True, False), "bf16", count=count, accumulate=adds)


# Rows, columns, steps → the tile, parts of the sum: 18 tiles of a long sum are cut in 7, which fills 128 multiprocessors.
CHOSEN = [
    ((4096, 4096, 4096), (128, 128), 1),
    ((8192, 768, 768), (128, 128), 1),
    ((1024, 704, 96), (64, 64), 1),
    ((768, 2304, 65536), (128, 128), 1),
    ((352, 768, 50257), (128, 128), 7),
    ((16, 32768, 144), (16, 128), 1),
    ((32768, 16, 144), (128, 16), 1),
    ((32, 16, 64), (32, 32), 1),
]


@pytest.mark.parametrize("shape, tile, parts", CHOSEN, ids=str)
def test_sizes_choose_the_tile_and_the_parts(shape: tuple[int, int, int], tile: tuple[int, int], parts: int) -> None:
    places = [Matrix(Place(n), 64, 1, (0,)) for n in range(3)]
    made = choose(Product("f32", *shape, *places))
    assert ((made.tile.rows, made.tile.columns), made.parts) == (tile, parts)


def test_tiles_of_more_than_one_group_of_rows_cover_the_result() -> None:
    check((330, 70, 5))


def places_of(loops: Loops) -> Any:
    """Where each turn of the loops is, the innermost turning fastest."""
    made = np.zeros(1, np.int64)
    for size, step in loops:
        made = (made[:, None] + step * np.arange(size)).reshape(-1)
    return made


LOOPED = [
    # The windows of a convolution by 3 × 3 of 2 images of 10 × 12; steps of the sum: channels and the window.
    ((((9, 18),), ((18, 1),)), (((2, 120), (3, 12), (3, 1)), ((8, 12), (10, 1)))),
    # Its weight's gradient: both operands are looped along the sum, the windows also along columns.
    ((((4, 1),), ((2, 400), (40, 4))), (((8, 12), (10, 1)), ((2, 120), (3, 12), (3, 1)))),
    # Packs of four within the innermost loop.
    ((((2, 160), (8, 8)), ((2, 80), (8, 1))), (((2, 64), (8, 8)), ((2, 256), (8, 1)))),
    # Neighbours nowhere.
    ((((2, 100), (8, 6)), ((5, 2),)), (((5, 3),), ((3, 100), (4, 7)))),
]  # fmt: skip


@pytest.mark.parametrize("dtype, adds", [("f32", False), ("f32", True), ("bf16", False)])
@pytest.mark.parametrize("of_a, of_b", LOOPED, ids=["windows", "gradient", "packs", "apart"])
def test_rows_and_columns_follow_loops(of_a: Any, of_b: Any, dtype: str, adds: bool) -> None:
    m, n, k = (len(places_of(loops)) for loops in (of_a[0], of_b[1], of_a[1]))
    indices = [places_of(rows)[:, None] + places_of(columns) for rows, columns in (of_a, of_b)]
    # The second entry begins where packs may begin.
    a, b = (RNG.normal(size=(2, index.max() // 8 * 8 + 8)).astype(numpy_dtype(dtype)) for index in indices)
    c = RNG.normal(size=(2, m, n)).astype(numpy_dtype(dtype))
    before = c.copy() if adds else np.zeros_like(c)
    matrices = [matrix(p, loops, x.shape[1]) for p, (loops, x) in enumerate(((of_a, a), (of_b, b)))]
    launch = Product(dtype, m, n, k, *matrices, Matrix(Place(2), n, 1, (0, m * n)), accumulate=adds)
    simulate(launch, [a, b, c])
    agree(launch, a[:, indices[0]], b[:, indices[1]], before, c)


def matrix(number: int, loops: tuple[Loops, Loops], apart: int) -> Matrix:
    """As the planner writes it: a single loop is a step."""
    rows, columns = ((0, loop) if len(loop) > 1 else (loop[0][1], ()) for loop in loops)
    return Matrix(Place(number), rows[0], columns[0], (0, apart), rows[1], columns[1])
