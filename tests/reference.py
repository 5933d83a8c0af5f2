"""Every operation of the language as users write it, with operands, its NumPy meaning and what is differentiated.

`CASES` is driven twice: the value of the expression through the compiler against `reference`, and its gradients against
`central_difference` of `reference`. `KINKS` has derivatives where there is no difference to take: PyTorch's, by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meaning
import numpy as np
import reference_convolution
import reference_neural
from cases import Array, Case, Kink, apart, exact, fixed, flags, normal, positive, smooth, whole
from operations import central_difference

__all__ = ["CASES", "KINKS", "OPTIMIZERS", "SCHEDULES", "Case", "central_difference"]

# Cases

ONE_SMOOTH: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "expm1": np.expm1, "square": np.square, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "sigmoid": meaning.sigmoid, "erf": meaning.erf, "relu": meaning.relu,
    "gelu": meaning.gelu, "gelu-tanh": meaning.gelu_tanh, "silu": meaning.silu, "softplus": meaning.softplus,
    "elu": meaning.elu, "leaky-relu": meaning.leaky_relu,
}  # fmt: skip
ONE_POSITIVE: dict[str, Callable[[Array], Array]] = {
    "log": np.log, "log1p": np.log1p, "sqrt": np.sqrt, "rsqrt": meaning.rsqrt,
}  # fmt: skip
ONE_STEPPED: dict[str, Callable[[Array], Array]] = {
    "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round, "isfinite": np.isfinite,
}  # fmt: skip
TWO: dict[str, Callable[[Array, Array], Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "maximum": np.maximum, "minimum": np.minimum,
}  # fmt: skip
COMPARED: dict[str, Callable[[Array, Array], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "=": np.equal, "!=": np.not_equal,
}  # fmt: skip
SHAPES = ((33,), (7, 5), (1,), (32,), (1, 7))


def elementwise() -> list[Case]:
    cases = []
    for k, (op, f) in enumerate(ONE_SMOOTH.items()):
        cases.append(smooth(op, f"({op} x)", f, x=normal(k, *SHAPES[k % len(SHAPES)])))
    cases += [smooth(op, f"({op} x)", f, x=positive(k, 33)) for k, (op, f) in enumerate(ONE_POSITIVE.items())]
    cases += [smooth(op, f"({op} x)", f, x=apart(k, 33)) for k, (op, f) in enumerate(ONE_STEPPED.items())]
    far = exact([-80.0, -20.0, -1e-4, 1e-4, 20.0, 80.0])
    for op in ("tanh", "sigmoid", "erf", "gelu", "gelu-tanh", "silu", "softplus", "elu"):
        cases.append(smooth(f"{op} far", f"({op} x)", ONE_SMOOTH[op], x=far))
    a, b, column, row = normal(1, 7, 5), positive(2, 7, 5), normal(3, 7, 1), positive(4, 5)
    integers = whole(5, -9, 9, 33), whole(6, 1, 5, 33)
    for op, f in TWO.items():
        cases.append(smooth(op, f"({op} a b)", f, a=a, b=b))
        cases.append(smooth(f"{op} broadcast", f"({op} a b)", f, a=column, b=row))
        cases.append(fixed(f"{op} i32", f"({op} a b)", f, a=integers[0], b=integers[1]))
    for op, f in COMPARED.items():
        cases.append(fixed(op, f"({op} a b)", f, a=np.round(a), b=np.round(b)))
        cases.append(fixed(f"{op} i32", f"({op} a b)", f, a=integers[0], b=integers[1]))
    cases += [
        smooth("+ of three", "(+ a b 2)", lambda a, b: a + b + 2, a=a, b=b),
        smooth("* of three", "(* a b a)", lambda a, b: a * b * a, a=a, b=b),
        smooth("- of one", "(- a)", np.negative, a=a),
        smooth("- of a number", "(- 1 a)", lambda a: 1 - a, a=a),
        smooth("/ of a number", "(/ 1 b)", lambda b: 1 / b, b=b),
        smooth("maximum of three", "(maximum a b 0.3)", lambda a, b: np.maximum(np.maximum(a, b), 0.3), a=a, b=b),
        smooth("pow", "(pow b a)", np.power, b=b, a=a),
        smooth("pow of a whole number", "(pow a 3)", lambda a: a**3, a=a),
        smooth("clip", "(clip x -0.5 1)", lambda x: meaning.clip(x, -0.5, 1), x=apart(7, 33)),
        smooth("where", "(where c a b)", np.where, c=flags(8, 7, 5), a=a, b=b),
        smooth("where broadcast", "(where c a 0)", lambda c, a: np.where(c, a, 0), c=flags(6, 7, 1), a=row),
        fixed("//", "(// a b)", np.floor_divide, a=integers[0], b=integers[1]),
        fixed("// of a negative", "(// a -3)", lambda a: np.floor_divide(a, -3), a=integers[0]),
        fixed("// f32", "(// x 0.75)", lambda x: np.floor_divide(x, 0.75), x=apart(9, 33)),
        fixed("mod", "(mod a b)", np.mod, a=integers[0], b=integers[1]),
        fixed("mod of a negative", "(mod a -3)", lambda a: np.mod(a, -3), a=integers[0]),
        smooth("mod f32", "(mod x 0.75)", lambda x: np.mod(x, 0.75), x=apart(9, 33)),
        fixed("round halves", "(round x)", np.round, x=np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])),
        fixed("isfinite of others", "(isfinite x)", np.isfinite, x=np.array([1.0, np.inf, -np.inf, np.nan])),
        fixed("logical-and", "(logical-and a b)", np.logical_and, a=flags(1, 33), b=flags(2, 33)),
        fixed("logical-or", "(logical-or a b)", np.logical_or, a=flags(1, 33), b=flags(2, 33)),
        fixed("logical-not", "(logical-not a)", np.logical_not, a=flags(1, 33)),
        fixed("cast i32", "(cast x i32)", meaning.cast_to_integer, x=np.array([-2.75, -0.5, 0.5, 2.75, 3e9, -3e9])),
        fixed("cast f32", "(cast a f32)", np.float64, a=integers[0]),
        fixed("cast bool", "(cast a bool)", lambda a: a != 0, a=integers[0]),
        smooth("i32 with f32", "(* a x)", np.multiply, a=integers[0], x=normal(3, 33)),
        smooth("bool with f32", "(+ c x)", lambda c, x: c + x, c=flags(3, 33), x=normal(3, 33)),
        fixed("bool with i32", "(+ c a)", lambda c, a: c + a, c=flags(3, 33), a=integers[0]),
        fixed("float number with i32", "(* 0.5 a)", lambda a: 0.5 * a, a=integers[0]),
    ]
    return cases


def reductions() -> list[Case]:
    many: dict[str, Callable[..., Any]] = {
        "sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "prod": np.prod, "var": np.var, "std": np.std,
        "logsumexp": meaning.logsumexp, "norm": meaning.norm,
    }  # fmt: skip
    cases = []
    for k, (op, f) in enumerate(many.items()):
        for n in (7, 33):
            cases.append(
                smooth(f"{op} of rows of {n}", f"({op} x :axis -1)", lambda x, f=f: f(x, -1), x=apart(k + n, 3, n))
            )
        x = apart(k, 3, 4, 5) / 4
        cases.append(smooth(f"{op} of all", f"({op} x)", f, x=x if op != "prod" else positive(k, 2, 7)))
        cases.append(smooth(f"{op} of two axes", f"({op} x :axis [0 -1])", lambda x, f=f: f(x, (0, 2)), x=x))
        keep = smooth(f"{op} kept", f"(* x ({op} x :axis 1 :keep true))", lambda x, f=f: x * f(x, 1)[:, None], x=x)
        cases.append(keep)
        cases.append(smooth(f"{op} of columns", f"({op} x :axis 0)", lambda x, f=f: f(x, 0), x=apart(k, 32, 5) / 8))
    x, row = apart(3, 3, 33), apart(4, 7)
    signs = x > 1
    cases += [
        smooth("var of a sample", "(var x :axis 1 :ddof 1)", lambda x: np.var(x, 1, ddof=1), x=x),
        smooth("std of a sample", "(std x :ddof 1)", lambda x: np.std(x, ddof=1), x=row),
        smooth("prod with a zero", "(prod x :axis 1)", lambda x: np.prod(x, 1), x=np.array([[0.0, 2, 3], [1, 2, 3], [0, 0, 3]])),
        smooth("logsumexp far", "(logsumexp x)", meaning.logsumexp, x=np.array([-200.0, 90.0, 100.0, 101.0])),
        fixed("any", "(any c :axis 0)", lambda c: np.any(c, 0), c=signs),
        fixed("all", "(all c :axis -1)", lambda c: np.all(c, -1), c=x > -20),
        fixed("argmax", "(argmax x :axis -1)", lambda x: np.argmax(x, -1), x=x),
        fixed("argmin", "(argmin x :axis 0)", lambda x: np.argmin(x, 0), x=x),
        fixed("argmax of equals", "(argmax x :axis -1)", lambda x: np.argmax(x, -1), x=np.array([[1.0, 3, 3], [2, 2, 2]])),
        fixed("count-nonzero", "(count-nonzero x :axis 1)", lambda x: np.count_nonzero(x, 1), x=np.round(x / 4)),
        fixed("sum i32", "(sum a :axis 0)", lambda a: np.sum(a, 0), a=whole(5, -9, 9, 7, 5)),
        fixed("max i32", "(max a)", np.max, a=whole(5, -9, 9, 7, 5)),
        smooth("cumsum", "(cumsum x)", lambda x: np.cumsum(x, -1), x=x),
        smooth("cumsum of columns", "(cumsum x :axis 0)", lambda x: np.cumsum(x, 0), x=normal(5, 32, 3)),
        smooth("sort", "(sort x)", lambda x: np.sort(x, -1), x=x),
        smooth("sort of columns", "(sort x :axis 0)", lambda x: np.sort(x, 0), x=apart(6, 32, 3)),
        fixed("argsort", "(argsort x)", lambda x: np.argsort(x, -1, kind="stable"), x=np.round(normal(7, 3, 33))),
        smooth("top-k", "(let (((v i) (top-k x 4))) v)", lambda x: meaning.top_k(x, 4)[0], x=x),
        fixed("top-k places", "(let (((v i) (top-k x 5))) i)", lambda x: meaning.top_k(x, 5)[1], x=np.round(normal(8, 3, 33))),
    ]  # fmt: skip
    return cases


def shapes() -> list[Case]:
    x, y, square = normal(1, 3, 4, 5), normal(2, 3, 2, 5), normal(3, 2, 7, 7)
    table, ids, along = normal(4, 9, 5), whole(5, -9, 9, 2, 7), whole(6, 0, 4, 3, 2, 5)
    return [
        smooth("reshape", "(reshape x [6 10])", lambda x: x.reshape(6, 10), x=x),
        smooth("reshape the rest", "(reshape x [-1 5])", lambda x: x.reshape(12, 5), x=x),
        smooth("transpose", "(transpose x)", np.transpose, x=x),
        smooth("permute", "(permute x [2 0 1])", lambda x: np.transpose(x, (2, 0, 1)), x=x),
        smooth("broadcast-to", "(broadcast-to x [3 33 7])", lambda x: np.broadcast_to(x, (3, 33, 7)), x=normal(7, 33, 1)),
        smooth("expand-dims", "(expand-dims x 1)", lambda x: x[:, None], x=x),
        smooth("expand-dims at the end", "(expand-dims x -1)", lambda x: x[..., None], x=x),
        smooth("squeeze", "(squeeze x 1)", lambda x: x[:, 0], x=normal(8, 3, 1, 7)),
        smooth("slice", "(slice x [0 1 2] [2 4 5])", lambda x: x[0:2, 1:4, 2:5], x=x),
        smooth("slice from the end", "(slice x [-2 0 -4] [3 -1 -1])", lambda x: x[-2:3, 0:-1, -4:-1], x=x),
        smooth("slice by steps", "(slice x [0 0 1] [3 4 5] :steps [2 1 3])", lambda x: x[::2, :, 1::3], x=x),
        smooth("concat", "(concat [x y] :axis 1)", lambda x, y: np.concatenate([x, y], 1), x=x, y=y),
        smooth("concat of three", "(concat [x x y] :axis -2)", lambda x, y: np.concatenate([x, x, y], 1), x=x, y=y),
        smooth("concat, default axis", "(concat [x x])", lambda x: np.concatenate([x, x], 0), x=x),
        smooth("stack", "(stack [x y])", lambda x, y: np.stack([x, y]), x=x, y=2 * x),
        smooth("stack at the end", "(stack [x y] :axis -1)", lambda x, y: np.stack([x, y], -1), x=x, y=2 * x),
        smooth("split", "(nth (split x 2 :axis 1) 1)", lambda x: np.split(x, 2, 1)[1], x=x),
        smooth("split by sizes", "(nth (split x [1 3 1] :axis -1) 1)", lambda x: x[..., 1:4], x=x),
        smooth("split and joined", "(concat (split x 3) :axis 1)", lambda x: np.concatenate(np.split(x, 3), 1), x=x),
        smooth("pad", "(pad x [[1 0] [0 2] [3 1]])", lambda x: np.pad(x, ((1, 0), (0, 2), (3, 1))), x=x),
        smooth(
            "pad with a value", "(pad x [[2 1]] :value -1.5)", lambda x: np.pad(x, (2, 1), constant_values=-1.5),
            x=normal(9, 7),
        ),
        smooth("flip", "(flip x :axis 1)", lambda x: np.flip(x, 1), x=x),
        smooth("flip of two axes", "(flip x :axis [0 -1])", lambda x: np.flip(x, (0, 2)), x=x),
        smooth("roll", "(roll x 2 :axis 2)", lambda x: np.roll(x, 2, 2), x=x),
        smooth("roll back", "(roll x -9 :axis 0)", lambda x: np.roll(x, -9, 0), x=normal(9, 7, 2)),
        smooth("take", "(take x i)", lambda x, i: x[i], x=table, i=ids),
        smooth("take of columns", "(take x i :axis -1)", lambda x, i: x[:, i], x=table, i=whole(6, -5, 5, 3)),
        smooth("gather", "(gather x i :axis 1)", lambda x, i: meaning.gather(x, i, 1), x=x, i=along),
        smooth(
            "gather from the end", "(gather x i :axis -1)", lambda x, i: meaning.gather(x, i, 1),
            x=table, i=whole(7, -5, 5, 9, 2),
        ),
        smooth("scatter-add", "(scatter-add x i u)", meaning.scatter_add, x=table, i=ids, u=normal(8, 2, 7, 5)),
        fixed("one-hot", "(one-hot i 7)", lambda i: meaning.one_hot(i, 7), i=whole(8, 0, 7, 33)),
        fixed("iota", "(+ a (iota 33))", lambda a: a + np.arange(33), a=whole(9, 0, 7, 33)),
        fixed("arange", "(+ a (arange -3 4))", lambda a: a + np.arange(-3, 4), a=whole(9, 0, 7, 7)),
        smooth("full", "(* x (full [4 5] 2.5))", lambda x: x * np.full((4, 5), 2.5), x=x),
        smooth("zeros and ones", "(+ (zeros-like x) (* x (ones [3 4 5])))", lambda x: x, x=x),
        smooth("ones and zeros", "(- (ones-like x) (zeros [5]))", np.ones_like, x=x),
        smooth("tril", "(tril x)", np.tril, x=square),
        smooth("tril above", "(tril x :k 2)", lambda x: np.tril(x, 2), x=square),
        smooth("tril, wide", "(tril x :k -1)", lambda x: np.tril(x, -1), x=x),
        smooth("triu", "(triu x)", np.triu, x=square),
        smooth("triu below", "(triu x :k -1)", lambda x: np.triu(x, -1), x=x),
    ]  # fmt: skip


def products() -> list[Case]:
    def product(
        name: str, expression: str, reference: Callable[..., Any], a: tuple[int, ...], b: tuple[int, ...]
    ) -> Case:
        return smooth(name, expression, reference, a=normal(1, *a), b=normal(2, *b))

    cases = [
        product(f"matmul {a} {b}", "(matmul a b)", np.matmul, a, b)
        for a, b in (
            ((7, 33), (33, 5)), ((1, 1), (1, 1)), ((32, 1), (1, 7)), ((33,), (33, 4)), ((4, 32), (32,)), ((7,), (7,)),
            ((2, 3, 4, 5), (2, 3, 5, 6)), ((2, 1, 3, 4), (5, 4, 2)), ((3, 7, 5), (5, 4)),
        )
    ]  # fmt: skip
    for pattern, a, b in (
        ("b t d, d f -> b t f", (2, 3, 7), (7, 4)), ("b h t d, b h s d -> b h t s", (2, 2, 3, 5), (2, 2, 4, 5)),
        ("i j, i j -> i", (7, 33), (7, 33)), ("i, j -> j i", (7,), (5,)), ("b i j, j k i -> k b", (2, 3, 4), (4, 5, 3)),
    ):  # fmt: skip
        closed = pattern.replace(" ", "")
        einsum = f'(einsum "{pattern}" a b)'
        cases.append(product(f"einsum {pattern}", einsum, lambda a, b, p=closed: np.einsum(p, a, b), a, b))
    cases += [
        product("outer", "(outer a b)", np.outer, (7,), (33,)),
        product("dot", "(dot a b)", np.dot, (33,), (33,)),
        product("dot of matrices", "(dot a b)", np.dot, (7, 32), (32, 3)),
        product("matmul of a transpose", "(matmul a (transpose b))", lambda a, b: a @ b.T, (3, 4, 5), (7, 5)),
        product("matmul of itself", "(+ (matmul a (transpose a)) b)", lambda a, b: a @ a.T + b, (7, 5), (1,)),
    ]  # fmt: skip
    return cases


CASES: tuple[Case, ...] = (
    *elementwise(), *reductions(), *shapes(), *products(),
    *reference_neural.neural(), *reference_neural.attentions(), *reference_neural.losses(),
    *reference_convolution.convolutions(), *reference_convolution.pools(), *reference_convolution.windows(),
)  # fmt: skip

# What PyTorch 2.13 gives; of equals in `top-k` the lower index, and maxima share equally.
KINKS: tuple[Kink, ...] = (
    Kink("(abs x)", (0.0, -1.0), (0.0, -1.0)),
    Kink("(sign x)", (0.0, 2.0), (0.0, 0.0)),
    Kink("(relu x)", (0.0, 1.0, -1.0), (0.0, 1.0, 0.0)),
    Kink("(leaky-relu x)", (0.0,), (0.01,)),
    Kink("(elu x)", (0.0,), (1.0,)),
    Kink("(softplus x)", (0.0,), (0.5,)),
    Kink("(clip x -1 1)", (-1.0, 1.0, -1.5, 1.5, 0.0), (1.0, 1.0, 0.0, 0.0, 1.0)),
    Kink("(maximum x 0)", (0.0, 1.0, -1.0), (0.5, 1.0, 0.0)),
    Kink("(minimum x 0)", (0.0, 1.0, -1.0), (0.5, 0.0, 1.0)),
    Kink("(maximum x x)", (1.0,), (1.0,)),
    Kink("(max x)", (1.0, 3.0, 3.0, 3.0), (0.0, 1 / 3, 1 / 3, 1 / 3)),
    Kink("(min x)", (2.0, 2.0, 5.0), (0.5, 0.5, 0.0)),
    Kink("(norm x)", (0.0, 0.0, 0.0), (0.0, 0.0, 0.0)),
    Kink("(std x)", (2.0, 2.0, 2.0), (0.0, 0.0, 0.0)),
    Kink("(prod x)", (0.0, 2.0, 3.0), (6.0, 0.0, 0.0)),
    Kink("(prod x)", (0.0, 0.0, 3.0), (0.0, 0.0, 0.0)),
    Kink("(pow x 0)", (0.0, 2.0), (0.0, 0.0)),
    Kink("(pow x 1)", (0.0,), (1.0,)),
    Kink("(pow x 2)", (0.0,), (0.0,)),
    Kink("(* x (stop-gradient x))", (3.0, -2.0), (3.0, -2.0)),
    Kink("(huber x (zeros-like x))", (1.0, -1.0, 0.0), (1.0, -1.0, 0.0)),
    Kink("(let (((v i) (top-k x 2))) v)", (1.0, 3.0, 3.0, 3.0), (0.0, 1.0, 1.0, 0.0)),
    *reference_convolution.TIES,
)

OPTIMIZERS = tuple(reference_neural.optimizers())
SCHEDULES = tuple(reference_neural.schedules())
