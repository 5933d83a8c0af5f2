"""Maps with transposed operands have the CPU's bits in the simulator, at every tail, and move each byte about once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp.executor import Engine
from sexpgpu.ops.pointwise import numpy_dtype
from tests.on_simulator import Simulated, run_program
from tests.programs import Builder, empty
from tests.test_cuda_map import agree

RNG = np.random.default_rng(3)
SIDES = (8, 31, 32, 33, 65)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def numbers(dtype: str, *shape: int) -> Any:
    return (
        (RNG.normal(size=shape) * 50).astype(numpy_dtype("i32" if dtype == "u8" else dtype)).astype(numpy_dtype(dtype))
    )


def copy(dtype: str = "f32", rank: int = 2) -> Any:
    b = Builder("map", rank)
    b.store(b.load("any", dtype), dtype=dtype)
    return b.program()


def is_tiled(simulated: Simulated) -> bool:
    return all("__shared__" in made.kernel.text for made, _ in simulated.outcomes)


@pytest.mark.parametrize("rows", SIDES)
@pytest.mark.parametrize("columns", SIDES)
def test_a_transpose_is_exact_at_every_tail(rows: int, columns: int) -> None:
    x, y = numbers("f32", columns, rows), empty((rows, columns))
    simulated = run_program(copy(), [x.T], [y])
    assert simulated.findings == [] and is_tiled(simulated)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("shape", [(1, 64), (64, 1), (7, 64), (64, 7)])
def test_short_loops_have_no_tiles(shape: tuple[int, int]) -> None:
    x, y = numbers("f32", *shape[::-1]), empty(shape)
    simulated = run_program(copy(), [x.T], [y])
    assert simulated.findings == [] and not is_tiled(simulated)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "i64", "u8"])
def test_a_transpose_moves_any_dtype(dtype: str) -> None:
    x, y = numbers(dtype, 45, 67), empty((67, 45), dtype)
    simulated = run_program(copy(dtype), [x.T], [y])
    assert simulated.findings == [] and is_tiled(simulated)
    assert np.array_equal(y, x.T)


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 1, 0), (2, 0, 1), (1, 2, 0)])
def test_a_permutation_of_three_axes_is_exact(order: tuple[int, int, int]) -> None:
    x = numbers("f32", 9, 33, 40)
    y = empty(x.transpose(order).shape)
    simulated = run_program(copy(rank=3), [x.transpose(order)], [y])
    assert simulated.findings == [] and is_tiled(simulated)
    assert np.array_equal(y, x.transpose(order))


def test_transposed_and_plain_operands_meet_in_one_point(engine: Engine) -> None:
    """Two transposed loads, one of another dtype, a plain one, rows and columns, a transposed store and a plain one."""
    b = Builder("map", 3)
    x, narrow, plain = b.load("any"), b.load("any", "bf16"), b.load()
    row, column = b.load("zero"), b.load()
    total = b.do("mul", b.do("add", x, b.do("mul", plain, row)), b.do("add", b.do("cast", narrow), column))
    b.store(total)
    b.store(b.do("cast", b.do("neg", total), dtype="bf16"), "any", "bf16")
    shape = (3, 37, 66)
    turned = (3, 66, 37)
    out = empty(turned, "bf16")
    operands = [
        numbers("f32", *turned).transpose(0, 2, 1),
        numbers("bf16", *turned).transpose(0, 2, 1),
        numbers("f32", *shape),
        np.broadcast_to(numbers("f32", 37, 1), shape),
        np.broadcast_to(numbers("f32", 66), shape),
    ]
    assert is_tiled(agree(engine, b.program(), operands, [empty(shape), out.transpose(0, 2, 1)]))


def test_a_transposed_operand_is_overwritten_in_place(engine: Engine) -> None:
    b = Builder("map", 2)
    x, plain = b.load("any"), b.load()
    b.store(b.do("add", x, plain), "any", alias=x)
    assert is_tiled(agree(engine, b.program(), [numbers("f32", 50, 70).T, numbers("f32", 70, 50)], [empty((70, 50))]))


def test_a_reversed_transpose_is_read_backwards(engine: Engine) -> None:
    x = numbers("f32", 40, 35)
    assert is_tiled(agree(engine, copy(), [x[::-1, ::-1].T], [empty((35, 40))]))


def test_operands_beyond_the_shared_memory_are_read_where_they_are(engine: Engine) -> None:
    b = Builder("map", 2)
    loads = [b.load("any", "i64") for _ in range(6)]
    total = loads[0]
    for load in loads[1:]:
        total = b.do("add", total, load, dtype="i64")
    b.store(total, dtype="i64")
    simulated = agree(engine, b.program(), [numbers("i64", 33, 40).T for _ in loads], [empty((40, 33), "i64")])
    assert simulated.outcomes[0][0].kernel.text.count("__shared__") == 4


def test_a_transpose_moves_each_byte_once() -> None:
    x, y = numbers("f32", 128, 96), empty((96, 128))
    (outcome,) = [outcome for _, outcome in run_program(copy(), [x.T], [y]).outcomes]
    assert sum(t.loaded_bytes + t.stored_bytes for t in outcome.traffic.values()) == 2 * x.nbytes


def test_the_loop_of_most_bytes_is_the_tiles() -> None:
    """The bf16 operand's neighbours are along loop 0, the f32 operand's along loop 1."""
    b = Builder("map", 3)
    b.store(b.do("add", b.load("any"), b.do("cast", b.load("any", "bf16"))))
    x, narrow = numbers("f32", 9, 10, 12), numbers("bf16", 10, 12, 9)
    operands = [x.transpose(0, 2, 1), narrow.transpose(2, 1, 0)]
    y = empty((9, 12, 10))
    simulated = run_program(b.program(), operands, [y])
    assert simulated.findings == []
    assert "are along loop 1." in simulated.outcomes[0][0].kernel.text
    assert np.array_equal(y, operands[0] + operands[1].astype(np.float32))
