"""Formulas that the language has no name for: quantized arithmetic, updates of weights, windows of signals."""

from __future__ import annotations

import numpy as np

from onnx_nodes.case import NAMES, Case, Row, written


def spread(c: Case, name: str, place: int) -> str:
    """A scale or zero point along its axis, one a block, or one for all."""
    shape, axis = c.shape(), c.get("axis", 1) % max(c.rank(), 1)
    if c.rank(place) == 0:
        return name
    if c.get("block_size", 0):
        places = [i // c.get("block_size") for i in range(shape[axis])]
        return f"(take {name} {written(places)} :axis {axis})"
    return f"(reshape {name} {written([-1 if i == axis else 1 for i in range(len(shape))])})"


def quantized(value: str, scale: str, zero: str) -> str:
    return f"(cast (+ (round (/ {value} {scale})) {zero}) u8)"


def quantize(c: Case) -> str:
    return quantized("x", spread(c, "y", 1), spread(c, "z", 2))


def dequantize(c: Case) -> str:
    return f"(* (- (cast x f32) (cast {spread(c, 'z', 2)} f32)) {spread(c, 'y', 1)})"

def convolution_of_integers(c: Case, x: str, w: str) -> str:
    """conv2d has weights of its own, which are floats: the product with windows is written out."""
    pads = list(c.get("pads", [0, 0, 0, 0]))
    padded = f"(pad {x} {written([[0, 0], [0, 0], pads[0::2], pads[1::2]])})"
    kernel = written(c.shape(3 if c.operator == "QLinearConv" else 1)[2:])
    return f'(einsum "b c y x i j, o c i j -> b o y x" (windows {padded} {kernel}) {w})'


def conv_integer(c: Case) -> str:
    zero = "(reshape (cast w i32) [-1 1 1 1])" if c.has(3) else "0"
    return convolution_of_integers(c, "(- (cast x i32) (cast z i32))", f"(- (cast y i32) {zero})")


def quantized_product(c: Case) -> str:
    """a, its scale and zero point, b, its scale and zero point, then those of the result."""
    a, b = "(- (cast x i32) (cast z i32))", "(- (cast w i32) (cast u i32))"
    total = f"(matmul {a} {b})" if c.operator == "QLinearMatMul" else convolution_of_integers(c, a, b)
    return quantized(f"(* (cast {total} f32) (* (cast y f32) (cast v f32)))", "(cast s f32)", "(cast r f32)")


def quantize_by_range(c: Case) -> str:
    return (f"(let* ((low (minimum 0 (min x))) (high (maximum 0 (max x))) (scale (/ (- high low) 255)) "
            f"(zero (cast (round (/ (- low) scale)) u8))) (values {quantized('x', 'scale', 'zero')} scale zero))")  # fmt: skip

def updated(state: int, text: str) -> object:
    """Updates of several weights: all weights come first, then all gradients, then all of each state."""

    def form(c: Case) -> str:
        n = (len(c.inputs) - 2) // (2 + state)
        alpha, beta = c.get("alpha", 0.9), c.get("beta", 0.999)
        t = int(c.array(1))
        facts = {"alpha": alpha, "beta": beta, "norm": c.get("norm_coefficient", 0.0), "eps": c.get("epsilon", 1e-6),
                 "first": beta if t > 0 else 1, "decay": 1 + t * c.get("decay_factor", 0.0),
                 "rate": (1 - beta**t) ** 0.5 / (1 - alpha**t) if t > 0 else 1,
                 "ahead": f"(+ d (* {alpha} a))" if c.get("mode") == b"nesterov" else "a"}  # fmt: skip
        made = []
        for k in range(n):
            weight, gradient, *states = (NAMES[2 + k + n * j] for j in range(2 + state))
            made.append(text.format(p=weight, g=gradient, **dict(zip("mv", states)), **facts))
        parts = " ".join(f"((p{k} s{k} t{k}) {one})" for k, one in enumerate(made))
        wanted = " ".join(f"{name}{k}" for name in "pst"[: 1 + state] for k in range(n))
        return f"(let ({parts}) (values {wanted}))"

    return form


MOMENTUM = "(let* ((d (+ (* {norm} {p}) {g})) (a (+ (* {alpha} {m}) (* {first} d)))) (values (- {p} (* x {ahead})) a 0))"
ADAGRAD = ("(let* ((d (+ (* {norm} {p}) {g})) (a (+ {m} (square d)))) "
           "(values (- {p} (/ (* (/ x {decay}) d) (+ (sqrt a) {eps}))) a 0))")  # fmt: skip
ADAM = ("(let* ((d (+ (* {norm} {p}) {g})) (a (+ (* {alpha} {m}) (* (- 1 {alpha}) d))) "
        "(b (+ (* {beta} {v}) (* (- 1 {beta}) (square d))))) "
        "(values (- {p} (* (* x {rate}) (/ a (+ (sqrt b) {eps})))) a b))")  # fmt: skip


def window(*coefficients: float) -> object:
    """A sum of cosines of whole turns."""

    def form(c: Case) -> str:
        n = c.numbers(0)[0]
        angle = f"(* {2 * np.pi / (n if c.get('periodic', 1) else n - 1)} (cast (iota {n}) f32))"
        terms = " ".join(f"(* {(-1) ** k * a} (cos (* {k} t)))" for k, a in enumerate(coefficients) if k)
        return f"(let ((t {angle})) (+ {coefficients[0]} {terms}))"

    return form

FORMULAS = (
    Row("QuantizeLinear", quantize),
    Row("DequantizeLinear", dequantize),
    Row("ConvInteger", conv_integer),
    Row("QLinearMatMul", quantized_product),
    Row("QLinearConv", quantized_product),
    Row("DynamicQuantizeLinear", quantize_by_range),
    Row("Momentum", updated(1, MOMENTUM)),  # type: ignore[arg-type]
    Row("Adagrad", updated(1, ADAGRAD)),  # type: ignore[arg-type]
    Row("Adam", updated(2, ADAM)),  # type: ignore[arg-type]
    Row("HannWindow", window(0.5, 0.5)),  # type: ignore[arg-type]
    Row("HammingWindow", window(25 / 46, 21 / 46)),  # type: ignore[arg-type]
    Row("BlackmanWindow", window(0.42, 0.5, 0.08)),  # type: ignore[arg-type]
    Row("Binarizer", lambda c: f"(cast (> x {c.get('threshold', 0.0)}) f32)", exact=True),
)
