"""Indexed CUDA kernels have the CPU's bits in the simulator, flags among them, at every tail, and nothing is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.codegen.cuda_indexed import emit_indexed
from sexpgpu.codegen.cuda_source import CudaKernel, module_source
from sexpgpu.cuda.cubin import resources
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.interp.executor import Engine
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Buffer, Indexed, Place, Plan
from tests.on_simulator import Simulated
from tests.programs import empty

RNG = np.random.default_rng(5)
FLAG = Place(3)
Sizes = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(1, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def plan_of(op: str, dtype: str, index: str, sizes: Sizes, arrays: list[Any], descending: bool = False) -> Plan:
    """A plan of one launch; buffers are the arrays, the last being written, then the flag."""
    *inputs, out = (Place(n) for n in range(len(arrays)))
    flag = FLAG if len(arrays) == 3 else None
    outer, size, count, inner = sizes
    launch = Indexed(op, dtype, index, outer, size, count, inner, tuple(inputs), out, flag, descending)
    buffers = tuple(Buffer(f"b{n}", a.nbytes, "external") for n, a in enumerate(arrays))
    types = {f"b{n}": TensorType(name_of(a), a.shape) for n, a in enumerate(arrays)}  # type: ignore[arg-type]
    if flag is None:
        return Plan((launch,), buffers, 0, types, {})
    return Plan((launch,), (*buffers, Buffer("runtime:flags", 16, "runtime")), 0, types, {}, flags=((flag, 7),))


def name_of(array: Any) -> str:
    names = ("f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool")
    return next(name for name in names if numpy_dtype(name) == array.dtype)


def on_both(engine: Engine, plan: Plan, arrays: list[Any]) -> tuple[Any, tuple[int, int] | None]:
    """What the simulator writes, and its flag; the CPU's bits are the same, and the detectors are silent."""
    simulated = Simulated(plan)
    for n, array in enumerate(arrays):
        simulated.bind(f"b{n}", array)
    simulated.run()
    assert simulated.findings == []
    out = simulated.read(Place(len(arrays) - 1), arrays[-1].shape, name_of(arrays[-1]))
    mine = [array.copy() for array in arrays]
    executable = engine.load(plan)
    for n, array in enumerate(mine):
        executable.bind(f"b{n}", array)
    executable.run({})
    assert out.tobytes() == mine[-1].tobytes()
    if not plan.flags:
        return out, None
    index, limit = simulated.read(FLAG, (2,), "i64").tolist()
    found = (index - 1 - (1 << 40), limit) if index else None
    assert [(f.index, f.limit) for f in executable.flags()] == ([found] if found else [])
    return out, found


def values(dtype: str, *shape: int) -> Any:
    if dtype in ("f32", "bf16", "f16"):
        return RNG.normal(size=shape).astype(numpy_dtype(dtype))
    if dtype == "bool":
        return RNG.random(shape) < 0.5
    low = 0 if dtype.startswith("u") else -(1 << 30)
    return RNG.integers(low, 1 << (8 if dtype == "u8" else 30), shape).astype(numpy_dtype(dtype))


def places(index: str, size: int, *shape: int) -> Any:
    """Valid indices, negative ones too where the dtype has them."""
    return RNG.integers(0 if index.startswith("u") else -size, size, shape).astype(numpy_dtype(index))


def take(engine: Engine, dtype: str, index: str, sizes: Sizes) -> None:
    outer, size, count, inner = sizes
    x, i = values(dtype, outer, size, inner), places(index, size, count)
    arrays = [x, i, empty((outer, count, inner), dtype)]
    out, flag = on_both(engine, plan_of("take", dtype, index, sizes, arrays), arrays)
    assert flag is None
    assert out.tobytes() == np.take(x, i.astype(np.int64), 1).tobytes()


def gather(engine: Engine, dtype: str, index: str, sizes: Sizes) -> None:
    outer, size, count, inner = sizes
    x, i = values(dtype, outer, size, inner), places(index, size, outer, count, inner)
    arrays = [x, i, empty((outer, count, inner), dtype)]
    out, flag = on_both(engine, plan_of("gather", dtype, index, sizes, arrays), arrays)
    assert flag is None
    assert out.tobytes() == np.take_along_axis(x, i.astype(np.int64), 1).tobytes()


@pytest.mark.parametrize("inner", [1, 3, 4, 32, 33, 768])
def test_take_has_the_cpus_bits_for_rows_of_any_length(engine: Engine, inner: int) -> None:
    take(engine, "f32", "i32", (2, 11, 37, inner))


@pytest.mark.parametrize("count", [1, 31, 33, 256, 1025])
def test_take_has_the_cpus_bits_for_any_number_of_indices(engine: Engine, count: int) -> None:
    take(engine, "f32", "i64", (1, 100, count, 1))


@pytest.mark.parametrize(
    ("dtype", "index"),
    [("bf16", "i64"), ("f16", "u8"), ("i32", "u32"), ("i64", "i32"), ("u8", "i64"), ("u32", "i32"), ("bool", "u8")],
)
def test_take_and_gather_move_every_dtype_by_every_kind_of_index(engine: Engine, dtype: str, index: str) -> None:
    take(engine, dtype, index, (3, 9, 5, 8))
    gather(engine, dtype, index, (2, 9, 5, 3))


def test_take_of_no_indices_does_nothing(engine: Engine) -> None:
    take(engine, "f32", "i32", (2, 3, 0, 4))


def test_a_thread_moves_several_narrow_packs_where_there_are_many(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr("sexpgpu.codegen.cuda_indexed.MANY_PACKS", 1)
    for count in (1, 341, 342, 1025):
        take(engine, "bf16", "i32", (1, 7, count, 3))


@pytest.mark.parametrize(("outer", "count", "inner"), [(1, 1, 1), (33, 1, 1), (1, 1025, 1), (4, 7, 33), (2, 3, 768)])
def test_gather_has_the_cpus_bits(engine: Engine, outer: int, count: int, inner: int) -> None:
    gather(engine, "f32", "i32", (outer, 10, count, inner))


def scatter(engine: Engine, dtype: str, sizes: Sizes, i: Any, exact: bool = True) -> None:
    """Added to what is there in the order of the indices, rounded every time; whole numbers give NumPy's sum."""
    outer, size, count, inner = sizes
    updates, out = values(dtype, outer, count, inner), values(dtype, outer, size, inner)
    if exact and dtype in ("f32", "bf16", "f16"):
        updates, out = (RNG.integers(-1, 2, a.shape).astype(a.dtype) for a in (updates, out))
    arrays = [i, updates, out]
    made, flag = on_both(engine, plan_of("scatter_add", dtype, name_of(i), sizes, arrays), arrays)
    assert flag is None
    if exact:
        expected = out.copy()
        for row, place in enumerate(i.astype(np.int64)):
            expected[:, place] = expected[:, place] + updates[:, row]
        assert made.tobytes() == expected.tobytes()


@pytest.mark.parametrize("inner", [1, 3, 4, 32, 33, 768])
def test_scatter_add_of_few_indices_has_the_cpus_bits(engine: Engine, inner: int) -> None:
    scatter(engine, "f32", (2, 5, 19, inner), places("i32", 5, 19), exact=False)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool"])
def test_scatter_add_adds_every_dtype(engine: Engine, dtype: str) -> None:
    scatter(engine, dtype, (1, 7, 300, 8), places("i32", 7, 300))


@pytest.mark.parametrize("count", [1, 31, 256, 257, 1023, 1025, 2049, 4500])
def test_scatter_add_has_the_cpus_bits_for_any_number_of_indices(engine: Engine, count: int) -> None:
    scatter(engine, "f32", (1, 1000, count, 4), places("i64", 1000, count), exact=False)


@pytest.mark.parametrize(("outer", "size", "inner"), [(1, 1, 1), (1, 3, 5), (2, 2, 33)])
def test_many_rows_for_one_place_are_added_in_order(engine: Engine, outer: int, size: int, inner: int) -> None:
    scatter(engine, "bf16", (outer, size, 1100, inner), places("i32", size, 1100), exact=False)


def test_many_sequences_of_about_the_length_that_a_block_takes(engine: Engine) -> None:
    lengths = [127, 128, 129, 1, 130, 257, 128, 129]
    i = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    scatter(engine, "f32", (1, len(lengths), i.size, 3), RNG.permutation(i), exact=False)


def gather_add(engine: Engine, dtype: str, sizes: Sizes) -> None:
    outer, size, count, inner = sizes
    i = places("i32", size, outer, count, inner)
    arrays = [i, values(dtype, outer, count, inner), values(dtype, outer, size, inner)]
    _, flag = on_both(engine, plan_of("gather_add", dtype, "i32", sizes, arrays), arrays)
    assert flag is None


@pytest.mark.parametrize(
    ("dtype", "sizes"),
    [
        ("f32", (1, 5, 1, 1)),
        ("f32", (40, 65, 1, 1)),
        ("bf16", (3, 5, 64, 33)),
        ("f32", (1, 50, 65, 1)),
        ("bf16", (2, 30, 700, 3)),
        ("f32", (1, 3, 2500, 1)),
    ],
)
def test_gather_add_has_the_cpus_bits(engine: Engine, dtype: str, sizes: Sizes) -> None:
    gather_add(engine, dtype, sizes)


@pytest.mark.parametrize("dtype", ["f16", "i32", "i64", "u8", "u32", "bool"])
def test_gather_add_adds_every_dtype(engine: Engine, dtype: str) -> None:
    gather_add(engine, dtype, (2, 7, 5, 3))


BAD = ({7: 100}, {39: -101, 11: 107, 12: 5000}, {0: -(1 << 31)}, {5: -100, 6: 99})


@pytest.mark.parametrize("op", ["take", "gather", "scatter_add", "gather_add"])
@pytest.mark.parametrize("count", [40, 1500])
def test_the_first_index_out_of_range_is_flagged_and_the_nearest_one_taken(engine: Engine, op: str, count: int) -> None:
    for bad in BAD:
        out_of_range(engine, op, count, bad)


def out_of_range(engine: Engine, op: str, count: int, bad: dict[int, int]) -> None:
    i = places("i32", 100, count)
    i[list(bad)] = list(bad.values())
    wrong = {k: v for k, v in bad.items() if not -100 <= v < 100}
    x, u = values("f32", 1, 100, 1), values("f32", 1, count, 1)
    shaped = i if op in ("take", "scatter_add") else i.reshape(1, count, 1)
    arrays = [shaped, u, x] if op.endswith("_add") else [x, shaped, u]
    out, flag = on_both(engine, plan_of(op, "f32", "i32", (1, 100, count, 1), arrays), arrays)
    assert flag == ((wrong[min(wrong)], 100) if wrong else None)
    if not op.endswith("_add"):
        nearest = np.clip(np.where(i < 0, i.astype(np.int64) + 100, i), 0, 99)
        assert out.tobytes() == x[0, nearest].tobytes()


@pytest.mark.parametrize(
    ("outer", "size", "inner"),
    [(1, 1, 1), (1, 2, 1), (300, 7, 1), (35, 31, 1), (5, 32, 3), (2, 33, 33), (1, 2049, 1), (2, 2100, 1), (35, 1024, 1),
     (5, 1025, 3), (2, 65, 70)],
)  # fmt: skip
def test_cumsum_adds_in_order(engine: Engine, outer: int, size: int, inner: int) -> None:
    x = values("f32", outer, size, inner)
    arrays = [x, empty(x.shape)]
    out, _ = on_both(engine, plan_of("cumsum", "f32", "i32", (outer, size, 0, inner), arrays), arrays)
    assert out.tobytes() == np.cumsum(x, 1, dtype=np.float32).tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i32", "i64", "u8", "u32"])
def test_cumsum_rounds_or_wraps_after_every_step(engine: Engine, dtype: str) -> None:
    x = values(dtype, 3, 70, 2)
    arrays = [x, empty(x.shape, dtype)]
    out, _ = on_both(engine, plan_of("cumsum", dtype, "i32", (3, 70, 0, 2), arrays), arrays)
    expected = x.copy()
    for row in range(1, 70):
        expected[:, row] = expected[:, row - 1] + x[:, row]
    assert out.tobytes() == expected.tobytes()


def argsort(engine: Engine, x: Any, descending: bool) -> None:
    outer, size, inner = x.shape
    arrays = [x, empty(x.shape, "i32")]
    plan = plan_of("argsort", name_of(x), "i32", (outer, size, 0, inner), arrays, descending)
    out, _ = on_both(engine, plan, arrays)
    wide = x.astype(np.float64) if x.dtype.kind not in "iub" else x.astype(np.int64)
    expected = np.argsort(wide, 1, kind="stable")
    if descending:
        expected = size - 1 - np.flip(np.argsort(np.flip(wide, 1), 1, kind="stable"), 1)
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 1023, 1025, 2048, 2049])
def test_argsort_is_stable_at_any_size(engine: Engine, size: int) -> None:
    argsort(engine, RNG.integers(-40, 40, (3, size, 1)).astype(np.float32), size % 2 == 0)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool"])
def test_argsort_knows_every_dtype(engine: Engine, dtype: str, descending: bool) -> None:
    x = values(dtype, 2, 41, 3)
    x[0, ::5] = x[0, 1:2]
    if dtype == "i64":
        x[1] *= 1 << 33
        x[1, 3], x[1, 4] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    if dtype in ("f32", "bf16", "f16"):
        x[0, 3::7], x[1, 2::9] = np.nan, -np.nan
        x[1, 10:14, 0], x[1, 20, 1], x[1, 21, 1] = [0.0, -0.0, 0.0, -0.0], np.inf, -np.inf
    argsort(engine, x, descending)


@pytest.mark.parametrize("dtype", ["f32", "i64"])
def test_long_lines_are_merged_eight_runs_at_a_time(engine: Engine, dtype: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("sexpgpu.codegen.cuda_sort.TILE", 64)
    for size in (65, 512, 2600):
        argsort(engine, values(dtype, 1, size, 2) // 7, True)


def test_lines_are_sorted_in_groups_where_the_workspace_would_be_large(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr("sexpgpu.codegen.cuda_argsort.MOST_BYTES", 2 * 8 * 2100)
    argsort(engine, values("f32", 3, 2100, 1), False)


# op, dtype, sizes of what training does at full size.
LARGE: tuple[tuple[str, str, Sizes], ...] = (
    ("take", "bf16", (1, 50257, 65536, 768)),
    ("gather", "f32", (65536, 50257, 1, 1)),
    ("gather_add", "f32", (65536, 50257, 1, 1)),
    ("gather_add", "bf16", (1, 50257, 65536, 1)),
    ("scatter_add", "f32", (1, 50257, 200, 768)),
    ("scatter_add", "f32", (1, 50257, 65536, 768)),
    ("scatter_add", "bf16", (1, 50257, 65536, 768)),
    ("cumsum", "i64", (64, 4096, 0, 1)),
    ("cumsum", "bf16", (8, 1024, 0, 768)),
    ("argsort", "i64", (8, 65536, 0, 1)),
    ("argsort", "f32", (65536, 8, 0, 1)),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_kernels_of_full_size_compile_for_every_card_and_none_spills(arch: str) -> None:
    kernels: dict[str, CudaKernel] = {}
    for op, dtype, sizes in LARGE:
        inputs = (Place(0),) if op in ("cumsum", "argsort") else (Place(0), Place(1))
        flag = FLAG if len(inputs) == 2 else None
        launch = Indexed(op, dtype, "i32", *sizes, inputs, Place(2), flag)
        kernels |= {made.kernel.name: made.kernel for made in emit_indexed(launch, lambda _: 256)}
    compiled = compile_source(module_source(kernels.values()), arch)
    found = resources(compiled.cubin, compiled.log)
    assert set(found) == set(kernels)
    for name, used in found.items():
        assert (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) == (0, 0, 0), name


def test_the_work_of_an_embedding_gradient_does_not_grow_with_its_table() -> None:
    """Grids and scratch of 1,024 rows of 768 for 50,257 tokens are those for 600."""
    grids = []
    for size in (600, 50257):
        launch = Indexed("scatter_add", "f32", "i32", 1, size, 1024, 768, (Place(0), Place(1)), Place(2))
        grids.append([(made.grid, made.workspace_bytes) for made in emit_indexed(launch, lambda _: 256)])
    assert grids[0] == grids[1] == [((1, 1, 1), 8192), ((768, 1, 1), 8192), ((7 * 24, 1, 1), 8192)]
