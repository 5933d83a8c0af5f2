"""Floating point arithmetic: float32, float64, and half precision by way of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from tests.simulator.approximate import approximate, gross_reciprocal, gross_reciprocal_root
from tests.simulator.dtypes import HALVES
from tests.simulator.form import Action, Form, saturate
from tests.simulator.formats import halves, pair, shorten, shorten_exact, widen
from tests.simulator.machine import Machine
from tests.simulator.rounding import (
    canonical,
    flush,
    larger,
    rounded_fma,
    rounded_product,
    rounded_sum,
    smaller,
    two_sum,
)
from tests.simulator.threads import Threads


def add(form: Form) -> Action:
    return form.elementwise(rounded_sum(form.rounding))


def subtract(form: Form) -> Action:
    total = rounded_sum(form.rounding)
    return form.elementwise(np.subtract if total is np.add else lambda x, y: total(x, -y))


def multiply(form: Form) -> Action:
    return form.elementwise(rounded_product(form.rounding))


def fused(form: Form) -> Action:
    function = rounded_fma(form.rounding, form.dtype)
    if function is None:
        raise form.unsupported()
    return form.elementwise(function)


def divide(form: Form) -> Action:
    if form.has("approx") or form.has("full"):
        return approximated(form, "div")
    if form.rounding != "rn":
        raise form.unsupported()
    return form.elementwise(np.divide)


def root(form: Form) -> Action:
    if form.has("approx"):
        return approximated(form, "sqrt")
    if form.rounding != "rn":
        raise form.unsupported()
    return form.elementwise(np.sqrt)


def reciprocal(form: Form) -> Action:
    if form.has("approx"):
        return doubles(form, gross_reciprocal) if form.type == "f64" else approximated(form, "rcp")
    if form.rounding != "rn":
        raise form.unsupported()
    return form.elementwise(np.reciprocal)


def reciprocal_root(form: Form) -> Action:
    return doubles(form, gross_reciprocal_root) if form.type == "f64" else approximated(form, "rsqrt")


def doubles(form: Form, function: Callable[[Any], Any]) -> Action:
    return form.elementwise(function)


def approximated(form: Form, name: str) -> Action:
    """An approximate function of float32 or of half precision, off by what the launch's perturbation says."""
    half = form.type if form.type in HALVES else ""
    if form.type == "f64":
        raise form.unsupported()
    reads = [form.source(place, "b16" if half else "f32") for place in range(1, form.count)]
    put, flushing = form.target(), form.has("ftz")
    if half.endswith("x2"):
        raise form.unsupported()

    def run(machine: Machine, threads: Threads) -> None:
        given = [read(machine, threads) for read in reads]
        given = [widen(one, half) for one in given] if half else [flush(one) for one in given] if flushing else given
        value = canonical(approximate(name, machine.launch.perturbation, *given))
        if len(value) != threads.count:
            value = machine.spread(value, threads)
        put(machine, threads, shorten(value, half) if half else flush(value) if flushing else value)

    return run


def extreme(form: Form) -> Action:
    """min and max of two or more: .NaN keeps a NaN, .xorsign.abs compares sizes and multiplies signs."""
    return form.elementwise(extreme_function(form))


def extreme_function(form: Form) -> Callable[..., Any]:
    pick = smaller if form.instruction.opcode == "min" else larger
    keep, signs = form.has("NaN"), form.has("xorsign")

    def choose(x: Any, y: Any) -> Any:
        if signs:
            value = np.copysign(pick(np.abs(x), np.abs(y)), np.where(np.signbit(x) ^ np.signbit(y), -1, 1))
            value = value.astype(x.dtype)
        else:
            value = pick(x, y)
        if keep:
            value = np.where(np.isnan(x) | np.isnan(y), x.dtype.type(np.nan), value)
        return value

    return lambda *given: reduce(choose, given)


def bits_only(form: Form) -> Action:
    """neg and abs touch the sign alone; .ftz flushes."""
    negate, flushing = form.instruction.opcode == "neg", form.has("ftz")
    x, put = form.source(1), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        value = x(machine, threads)
        value = np.negative(value) if negate else np.abs(value)
        put(machine, threads, flush(value) if flushing else value)

    return run


def test_property(form: Form) -> Action:
    x, put = form.source(1), form.target()
    tiny = np.finfo(form.dtype).tiny
    tests: dict[str, Callable[[Any], Any]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda value: ~np.isnan(value),
        "notanumber": np.isnan,
        "normal": lambda value: np.isfinite(value) & (np.abs(value) >= tiny),
        "subnormal": lambda value: (value != 0) & (np.abs(value) < tiny),
    }
    test = tests[form.modifiers[0]]
    return lambda machine, threads: put(machine, threads, np.asarray(test(x(machine, threads))))


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "add": add,
    "sub": subtract,
    "mul": multiply,
    "fma": fused,
    "mad": fused,
    "div": divide,
    "min": extreme,
    "max": extreme,
    "neg": bits_only,
    "abs": bits_only,
    "copysign": lambda form: form.elementwise(lambda x, y: np.copysign(y, x)),
    "sqrt": root,
    "rcp": reciprocal,
    "rsqrt": reciprocal_root,
    "testp": test_property,
    **{
        name: lambda form, name=name: approximated(form, name)  # type: ignore[misc]
        for name in ("ex2", "lg2", "sin", "cos", "tanh")
    },
}


# Two float32 in one register of 64 bits, each rounded by itself.


def single_pair(form: Form) -> Action:
    functions: dict[str, Callable[..., Any] | None] = {
        "add": rounded_sum(form.rounding),
        "mul": rounded_product(form.rounding),
        "fma": rounded_fma(form.rounding, np.dtype("f4")),
    }
    function, flushing = functions[form.instruction.opcode], form.has("ftz")
    if function is None or form.has("sat"):
        raise form.unsupported()

    def both(*words: Any) -> Any:
        given = [np.atleast_1d(np.ascontiguousarray(one)).view(np.float32) for one in words]
        given = [flush(one) for one in given] if flushing else given
        value = canonical(function(*given))
        return np.ascontiguousarray(flush(value) if flushing else value).view(np.uint64)

    return form.elementwise(both)


PAIR_BUILDERS: dict[str, Callable[[Form], Action]] = dict.fromkeys(("add", "mul", "fma"), single_pair)


# Half precision: operands are widened, the exact result is rounded once.


def half_arithmetic(form: Form) -> Action:
    kind = form.type
    packed = kind.endswith("x2")
    reads = [form.source(place, "b32" if packed else "b16") for place in range(1, form.count)]
    put, function = form.target(), half_function(form)

    def run(machine: Machine, threads: Threads) -> None:
        given = [read(machine, threads) for read in reads]
        if not packed:
            put(machine, threads, function(*given))
            return
        low, high = zip(*(halves(one) for one in given))
        put(machine, threads, pair(function(*low), function(*high)))

    return run


def half_function(form: Form) -> Callable[..., Any]:
    """Bits in, bits out."""
    opcode, kind = form.instruction.opcode, form.type
    if opcode in ("min", "max"):
        choose = extreme_function(form)
        return lambda *bits: shorten(canonical(choose(*(widen(one, kind) for one in bits))), kind)
    exact = HALF_EXACT.get(opcode)
    if exact is None or form.rounding != "rn" or form.has("ftz"):
        raise form.unsupported()

    def function(*bits: Any) -> Any:
        total, error = exact(*(widen(one, kind).astype(np.float64) for one in bits))
        if form.has("sat"):
            total = saturate(total)
            error = np.where((total == 0) | (total == 1), 0.0, error)
        if form.has("relu"):
            total = np.where(total > 0, total, np.where(np.isnan(total), total, 0.0))
        return shorten_exact(np.atleast_1d(total), error, kind)

    return function


HALF_EXACT: dict[str, Callable[..., Any]] = {
    "add": two_sum,
    "sub": lambda x, y: two_sum(x, -y),
    "mul": lambda x, y: (x * y, 0.0),
    "fma": lambda x, y, z: two_sum(x * y, z),
}


def half_sign(form: Form) -> Action:
    kind = "b32" if form.type.endswith("x2") else "b16"
    sign = 0x80008000 if kind == "b32" else 0x8000
    if form.instruction.opcode == "neg":
        return form.elementwise(lambda x: x ^ x.dtype.type(sign), kind)
    return form.elementwise(lambda x: x & ~x.dtype.type(sign), kind)


HALF_BUILDERS: dict[str, Callable[[Form], Action]] = {
    **dict.fromkeys(("add", "sub", "mul", "fma", "min", "max"), half_arithmetic),
    "neg": half_sign,
    "abs": half_sign,
    **{name: BUILDERS[name] for name in ("ex2", "tanh")},
}
