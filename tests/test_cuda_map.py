"""Pointwise CUDA kernels have the CPU's bits in the simulator, at every tail, layout and dtype, and nothing is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp.executor import Engine
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.pointwise import PRIMITIVES, numpy_dtype
from tests import programs
from tests.on_simulator import run_program
from tests.programs import Builder, empty

SIZES = (1, 2, 3, 7, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4100)
INTEGERS = ("i32", "i64", "u8", "u32")
RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def values_of(dtype: str, count: int, seed: int = 0) -> Any:
    """Values of every size and kind: random bits and the edges."""
    numbers = np.random.default_rng(seed)
    if dtype == "bool":
        return numbers.integers(0, 2, count).astype(bool)
    made = numpy_dtype(dtype)
    words = numbers.integers(0, 256, count * made.itemsize, dtype=np.uint8).view(made).copy()
    if dtype in FLOATS:
        words[::2] = numbers.normal(size=len(words[::2])).astype(made)
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, np.inf, -np.inf, np.nan, 1e-40, 3e4, 300.0, -7.0, 2.0**31, -(2.0**63)]
        words[: len(edges)] = np.array(edges).astype(made)
    else:
        words[:4] = [0, 1, np.iinfo(made).max, np.iinfo(made).min]
        words[4::3] = numbers.integers(0, 9, len(words[4::3]))
    return words


def bits(array: Any) -> bytes:
    """The bytes, all NaN alike: which NaN an operation gives differs between processors."""
    if array.dtype.kind not in "iub":
        array = np.where(np.isnan(array), np.array(np.nan, array.dtype), array)
    return np.ascontiguousarray(array).tobytes()


def agree(engine: Engine, program: Any, operands: list[Any], outputs: list[Any]) -> Any:
    """Both write the same bits, and the detectors are silent."""
    shared = [output.copy() for output in outputs]
    theirs = [operands[s.alias].copy() if s.alias is not None else o for s, o in zip(program.stores, shared, strict=True)]
    given = list(operands)
    for store, own in zip(program.stores, theirs, strict=True):
        if store.alias is not None:
            given[store.alias] = own
    programs.run_program(engine, program, given, theirs)
    simulated = run_program(program, operands, outputs)
    assert simulated.findings == []
    written = [operands[s.alias] if s.alias is not None else o for s, o in zip(program.stores, outputs, strict=True)]
    for number, (ours, expected) in enumerate(zip(written, theirs, strict=True)):
        assert bits(ours) == bits(expected), number
    return simulated


@pytest.mark.parametrize("size", SIZES)
def test_gelu_has_the_cpus_bits_at_every_size(engine: Engine, size: int) -> None:
    agree(engine, programs.gelu(), [normal(size)], [empty((size,))])


@pytest.mark.parametrize("size", [5, 1025])
def test_gelu_in_place_has_the_cpus_bits(engine: Engine, size: int) -> None:
    agree(engine, programs.gelu(alias=True), [normal(size)], [empty((size,))])


def test_rows_and_columns_are_broadcast(engine: Engine) -> None:
    b = Builder("map", 3)
    x, column, row, scalar = b.load(), b.load(), b.load("zero"), b.load("zero")
    b.store(b.do("add", b.do("mul", x, column), b.do("sub", row, scalar)))
    for shape in ((3, 5, 64), (3, 5, 33), (2, 1, 6)):
        operands = [
            normal(*shape),
            np.broadcast_to(normal(shape[2]), shape),
            np.broadcast_to(normal(shape[1], 1), shape),
            np.broadcast_to(normal(1), shape),
        ]
        agree(engine, b.program(), operands, [empty(shape)])


def test_operands_are_read_and_written_through_any_strides(engine: Engine) -> None:
    b = Builder("map", 2)
    b.store(b.do("add", b.load("any"), b.load("any")), "any")
    x, y = normal(7, 9), normal(9, 21)
    out = np.zeros((9, 14), np.float32)
    agree(engine, b.program(), [x[::-1, ::-1].T, y[:, ::3]], [out[:, ::2]])


def test_packs_are_taken_only_where_every_address_allows_them(engine: Engine) -> None:
    b = Builder("map", 2)
    b.store(b.do("mul", b.load(), b.load()))
    base, other = normal(6, 40), normal(6, 40)
    for first, width in ((0, 32), (1, 32), (2, 32), (4, 30), (0, 31)):
        operands = [base[:, first : first + width], other[:, :width]]
        agree(engine, b.program(), operands, [empty((6, width))])


def test_an_index_load_counts_elements(engine: Engine) -> None:
    b = Builder("map", 2)
    index, narrow = b.load("any", "i64", "index"), b.load("one", "i32", "index")
    b.store(index, dtype="i64")
    b.store(narrow, dtype="i32")
    agree(engine, b.program(), [(3, (10, 2)), (-5, (8, 1))], [empty((5, 8), "i64"), empty((5, 8), "i32")])


def test_a_program_without_loops_computes_one_scalar(engine: Engine) -> None:
    b = Builder("map", 0)
    x = b.load("zero")
    b.store(b.do("mul", x, x), "zero")
    y = empty(())
    assert run_program(b.program(), [np.array(3.0, np.float32)], [y]).findings == []
    assert y == 9.0


def test_a_map_over_nothing_is_no_launch() -> None:
    b = Builder("map", 2)
    b.store(b.load())
    assert run_program(b.program(), [np.empty((3, 0), np.float32)], [empty((3, 0))]).outcomes == []


def every_operation(dtype: str) -> tuple[Any, list[Any]]:
    """A program of all operations on two operands of a dtype, each result stored; and the results' dtypes."""
    b = Builder("map", 1)
    x, y = b.load(dtype=dtype), b.load(dtype=dtype)
    made = []
    takes = {"float": FLOATS, "number": FLOATS | set(INTEGERS), "any": FLOATS | set(INTEGERS) | {"bool"}, "bool": {"bool"}}
    for name, primitive in PRIMITIVES.items():
        if dtype in takes[primitive.operands]:
            result = dtype if primitive.result == "same" else primitive.result
            made.append((b.do(name, *(x, y)[: primitive.arity], dtype=result), result))
    less = b.do("lt", x, y, dtype="bool")
    made.append((b.do("select", less, y, x, dtype=dtype), dtype))
    for value, result in made:
        b.store(value, dtype=result)
    return b.program(), [result for _, result in made]


@pytest.mark.parametrize("dtype", ["f32", *INTEGERS, "bool"])
def test_every_operation_has_the_cpus_bits_at_edges_and_random_values(engine: Engine, dtype: str) -> None:
    program, results = every_operation(dtype)
    assert len(results) > 5
    operands = [values_of(dtype, 1531, 1), np.roll(values_of(dtype, 1531, 2), 3)]
    agree(engine, program, operands, [empty((1531,), result) for result in results])


@pytest.mark.parametrize("source", ["f32", "bf16", "f16", *INTEGERS, "bool"])
def test_every_cast_has_the_cpus_bits(engine: Engine, source: str) -> None:
    b = Builder("map", 1)
    x = b.load(dtype=source)
    targets = [t for t in ("f32", "bf16", "f16", *INTEGERS, "bool") if t != source]
    for target in targets:
        b.store(b.do("cast", x, dtype=target), dtype=target)
    agree(engine, b.program(), [values_of(source, 771)], [empty((771,), target) for target in targets])


@pytest.mark.parametrize("first", [0, 1, 1 << 33])
def test_random_draws_have_the_cpus_bits(engine: Engine, first: int) -> None:
    b = Builder("map", 1)
    element = b.load("one", "i64", "index")
    key0, key1, scan, microbatch, step = (b.load("zero", "u32") for _ in range(5))
    draw = b.do("random", element, key0, key1, scan, microbatch, step)
    b.store(b.do("select", b.do("lt", draw, b.number(0.1), dtype="bool"), b.number(0), draw))
    words = [np.broadcast_to(np.array([n], np.uint32), (1027,)) for n in (0x3D5A42A5, 0x71116ACE, 2, 3, 4)]
    agree(engine, b.program(), [(first, (1,)), *words], [empty((1027,))])


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i64", "u8"])
def test_a_copy_moves_each_byte_once(dtype: str) -> None:
    b = Builder("map", 1)
    b.store(b.load(dtype=dtype), dtype=dtype)
    for size in (1024, 4099):
        x, y = values_of(dtype, size), empty((size,), dtype)
        simulated = run_program(b.program(), [x], [y])
        (outcome,) = [outcome for _, outcome in simulated.outcomes]
        moved = sum(t.loaded_bytes + t.stored_bytes for t in outcome.traffic.values())
        assert 2 * x.nbytes <= moved <= 1.05 * 2 * x.nbytes
