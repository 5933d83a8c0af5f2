"""CUDA kernels of rows have the CPU's bits in the simulator, for every reduction, dtype and tail, and nothing is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.codegen import cuda_rows
from sexpgpu.interp.executor import Engine
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Program
from tests import programs
from tests.on_simulator import Simulated, run_program
from tests.programs import Builder, empty
from tests.random_programs import RandomProgram

RNG = np.random.default_rng(12)
NUMBERS = ("sum", "prod", "max", "min", "argmax", "argmin")
TAILS = (1, 2, 3, 8, 15, 17, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 2049)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def whole(rows: int, length: int, dtype: str = "f32") -> Any:
    """An output of one element a row."""
    return np.broadcast_to(empty((rows, 1), dtype), (rows, length))


def same_bits(ours: Any, expected: Any) -> bool:
    """NaNs may differ in their payload."""
    nothing = (ours != ours) & (expected != expected)
    a, b = (np.where(nothing, 0, x).astype(x.dtype).tobytes() for x in (ours, expected))
    return a == b


def agree(engine: Engine, program: Program, operands: list[Any], outputs: list[Any]) -> Simulated:
    """Both write the same bits, and the detectors are silent."""
    written = [o if s.alias is None else operands[s.alias] for o, s in zip(outputs, program.stores, strict=True)]
    before = [programs.base_of(array).copy() for array in written]
    programs.run_program(engine, program, operands, outputs)
    theirs = [array.copy() for array in written]
    for array, old in zip(written, before, strict=True):
        programs.base_of(array)[...] = old
    simulated = run_program(program, operands, outputs)
    assert simulated.findings == []
    for ours, expected in zip(written, theirs, strict=True):
        assert same_bits(ours, expected)
    return simulated


def every_reduction(dtype: str) -> Program:
    b = Builder("row", 2)
    x = b.load(dtype=dtype)
    kept = "f32" if dtype in ("bf16", "f16") else dtype
    for op in ("any", "all") if dtype == "bool" else NUMBERS:
        result = "i32" if op.startswith("arg") else kept
        b.store(b.do(f"reduce_{op}", x, dtype=result), "zero", result)
    return b.program()


def outputs_of(program: Program, rows: int, length: int) -> list[Any]:
    return [whole(rows, length, store.dtype) for store in program.stores]


def elements(rows: int, length: int, dtype: str) -> Any:
    """Near ±1, so that products neither vanish nor overflow; integers repeat and their sums and products wrap."""
    if dtype == "bool":
        return RNG.random((rows, length)) < RNG.choice([0, 0.5, 1], (rows, 1))
    if dtype in ("f32", "bf16", "f16"):
        return (RNG.choice([-1, 1], (rows, length)) + RNG.normal(0, 0.01, (rows, length))).astype(numpy_dtype(dtype))
    info = np.iinfo(numpy_dtype(dtype))
    return RNG.choice(RNG.integers(info.min, info.max, 50, numpy_dtype(dtype), endpoint=True), (rows, length))


@pytest.mark.parametrize("length", TAILS)
def test_every_reduction_of_f32_has_the_cpus_bits_at_every_tail(engine: Engine, length: int) -> None:
    program = every_reduction("f32")
    agree(engine, program, [elements(9, length, "f32")], outputs_of(program, 9, length))


@pytest.mark.parametrize("length", [1, 33, 1025])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "i32", "i64", "u8", "u32", "bool"])
def test_every_reduction_of_other_dtypes_has_the_cpus_bits(engine: Engine, dtype: str, length: int) -> None:
    program = every_reduction(dtype)
    agree(engine, program, [elements(5, length, dtype)], outputs_of(program, 5, length))


@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 33])
@pytest.mark.parametrize("length", [4, 20])
def test_any_number_of_short_rows_has_the_cpus_bits(engine: Engine, rows: int, length: int) -> None:
    program = every_reduction("f32")
    agree(engine, program, [elements(rows, length, "f32")], outputs_of(program, rows, length))


SPECIAL = {
    "a NaN is the greatest and the least": (1.0, 2.0, np.nan, -np.inf),
    "of equals the first wins": (3.0, 3.0, -2.0, -2.0),
    "zeros keep their signs": (0.0, -0.0, -0.0, 0.0),
    "infinities": (np.inf, -np.inf, np.inf, 1.0),
    "the least of all": (-np.inf, -np.inf, -np.inf, -np.inf),
    "the greatest of all": (np.inf, np.inf, np.inf, np.inf),
}


def special(length: int) -> Any:
    """Two rows of each kind."""
    return np.stack([RNG.choice(np.array(values, np.float32), length) for values in SPECIAL.values() for _ in range(2)])


@pytest.mark.parametrize("length", [4, 33, 1030])
def test_special_values_are_reduced_as_on_the_cpu(engine: Engine, length: int) -> None:
    program = every_reduction("f32")
    given = special(length)
    agree(engine, program, [given], outputs_of(program, len(given), length))


@pytest.mark.parametrize("length", [20000])
def test_long_rows_read_backwards_give_the_cpus_choices(engine: Engine, length: int) -> None:
    """The first of two passes ends where the second begins; which of equal zeros is the maximum must not change."""
    b = Builder("row", 2)
    x = b.load()
    chosen = [b.do(f"reduce_{op}", x, dtype="i32" if op.startswith("arg") else "f32") for op in NUMBERS[2:]]
    total = b.do("reduce_sum", b.do("exp", b.do("sub", x, chosen[0])))
    for value, dtype in zip([*chosen, total], ("f32", "f32", "i32", "i32", "f32")):
        b.store(value, "zero", dtype)
    given = special(length)
    # Wherever the greatest is, it is seen.
    given[0], given[0, :: length // 16 - 1] = 1, np.arange(17) + 2
    given = np.concatenate([given, *(np.roll(given[:1], length // 16 * k) for k in range(16))])
    agree(engine, b.program(), [given], outputs_of(b.program(), len(given), length))


def test_log_sum_exp_over_a_vocabulary_has_the_cpus_bits(engine: Engine) -> None:
    b = Builder("row", 2)
    x = b.load()
    greatest = b.do("reduce_max", x)
    total = b.do("reduce_sum", b.do("exp", b.do("sub", x, greatest)))
    b.store(b.do("add", greatest, b.do("log", total)), "zero")
    agree(engine, b.program(), [normal(1, 50257)], [whole(1, 50257)])


@pytest.mark.parametrize("rows", [3, 260])
def test_rows_of_more_operands_than_registers_hold_have_the_cpus_bits(engine: Engine, rows: int) -> None:
    """Few rows have more loads under way at once than many."""
    b = Builder("row", 2)
    loads = [b.load() for _ in range(5)]
    factor = b.do("reduce_sum", loads[0])
    for x in loads[1:]:
        factor = b.do("add", factor, b.do("reduce_max", b.do("mul", x, factor)))
    for number, x in enumerate(loads):
        b.store(b.do("mul", x, factor), alias=loads[0] if number == 0 else None)
    operands = [normal(rows, 900) for _ in loads]
    made = agree(engine, b.program(), operands, [operands[0], *(empty((rows, 900)) for _ in loads[1:])])
    assert made.made[0][0].note == "rows of 900 are too long for registers: read 2 times"


def test_rows_without_elements_have_the_cpus_neutral_values(engine: Engine) -> None:
    program = every_reduction("f32")
    outputs = outputs_of(program, 3, 0)
    agree(engine, program, [np.zeros((3, 0), np.float32)], outputs)
    assert np.array_equal(programs.base_of(outputs[0]).reshape(-1).view(np.uint32), [0, 0, 0])


@pytest.mark.parametrize("length", [1, 16, 100, 1024, 1030, 5000, 17000])
def test_softmax_in_place_has_the_cpus_bits(engine: Engine, length: int) -> None:
    x = normal(3, length)
    agree(engine, programs.softmax(alias=True), [x], [x])


@pytest.mark.parametrize("length", [1, 33, 768, 1025, 9000])
def test_layernorm_has_the_cpus_bits(engine: Engine, length: int) -> None:
    gain, bias = (np.broadcast_to(normal(length), (5, length)) for _ in range(2))
    count = np.broadcast_to(np.full((5, 1), length, np.float32), (5, length))
    outputs = [empty((5, length)), whole(5, length), whole(5, length)]
    agree(engine, programs.layernorm(), [normal(5, length), gain, bias, count], outputs)


@pytest.mark.parametrize("seed", range(24))
def test_a_random_row_program_has_the_bits_of_its_meaning(seed: int) -> None:
    with np.errstate(all="ignore"):
        made = RandomProgram(seed, ("row",))
    simulated = run_program(made.builder.program(), made.loads, made.outputs)
    assert simulated.findings == []
    for output, expected in zip(made.outputs, made.expected, strict=True):
        assert np.array_equal(output, expected, equal_nan=True)


def test_places_and_draws_along_rows_have_the_cpus_bits(engine: Engine) -> None:
    """A mask below the diagonal, and noise whose keys are values of the whole program."""
    b = Builder("row", 2)
    x, row, column = b.load(), b.load("zero", "i64", "index"), b.load("any", "i64", "index")
    keys = [b.number(value, "u32") for value in (7, 11, 0, 3, 5)]
    noise = b.do("random", b.do("add", b.do("mul", row, b.number(40, "i64"), dtype="i64"), column, dtype="i64"), *keys)
    kept = b.do("select", b.do("le", column, row, dtype="bool"), b.do("add", x, noise), b.number(-np.inf))
    e = b.do("exp", b.do("sub", kept, b.do("reduce_max", kept)))
    b.store(b.do("div", e, b.do("reduce_sum", e)))
    b.store(noise)
    operands = [normal(40, 40), (0, (1, 0)), (0, (0, 1))]
    agree(engine, b.program(), operands, [empty((40, 40)), empty((40, 40))])


@pytest.mark.parametrize("length", [20, 100, 1500])
def test_a_value_of_the_row_may_overwrite_the_one_that_it_was_made_of(engine: Engine, length: int) -> None:
    b = Builder("row", 2)
    x, old = b.load(), b.load("zero")
    b.store(b.do("reduce_sum", b.do("mul", x, old)), "zero", alias=old)
    rows = np.broadcast_to(normal(5, 1), (5, length))
    agree(engine, b.program(), [normal(5, length), rows], [rows])


@pytest.mark.parametrize("length", [40, 1500])
def test_rows_of_strided_memory_have_the_cpus_bits(engine: Engine, length: int) -> None:
    b = Builder("row", 3)
    x = b.load("any")
    b.store(b.do("sub", x, b.do("reduce_max", x)), "any")
    x = normal(2, length, 3).swapaxes(1, 2)[..., ::-1]
    agree(engine, b.program(), [x], [empty((2, length, 3)).swapaxes(1, 2)])


@pytest.mark.parametrize(
    ("length", "factor", "note"),
    [
        (16384, 1, ""),
        (16385, 2, "rows of 16385 are too long for registers: read 3 times"),
    ],
)
def test_a_launch_says_how_many_bytes_it_moves_and_why(length: int, factor: float, note: str) -> None:
    """Three reads and one write of what must be read and written once, but for the rounds that a pass takes over."""
    simulated = run_program(programs.softmax(), [normal(1, length)], [empty((1, length))])
    ((_, launch, moved),) = simulated.moved_bytes()
    assert (launch.factor, launch.note) == (factor, note)
    assert 0.98 * factor <= moved / (2 * 4 * length) <= factor


@pytest.mark.parametrize("length", [64, 1024, 1030, 16384])
def test_rows_that_fit_in_registers_are_moved_once(length: int) -> None:
    gain, bias = (np.broadcast_to(normal(length), (9, length)) for _ in range(2))
    count = np.broadcast_to(np.full((1, 1), length, np.float32), (9, length))
    outputs = [empty((9, length)), whole(9, length), whole(9, length)]
    simulated = run_program(programs.layernorm(), [normal(9, length), gain, bias, count], outputs)
    ((_, _, moved),) = simulated.moved_bytes()
    least = 4 * (9 * length + 2 * length + 1 + 9 * length + 2 * 9)
    assert least <= moved <= 1.05 * least


@pytest.mark.parametrize("length", [5, 33, 1030])
def test_offsets_of_64_bits_give_the_same_bits(engine: Engine, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """As launches of 2^31 elements or more have them."""
    monkeypatch.setattr(cuda_rows, "is_wide", lambda launch: True)
    agree(engine, programs.softmax(), [normal(3, length)], [empty((3, length))])
    program = every_reduction("f32")
    given = normal(2, 3, length).swapaxes(0, 1)
    agree(engine, program, [given[:, 0]], outputs_of(program, 3, length))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("length", [33, 1030])
def test_narrow_floats_are_rounded_where_they_are_stored(engine: Engine, dtype: str, length: int) -> None:
    """A softmax in f32 of narrow elements, in place, and a mask of the elements above the row's mean."""
    b = Builder("row", 2)
    narrow = b.load(dtype=dtype)
    x = b.do("cast", narrow)
    e = b.do("exp", b.do("sub", x, b.do("reduce_max", x)))
    share = b.do("div", e, b.do("reduce_sum", e))
    b.store(b.do("cast", share, dtype=dtype), dtype=dtype, alias=narrow)
    b.store(b.do("gt", b.do("mul", share, b.number(length)), b.number(1), dtype="bool"), dtype="bool")
    given = normal(3, length).astype(numpy_dtype(dtype))
    agree(engine, b.program(), [given], [given, empty((3, length), "bool")])
