"""Elementwise operators, reductions and orders, as a user writes them."""

from __future__ import annotations

from collections.abc import Callable

from onnx_nodes.case import NAMES, Case, Row, written

TRUNCATED = "(* (* (sign x) (sign y)) (// (abs x) (abs y)))"
CAST = {1: "f32", 2: "u8", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 12: "u32", 16: "bf16"}
TYPE = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint32": "u32",
    "bool": "bool",
}  # fmt: skip


def integer(c: Case, place: int = 0) -> bool:
    return c.array(place).dtype.kind in "iu"


def named(text: str, **defaults: float) -> Callable[[Case], str]:
    """A text with `{attribute}`."""
    return lambda c: text.format_map({name: c.get(name, default) for name, default in defaults.items()})


def division(c: Case) -> str:
    """Integers are divided towards 0, as in C; for unsigned ones that is `//`."""
    if not integer(c):
        return "(/ x y)"
    return "(// x y)" if c.array(0).dtype.kind == "u" else TRUNCATED


def remainder(c: Case) -> str:
    """C's fmod has the sign of the dividend."""
    return "(mod x y)" if not c.get("fmod", 0) else "(* (sign x) (mod (abs x) (abs y)))"


def power(c: Case) -> str:
    """The result has the base's dtype."""
    return f"(cast (pow x y) {TYPE[c.array(0).dtype.name]})"


def all_inputs(operation: str) -> Callable[[Case], str]:
    return lambda c: f"({operation} {' '.join(NAMES[: len(c.inputs)])})"


def clip(c: Case) -> str:
    return f"(clip x {'y' if c.has(1) else 'nil'} {'z' if c.has(2) else 'nil'})"


def infinite(c: Case) -> str:
    sides = [f"(= x {inf})" for inf, key in (("inf", "detect_positive"), ("-inf", "detect_negative")) if c.get(key, 1)]
    return sides[0] if len(sides) == 1 else f"(logical-or {sides[0]} {sides[1]})"


def gelu(c: Case) -> str:
    return "(gelu-tanh x)" if c.get("approximate", b"none") == b"tanh" else "(gelu x)"


def cast(c: Case) -> str:
    to = CAST.get(c.get("to")) if c.operator == "Cast" else TYPE[c.array(1).dtype.name]
    return f"(cast x {to})"


def axes(c: Case) -> str:
    """`:axis` and `:keep`; no axes are all, or none where the model says so."""
    axis = list(c.get("axes", []) or []) or (c.numbers(1) if c.has(1) else [])
    keep = " :keep true" if c.get("keepdims", 1) else ""
    return (f" :axis {written(axis)}" if axis else "") + keep


def reduction(operator: str, text: str, exact: bool = False) -> Row:
    def form(c: Case) -> str:
        none = not axes(c).startswith(" :axis") and c.get("noop_with_empty_axes", 0)
        return text.format(axes=" :axis []" if none else axes(c))

    return Row(operator, form, exact)


def extreme(operator: str, name: str, on_bools: str, unit: str) -> Row:
    """Over no element, which is an error as in NumPy, ONNX begins with the unit: it is padded to."""

    def form(c: Case) -> str:
        if c.array(0).dtype == bool:
            return f"({on_bools} x{axes(c)})"
        if 0 in c.shape():
            return f"({name} (pad x {written([[0, int(n == 0)] for n in c.shape()])} :value {unit}){axes(c)})"
        return f"({name} x{axes(c)})"

    return Row(operator, form, exact=True)


def place(name: str) -> Callable[[Case], str]:
    """The first of equals, or the last: the first of the axis read backward."""

    def form(c: Case) -> str:
        axis, keep = c.get("axis", 0), " :keep true" if c.get("keepdims", 1) else ""
        if not c.get("select_last_index", 0):
            return f"(cast ({name} x :axis {axis}{keep}) i64)"
        return f"(cast (- {c.shape()[axis] - 1} ({name} (flip x :axis {axis}) :axis {axis}{keep})) i64)"

    return form


def running_sum(c: Case) -> str:
    """Exclusive: without the element itself. Reverse: from the end."""
    axis = c.numbers(1)[0]
    x = f"(flip x :axis {axis})" if c.get("reverse", 0) else "x"
    made = f"(cumsum {x} :axis {axis})"
    if c.get("exclusive", 0):
        made = f"(- {made} {x})"
    return f"(flip {made} :axis {axis})" if c.get("reverse", 0) else made


def top_k(c: Case) -> str:
    k, axis = c.numbers(1)[0], c.get("axis", -1)
    if c.get("largest", 1):
        return f"(let (((best at) (top-k x {k} :axis {axis}))) (values best (cast at i64)))"
    return f"(let (((best at) (top-k (neg x) {k} :axis {axis}))) (values (neg best) (cast at i64)))"


UNARY = {
    "Abs": "(abs x)", "Ceil": "(ceil x)", "Cos": "(cos x)", "Erf": "(erf x)", "Exp": "(exp x)", "Floor": "(floor x)",
    "Log": "(log x)", "Neg": "(neg x)", "Reciprocal": "(/ x)", "Relu": "(relu x)", "Round": "(round x)",
    "Sigmoid": "(sigmoid x)", "Sign": "(sign x)", "Sin": "(sin x)", "Softplus": "(softplus x)", "Sqrt": "(sqrt x)",
    "Tanh": "(tanh x)", "Softsign": "(/ x (+ 1 (abs x)))", "Tan": "(/ (sin x) (cos x))",
    "Cosh": "(* 0.5 (+ (exp x) (exp (neg x))))", "Sinh": "(* 0.5 (- (expm1 x) (expm1 (neg x))))",
    "Acosh": "(log (+ x (sqrt (- (square x) 1))))", "Atanh": "(* 0.5 (- (log1p x) (log1p (neg x))))",
    "Asinh": "(* (sign x) (log (+ (abs x) (sqrt (+ (square x) 1)))))",
    "Mish": "(* x (tanh (softplus x)))", "HardSwish": "(* x (clip (+ (/ x 6) 0.5) 0 1))",
    "Not": "(logical-not x)", "IsNaN": "(!= x x)", "Identity": "x",
}  # fmt: skip
BINARY = {
    "Add": "(+ x y)", "Sub": "(- x y)", "Mul": "(* x y)", "And": "(logical-and x y)", "Or": "(logical-or x y)",
    "Xor": "(!= x y)", "Equal": "(= x y)", "Greater": "(> x y)", "GreaterOrEqual": "(>= x y)", "Less": "(< x y)",
    "LessOrEqual": "(<= x y)", "PRelu": "(where (< x 0) (* x y) x)",
}  # fmt: skip

ELEMENTWISE = (
    *(Row(operator, form) for operator, form in {**UNARY, **BINARY}.items()),
    Row("Div", division), Row("Mod", remainder), Row("Pow", power), Row("Clip", clip, exact=True),
    Row("Max", all_inputs("maximum"), exact=True), Row("Min", all_inputs("minimum"), exact=True),
    Row("Sum", all_inputs("+")), Row("Mean", lambda c: f"(/ {all_inputs('+')(c)} {len(c.inputs)})"),
    Row("IsInf", infinite), Row("Gelu", gelu), Row("Cast", cast), Row("CastLike", cast),
    Row("Where", "(where x y z)", exact=True),
    Row("Elu", named("(elu x :alpha {alpha})", alpha=1.0)),
    Row("Celu", named("(* {alpha} (elu (/ x {alpha})))", alpha=1.0)),
    Row("Selu", named("(* {gamma} (elu x :alpha {alpha}))", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)),
    Row("LeakyRelu", named("(leaky-relu x :slope {alpha})", alpha=0.01)),
    Row("HardSigmoid", named("(clip (+ (* {alpha} x) {beta}) 0 1)", alpha=0.2, beta=0.5)),
    Row("ThresholdedRelu", named("(where (> x {alpha}) x 0)", alpha=1.0)),
    Row("Shrink", named("(where (< x (- {lambd})) (+ x {bias}) (where (> x {lambd}) (- x {bias}) 0))", lambd=0.5, bias=0.0)),
    Row("Swish", named("(* x (sigmoid (* {alpha} x)))", alpha=1.0)),
    Row("SwiGLU", named("(* (* x (sigmoid (* {alpha} x))) y)", alpha=1.0)),
    reduction("ReduceSum", "(sum x{axes})"), reduction("ReduceMean", "(mean x{axes})"),
    reduction("ReduceProd", "(prod x{axes})"), reduction("ReduceL1", "(sum (abs x){axes})"),
    reduction("ReduceL2", "(norm x{axes})"), reduction("ReduceSumSquare", "(sum (square x){axes})"),
    reduction("ReduceLogSum", "(log (sum x{axes}))"), reduction("ReduceLogSumExp", "(logsumexp x{axes})"),
    extreme("ReduceMax", "max", "any", "-inf"), extreme("ReduceMin", "min", "all", "inf"),
    Row("ArgMax", place("argmax")), Row("ArgMin", place("argmin")),
    Row("CumSum", running_sum), Row("TopK", top_k, exact=True),
)  # fmt: skip
