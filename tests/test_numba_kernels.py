"""Generated kernels against NumPy in float64 (or exactly, where the result is exact)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.codegen.numba_kernel import emit
from sexpgpu.interp.executor import Engine
from sexpgpu.ops.formulas import FORMULAS
from sexpgpu.ops.pointwise import PRIMITIVES, numpy_dtype
from sexpgpu.randomness import key_of, uniform_f32, words_of
from tests import programs
from tests.programs import Builder, empty, run_program

SIZES = (1, 7, 31, 32, 33, 1023, 1024, 1025)
RNG = np.random.default_rng(7)
# A few rounding steps of values near 1, and of sums of n such values added in at least 32 lanes.
NEAR_ONE = 4e-6


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache") / "kernels")
    yield made
    made.close()


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("size", [*SIZES, 40000])
def test_a_map_has_gelus_values_at_every_size(engine: Engine, size: int) -> None:
    x, y = normal(size), empty((size,))
    run_program(engine, programs.gelu(), [x], [y])
    wide = x.astype(float)
    expected = 0.5 * wide * (1 + np.tanh(0.7978845608028654 * (wide + 0.044715 * wide**3)))
    assert np.abs(y - expected).max() < NEAR_ONE


def test_a_map_in_place_equals_the_map_into_another_buffer(engine: Engine) -> None:
    x = normal(5000)
    y, z = empty((5000,)), x.copy()
    run_program(engine, programs.gelu(), [x], [y])
    run_program(engine, programs.gelu(alias=True), [z], [z])
    assert np.array_equal(y, z)


def test_a_map_reads_through_any_strides(engine: Engine) -> None:
    b = Builder("map", 3)
    transposed, strided, row_value = b.load("any"), b.load("any"), b.load("zero")
    b.store(b.do("add", b.do("mul", transposed, strided), row_value))
    x, w, s = normal(4, 5, 6), normal(6, 4, 10), normal(6, 4)
    x_, w_, s_ = x.transpose(2, 0, 1), w[:, :, ::2], np.broadcast_to(s[:, :, None], (6, 4, 5))
    y = empty((6, 4, 5))
    run_program(engine, b.program(), [x_, w_, s_], [y])
    assert np.array_equal(y, x_ * w_ + s_)


def test_a_map_writes_through_strides_and_flips(engine: Engine) -> None:
    b = Builder("map", 2)
    b.store(b.load("any"), "any")
    x, base = normal(7, 9), np.zeros((9, 14), np.float32)
    run_program(engine, b.program(), [x[::-1, ::-1]], [base[:, ::2].T])
    assert np.array_equal(base[:, ::2], x[::-1, ::-1].T)
    assert not base[:, 1::2].any()


def test_an_index_load_counts_elements(engine: Engine) -> None:
    b = Builder("map", 2)
    b.store(b.load("any", "i64", "index"), dtype="i64")
    y = empty((5, 7), "i64")
    run_program(engine, b.program(), [(3, (10, 2))], [y])
    assert np.array_equal(y, 3 + 10 * np.arange(5)[:, None] + 2 * np.arange(7))


def test_a_program_without_loops_computes_one_scalar(engine: Engine) -> None:
    b = Builder("map", 0)
    x = b.load("zero")
    b.store(b.do("mul", x, x), "zero")
    value, y = np.array(3.0, np.float32), empty(())
    run_program(engine, b.program(), [value], [y])
    assert y == 9.0


@pytest.mark.parametrize("columns", [*SIZES, 3000])
def test_softmax_rows_sum_to_one(engine: Engine, columns: int) -> None:
    x, y = normal(5, columns) * 10, empty((5, columns))
    run_program(engine, programs.softmax(), [x], [y])
    exponentials = np.exp(x.astype(float) - x.max(1, keepdims=True))
    assert np.abs(y - exponentials / exponentials.sum(1, keepdims=True)).max() < NEAR_ONE


def test_softmax_in_place_equals_softmax_into_another_buffer(engine: Engine) -> None:
    x = normal(9, 300)
    y, z = empty((9, 300)), x.copy()
    run_program(engine, programs.softmax(), [x], [y])
    run_program(engine, programs.softmax(alias=True), [z], [z])
    assert np.array_equal(y, z)


@pytest.mark.parametrize("columns", [1, 33, 768, 1025])
def test_layernorm_stores_rows_means_and_scales(engine: Engine, columns: int) -> None:
    x, gain, bias = normal(6, columns), normal(columns), normal(columns)
    y, mean, scale = empty((6, columns)), empty((6,)), empty((6,))
    length = np.full(1, columns, np.float32)
    wide = [np.broadcast_to(a, (6, columns)) for a in (gain, bias, length)]
    rows = [np.broadcast_to(a[:, None], (6, columns)) for a in (mean, scale)]
    run_program(engine, programs.layernorm(), [x, *wide], [y, *rows])
    centred = x.astype(float) - x.astype(float).mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    assert np.abs(mean - x.astype(float).mean(1)).max() < NEAR_ONE
    if columns > 1:
        assert np.abs(y - (expected * gain + bias)).max() < 10 * NEAR_ONE


def lanes_sum(row: Any) -> np.float32:
    """The law of a row's sum, written out."""
    lanes = 32 if len(row) <= 1024 else 256
    sums = [np.float32(v) for v in row[:lanes]]
    for start in range(lanes, len(row), lanes):
        for lane, value in enumerate(row[start : start + lanes]):
            sums[lane] = np.float32(sums[lane] + value)
    half = lanes // 2
    while half:
        for lane in range(half):
            if lane + half < len(sums):
                sums[lane] = np.float32(sums[lane] + sums[lane + half])
        half //= 2
    return sums[0]


@pytest.mark.parametrize("columns", [*SIZES, 2050])
def test_a_rows_sum_is_added_in_lanes_in_the_fixed_order(engine: Engine, columns: int) -> None:
    x, y = normal(3, columns), empty((3,))
    run_program(engine, programs.reduction("row", "sum"), [x], [np.broadcast_to(y[:, None], x.shape)])
    assert y.tolist() == [lanes_sum(row) for row in x]


def in_order(rows: Any) -> Any:
    total = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


@pytest.mark.parametrize("columns", [1, 33, 511, 512, 1030])
@pytest.mark.parametrize(
    ("rows", "part"), [(1, 32), (31, 32), (32, 32), (33, 32), (97, 32), (4096, 32), (4097, 128), (4225, 128)]
)
def test_a_columns_sum_is_added_row_after_row_and_part_after_part(
    engine: Engine, rows: int, part: int, columns: int
) -> None:
    x, y = normal(rows, columns), empty((columns,))
    run_program(engine, programs.reduction("column", "sum"), [x], [np.broadcast_to(y, x.shape)])
    assert np.array_equal(y, in_order([in_order(x[first : first + part]) for first in range(0, rows, part)]))


NUMPY_OF = {"max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin, "prod": np.prod, "sum": np.sum}


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("kind", ["row", "column"])
def test_choices_take_the_first_of_equals_and_nan_before_numbers(engine: Engine, op: str, kind: str) -> None:
    x = RNG.integers(-3, 4, (6, 1100)).astype(np.float32)
    x[1, 700] = x[1, 900] = np.nan
    x[2] = -np.inf
    x[3] = np.inf
    x = x if kind == "row" else np.ascontiguousarray(x.T)
    axis = 1 if kind == "row" else 0
    y = empty((6,), "i32" if op.startswith("arg") else "f32")
    spread = np.broadcast_to(y[:, None] if kind == "row" else y, x.shape)
    run_program(engine, programs.reduction(kind, op), [x], [spread])
    assert np.array_equal(y, NUMPY_OF[op](x, axis), equal_nan=not op.startswith("arg"))


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "argmin"])
def test_integer_reductions_wrap_as_numpys(engine: Engine, dtype: str, op: str) -> None:
    x = RNG.integers(0, 100, (4, 300)).astype(numpy_dtype(dtype))
    y = empty((4,), "i32" if op.startswith("arg") else dtype)
    run_program(engine, programs.reduction("row", op, dtype), [x], [np.broadcast_to(y[:, None], x.shape)])
    expected = NUMPY_OF[op](x, 1, **({"dtype": x.dtype} if op in ("sum", "prod") else {}))
    assert np.array_equal(y, expected)


@pytest.mark.parametrize("kind", ["row", "column"])
def test_any_and_all_of_bools(engine: Engine, kind: str) -> None:
    b = Builder(kind, 2)
    x = b.load(dtype="bool")
    inner = "zero" if kind == "row" else "one"
    b.store(b.do("reduce_any", x, dtype="bool"), inner, "bool")
    b.store(b.do("reduce_all", x, dtype="bool"), inner, "bool")
    x_ = np.array([[False] * 50, [True] * 50, [False] * 49 + [True]])
    x_ = x_ if kind == "row" else np.ascontiguousarray(x_.T)
    outputs = [empty((3,), "bool"), empty((3,), "bool")]
    run_program(
        engine, b.program(), [x_], [np.broadcast_to(y[:, None] if kind == "row" else y, x_.shape) for y in outputs]
    )
    assert outputs[0].tolist() == [False, True, True]
    assert outputs[1].tolist() == [False, True, False]


def test_sums_of_nothing_are_zero(engine: Engine) -> None:
    row, column = empty((3,)), empty((4,))
    x = np.empty((3, 0), np.float32)
    run_program(engine, programs.reduction("row", "sum"), [x], [np.broadcast_to(row[:, None], (3, 0))])
    x = np.empty((0, 4), np.float32)
    run_program(engine, programs.reduction("column", "sum"), [x], [np.broadcast_to(column, (0, 4))])
    assert not row.any() and not column.any()
    assert not np.signbit(row).any() and not np.signbit(column).any()


def test_a_columns_later_reduction_sees_the_earlier_one(engine: Engine) -> None:
    b = Builder("column", 2)
    x = b.load()
    greatest = b.do("reduce_max", x)
    b.store(b.do("reduce_sum", b.do("exp", b.do("sub", x, greatest))))
    b.store(greatest)
    x_, total, top = normal(50, 700), empty((700,)), empty((700,))
    run_program(engine, b.program(), [x_], [np.broadcast_to(y, x_.shape) for y in (total, top)])
    assert np.array_equal(top, x_.max(0))
    expected = np.exp(x_.astype(float) - x_.max(0)).sum(0)
    assert np.abs(total / expected - 1).max() < NEAR_ONE


def edge_values(dtype: str) -> Any:
    if dtype == "f32":
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 88.8, -104.0, 1e6]
        return np.array([*edges, *RNG.normal(size=18)], np.float32)
    if dtype == "bool":
        return np.array([True, False])
    info = np.iinfo(numpy_dtype(dtype))
    return np.array([0, 1, 2, 3, 7, info.max, info.max - 1, info.min, max(info.min, -3)], numpy_dtype(dtype))


def bits_equal(a: Any, b: Any) -> bool:
    return (
        bool(np.all((a == b) & (np.signbit(a) == np.signbit(b)) | (a != a) & (b != b)))
        if a.dtype.kind == "f"
        else (np.array_equal(a, b))
    )


TWIN = {"neg": lambda a: -a, "logical_and": np.logical_and, "logical_or": np.logical_or, "stop_gradient": lambda a: a}


def twin_of(op: str) -> Any:
    """The formula in NumPy, or NumPy's own exact operation."""
    name = {"round": "k_rint", "logical_not": "k_not"}.get(op, f"k_{op}")
    return FORMULAS.get(name) or TWIN.get(op) or PRIMITIVES[op].run


TAKES = {
    "float": ("f32",),
    "number": ("f32", "i32", "i64", "u8", "u32"),
    "any": ("f32", "i32", "i64", "u8", "u32", "bool"),
    "bool": ("bool",),
}


@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", ["f32", "i32", "i64", "u8", "u32", "bool"])
def test_every_primitive_has_the_bits_of_its_numpy_twin(engine: Engine, dtype: str, arity: int) -> None:
    ops = [n for n, p in PRIMITIVES.items() if p.arity == arity and dtype in TAKES[p.operands]]
    if not ops:
        return
    values = edge_values(dtype)
    if dtype == "f32" and arity == 1:
        values = np.concatenate([values, normal(5000), 30 * normal(5000)])
    operands = [values] if arity == 1 else [np.repeat(values, len(values)), np.tile(values, len(values))]
    b = Builder("map", 1)
    loads = [b.load(dtype=dtype) for _ in operands]
    outputs = []
    for op in ops:
        result = "bool" if PRIMITIVES[op].result == "bool" else dtype
        b.store(b.do(op, *loads, dtype=result), dtype=result)
        outputs.append(empty(operands[0].shape, result))
    run_program(engine, b.program(), operands, outputs)
    with np.errstate(all="ignore"):
        for op, output in zip(ops, outputs, strict=True):
            expected = np.asarray(twin_of(op)(*operands)).astype(output.dtype)
            assert bits_equal(output, expected), (op, dtype)


def test_select_takes_either_side(engine: Engine) -> None:
    b = Builder("map", 1)
    c, x, y = b.load(dtype="bool"), b.load(), b.load()
    b.store(b.do("select", c, x, y))
    c_, x_, y_ = RNG.integers(0, 2, 100).astype(bool), normal(100), normal(100)
    out = empty((100,))
    run_program(engine, b.program(), [c_, x_, y_], [out])
    assert np.array_equal(out, np.where(c_, x_, y_))


@pytest.mark.parametrize("source", ["f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool"])
def test_casts_are_the_languages(engine: Engine, source: str) -> None:
    from sexpgpu.ops.pointwise import _run_cast

    targets = ["f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool"]
    kept = "f32" if source in ("bf16", "f16") else source
    with np.errstate(all="ignore"):
        values = edge_values(kept).astype(numpy_dtype(source))
    b = Builder("map", 1)
    x = b.load(dtype=source)
    for target in targets:
        b.store(b.do("cast", x, dtype=target), dtype=target)
    outputs = [empty(values.shape, target) for target in targets]
    run_program(engine, b.program(), [values], outputs)
    with np.errstate(all="ignore"):
        for target, output in zip(targets, outputs, strict=True):
            expected = _run_cast(values.astype(np.float32) if kept != source else values, target)
            assert bits_equal(output.astype(float), expected.astype(float)), (source, target)


def test_random_draws_are_philoxs(engine: Engine) -> None:
    b = Builder("map", 2)
    element = b.load("one", "i64", "index")
    words = [b.load("zero", "u32") for _ in range(5)]
    b.store(b.do("random", element, *words))
    key = key_of(3, "gpt.dropout", 1)
    rows = [np.broadcast_to(np.array([w], np.uint32), (3, 11)) for w in (*key, 0, 5, 9)]
    y = empty((3, 11))
    run_program(engine, b.program(), [(0, (11, 1)), *rows], [y])
    assert np.array_equal(y.ravel(), uniform_f32(words_of(key, 33, 0, 5, 9)))


def test_a_kept_row_is_computed_once(engine: Engine) -> None:
    source = emit(programs.softmax())
    assert source.count("k_exp") == 1


def test_emitted_text_is_the_same_every_time() -> None:
    assert emit(programs.layernorm()) == emit(programs.layernorm())
