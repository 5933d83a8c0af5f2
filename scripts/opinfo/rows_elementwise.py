"""Elementwise operations, reductions and orders, as a user writes them."""

from __future__ import annotations

from row import Arguments, Row

# Our form is that of a NumPy scalar: 0-d arrays have no axis to name.
NO_AXIS = "names axis 0 of a 0-d tensor, which has none (NumPy's AxisError)"
ONE_AXIS = (lambda a: a.x.ndim == 0 and a.dim is not None, NO_AXIS)


def unary(name: str, form: str, **more: object) -> Row:
    return Row(name, form, **more)  # type: ignore[arg-type]


def binary(name: str, form: str, **more: object) -> Row:
    return Row(name, form, "x other", **more)  # type: ignore[arg-type]


def axes(a: Arguments) -> str:
    """`:axis` and `:keep` of a reduction; an empty list is PyTorch's word for all axes, and a 0-d tensor has none."""
    dim = list(a.dim) if isinstance(a.dim, (list, tuple)) else a.dim
    named = "" if dim is None or dim == [] or a.x.ndim == 0 else f" :axis {dim}".replace(",", "")
    return named + (" :keep true" if a.keepdim else "")


def reduction(name: str, operation: str, **more: object) -> Row:
    return Row(name, lambda a: f"({operation} x{axes(a)})", "x dim=None keepdim=False", **more)  # type: ignore[arg-type]


UNARY = (
    unary("abs", "(abs x)"),
    unary("ceil", "(ceil x)"),
    unary("cos", "(cos x)"),
    unary("cosh", "(* 0.5 (+ (exp x) (exp (neg x))))"),
    unary("erf", "(erf x)"),
    unary("exp", "(exp x)"),
    unary("exp2", "(pow 2 x)"),
    unary("expm1", "(expm1 x)"),
    unary("floor", "(floor x)"),
    unary("isfinite", "(isfinite x)"),
    unary("isnan", "(!= x x)"),
    unary("log", "(log x)"),
    unary("log10", "(/ (log x) (log 10))"),
    unary("log1p", "(log1p x)"),
    unary("log2", "(/ (log x) (log 2))"),
    unary("logical_not", "(logical-not (!= x 0))"),
    unary("neg", "(neg x)"),
    unary("reciprocal", "(/ x)"),
    unary("round", "(round x)"),
    unary("rsqrt", "(rsqrt x)"),
    unary("sigmoid", "(sigmoid x)"),
    unary("sign", "(sign x)"),
    unary("sgn", "(sign x)"),
    unary("sin", "(sin x)"),
    unary("sqrt", "(sqrt x)"),
    unary("square", "(square x)"),
    unary("tan", "(/ (sin x) (cos x))"),
    unary("tanh", "(tanh x)"),
    unary("positive", "(+ x)"),
    unary("nn.functional.relu", "(relu x)"),
    unary("nn.functional.silu", "(silu x)"),
    unary("nn.functional.mish", "(* x (tanh (softplus x)))"),
    unary("nn.functional.logsigmoid", "(neg (softplus (neg x)))"),
    unary("nn.functional.softsign", "(/ x (+ 1 (abs x)))"),
    unary("nn.functional.tanhshrink", "(- x (tanh x))"),
    unary("nn.functional.relu6", "(where (<= x 0) 0 (where (>= x 6) 6 x))"),
    unary("nn.functional.hardsigmoid", "(/ (clip (+ x 3) 0 6) 6)"),
    unary("nn.functional.hardswish", "(/ (* x (clip (+ x 3) 0 6)) 6)"),
    unary("nn.functional.selu", "(* 1.0507009873554805 (elu x :alpha 1.6732632423543772))"),
    Row("nn.functional.elu", "(elu x :alpha {alpha})", "x alpha=1.0"),
    Row("nn.functional.celu", "(elu x)", "x alpha=1.0", left=((lambda a: a.alpha != 1, "has another alpha than 1"),)),
    Row("nn.functional.leaky_relu", "(leaky-relu x :slope {slope})", "x negative_slope:slope=0.01"),
    Row(
        "nn.functional.gelu", lambda a: "(gelu-tanh x)" if a.approximate == "tanh" else "(gelu x)", 'x approximate="none"'
    ),
    # Above the threshold PyTorch takes x itself, which is within the bound at its default of 20 alone.
    Row("nn.functional.softplus", "(where (> (* {beta} x) {threshold}) x (/ (softplus (* {beta} x)) {beta}))",
        "x beta=1 threshold=20"),
    Row("nn.functional.hardtanh", "(clip x {low} {high})", "x min_val:low=-1.0 max_val:high=1.0"),
    Row("nn.functional.threshold", "(where (> x {limit}) x {value})", "x threshold:limit value"),
    Row("nan_to_num", "(where (isfinite x) x (where (!= x x) {nan} (where (> x 0) {high} {low})))",
        "x nan=0.0 posinf:high=3.4028234663852886e+38 neginf:low=-3.4028234663852886e+38"),
)  # fmt: skip

BINARY = (
    Row("add", "(+ x (* {alpha} other))", "x other alpha=1"),
    Row("sub", "(- x (* {alpha} other))", "x other alpha=1"),
    Row("rsub", "(- {other} (* {alpha} x))", "x other alpha=1"),
    binary("mul", "(* x {other})"),
    binary("div|no_rounding_mode", "(/ x {other})"),
    Row("div|floor_rounding", "(// x {other})", "x other rounding_mode", no_gradient="// is a step, its derivative 0"),
    binary("true_divide", "(/ x {other})"),
    binary("floor_divide", "(// x {other})", no_gradient="PyTorch has none"),
    binary("remainder", "(mod x {other})"),
    binary("pow", "(pow x {other})"),
    binary("float_power", "(pow x {other})"),
    binary("__radd__", "(+ {other} x)"),
    binary("__rmul__", "(* {other} x)"),
    binary("__rsub__", "(- {other} x)"),
    binary("__rdiv__", "(/ {other} x)"),
    binary("__rpow__", "(pow {other} x)"),
    binary("__rmod__", "(mod {other} x)"),
    binary("maximum", "(maximum x other)"),
    binary("minimum", "(minimum x other)"),
    binary("max|binary", "(maximum x other)"),
    binary("min|binary", "(minimum x other)"),
    binary("eq", "(= x {other})"),
    binary("ne", "(!= x {other})"),
    binary("lt", "(< x {other})"),
    binary("le", "(<= x {other})"),
    binary("gt", "(> x {other})"),
    binary("ge", "(>= x {other})"),
    binary("logical_and", "(logical-and (!= x 0) (!= other 0))"),
    binary("logical_or", "(logical-or (!= x 0) (!= other 0))"),
    binary("logical_xor", "(!= (!= x 0) (!= other 0))"),
    binary("logaddexp", "(let ((m (maximum x other))) (+ m (log1p (exp (neg (abs (- x other)))))))"),
    Row("clamp", "(clip x {low} {high})", "x min:low=None max:high=None"),
    Row("clamp_min", "(clip x {low} nil)", "x min:low"),
    Row("clamp_max", "(clip x nil {high})", "x max:high"),
    Row("where", "(where condition x {other})", "x condition other"),
    Row("masked_fill", "(where mask {value} x)", "x mask value"),
    Row("lerp", "(+ x (* {weight} (- other x)))", "x other weight"),
    Row("addcmul", "(+ x (* {value} a b))", "x a b value=1"),
    Row("addcdiv", "(+ x (* {value} (/ a b)))", "x a b value=1"),
)

CORRECTED = "has more degrees of freedom taken out than elements, or a negative number"


def _spread(operation: str) -> object:
    """`var` and `std`: `:ddof` is PyTorch's correction, 1 by default where ours is 0."""

    def form(a: Arguments) -> str:
        ddof = a.correction if a.correction is not None else int(a.unbiased is not False)
        return f"({operation} x{axes(a)} :ddof {ddof})"

    return form


def spread(name: str, operation: str) -> Row:
    signature = "x dim=None unbiased=None keepdim=False correction=None"
    form = _spread(operation)
    if name.endswith("unbiased"):
        return Row(name, lambda a: f"({operation} x :ddof {int(a.unbiased)})", "x unbiased")
    return Row(name, form, signature)  # type: ignore[arg-type]


def both(name: str, operation: str) -> Row:
    one = spread(name, operation)
    return Row(name, lambda a: f"(values {one.form(a)} (mean x{axes(a) if hasattr(a, 'dim') else ''}))", one.signature)  # type: ignore[operator]


def extreme(operation: str) -> object:
    def form(a: Arguments) -> str:
        at = axes(a)
        index = f"(arg{operation} x{at or ''})"
        return f"(values ({operation} x{at}) {index})"

    return form


def ordered(name: str, parts: str) -> Row:
    """Descending is the order of −x: the first of equals stays first."""

    def form(a: Arguments) -> str:
        x = "(neg x)" if a.descending else "x"
        index = f"(argsort {x} :axis {a.dim})"
        value = f"(neg (sort (neg x) :axis {a.dim}))" if a.descending else f"(sort x :axis {a.dim})"
        return {"index": index, "value": value, "both": f"(values {value} {index})"}[parts]

    return Row(name, form, "x dim=-1 descending=False", left=(ONE_AXIS,))


REDUCTIONS = (
    reduction("sum", "sum"),
    reduction("mean", "mean"),
    reduction("prod", "prod"),
    reduction("amax", "max"),
    reduction("amin", "min"),
    reduction("all", "all"),
    reduction("any", "any"),
    reduction("count_nonzero", "count-nonzero"),
    reduction("argmax", "argmax"),
    reduction("argmin", "argmin"),
    reduction("logsumexp", "logsumexp"),
    spread("var", "var"),
    spread("var|unbiased", "var"),
    spread("std", "std"),
    spread("std|unbiased", "std"),
    both("var_mean", "var"),
    both("var_mean|unbiased", "var"),
    both("std_mean", "std"),
    both("std_mean|unbiased", "std"),
    Row("max|reduction_no_dim", "(max x)"),
    Row("min|reduction_no_dim", "(min x)"),
    Row("max|reduction_with_dim", extreme("max"), "x dim keepdim=False"),  # type: ignore[arg-type]
    Row("min|reduction_with_dim", extreme("min"), "x dim keepdim=False"),  # type: ignore[arg-type]
    Row("aminmax", lambda a: f"(values (min x{axes(a)}) (max x{axes(a)}))", "x dim=None keepdim=False"),
    Row("linalg.vector_norm", lambda a: f"(norm x{axes(a)})", "x ord=2 dim=None keepdim=False",
        left=((lambda a: a.ord != 2, "asks for another norm than the 2-norm: language.md has `norm` alone"),)),
    Row("norm", lambda a: f"(norm x{axes(a)})", 'x p="fro" dim=None keepdim=False',
        left=((lambda a: a.p not in (2, "fro"), "asks for another norm than the 2-norm: language.md has `norm` alone"),)),
    Row("norm|fro", lambda a: f"(norm x{axes(a)})", 'x p="fro" dim=None keepdim=False'),
    Row("trace", "(sum (where (= (expand-dims (iota (dim x 0)) 1) (iota (dim x 1))) x 0))"),
    Row("softmax", "(softmax x :axis {dim})", "x dim", left=(ONE_AXIS,)),
    Row("log_softmax", "(log-softmax x :axis {dim})", "x dim", left=(ONE_AXIS,)),
    Row("nn.functional.softmin", "(softmax (neg x) :axis {dim})", "x dim", left=(ONE_AXIS,)),
    Row("cumsum", "(cumsum x :axis {dim})", "x dim", left=(ONE_AXIS,)),
    ordered("sort", "both"),
    ordered("argsort", "index"),
    Row("msort", "(sort x :axis 0)", left=((lambda a: a.x.ndim == 0, NO_AXIS),)),
    Row("topk", lambda a: f"(top-k x {a.k} :axis {a.dim})" if a.largest else
        f"(let (((v i) (top-k (neg x) {a.k} :axis {a.dim}))) (values (neg v) i))",
        "x k dim=-1 largest=True sorted=True", left=(ONE_AXIS,)),
)  # fmt: skip

ELEMENTWISE = (*UNARY, *BINARY, *REDUCTIONS)
