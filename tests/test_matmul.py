"""Products as cuBLASLt takes them: what is described, what is not taken, and what is never told it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sexpgpu.cuda.cublas import Compute, EpilogueFlag
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.cuda.matmul import Matmul, Rules, Stored, check, describe, why_not
from sexpgpu.plan.kernel import Matrix, Place, Product
from tests.fake_cublas.products import described, product

replace = msgspec.structs.replace


# What is described


def test_a_linear_layer_is_described_by_columns() -> None:
    # x [64 × 32] · Wᵀ, W [128 × 32]: by columns W is 32 × 128 and is turned, x is 32 × 64, the result 128 × 64.
    made = described(product(64, 128, 32, b_turned=True, dtype="bf16"))
    assert made.left == Stored("bf16", 32, 128, 32, 0, 256)
    assert made.right == Stored("bf16", 32, 64, 32, 0, 256)
    assert made.result == Stored("bf16", 128, 64, 128, 0, 256)
    assert (made.left_turned, made.right_turned, made.batch, made.calls) == (True, False, 1, ((0, 0, 0),))
    assert made.places == (Place(1), Place(0), Place(2))


def test_a_gradient_of_a_weight_reads_its_left_operand_turned() -> None:
    # dWᵀ = xᵀ · dy: x [64 × 32] is there as its own transpose.
    made = described(product(32, 128, 64, a_turned=True))
    assert (made.right, made.right_turned) == (Stored("f32", 32, 64, 32, 0, 256), True)
    assert (made.left, made.left_turned) == (Stored("f32", 128, 64, 128, 0, 256), False)


def test_a_batch_has_even_steps() -> None:
    made = described(product(4, 6, 8, batch=5))
    assert (made.batch, made.left.step, made.right.step, made.result.step) == (5, 48, 32, 24)


def test_matrices_that_all_read_one_operand_have_no_step_there() -> None:
    shared = product(4, 6, 8, batch=3)
    made = described(replace(shared, b=replace(shared.b, starts=(0, 0, 0))))
    assert (made.batch, made.left.step) == (3, 0)


def test_what_is_not_evenly_spaced_is_several_calls() -> None:
    # Heads of two entries of a batch, say: six matrices, after three there is a gap.
    made = described(product(4, 6, 8, batch=6, between=(3,)))
    assert (made.batch, made.calls) == (3, ((0, 0, 0), (4 * (3 * 48 + 8), 4 * (3 * 32 + 8), 4 * (3 * 24 + 8))))


def test_places_of_calls_are_in_bytes_of_each_operand() -> None:
    made = described(product(4, 6, 8, batch=4, between=(2,), dtype="bf16", result="f32"))
    assert made.calls == ((0, 0, 0), (2 * (2 * 48 + 8), 2 * (2 * 32 + 8), 4 * (2 * 24 + 8)))


def test_matrices_from_the_last_to_the_first_are_a_call_each() -> None:
    backward = product(4, 6, 8, batch=3)
    made = described(replace(backward, a=replace(backward.a, starts=(64, 32, 0))))
    assert (made.batch, made.calls) == (1, ((0, 256, 0), (192, 128, 96), (384, 0, 192)))


def test_alignment_is_that_of_every_matrix() -> None:
    moved = product(4, 6, 8, batch=2)
    made = described(replace(moved, a=replace(moved.a, place=Place(0, 16), starts=(0, 34))))
    # 16 bytes of the place, 136 of the step; 96 of the result's, 192 of the other's.
    assert (made.right.alignment_bytes, made.result.alignment_bytes, made.left.alignment_bytes) == (8, 32, 64)
    far = describe(moved, lambda place: 4 if place.buffer == 1 else 256)
    assert isinstance(far, Matmul) and (far.left.alignment_bytes, far.right.alignment_bytes) == (4, 128)


def test_a_row_and_a_column_have_any_stride_along_their_one_element() -> None:
    row = Product(
        "f32", 1, 6, 8, Matrix(Place(0), 0, 1, (0,)), Matrix(Place(1), 6, 1, (0,)), Matrix(Place(2), 99, 1, (0,))
    )
    assert described(row).result == Stored("f32", 6, 1, 6, 0, 256)
    column = Product(
        "f32", 4, 1, 8, Matrix(Place(0), 8, 1, (0,)), Matrix(Place(1), 5, 77, (0,)), Matrix(Place(2), 3, 1, (0,))
    )
    made = described(column)
    assert (made.left, made.left_turned) == (Stored("f32", 1, 8, 5, 0, 256), False)
    assert made.result == Stored("f32", 1, 4, 3, 0, 256)


def test_f32_is_rounded_to_tf32_only_where_that_is_allowed() -> None:
    allowed = Rules(allow_tf32=True)
    assert described(product(4, 4, 4)).compute == Compute.C_32F
    assert described(product(4, 4, 4), rules=allowed).compute == Compute.C_32F_FAST_TF32
    assert described(product(4, 4, 4, dtype="bf16"), rules=allowed).compute == Compute.C_32F


WHY_NOT = {
    "no elements": (product(4, 4, 0), "it has no elements to multiply"),
    "integers": (product(4, 4, 4, dtype="i32"), "cuBLASLt multiplies no i32 to i32"),
    "narrowed": (product(4, 4, 4, result="bf16"), "cuBLASLt multiplies no f32 to bf16"),
    "loops": (
        replace(product(4, 4, 4), a=Matrix(Place(0), 0, 1, (0,), rows=((2, 8), (2, 3)))),
        "a is no matrix, but loops",
    ),
    "windows": (
        replace(product(4, 4, 4), a=Matrix(Place(0), 1, 1, (0,))),
        "the rows of a overlap, or its elements are no neighbours",
    ),
    "every other": (
        replace(product(4, 4, 4), b=Matrix(Place(1), 8, 2, (0,))),
        "the rows of b overlap, or its elements are no neighbours",
    ),
    "one row": (
        replace(product(4, 4, 4), c=Matrix(Place(2), 0, 1, (0,))),
        "the rows of c overlap, or its elements are no neighbours",
    ),
    "one result": (
        replace(product(4, 4, 4, batch=2), c=Matrix(Place(2), 4, 1, (0, 4))),
        "the matrices of c overlap",
    ),
    "scattered": (
        replace(
            product(2, 2, 2, batch=130),
            a=Matrix(Place(0), 2, 1, tuple(z * (z + 1) for z in range(130))),
        ),
        "its matrices take more than 64 calls",
    ),
}


@pytest.mark.parametrize("name", WHY_NOT)
def test_why_a_product_is_not_taken(name: str) -> None:
    asked, words = WHY_NOT[name]
    assert why_not(asked) == words


def test_why_an_epilogue_is_not_taken() -> None:
    assert why_not(product(4, 4, 4), Epilogue(Place(3), "gelu-tanh")) == ""
    assert why_not(product(4, 4, 4), Epilogue(None, "gelu")) == "cuBLASLt's GELU is the tanh form, not that of erf"
    added = product(4, 4, 4, accumulate=True)
    assert why_not(added) == ""
    assert why_not(added, Epilogue(Place(3))) == "bias and activation do not go with adding to a result"


def test_results_side_by_side_in_their_rows_do_not_overlap() -> None:
    # Heads of [rows heads width]: each is 4 × 4 in rows of 12.
    heads = product(4, 4, 4, batch=3)
    assert described(replace(heads, c=Matrix(Place(2), 12, 1, (0, 4, 8)))).batch == 3
    assert why_not(replace(heads, c=Matrix(Place(2), 11, 1, (0, 4, 8)))) == "the matrices of c overlap"


WRONG: dict[str, dict[str, Any]] = {
    "inner sizes differ": {"left": Stored("f32", 6, 7, 6, 0, 256)},
    "the result is another size": {"result": Stored("f32", 6, 5, 6, 0, 256)},
    "lines overlap": {"right": Stored("f32", 8, 4, 7, 0, 256)},
    "an unaligned element": {"right": Stored("f32", 8, 4, 8, 0, 2)},
    "types differ": {"right": Stored("bf16", 8, 4, 8, 0, 256)},
    "a bias that nobody adds": {"bias": Place(3)},
    "an epilogue without its bias": {"epilogue": EpilogueFlag.BIAS},
    "nothing": {"batch": 0},
    "no calls": {"calls": ()},
    "results on each other": {"batch": 2},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_the_library_would_take_without_a_word_is_an_error(name: str) -> None:
    right = described(product(4, 6, 8))
    check(right)
    fields = {field: getattr(right, field) for field in right.__dataclass_fields__}
    with pytest.raises(AssertionError):
        check(Matmul(**{**fields, **WRONG[name]}))
