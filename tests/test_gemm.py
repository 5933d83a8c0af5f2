"""Our own matrix product: every tiling, dtype, order and edge against NumPy in float64, and the same bits however it is cut.

LLVM makes code for vectors of any width, so the tilings of other CPUs are compiled and run here too.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.codegen.gemm_small import emit_small_gemm
from sexpgpu.codegen.gemm_tile import Tiling
from sexpgpu.interp import gemm
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.gemm import PAIRED_TILING, PLAIN_TILING, TILINGS
from sexpgpu.interp.kernels import Kernels, load_kernels
from sexpgpu.interp.native import callable_at
from sexpgpu.interp.processor import features
from sexpgpu.interp.tape import aligned
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Matrix, Place, Product

RNG = np.random.default_rng(5)
AVX2 = TILINGS["AVX2"]
EVERY_TILING = [AVX2, PLAIN_TILING, TILINGS["NEON"], TILINGS["AVX-512"]]
# One rounding of the result; f16's smallest step below its normal range.
ROUNDING = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}
LEAST_STEP = {"f32": 0.0, "bf16": 0.0, "f16": 2.0**-24}

Run = Callable[..., None]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache") / "kernels")


@pytest.fixture(scope="module")
def run(cache: Cache) -> Iterator[Run]:
    """Runs a launch on arrays by one thread, unit after unit."""
    kept: dict[str, Kernels] = {}

    def run(launch: Product, arrays: list[Any], tiling: Tiling = AVX2) -> None:
        text, source = gemm.kernel_of(launch, tiling)
        if text not in kept:
            kept[text] = load_kernels({text: source}, cache)
        made = gemm.prepare(launch, tiling, 2, lambda place: arrays[place.buffer].ctypes.data + place.offset)
        words, scratch = np.array(made.words, np.int64), aligned(made.scratch_bytes)
        scratch.view(np.uint8)[:] = 0xFF  # NaN wherever something is read before it is written
        for unit in reversed(range(made.units)):
            callable_at(kept[text].addresses[text])(words.ctypes.data, unit, unit + 1, scratch.ctypes.data)

    yield run


def operand(rows: int, columns: int, turned: bool, dtype: str, count: int = 1, spare: int = 0) -> tuple[Any, Any, Any]:
    """(memory, view [count rows columns], strides) of a matrix, its lines `spare` elements apart."""
    lines, line = (columns, rows) if turned else (rows, columns)
    memory = RNG.normal(size=(count, lines, line + spare)).astype(numpy_dtype(dtype))
    view = memory[:, :, :line]
    return memory, view.swapaxes(1, 2) if turned else view, ((1, line + spare) if turned else (line + spare, 1))


def check(run: Run, shape: tuple[int, int, int], turned: tuple[bool, bool], dtype: str = "f32", **more: Any) -> None:
    """A batch of two such products within what rounding can do: an element is a sum of k products, in any order."""
    m, n, k = shape
    adds, tiling = more.get("accumulate", False), more.get("tiling", AVX2)
    spare = more.get("spare", 0)
    a, left, a_steps = operand(m, k, turned[0], dtype, 2, spare)
    b, right, b_steps = operand(k, n, turned[1], dtype, 2, spare)
    c, result, c_steps = operand(m, n, False, dtype, 2, spare)
    before = result.astype(float) if adds else np.zeros(result.shape)
    around = c[:, :, n:].copy()
    if not adds:
        result[:] = np.nan
    matrices = [Matrix(Place(p), *s, (0, x[0].size)) for p, (x, s) in enumerate(((a, a_steps), (b, b_steps), (c, c_steps)))]
    run(Product(dtype, m, n, k, *matrices, accumulate=adds), [a, b, c], tiling)
    exact = before + left.astype(float) @ right.astype(float)
    size = np.abs(before) + np.abs(left.astype(float)) @ np.abs(right.astype(float))
    bound = (k + 2) * 2.0**-24 * size + ROUNDING[dtype] * np.abs(exact) + LEAST_STEP[dtype]
    assert (np.abs(result.astype(float) - exact) <= 1.01 * bound).all(), (shape, turned, dtype)
    assert np.array_equal(c[:, :, n:], around)


TURNED = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("tiling", EVERY_TILING, ids=str)
@pytest.mark.parametrize("turned", TURNED)
def test_every_tiling_takes_every_order_and_edge(run: Run, tiling: Tiling, turned: tuple[bool, bool]) -> None:
    high, wide = tiling.rows, tiling.columns
    for shape in ((high, wide, 16), (5 * high - 2, 3 * wide - 3, 19), (high + high // 2, wide + 1, 7)):
        check(run, shape, turned, tiling=tiling)
        check(run, shape, turned, tiling=tiling, accumulate=True, spare=3)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 40, 30), (40, 1, 30), (2, 3, 1), (6, 16, 0), (300, 70, 1100)])
@pytest.mark.parametrize("turned", TURNED)
def test_thin_empty_and_deep_products(run: Run, shape: tuple[int, int, int], turned: tuple[bool, bool]) -> None:
    check(run, shape, turned)
    check(run, shape, turned, accumulate=True)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("shape", [(6, 16, 8), (50, 45, 600), (3, 5, 0), (130, 300, 40)])
def test_narrow_floats_are_summed_in_f32_and_rounded_once(run: Run, dtype: str, shape: tuple[int, int, int]) -> None:
    for turned in TURNED:
        check(run, shape, turned, dtype)
        check(run, shape, turned, dtype, accumulate=True, spare=2)


needs_pairs = pytest.mark.skipif("avx512_bf16" not in features(), reason="the CPU has no vdpbf16ps")


@needs_pairs
@pytest.mark.parametrize("shape", [(6, 16, 8), (50, 45, 600), (14, 32, 2), (130, 300, 40), (29, 65, 1602)])
def test_pairs_of_bf16_are_multiplied_and_added_in_f32(run: Run, shape: tuple[int, int, int]) -> None:
    for turned in TURNED:
        check(run, shape, turned, "bf16", tiling=PAIRED_TILING)
        check(run, shape, turned, "bf16", tiling=PAIRED_TILING, accumulate=True, spare=2)
        check(run, shape, turned, "bf16", tiling=PAIRED_TILING, spare=3)


@needs_pairs
def test_pairs_are_taken_of_bf16_with_an_even_number_of_steps() -> None:
    def of(dtype: str, k: int) -> Tiling:
        matrices = [Matrix(Place(p), n, 1, (0,)) for p, n in enumerate((k, 8, 8))]
        return gemm.tiling_of(Product(dtype, 8, 8, k, *matrices))

    assert of("bf16", 64) == PAIRED_TILING
    assert of("bf16", 63) == of("f32", 64) == of("f16", 64) == gemm.tiling()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_infinities_and_nan_pass_as_in_numpy(run: Run, dtype: str) -> None:
    a, b = np.ones((20, 30), np.float32), np.ones((30, 40), np.float32)
    a[3, 4], a[5, 6], a[7, 8], b[8, :] = np.inf, np.nan, np.inf, 0
    a, b = a.astype(numpy_dtype(dtype)), b.astype(numpy_dtype(dtype))
    c = np.full((20, 40), np.nan, numpy_dtype(dtype))
    matrices = [Matrix(Place(p), n, 1, (0,)) for p, n in enumerate((30, 40, 40))]
    run(Product(dtype, 20, 40, 30, *matrices), [a, b, c])
    with np.errstate(invalid="ignore"):
        exact = a.astype(float) @ b.astype(float)
    assert np.array_equal(c.astype(float), exact, equal_nan=True)
    assert np.isinf(exact[3]).all() and np.isnan(exact[5]).all() and np.isnan(exact[7]).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_an_element_has_the_same_bits_however_rows_and_columns_are_cut(
    run: Run, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = operand(200, 700, False, dtype)
    b, _, _ = operand(700, 90, False, dtype)
    whole = np.empty((200, 90), a.dtype)

    def product(rows: int, columns: int, c: Any) -> None:
        matrices = [Matrix(Place(p), n, 1, (0,)) for p, n in enumerate((700, 90, 90))]
        run(Product(dtype, rows, columns, 700, *matrices), [a, b, c])

    product(200, 90, whole)
    part = np.empty_like(whole)
    product(31, 17, part)
    assert np.array_equal(part[:31, :17], whole[:31, :17])
    monkeypatch.setattr(gemm, "BLOCK_WORK", 1000)
    monkeypatch.setattr(gemm, "SPENT", 10.0)
    matrices = [Matrix(Place(p), n, 1, (0,)) for p, n in enumerate((700, 90, 90))]
    many = gemm.cut(Product(dtype, 200, 90, 700, *matrices), AVX2, 2)
    assert many.block_tiles * AVX2.rows < 100 and many.block_columns < 90
    cut = np.empty_like(whole)
    product(200, 90, cut)
    assert np.array_equal(cut, whole)


def test_each_worker_has_a_block_and_no_more_are_cut_than_packing_is_worth() -> None:
    matrices = [Matrix(Place(p), n, 1, (0,)) for p, n in enumerate((512, 512, 512))]
    square = Product("f32", 512, 512, 512, *matrices)
    counts = []
    for workers in (1, 2, 4, 8):
        made = gemm.cut(square, AVX2, workers)
        tiles = gemm.tiles_of(512, AVX2).count
        counts.append(-(-tiles // made.block_tiles) * -(-512 // made.block_columns))
    # Already two blocks pack one of the operands twice: (24 + 2 · 24) / 512 of their time, more than a twentieth.
    assert counts == [1, 2, 4, 8]


def windows(x: Any, width: int, step: int) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...], Any]:
    """The loops of a convolution's rows (image, y, x) and columns (channel, dy, dx) over [images channels h w]."""
    images, channels, h, w = x.shape
    out_h, out_w = (h - width) // step + 1, (w - width) // step + 1
    rows = ((images, channels * h * w), (out_h, step * w), (out_w, step))
    columns = ((channels, h * w), (width, w), (width, 1))
    matrix = np.array(
        [
            x[i, :, y * step : y * step + width, z * step : z * step + width].ravel()
            for i in range(images)
            for y in range(out_h)
            for z in range(out_w)
        ]
    )
    return rows, columns, matrix


@pytest.mark.parametrize("tiling", [AVX2, PLAIN_TILING], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("step", [1, 2])
def test_windows_of_a_convolution_are_read_where_they_lie(run: Run, tiling: Tiling, dtype: str, step: int) -> None:
    x = RNG.normal(size=(2, 3, 9, 11)).astype(numpy_dtype(dtype))
    rows, columns, matrix = windows(x.astype(float), 3, step)
    m, k, n = len(matrix), 27, 20
    w, weights, steps = operand(k, n, True, dtype)
    c, d = np.empty((m, n), x.dtype), np.empty((n, m), x.dtype)
    image = Matrix(Place(0), 0, 0, (0,), rows, columns)
    run(Product(dtype, m, n, k, image, Matrix(Place(1), *steps, (0,)), Matrix(Place(2), n, 1, (0,))), [x, w, c], tiling)
    turned = Matrix(Place(1), 0, 0, (0,), columns, rows)
    run(Product(dtype, n, m, k, Matrix(Place(0), k, 1, (0,)), turned, Matrix(Place(2), m, 1, (0,))), [w, x, d], tiling)
    exact = matrix @ weights[0].astype(float)
    bound = 1.01 * ((k + 2) * 2.0**-24 * (np.abs(matrix) @ np.abs(weights[0].astype(float))) + ROUNDING[dtype] * np.abs(exact))
    assert (np.abs(c.astype(float) - exact) <= bound).all()
    assert (np.abs(d.astype(float).T - exact) <= bound).all()


def test_slices_with_steps_backwards_and_broadcasts_need_no_copy(run: Run) -> None:
    x = RNG.normal(size=(40, 50)).astype(np.float32)
    y = RNG.normal(size=(60,)).astype(np.float32)
    c = np.empty((20, 24), np.float32)
    a = Matrix(Place(0, 4 * 39 * 50), -100, 2, (0,))  # x[::-2, ::2]
    b = Matrix(Place(1), 0, 1, (0,), ((25, 0),), ((4, 10), (6, 1)))  # every row the same: y[10 p + q]
    run(Product("f32", 20, 24, 25, a, b, Matrix(Place(2), 24, 1, (0,))), [x, y, c])
    left = x[::-2, ::2].astype(float)
    right = np.tile(np.concatenate([y[10 * p : 10 * p + 6] for p in range(4)]).astype(float), (25, 1))
    bound = 27 * 2.0**-24 * (np.abs(left) @ np.abs(right))
    assert (np.abs(c - left @ right) <= bound).all()


def at_the_end_of_memory(array: Any) -> Any:
    """A copy of the array whose last byte is the last of its page; the next page may not be read."""
    pages = mmap.mmap(-1, -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE)
    room = np.frombuffer(pages, np.uint8)
    end = room.size - mmap.PAGESIZE
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(room.ctypes.data + end), mmap.PAGESIZE, 0) == 0
    made = room[end - array.nbytes : end].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@pytest.mark.parametrize("tiling", [AVX2, TILINGS["NEON"]], ids=str)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("turned", TURNED)
def test_nothing_is_read_beyond_an_operand(run: Run, tiling: Tiling, dtype: str, turned: tuple[bool, bool]) -> None:
    for m, n, k in ((tiling.rows + 1, 5, 9), (2 * tiling.rows - 1, tiling.columns + 5, 17)):
        a, left, a_steps = operand(m, k, turned[0], dtype)
        b, right, b_steps = operand(k, n, turned[1], dtype)
        c = np.empty((m, n), a.dtype)
        matrices = [Matrix(Place(p), *steps, (0,)) for p, steps in enumerate((a_steps, b_steps, (n, 1)))]
        arrays = [at_the_end_of_memory(x) for x in (a, b, c)]
        run(Product(dtype, m, n, k, *matrices), arrays, tiling)
        exact = left[0].astype(float) @ right[0].astype(float)
        bound = (k + 2) * 2.0**-24 * (np.abs(left[0].astype(float)) @ np.abs(right[0].astype(float)))
        assert (np.abs(arrays[2].astype(float) - exact) <= 1.01 * (bound + ROUNDING[dtype] * np.abs(exact))).all()


@pytest.mark.parametrize("m", [1, 2, 5, 6, 7, 13, 128, 1000])
@pytest.mark.parametrize("tiling", EVERY_TILING, ids=str)
def test_tiles_cover_every_row_once(m: int, tiling: Tiling) -> None:
    made = gemm.tiles_of(m, tiling)
    assert made.least * made.count + made.taller == m
    assert 0 <= made.taller <= made.count
    assert made.least + (made.taller > 0) <= tiling.rows


@pytest.mark.parametrize("tiling", EVERY_TILING, ids=str)
@pytest.mark.parametrize("flags", range(8))
def test_blocks_in_the_caches_are_multiplied_in_every_order(cache: Cache, tiling: Tiling, flags: int) -> None:
    """Tiles of several heights (37 = 2 · 14 + 8 + 1); a b that lies transposed need not fill its last panel."""
    m, k = 37, 4 * tiling.lanes
    n = 2 * tiling.columns - (3 if flags & 2 else 0)
    room, alpha = 2 * tiling.columns, 0.75
    a = RNG.normal(size=(k, m) if flags & 1 else (m, k)).astype(np.float32)
    b = RNG.normal(size=(n, k) if flags & 2 else (k, n)).astype(np.float32)
    c = RNG.normal(size=(m, room)).astype(np.float32)
    text = f"small {tiling!r}"
    kernels = load_kernels({text: lambda: emit_small_gemm(tiling)}, cache)
    kinds = (ctypes.c_int64, ctypes.c_float, *(ctypes.c_int64,) * 9)
    call = ctypes.CFUNCTYPE(None, *kinds)(kernels.addresses[text])
    wide_a, wide_b = (x.astype(np.float64) for x in (a.T if flags & 1 else a, b.T * alpha if flags & 2 else b))
    expected = wide_a @ wide_b + (c[:, :n] if flags & 4 else 0)
    # A sum of k products and what was there, in any order, and the product with alpha: k + 2 roundings.
    bound = (k + 2) * 2.0**-24 * (np.abs(wide_a) @ np.abs(wide_b) + np.abs(c[:, :n]))
    call(flags, alpha, m, n, k, a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1], c.ctypes.data, room)
    assert np.all(np.abs(c[:, :n] - expected) <= bound)
