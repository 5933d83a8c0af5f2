"""Cases for every operation of the IR: operands that straddle tails, attributes, whether the derivative is smooth there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One call of one operation; `inputs` are float64 or integer or bool arrays, made from the case's own seed."""

    name: str
    op: str
    inputs: tuple[Array, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    # Factor on the value bound: 1 for correctly rounded operations, more for sums and formulas.
    ulps: float = 2.0
    # Inputs to which no gradient is checked (kinks, integers).
    fixed: tuple[int, ...] = ()


def _normal(seed: int, *shape: int, low: float | None = None) -> Array:
    """Values that are exact in float32, at least `low` where it is given."""
    values = np.random.default_rng(seed).normal(size=shape)
    if low is not None:
        values = np.abs(values) + low
    return values.astype(np.float32).astype(np.float64)


def _apart(seed: int, *shape: int) -> Array:
    """Distinct multiples of 1/8, so that no finite difference crosses a tie."""
    count = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(count).reshape(shape) - count // 2) / 8.0


def _integers(seed: int, low: int, high: int, *shape: int, dtype: Any = np.int32) -> Array:
    return np.random.default_rng(seed).integers(low, high, size=shape).astype(dtype)


SIZES = (1, 7, 33, 1025)


def _pointwise() -> list[Case]:
    anywhere = "neg abs exp expm1 sin cos tanh sigmoid erf".split()
    positive = "log log1p sqrt rsqrt".split()
    steps = "sign floor ceil round isfinite".split()
    cases: list[Case] = []
    for n in SIZES:
        cases += [Case(f"{op}-{n}", op, (_normal(n, n),), ulps=4) for op in anywhere]
        cases += [Case(f"{op}-{n}", op, (_normal(n, n, low=0.05),), ulps=4) for op in positive]
        cases += [Case(f"{op}-{n}", op, (_normal(n, n) * 3 + 0.01,), fixed=(0,)) for op in steps]
        pair = (_normal(n, n), _normal(n + 1, n, low=0.3))
        cases += [Case(f"{op}-{n}", op, pair) for op in "add sub mul div maximum minimum".split()]
        cases += [Case(f"{op}-{n}", op, pair, fixed=(0, 1)) for op in "lt le gt ge eq ne".split()]
        cases += [Case(f"pow-{n}", "pow", (pair[1], pair[0]), ulps=8)]
        cases += [Case(f"mod-{n}", "mod", (_apart(n, n) + 0.03125, np.full(n, 0.75)), fixed=(1,), ulps=8)]
        cases += [Case(f"floordiv-{n}", "floordiv", (_apart(n, n) + 0.03125, np.full(n, 0.75)), fixed=(0, 1))]
        flags = (_normal(n, n) > 0, _normal(n + 2, n) > 0)
        cases += [Case(f"{op}-{n}", op, flags, fixed=(0, 1)) for op in ("logical_and", "logical_or")]
        cases += [Case(f"logical_not-{n}", "logical_not", flags[:1], fixed=(0,))]
        cases += [Case(f"select-{n}", "select", (flags[0], *pair), fixed=(0,))]
    whole = (_integers(3, -20, 20, 33), _integers(4, 1, 9, 33) * np.where(_normal(5, 33) > 0, 1, -1).astype(np.int32))
    of_integers = "add sub mul floordiv mod maximum minimum lt eq".split()
    cases += [Case(f"{op}-i32", op, whole, fixed=(0, 1)) for op in of_integers]
    cases += [Case(f"{op}-i32", op, whole[:1], fixed=(0,)) for op in ("neg", "abs", "sign")]
    cases += [Case("cast-i32", "cast", (_normal(6, 33) * 100,), {"dtype": "i32"}, fixed=(0,))]
    cases += [Case("cast-f32", "cast", whole[:1], {"dtype": "f32"}, fixed=(0,))]
    cases += [Case("cast-bool", "cast", (whole[0],), {"dtype": "bool"}, fixed=(0,))]
    cases += [Case("stop_gradient", "stop_gradient", (_normal(7, 33),), fixed=(0,))]
    return cases


def _movement() -> list[Case]:
    x = _normal(11, 3, 4, 5)
    return [
        Case("reshape", "reshape", (x,), {"shape": (12, 5)}),
        Case("permute", "permute", (x,), {"axes": (2, 0, 1)}),
        Case("broadcast", "broadcast", (_normal(12, 4, 1),), {"shape": (3, 4, 5), "dims": (1, 2)}),
        Case("broadcast-scalar", "broadcast", (_normal(12),), {"shape": (2, 3), "dims": ()}),
        Case("slice", "slice", (x,), {"starts": (0, 1, 0), "limits": (3, 4, 5), "steps": (2, 1, 2)}),
        Case("flip", "flip", (x,), {"axes": (0, 2)}),
        Case("pad", "pad", (x,), {"low": (1, 0, 2), "high": (0, 2, 0), "interior": (0, 0, 0), "value": -1.5}),
        Case("pad-interior", "pad", (x,), {"low": (0, 0, 1), "high": (0, 1, 0), "interior": (2, 1, 0), "value": 0}),
        Case("concat", "concat", (x, _normal(13, 3, 2, 5), _normal(14, 3, 1, 5)), {"axis": 1}),
        Case("concat-last", "concat", (x, _normal(13, 3, 4, 33)), {"axis": 2}),
    ]


def _reductions() -> list[Case]:
    cases: list[Case] = []
    for n in (1, 7, 31, 33, 1023, 1025):
        x = _apart(n, 3, n)
        cases += [Case(f"{op}-row-{n}", op, (x,), {"axes": (1,)}, ulps=n) for op in ("sum", "max", "min")]
        cases += [Case(f"{op}-row-{n}", op, (x,), {"axes": (1,)}, fixed=(0,)) for op in ("argmax", "argmin")]
        cases += [Case(f"sum-column-{n}", "sum", (_normal(n, n, 5),), {"axes": (0,)}, ulps=n + 4)]
    x = _apart(21, 3, 4, 5)
    for axes in ((0,), (1,), (0, 2), (0, 1, 2), (1, 2)):
        cases += [Case(f"{op}-{axes}", op, (x,), {"axes": axes}, ulps=60) for op in ("sum", "max", "min")]
    cases += [Case("prod", "prod", (_normal(22, 4, 6, low=0.5),), {"axes": (1,)}, ulps=12)]
    zeros = np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.0, 2.0, 3.0]])
    cases += [Case("prod-zeros", "prod", (zeros,), {"axes": (1,)}, ulps=12)]
    cases += [Case(f"{op}-bool", op, (x > 1,), {"axes": (0, 1)}, fixed=(0,)) for op in ("any", "all")]
    cases += [Case("sum-i32", "sum", (_integers(23, -9, 9, 4, 9),), {"axes": (1,)}, fixed=(0,))]
    cases += [Case(f"cumsum-{axis}", "cumsum", (_normal(24, 3, 4, 5),), {"axis": axis}, ulps=16) for axis in (0, 1, 2)]
    return cases


def _contract(name: str, a: tuple[int, ...], b: tuple[int, ...], batch: Any, contracted: Any) -> Case:
    k = int(np.prod([a[i] for i in contracted[0]], dtype=int))
    operands = (_normal(31, *a), _normal(32, *b))
    return Case(name, "contract", operands, {"batch": batch, "contracted": contracted}, ulps=4 + 4 * k)


def _products() -> list[Case]:
    none: tuple[int, ...] = ()
    return [
        _contract("contract-matrix", (7, 33), (33, 5), (none, none), ((1,), (0,))),
        _contract("contract-linear", (2, 3, 17), (17, 9), (none, none), ((2,), (0,))),
        _contract("contract-transposed", (4, 17), (9, 17), (none, none), ((1,), (1,))),
        _contract("contract-weight", (2, 3, 17), (2, 3, 9), (none, none), ((0, 1), (0, 1))),
        _contract("contract-batch", (2, 3, 4, 5), (2, 3, 5, 6), ((0, 1), (0, 1)), ((3,), (2,))),
        _contract("contract-scores", (2, 4, 3, 5), (2, 6, 3, 5), ((0, 2), (0, 2)), ((3,), (3,))),
        _contract("contract-outer", (4,), (6,), (none, none), (none, none)),
        _contract("contract-dot", (33,), (33,), (none, none), ((0,), (0,))),
        _contract("contract-two-axes", (3, 4, 5), (5, 6, 4), (none, none), ((1, 2), (2, 0))),
    ]


def _windows() -> list[Case]:
    x, spread = _normal(51, 2, 3, 9, 7), _normal(52, 2, 4, 3, 3, 2)

    def added(name: str, low: tuple[int, ...], shape: tuple[int, ...], strides: Any, dilations: Any) -> Case:
        attributes = {"low": low, "shape": shape, "strides": strides, "dilations": dilations}
        return Case(name, "overlap_add", (spread,), attributes, ulps=16)

    return [
        Case("windows", "windows", (x,), {"sizes": (3, 2), "strides": (1, 1), "dilations": (1, 1)}),
        Case("windows-apart", "windows", (x,), {"sizes": (2, 3), "strides": (3, 2), "dilations": (1, 2)}),
        Case("windows-last", "windows", (x,), {"sizes": (4,), "strides": (2,), "dilations": (2,)}),
        Case("windows-whole", "windows", (x,), {"sizes": (9, 7), "strides": (1, 1), "dilations": (1, 1)}),
        added("overlap_add", (0, 0), (6, 4), (1, 1), (1, 1)),
        added("overlap_add-apart", (0, 0), (10, 9), (2, 3), (1, 2)),
        added("overlap_add-beyond", (0, 0), (13, 12), (3, 2), (2, 3)),
        added("overlap_add-within", (1, 1), (4, 3), (1, 2), (2, 1)),
        added("overlap_add-nowhere", (1, 0), (1, 4), (4, 1), (3, 1)),
    ]


def _indexing() -> list[Case]:
    table, ids = _normal(41, 9, 5), _integers(42, -9, 9, 2, 7)
    along = _integers(43, 0, 9, 4, 5)
    return [
        Case("take-rows", "take", (table, ids), {"axis": 0}, fixed=(1,)),
        Case("take-columns", "take", (table, _integers(44, 0, 5, 3)), {"axis": 1}, fixed=(1,)),
        Case("scatter_add", "scatter_add", (table, ids, _normal(45, 2, 7, 5)), {"axis": 0}, fixed=(1,), ulps=16),
        Case("scatter_add-1", "scatter_add", (table, along[0, :3], _normal(46, 9, 3)), {"axis": 1}, fixed=(1,), ulps=16),
        Case("gather-0", "gather", (table, along), {"axis": 0}, fixed=(1,)),
        Case("gather-1", "gather", (table, _integers(47, -5, 5, 9, 2)), {"axis": 1}, fixed=(1,)),
        Case("gather_add", "gather_add", (table, along, _normal(48, 4, 5)), {"axis": 0}, fixed=(1,), ulps=16),
        Case("argsort", "argsort", (_integers(49, 0, 4, 3, 9).astype(np.float64),), {"axis": 1, "descending": False}, fixed=(0,)),
        Case("argsort-down", "argsort", (_integers(49, 0, 4, 9, 3).astype(np.float64),), {"axis": 0, "descending": True},
             fixed=(0,)),
    ]  # fmt: skip


CASES: tuple[Case, ...] = (*_pointwise(), *_movement(), *_reductions(), *_products(), *_windows(), *_indexing())

# Operations whose meaning needs a context: each has tests of its own.
ELSEWHERE = {
    "input": "every case",
    "host": "test_host",
    "random": "test_randomness",
    "region": "test_differentiate",
    "widen": "test_precision",
    "round_bf16": "test_precision",
    "round_f16": "test_precision",
    "get": "test_differentiate",
    "scan": "test_scan",
    "constant": "test_operations.test_fills",
    "iota": "test_operations.test_fills",
}


def central_difference(function: Callable[..., Array], inputs: tuple[Array, ...], which: int, weights: Array) -> Array:
    """d(Σ weights · function)/d(inputs[which]) by central differences in float64."""
    x = inputs[which]
    out = np.zeros(x.shape)
    step = 1e-6
    for place in np.ndindex(x.shape):
        values = []
        for sign in (1, -1):
            moved = x.copy()
            moved[place] += sign * step
            values.append(np.sum(weights * function(*inputs[:which], moved, *inputs[which + 1 :])))
        out[place] = (values[0] - values[1]) / (2 * step)
    return out
