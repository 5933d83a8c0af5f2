"""Column programs as CUDA C have the CPU's bits in the simulator, however their parts come together, and nothing is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp.executor import Engine
from sexpgpu.ops.pointwise import numpy_dtype
from tests import programs
from tests.on_simulator import Simulated, run_program
from tests.programs import Builder, empty
from tests.random_programs import RandomProgram

RNG = np.random.default_rng(17)
ROWS = (0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 65, 1100)
COLUMNS = (1, 3, 15, 16, 17, 31, 32, 33, 127, 128, 129)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def over(y: Any, rows: int) -> Any:
    """An output of one value a column, in the shape of the loops."""
    return np.broadcast_to(y[..., None, :], (*y.shape[:-1], rows, y.shape[-1]))


def same_bits(ours: Any, expected: Any) -> bool:
    """The bits of a NaN that is made differ between kinds of processors."""
    nothing = expected != expected
    return bool(np.array_equal(ours != ours, nothing)) and ours[~nothing].tobytes() == expected[~nothing].tobytes()


def agree(engine: Engine, program: Any, operands: list[Any], outputs: list[Any]) -> Simulated:
    """Both write the same bits, and the detectors are silent."""
    rows = np.broadcast_shapes(*(a.shape for a in operands if isinstance(a, np.ndarray)))[-2]
    theirs = [output.copy() for output in outputs]
    programs.run_program(engine, program, operands, [over(y, rows) for y in theirs])
    simulated = run_program(program, operands, [over(y, rows) for y in outputs])
    assert simulated.findings == []
    for ours, expected in zip(outputs, theirs, strict=True):
        assert same_bits(ours, expected)
    return simulated


def kernels(simulated: Simulated) -> int:
    return len(simulated.outcomes)


@pytest.mark.parametrize("rows", ROWS)
def test_a_sum_has_the_cpus_bits_at_every_number_of_rows(engine: Engine, rows: int) -> None:
    simulated = agree(engine, programs.reduction("column", "sum"), [normal(rows, 33)], [empty((33,))])
    assert kernels(simulated) == 1


@pytest.mark.parametrize("columns", COLUMNS)
def test_a_sum_has_the_cpus_bits_at_every_number_of_columns(engine: Engine, columns: int) -> None:
    agree(engine, programs.reduction("column", "sum"), [normal(70, columns)], [empty((columns,))])


@pytest.mark.parametrize("rows", [4097, 4223, 4224])
@pytest.mark.parametrize("columns", [1, 33])
def test_parts_of_long_columns_meet_in_a_second_kernel(engine: Engine, rows: int, columns: int) -> None:
    simulated = agree(engine, programs.reduction("column", "sum"), [normal(rows, columns)], [empty((columns,))])
    assert kernels(simulated) == 2


@pytest.mark.parametrize("rows", [20, 70, 4100])
def test_every_row_is_read_once(engine: Engine, rows: int) -> None:
    simulated = agree(engine, programs.reduction("column", "sum"), [normal(rows, 37)], [empty((37,))])
    parts = sum(made.workspace_bytes for made, _ in simulated.outcomes)
    assert sum(moved for _, _, moved in simulated.moved_bytes()) <= 4 * 37 * (rows + 1) + parts


def test_many_columns_have_a_thread_each_that_walks_the_parts(engine: Engine) -> None:
    x, outputs = normal(2, 33, 1 << 16), [empty((2, 1 << 16)) for _ in range(2)]
    b = Builder("column", 3)
    least = b.do("reduce_min", b.load())
    b.store(b.do("reduce_sum", b.do("mul", 0, least)))
    b.store(least)
    simulated = agree(engine, b.program(), [x], outputs)
    made = simulated.outcomes[0][0]
    assert made.grid[0] * made.kernel.threads == outputs[0].size


# Rows for each way in which parts come together.
WAYS = (20, 70, 4100)
FLOATS, INTEGERS = ("f32", "bf16", "f16"), ("i32", "i64", "u8", "u32")


def edges(dtype: str, rows: int, columns: int) -> Any:
    """Equal values, zeros of both signs, infinities and NaN; of integers also the extremes."""
    if dtype == "bool":
        return RNG.random((rows, columns)) < np.linspace(0, 1, columns)
    if dtype in FLOATS:
        x = RNG.integers(-3, 4, (rows, columns)) / 4
        x[:, 1], x[:, 2], x[:, 3] = -np.inf, np.inf, np.copysign(0, RNG.normal(size=rows))
        x[rows // 2, 4] = x[rows // 3, 4] = np.nan
        return x.astype(numpy_dtype(dtype))
    info = np.iinfo(numpy_dtype(dtype))
    x = RNG.integers(max(info.min, -50), 50, (rows, columns)).astype(numpy_dtype(dtype))
    x[rows // 2, :3] = info.min, info.max, info.max // 2
    return x


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("rows", WAYS)
def test_every_reduction_of_every_dtype_has_the_cpus_bits(engine: Engine, dtype: str, rows: int) -> None:
    b = Builder("column", 2)
    x, outputs = b.load(dtype=dtype), []
    for op in ("sum", "prod", "max", "min", "argmax", "argmin"):
        result = "i32" if op.startswith("arg") else dtype
        b.store(b.do(f"reduce_{op}", x, dtype=result), dtype=result)
        outputs.append(empty((7,), result))
    agree(engine, b.program(), [edges(dtype, rows, 7)], outputs)


@pytest.mark.parametrize("rows", WAYS)
def test_any_and_all_have_the_cpus_bits(engine: Engine, rows: int) -> None:
    b = Builder("column", 2)
    x = b.load(dtype="bool")
    for op in ("any", "all"):
        b.store(b.do(f"reduce_{op}", x, dtype="bool"), dtype="bool")
    agree(engine, b.program(), [edges("bool", rows, 9)], [empty((9,), "bool") for _ in range(2)])


@pytest.mark.parametrize("op", ["sum", "prod", "max", "argmin"])
def test_a_reduction_of_no_rows_is_its_neutral_value(engine: Engine, op: str) -> None:
    result = "i32" if op.startswith("arg") else "f32"
    agree(engine, programs.reduction("column", op), [normal(0, 5)], [empty((5,), result)])


def gradients_of_gain_and_bias(dtype: str = "f32") -> Any:
    """Loads dy, x and a row's scale; stores Σ dy · x · scale, rounded, and Σ dy."""
    b = Builder("column", 2)
    dy, x, scale = b.load(dtype=dtype), b.load(dtype=dtype), b.load("zero")
    wide = [b.do("cast", v, dtype="f32") for v in (dy, x)] if dtype != "f32" else [dy, x]
    gain = b.do("reduce_sum", b.do("mul", b.do("mul", *wide), scale))
    b.store(b.do("cast", gain, dtype=dtype) if dtype != "f32" else gain, dtype=dtype)
    b.store(b.do("reduce_sum", wide[0]))
    return b.program()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", WAYS)
def test_several_reductions_read_the_rows_once(engine: Engine, dtype: str, rows: int) -> None:
    dy, x = (normal(rows, 33).astype(numpy_dtype(dtype)) for _ in range(2))
    scale = np.broadcast_to(normal(rows, 1), (rows, 33))
    agree(engine, gradients_of_gain_and_bias(dtype), [dy, x, scale], [empty((33,), dtype), empty((33,))])


@pytest.mark.parametrize("rows", WAYS)
def test_a_reduction_that_sees_another_reads_the_rows_again(engine: Engine, rows: int) -> None:
    b = Builder("column", 2)
    x = b.load()
    greatest = b.do("reduce_max", x)
    b.store(b.do("reduce_sum", b.do("div", x, greatest)))
    b.store(greatest)
    simulated = agree(engine, b.program(), [normal(rows, 35)], [empty((35,)), empty((35,))])
    assert "2 times" in simulated.outcomes[0][0].note


def laid_out(layout: str, rows: int) -> Any:
    """[2 3 rows 21], where columns or outer loops step in some other way."""
    if layout == "transposed":
        return normal(2, 3, 21, rows).swapaxes(2, 3)
    if layout == "reversed":
        return normal(2, 3, rows, 63)[..., ::-1, ::-3]
    if layout == "outer exchanged":
        return normal(3, 2, rows, 21).swapaxes(0, 1)
    return np.broadcast_to(normal(3, rows, 21), (2, 3, rows, 21))


@pytest.mark.parametrize("layout", ["transposed", "reversed", "outer exchanged", "broadcast"])
@pytest.mark.parametrize("rows", WAYS)
def test_operands_may_step_in_any_way(engine: Engine, layout: str, rows: int) -> None:
    b = Builder("column", 4)
    x, y = b.load("any" if layout in ("transposed", "reversed") else "one"), b.load()
    b.store(b.do("reduce_sum", b.do("mul", x, y)))
    agree(engine, b.program(), [laid_out(layout, rows), normal(2, 3, rows, 21)], [empty((2, 3, 21))])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "u8"])
@pytest.mark.parametrize(("rows", "length"), [(20, 32), (36, 48), (34, 36), (4100, 4100)])
def test_rows_that_are_neighbours_in_memory_are_loaded_together(
    engine: Engine, dtype: str, rows: int, length: int
) -> None:
    b = Builder("column", 3)
    x = b.load("any", dtype)
    b.store(b.do("reduce_max", x, dtype=dtype), dtype=dtype)
    x_ = edges(dtype, 3 * 5, length).reshape(3, 5, length)[..., :rows].swapaxes(1, 2)
    simulated = agree(engine, b.program(), [x_], [empty((3, 5), dtype)])
    assert "take<4>" in simulated.outcomes[0][0].kernel.text


@pytest.mark.parametrize("rows", WAYS)
def test_index_loads_and_draws_are_the_cpus(engine: Engine, rows: int) -> None:
    b = Builder("column", 2)
    x, element, place = b.load(), b.load(kind="index", dtype="i64"), b.load("zero", kind="index", dtype="i32")
    keys = [b.load("zero", dtype="u32") for _ in range(5)]
    draw = b.do("random", element, *keys)
    weighed = b.do("mul", b.do("mul", x, draw), b.do("cast", place, dtype="f32"))
    b.store(b.do("reduce_sum", weighed))
    words = [np.broadcast_to(np.array([[k]], np.uint32), (rows, 10)) for k in (7, 9, 0, 2, 3)]
    agree(engine, b.program(), [normal(rows, 10), (5, (10, 1)), (100, (3, 0)), *words], [empty((10,))])


@pytest.mark.parametrize("rows", WAYS)
def test_places_may_need_64_bits(engine: Engine, rows: int) -> None:
    b = Builder("column", 2)
    x, far = b.load(), b.load(kind="index", dtype="i64")
    b.store(b.do("reduce_max", b.do("mul", x, b.do("cast", far, dtype="f32"))))
    simulated = agree(engine, b.program(), [normal(rows, 37), (1 << 40, (1 << 34, 1))], [empty((37,))])
    assert "const long long column" in simulated.outcomes[0][0].kernel.text


@pytest.mark.parametrize("seed", range(12))
def test_a_random_program_has_the_bits_of_its_meaning(seed: int) -> None:
    with np.errstate(all="ignore"):
        made = RandomProgram(seed, ("column",))
    assert run_program(made.builder.program(), made.loads, made.outputs).findings == []
    for output, expected in zip(made.outputs, made.expected, strict=True):
        assert np.array_equal(output, expected, equal_nan=True)


@pytest.mark.parametrize("rows", WAYS)
def test_a_sum_may_be_added_to_what_it_overwrites(engine: Engine, rows: int) -> None:
    b = Builder("column", 2)
    x, total = b.load(), b.load()
    b.store(b.do("add", total, b.do("reduce_sum", b.do("mul", x, total))), alias=total)
    x_, before = normal(rows, 40), normal(40)
    ours, theirs = before.copy(), before.copy()
    programs.run_program(engine, b.program(), [x_, over(theirs, rows)], [over(theirs, rows)])
    assert run_program(b.program(), [x_, over(ours, rows)], [over(ours, rows)]).findings == []
    assert np.array_equal(ours, theirs) and not np.array_equal(ours, before)


def test_nothing_runs_where_there_is_no_column() -> None:
    x, y = normal(5, 0), empty((0,))
    assert run_program(programs.reduction("column", "sum"), [x], [over(y, 5)]).outcomes == []
