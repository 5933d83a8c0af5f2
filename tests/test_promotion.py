"""Dtypes and shapes of operations on tensors and numbers, as the language page says."""

from __future__ import annotations

import numpy as np
import pytest
from elaborating import elaborated, errors_of, run_of, value_of

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import DTYPES, promote

# From the language page: bool < u8 < i32 < i64, u8 < u32 < i64; f16 with bf16 is f32, either with f32 is f32; an
# integer with a float takes the float's dtype; i32 with u32 has none.
TABLE = {
    ("bool", "u8"): "u8", ("bool", "i32"): "i32", ("bool", "i64"): "i64", ("bool", "u32"): "u32", ("bool", "f32"): "f32",
    ("bool", "bf16"): "bf16", ("bool", "f16"): "f16", ("u8", "i32"): "i32", ("u8", "u32"): "u32", ("u8", "i64"): "i64",
    ("u8", "f16"): "f16", ("u8", "bf16"): "bf16", ("u8", "f32"): "f32", ("i32", "i64"): "i64", ("i32", "u32"): None,
    ("i32", "f16"): "f16", ("i32", "bf16"): "bf16", ("i32", "f32"): "f32", ("u32", "i64"): "i64", ("u32", "f16"): "f16",
    ("u32", "bf16"): "bf16", ("u32", "f32"): "f32", ("i64", "f16"): "f16", ("i64", "bf16"): "bf16", ("i64", "f32"): "f32",
    ("f16", "bf16"): "f32", ("f16", "f32"): "f32", ("bf16", "f32"): "f32",
}  # fmt: skip


def node_of(expression: str) -> Node:
    made = elaborated(run_of("(mean x)", rest=f":steps 1 :predict {expression}"))
    assert made.predict is not None
    return made.predict.outputs["predict"]


def test_the_table_names_every_pair() -> None:
    assert {frozenset(pair) for pair in TABLE} == {frozenset((a, b)) for a in DTYPES for b in DTYPES if a != b}


@pytest.mark.parametrize(("a", "b"), TABLE)
def test_two_dtypes_promote_in_both_orders(a: str, b: str) -> None:
    assert promote(a, b) == promote(b, a) == TABLE[a, b]  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dtype_promotes_to_itself(dtype: str) -> None:
    assert promote(dtype, dtype) == dtype  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("(+ (cast x bf16) (cast x f16))", "f32"),
        ("(+ (cast x i32) (cast x bf16))", "bf16"),
        ("(+ (cast x u8) y2)", "i32"),
        # A compile-time number takes the tensor's dtype …
        ("(+ (cast x bf16) 1)", "bf16"),
        ("(+ (cast x bf16) 1.5)", "bf16"),
        ("(+ y2 1)", "i32"),
        ("(* (cast x u8) 2)", "u8"),
        # … but a float number beside an integer or bool tensor gives f32.
        ("(+ y2 1.5)", "f32"),
        ("(* (> x 0) 0.5)", "f32"),
        ("(where (> x 0) 1.0 0)", "f32"),
        ("(where (> x 0) 1 0)", "i32"),
        ("(where (> x 0) x 0)", "f32"),
        # `/` is float division, transcendental functions are floats.
        ("(/ y2 2)", "f32"),
        ("(/ y2 y2)", "f32"),
        ("(exp y2)", "f32"),
        ("(sqrt (cast x f16))", "f16"),
        ("(// y2 2)", "i32"),
        ("(mod y2 3)", "i32"),
        ("(floor y2)", "i32"),
        ("(< x 1)", "bool"),
        ("(sum (> x 0))", "i32"),
        ("(mean (> x 0))", "f32"),
        ("(argmax x :axis 1)", "i32"),
        ("(matmul (cast x bf16) (zeros [64 2]))", "f32"),
        ("(one-hot y 4)", "f32"),
        ("(concat [x y2])", "f32"),
        ("(stack [1 2])", "i32"),
        ("(zeros [2] :dtype bool)", "bool"),
        ("(cast true f32)", None),
    ],
)
def test_dtype_of(expression: str, dtype: str | None) -> None:
    expression = expression.replace("y2", "(broadcast-to (expand-dims y 1) [8 64])")
    if dtype is None:
        expression, dtype = f"(+ x {expression})", "f32"
    assert node_of(expression).dtype == dtype


def test_step_beside_an_integer_tensor_gives_f32() -> None:
    made = elaborated(run_of("(mean (* y step))"))
    assert made.training.outputs["loss"].dtype == "f32"


def test_i32_and_u32_do_not_combine() -> None:
    (error,) = errors_of(run_of("(mean (+ (cast x i32) (cast x u32)))"))
    assert error.code == "E-TYPE-003" and error.message == "+: i32 and u32 have no common dtype"


def test_a_number_outside_an_integers_range_is_refused() -> None:
    (error,) = errors_of(run_of("(mean (+ (cast x u8) 256))"))
    assert error.code == "E-TYPE-001" and error.message == "+: 256 does not fit u8"


def test_bool_tensors_are_no_numbers() -> None:
    (error,) = errors_of(run_of("(mean (+ (> x 0) (> x 1)))"))
    assert error.code == "E-TYPE-001" and "bool" in error.message


def test_shapes_broadcast_as_numpys() -> None:
    x = np.arange(512.0).reshape(8, 64)
    expected = np.broadcast_to(x[:, None, :] + np.arange(3.0).reshape(3, 1), (8, 3, 64))
    got = value_of("(+ (expand-dims x 1) (expand-dims (cast (iota 3) f32) 1))", x=x)
    np.testing.assert_array_equal(got, expected)


def test_labels_of_both_operands_meet_in_the_result() -> None:
    node = node_of("(+ (expand-dims y 1) (expand-dims (mean x :axis 0) 0))")
    assert str(node.type) == "f32[batch=8 64]"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(/ 6 3)", 2), ("(/ 16 3)", 16 / 3), ("(// 7 2)", 3), ("(// -7 2)", -4), ("(mod -7 3)", 2), ("(pow 2 10)", 1024),
        ("(pow 2 -1)", 0.5), ("(- 5)", -5), ("(- 5 2 1)", 2), ("(/ 2)", 0.5), ("(+)", 0), ("(* 2 3 4)", 24),
        ("(maximum 1 3 2)", 3), ("(minimum 1 3 2)", 1), ("(if (= 1 1.0) 1 2)", 1), ("(if (< 1 2) 1 2)", 1),
        ("(length (range 2 11 3))", 3), ("(nth [5 6 7] -1)", 7), ("(fold + 0 [1 2 3])", 6), ("(nth (map square [1 2 3]) 2)", 9),
        ("(length (append [1] [2 3]))", 3), ("(dim x 1)", 64), ("(rank x)", 2), ("(size x)", 512), ("(nth (shape x) 0)", 8),
        ("(if (= (dtype x) f32) 1 0)", 1), ('(if (= (str "a" 1 [2 true]) "a1[2 true]") 1 0)', 1), ("(abs -3)", 3),
        ("(cast 2.7 i32)", 2), ("(if (and true (or false true)) 1 0)", 1), ("(cond (false 1) ((= 1 1) 2) (else 3))", 2),
        ("((fn (a b) (- a b)) 5 3)", 2), ("(let ((a 1) (b 2)) (let ((a b) (b a)) (- a b)))", 1),
        ("(let* ((a 1) (a (+ a 1))) a)", 2), ("(let (([a b] [1 2])) (- b a))", 1), ("(sqrt 16)", 4.0), ("(floor 2.7)", 2.0),
        ("(repeat (i 4) (s 0) (+ s i))", 6), ("(if nil 1 2)", 2), ("(exp 0)", 1.0), ("(clip 5 0 3)", 3), ("(round 2.5)", 2.0),
    ],
)  # fmt: skip
def test_arithmetic_on_plain_numbers_is_done_at_elaboration(expression: str, value: float) -> None:
    made = elaborated(run_of(f"(mean (* (zeros [1]) {expression}))"))
    got = elaborated(run_of("(mean x)", rest=f":steps 1 :predict (full [] {expression})")).predict
    assert got is not None and got.outputs["predict"].attributes["value"] == value
    assert all(node.op != "host" for node in made.training.nodes)
