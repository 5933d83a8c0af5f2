"""Kernels that a product's call does on the way: what it computes, and where it may not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.cuda.folding import Fold, folds
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.kernel import Access, Buffer, Generated, Kernel, Matrix, Place, Plan, Product
from tests.programs import Builder

M, N, K = 4, 8, 16
# a [M K], b [K N], the bias, then what is made; from ARENA on in the arena.
A, B, BIAS, C, SUM, OTHER = range(6)
SIZES = {A: M * K, B: K * N, BIAS: N, C: M * N, SUM: M * N, OTHER: M * N}


def plan_of(launches: Sequence[Kernel], arena: Sequence[int] = (C, SUM, OTHER), outputs: Sequence[int] = ()) -> Plan:
    """Buffers of the arena lie one after the other; a number that comes again lies where it was."""
    offsets: dict[int, int] = {}
    for number in arena:
        offsets.setdefault(number, sum(4 * SIZES[n] for n in offsets))
    buffers = tuple(
        Buffer(f"b{n}", 4 * size, "arena" if n in offsets else "external", offsets.get(n, 0)) for n, size in SIZES.items()
    )
    externals = {b.name: TensorType("f32", (b.size_bytes // 4,)) for b in buffers if b.kind == "external"}
    made = {f"o{n}": (Place(n), TensorType("f32", (SIZES[n],))) for n in outputs}
    return Plan(tuple(launches), buffers, sum(4 * SIZES[n] for n in offsets), externals, made)


def product(dtype: str = "f32", c: int = C, accumulate: bool = False) -> Product:
    a, b, out = (Matrix(Place(p), columns, 1, (0,)) for p, columns in ((A, K), (B, N), (c, N)))
    return Product(dtype, M, N, K, a, b, out, accumulate=accumulate, result="f32")


def added(other: int = BIAS, strides: tuple[int, int] = (0, 1), op: str = "add", target: int = SUM) -> Generated:
    b = Builder("map", 2)
    b.store(b.do(op, b.load(), b.load()))
    return Generated(
        b.program(), (M, N), (Access(Place(C), (N, 1)), Access(Place(other), strides)), (Access(Place(target), (N, 1)),)
    )


def columns_of(number: int = B, rows: int = K, target: int = BIAS) -> Generated:
    b = Builder("column", 2)
    b.store(b.do("reduce_sum", b.load()))
    return Generated(b.program(), (rows, N), (Access(Place(number), (N, 1)),), (Access(Place(target), (0, 1)),))


def reads(number: int) -> Generated:
    b = Builder("map", 1)
    b.store(b.load())
    return Generated(b.program(), (M * N,), (Access(Place(number), (1,)),), (Access(Place(OTHER), (1,)),))


def test_a_bias_is_added_by_the_call() -> None:
    made = folds(plan_of([product(), added()]))
    assert made == {0: Fold(product(c=SUM), Epilogue(bias=Place(BIAS)), 1)}


def test_a_sum_that_is_rounded_once_to_the_operands_dtype_is_one_with_its_bias_of_f32() -> None:
    b = Builder("map", 2)
    b.store(b.do("cast", b.do("add", b.load(), b.load()), dtype="bf16"), dtype="bf16")
    rounded = Generated(
        b.program(), (M, N), (Access(Place(C), (N, 1)), Access(Place(BIAS), (0, 1))), (Access(Place(SUM), (N, 1)),)
    )
    made = replace(product("bf16", c=SUM), result="bf16")
    assert folds(plan_of([product("bf16"), rounded])) == {0: Fold(made, Epilogue(Place(BIAS), bias_dtype="f32"), 1)}
    assert folds(plan_of([product("f32"), rounded])) == {}


def test_columns_are_summed_by_the_call_whichever_stands_first() -> None:
    expected = Epilogue(gradient=Place(BIAS))
    assert folds(plan_of([product(), columns_of()])) == {0: Fold(product(), expected, 1)}
    assert folds(plan_of([columns_of(), product()])) == {1: Fold(product(), expected, 0)}


REFUSED: dict[str, Plan] = {
    "a product that something else reads": plan_of([product(), added(), reads(C)]),
    "a product that is a result": plan_of([product(), added()], outputs=[C]),
    "a product outside the arena": plan_of([product(), added()], arena=[SUM, OTHER]),
    "a product that is added to what is there": plan_of([product(accumulate=True), added()]),
    "another operation": plan_of([product(), added(op="mul")]),
    "one number a row": plan_of([product(), added(strides=(1, 0))]),
    "a whole matrix": plan_of([product(), added(other=OTHER, strides=(N, 1))]),
    "a sum that lies where the product reads": plan_of([product(), added(target=A)]),
    "a sum whose place is still read": plan_of([product(), reads(SUM), added()]),
    "columns of another matrix": plan_of([product(), columns_of(number=A, rows=M * K // N)]),
    "columns of some of its rows": plan_of([product(), columns_of(rows=K // 2)]),
    "sums that are still read": plan_of([columns_of(), reads(BIAS), product()]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_it_is_not_the_same_the_kernel_stays(name: str) -> None:
    assert folds(REFUSED[name]) == {}


def test_a_sum_takes_the_place_of_its_product() -> None:
    b = Builder("map", 2)
    x, bias = b.load(), b.load()
    b.store(b.do("add", x, bias), alias=x)
    in_place = Generated(
        b.program(), (M, N), (Access(Place(C), (N, 1)), Access(Place(BIAS), (0, 1))), (Access(Place(C), (N, 1)),)
    )
    assert folds(plan_of([product(), in_place, reads(C)])) == {}
    assert folds(plan_of([product(), in_place]))[0].product == product()
