"""Whole plans on the CPU: bits for any number of threads, products, indexed kernels, hosts, flags, memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp import executor, gemm, products
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.executor import Engine, Flag
from sexpgpu.interp.kernels import Kernels, Wanted, load_kernels
from sexpgpu.interp.native import Blas
from sexpgpu.interp.processor import simd_class
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.indexing import _run_argsort
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.build import plan as plan_of
from sexpgpu.plan.kernel import Access, Buffer, Generated, Indexed, Matrix, Place, Plan, Product
from sexpgpu.randomness import key_of, uniform_f32, words_of
from tests import programs
from tests.programs import Builder

RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "kernels"


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    made = Engine(2, folder)
    yield made
    made.close()


class Plans:
    """A plan over external buffers that hold these arrays."""

    def __init__(self, **arrays: Any) -> None:
        self.arrays = arrays
        self.names = list(arrays)

    def place(self, name: str) -> Place:
        return Place(self.names.index(name))

    def plan(self, *launches: Any, **more: Any) -> Plan:
        types = {n: TensorType(str_dtype(a), a.shape) for n, a in self.arrays.items()}  # type: ignore[arg-type]
        buffers = tuple(Buffer(n, a.nbytes, "external") for n, a in self.arrays.items()) + more.pop("buffers", ())
        outputs = {n: (self.place(n), types[n]) for n in self.names}
        return Plan(launches, buffers, more.pop("arena_bytes", 0), types, outputs, **more)

    def run(self, engine: Engine, plan: Plan) -> Any:
        executable = engine.load(plan)
        for name, array in self.arrays.items():
            executable.bind(name, array)
        executable.run({"step": 3.0}, microbatch=2, step=3)
        return executable


def str_dtype(array: Any) -> str:
    names = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8"}
    return names.get(array.dtype.name, array.dtype.name)


def rows_of(program: Any, sizes: tuple[int, int], loads: list[Access], stores: list[Access]) -> Generated:
    return Generated(program, sizes, tuple(loads), tuple(stores))


def chain(x: Any, y: Any, z: Any, w: Any, total: Any) -> tuple[Plans, Plan]:
    """gelu(x) → y, y·w → z, softmax of z's rows in place, column sums of z → total."""
    rows, inner, columns = *x.shape, w.shape[1]
    names = Plans(x=x, y=y, z=z, w=w, total=total)
    flat = Access(names.place("x"), (1,)), Access(names.place("y"), (1,))
    z_rows = Access(names.place("z"), (columns, 1))
    product = Product(
        "f32", rows, columns, inner,
        Matrix(names.place("y"), inner, 1, (0,)), Matrix(names.place("w"), columns, 1, (0,)),
        Matrix(names.place("z"), columns, 1, (0,)),
    )  # fmt: skip
    launches = [
        Generated(programs.gelu(), (x.size,), flat[:1], flat[1:]),
        product,
        Generated(programs.softmax(alias=True), z.shape, (z_rows,), (z_rows,)),
        Generated(programs.reduction("column", "sum"), z.shape, (z_rows,), (Access(names.place("total"), (0, 1)),)),
    ]
    return names, names.plan(*launches)


def test_one_two_and_three_workers_give_the_same_bits(folder: Path) -> None:
    x = RNG.normal(size=(333, 130)).astype(np.float32)
    w = RNG.normal(size=(130, 770)).astype(np.float32)
    results = []
    for threads in (1, 2, 3):
        z = np.empty((333, 770), np.float32)
        names, plan = chain(x, np.empty_like(x), z, w, np.empty(770, np.float32))
        engine = Engine(threads, folder)
        names.run(engine, plan)
        results.append(names.arrays)
        engine.close()
    for other in results[1:]:
        assert all(np.array_equal(results[0][n], other[n]) for n in other)
    assert np.abs(results[0]["total"].sum() - 333) < 1e-2


def test_many_calls_in_a_row_all_finish(engine: Engine) -> None:
    x, y = np.ones(40000, np.float32), np.empty(40000, np.float32)
    names = Plans(x=x, y=y)
    launch = Generated(programs.gelu(), (40000,), (Access(names.place("x"), (1,)),), (Access(names.place("y"), (1,)),))
    executable = engine.load(names.plan(launch))
    for name, array in names.arrays.items():
        executable.bind(name, array)
    for number in range(300):
        y[:] = 0
        executable.run({})
        assert y.all(), number
        if number % 100 == 0:
            time.sleep(0.002)  # the workers have gone to sleep by the next call


def test_waiting_workers_burn_no_core(engine: Engine) -> None:
    time.sleep(0.02)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05


def test_closed_workers_are_gone(folder: Path) -> None:
    engine = Engine(3, folder)
    names = {t.name for t in threading.enumerate()}
    assert {"sexpgpu-worker-1", "sexpgpu-worker-2"} <= names
    before = threading.active_count()
    engine.close()
    assert threading.active_count() == before - 2


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (5, 7, 0), (1, 50, 20), (50, 1, 20), (33, 17, 5), (300, 257, 129)]
)
@pytest.mark.parametrize("transposed", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("bound", [0, 10**12], ids=["blas", "own"])
def test_products_take_both_orders_of_strides(
    engine: Engine, m: int, n: int, k: int, transposed: Any, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "own_below", lambda: bound)
    a, b = RNG.normal(size=(3, m, k)).astype(np.float32), RNG.normal(size=(3, k, n)).astype(np.float32)
    # The memory of a transposed operand holds it the other way round.
    a_ = np.ascontiguousarray(a.swapaxes(1, 2)) if transposed[0] else a
    b_ = np.ascontiguousarray(b.swapaxes(1, 2)) if transposed[1] else b
    c = np.full((3, m, n), np.nan, np.float32)
    names = Plans(a=a_, b=b_, c=c)
    starts = [tuple(z * size for z in range(3)) for size in (m * k, k * n, m * n)]
    launch = Product(
        "f32", m, n, k,
        Matrix(names.place("a"), *((1, m) if transposed[0] else (k, 1)), starts[0]),
        Matrix(names.place("b"), *((1, k) if transposed[1] else (n, 1)), starts[1]),
        Matrix(names.place("c"), n, 1, starts[2]),
    )  # fmt: skip
    names.run(engine, names.plan(launch))
    assert np.abs(c - a.astype(float) @ b.astype(float)).max() <= 1e-5 * max(k, 1)


@pytest.mark.parametrize("dtype", ["i32", "i64", "bf16", "f16"])
def test_products_of_other_dtypes(engine: Engine, dtype: str) -> None:
    a = RNG.integers(-9, 9, (20, 30)).astype(numpy_dtype(dtype))
    b = RNG.integers(-9, 9, (30, 40)).astype(numpy_dtype(dtype))
    c = programs.empty((20, 40), dtype)
    names = Plans(a=a, b=b, c=c)
    matrices = [Matrix(names.place(n), s, 1, (0,)) for n, s in (("a", 30), ("b", 40), ("c", 40))]
    names.run(engine, names.plan(Product(dtype, 20, 40, 30, *matrices)))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(c.astype(float), exact.astype(c.dtype).astype(float))


@pytest.mark.parametrize(("dtype", "column"), [("f32", 1), ("f32", 2), ("bf16", 1), ("i32", 1)])
def test_products_add_to_what_is_there(engine: Engine, dtype: str, column: int) -> None:
    a = RNG.integers(-9, 9, (20, 30 * column)).astype(numpy_dtype(dtype))
    b = RNG.integers(-9, 9, (30, 40)).astype(numpy_dtype(dtype))
    c = np.full((20, 40), 3).astype(numpy_dtype(dtype))
    names = Plans(a=a, b=b, c=c)
    matrices = [
        Matrix(names.place("a"), 30 * column, column, (0,)), Matrix(names.place("b"), 40, 1, (0,)),
        Matrix(names.place("c"), 40, 1, (0,)),
    ]  # fmt: skip
    names.run(engine, names.plan(Product(dtype, 20, 40, 30, *matrices, accumulate=True)))
    exact = 3 + a[:, ::column].astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(c.astype(float), exact.astype(c.dtype).astype(float))


def test_products_without_blas_and_with_odd_strides(engine: Engine) -> None:
    a, b = RNG.normal(size=(40, 60)).astype(np.float32), RNG.normal(size=(60, 80)).astype(np.float32)
    c = np.empty((20, 40), np.float32)
    names = Plans(a=a, b=b, c=c)
    launch = Product(
        "f32", 20, 40, 30,
        Matrix(names.place("a"), 120, 2, (0,)), Matrix(names.place("b"), 160, 2, (0,)), Matrix(names.place("c"), 40, 1, (0,)),
    )  # fmt: skip
    assert not products.takes_blas(launch)
    names.run(engine, names.plan(launch))
    assert np.abs(c - a[::2, ::2].astype(float) @ b[::2, ::2]).max() < 1e-4


def test_engines_of_products_are_chosen_by_shape_and_said_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "own_below", lambda: 1_000_000)
    monkeypatch.setattr(gemm, "features", frozenset)
    blas = Blas(1, "OpenBLAS 1.2.3")

    def product(dtype: str, size: int, step: int = 1) -> Product:
        return Product(dtype, size, size, size, *(Matrix(Place(0), step * size, step, (0,)) for _ in range(2)),
                       Matrix(Place(0), size, 1, (0,)))  # fmt: skip

    large, small, odd = product("f32", 200), product("f32", 20), product("f32", 200, 2)
    narrow, whole = product("bf16", 200), product("i32", 20)
    launches = [large, small, odd, narrow, whole]
    assert [products.engine_of(x, blas) for x in launches] == ["blas", "own", "own", "own", "loops"]
    assert [products.engine_of(x, None) for x in launches] == ["own", "own", "own", "own", "loops"]
    own = f"own {simd_class()} {gemm.tiling()}"
    said = products.described([large, *launches, large, small], blas)
    assert said.split("; ") == [
        "3 OpenBLAS 1.2.3, from 1 M multiply-adds",
        f"2 {own}, below 1 M multiply-adds",
        f"1 {own}, strides that BLAS has not",
        f"1 {own}, bf16 or f16",
        "1 plain loops, integers",
    ]
    monkeypatch.setattr(gemm, "features", lambda: frozenset(("avx512_bf16",)))
    assert products.described([narrow], blas).endswith(", bf16 by vdpbf16ps")


def test_blocks_of_products_cover_every_row_and_column_once() -> None:
    for m, n, k in ((1, 50257, 768), (4096, 768, 3072), (17, 1000, 100000), (1000, 1000, 1000)):
        place = Place(0)
        launch = Product("f32", m, n, k, *(Matrix(place, 1, 1, (0,)) for _ in range(3)))
        made = products.cut(launch)
        assert (made.row_blocks - 1) * made.rows < m <= made.row_blocks * made.rows
        assert (made.column_blocks - 1) * made.columns < n <= made.column_blocks * made.columns
        assert made.row_blocks * made.column_blocks <= products.MOST_BLOCKS


def indexed(op: str, dtype: str, sizes: tuple[int, int, int, int], inputs: list[Place], out: Place, **more: Any) -> Any:
    outer, size, count, inner = sizes
    return Indexed(op, dtype, more.pop("index_dtype", "i32"), outer, size, count, inner, tuple(inputs), out, **more)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
def test_take_and_scatter_add(engine: Engine, dtype: str) -> None:
    x = RNG.integers(0, 50, (2, 10, 70)).astype(numpy_dtype(dtype))
    i = RNG.integers(-10, 10, 25).astype(np.int32)
    out, sums = programs.empty((2, 25, 70), dtype), np.zeros((2, 10, 70), numpy_dtype(dtype))
    names = Plans(x=x, i=i, out=out, sums=sums)
    x_, i_, out_, sums_ = (names.place(n) for n in names.names)
    names.run(
        engine,
        names.plan(
            indexed("take", dtype, (2, 10, 25, 70), [x_, i_], out_),
            indexed("scatter_add", dtype, (2, 10, 25, 70), [i_, out_], sums_),
        ),
    )
    assert np.array_equal(out, np.take(x, i, 1))
    expected = np.zeros((2, 10, 70))
    np.add.at(expected, (slice(None), i), np.take(x.astype(float), i, 1))
    assert np.array_equal(sums.astype(float), expected.astype(numpy_dtype(dtype)).astype(float))


@pytest.mark.parametrize("inner", [1, 3, 100])
def test_gather_and_gather_add(engine: Engine, inner: int) -> None:
    x = RNG.normal(size=(4, 9, inner)).astype(np.float32)
    i = RNG.integers(-9, 9, (4, 5, inner)).astype(np.int64)
    out, sums = programs.empty((4, 5, inner)), np.ones((4, 9, inner), np.float32)
    names = Plans(x=x, i=i, out=out, sums=sums)
    x_, i_, out_, sums_ = (names.place(n) for n in names.names)
    names.run(
        engine,
        names.plan(
            indexed("gather", "f32", (4, 9, 5, inner), [x_, i_], out_, index_dtype="i64"),
            indexed("gather_add", "f32", (4, 9, 5, inner), [i_, out_], sums_, index_dtype="i64"),
        ),
    )
    assert np.array_equal(out, np.take_along_axis(x, i, 1))
    expected = np.ones((4, 9, inner), np.float32)
    where = np.indices((4, 5, inner), sparse=True)
    np.add.at(expected, (where[0], i % 9, where[2]), out)
    assert np.array_equal(sums, expected)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_argsort_is_stable_and_knows_nan(engine: Engine, dtype: str, descending: bool) -> None:
    x = RNG.integers(-5, 6, (3, 101, 2)).astype(numpy_dtype(dtype))
    if dtype == "f32":
        x[0, ::17, 0] = np.nan
    out = programs.empty(x.shape, "i32")
    names = Plans(x=x, out=out)
    launch = indexed("argsort", dtype, (3, 101, 0, 2), [names.place("x")], names.place("out"), descending=descending)
    names.run(engine, names.plan(launch))
    assert np.array_equal(out, _run_argsort(x, 1, descending))


@pytest.mark.parametrize("inner", [1, 130])
def test_cumsum_adds_in_order(engine: Engine, inner: int) -> None:
    x = RNG.normal(size=(2, 40, inner)).astype(np.float32)
    out = programs.empty(x.shape)
    names = Plans(x=x, out=out)
    names.run(engine, names.plan(indexed("cumsum", "f32", (2, 40, 0, inner), [names.place("x")], names.place("out"))))
    assert np.array_equal(out, np.cumsum(x, 1, dtype=np.float32))


def test_an_index_out_of_range_reads_the_nearest_and_is_flagged(engine: Engine) -> None:
    x, i, out = np.arange(6, dtype=np.float32), np.array([1, 9, -7], np.int32), programs.empty((3,))
    names = Plans(x=x, i=i, out=out)
    flag = Place(3)
    launch = indexed("take", "f32", (1, 6, 3, 1), [names.place("x"), names.place("i")], names.place("out"), flag=flag)
    plan = names.plan(launch, buffers=(Buffer("runtime:flags", 16, "runtime"),), flags=((flag, 42),))
    executable = names.run(engine, plan)
    assert out.tolist() == [1.0, 5.0, 0.0]
    assert executable.flags() == [Flag(42, 9, 6)]
    i[:] = 0
    executable.run({})
    assert executable.flags() == []


def test_hosts_and_counters_are_written_before_a_call_and_the_arena_holds_what_lies_between(engine: Engine) -> None:
    b = Builder("map", 1)
    host, counter = b.load("zero"), [b.load("zero", "u32") for _ in range(3)]
    b.store(b.do("add", host, b.do("cast", counter[2], dtype="f32")))
    b.store(b.do("cast", counter[1], dtype="f32"))
    out = programs.empty((4,))
    names = Plans(out=out)
    scalars, counts, arena = Place(1), Place(2), Place(3, 64)
    loads = (Access(scalars, (0,)), *(Access(Place(2, 4 * k), (0,)) for k in range(3)))
    first = Generated(b.program(), (4,), loads, (Access(names.place("out"), (1,)), Access(arena, (1,))))
    b = Builder("map", 1)
    x, y = b.load(), b.load()
    b.store(b.do("add", b.do("mul", x, b.number(100.0)), y), alias=x)
    place = Access(names.place("out"), (1,))
    second = Generated(b.program(), (4,), (place, Access(arena, (1,))), (place,))
    buffers = (
        Buffer("runtime:hosts", 4, "runtime"),
        Buffer("runtime:counter", 12, "runtime"),
        Buffer("a", 128, "arena"),
    )
    plan = names.plan(
        first, second, buffers=buffers, arena_bytes=128, hosts=((("mul", ("step",), ("number", 2.0)), scalars),)
    )
    executable = names.run(engine, plan)
    assert counts.buffer == 2
    assert executable.output("out").tolist() == [(3.0 * 2.0 + 3.0) * 100 + 2.0] * 4


def test_a_planned_draw_is_that_of_its_step_and_microbatch(engine: Engine) -> None:
    graph = Graph("draw")
    graph.outputs["u"] = graph.add("random", (), {"shape": (9,), "path": "gpt.dropout", "ordinal": 1})
    executable = engine.load(plan_of(graph), 7)
    for microbatch, step in ((0, 1), (0, 2), (3, 2)):
        executable.run({}, microbatch, step)
        words = words_of(key_of(7, "gpt.dropout", 1), 9, microbatch=microbatch, step=step)
        assert executable.output("u").tolist() == uniform_f32(words).tolist()


def test_kernels_of_all_plans_are_compiled_together(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(1, folder)
    asked: list[set[str]] = []

    def load(wanted: Wanted, cache: Cache, processors: int = 1) -> Kernels:
        asked.append(set(wanted))
        made = load_kernels(wanted, cache, processors)
        made.report.append("a line about a helper")
        return made

    monkeypatch.setattr(executor, "load_kernels", load)
    several = []
    for program, sizes, strides in ((programs.gelu(), (8,), (1,)), (programs.softmax(), (2, 4), (4, 1))):
        names = Plans(x=np.ones(8, np.float32), z=np.empty(8, np.float32))
        launch = Generated(program, sizes, (Access(names.place("x"), strides),), (Access(names.place("z"), strides),))
        several.append((names, engine.load(names.plan(launch)), repr(program)))
    assert not asked
    engine.compile()
    for names, executable, _ in several:
        for name, array in names.arrays.items():
            executable.bind(name, array)
        executable.run({})
    assert len(asked) == 1 and {text for _, _, text in several} <= asked[0]
    assert engine.report == ["a line about a helper"]
    engine.close()


def test_binding_refuses_another_type(engine: Engine) -> None:
    names = Plans(x=np.ones(5, np.float32))
    executable = engine.load(names.plan())
    with pytest.raises(AssertionError, match="f32"):
        executable.bind("x", np.ones(6, np.float32))
    with pytest.raises(AssertionError, match="f32"):
        executable.bind("x", np.ones(10, np.float32)[::2])
