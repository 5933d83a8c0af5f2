"""cvt: between integers, float32, float64 and half precision, with rounding and saturation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.dtypes import DTYPES, HALVES
from tests.simulator.form import Action, Form, saturate
from tests.simulator.formats import pair, shorten, shorten_exact, widen
from tests.simulator.machine import Machine
from tests.simulator.rounding import canonical, flush, narrow, toward
from tests.simulator.threads import Threads

WHOLE: dict[str, Callable[[Any], Any]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def convert(form: Form) -> Action:
    kinds = [word for word in form.modifiers if word in DTYPES]
    if len(kinds) != 2:
        raise form.unsupported()
    target, source = kinds
    if target in ("bf16x2", "f16x2") and source == "f32":
        return convert_pair(form, target)
    if target.endswith("x2") or source.endswith("x2") or (target == "tf32") != form.has("rna"):
        raise form.unsupported()
    function = tensor_float if target == "tf32" else conversion(form, target, source)
    read, put = form.source(1, source), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        put(machine, threads, np.asarray(function(machine.spread(read(machine, threads), threads))))

    return run


def conversion(form: Form, target: str, source: str) -> Callable[[Any], Any]:
    whole = form.one_of(*WHOLE)
    if DTYPES[target].kind == "f" or target in HALVES:
        if DTYPES[source].kind == "f" or source in HALVES:
            return between_floats(form, target, source, whole)
        return integer_to_float(form, target)
    if DTYPES[source].kind == "f" or source in HALVES:
        return float_to_integer(form, DTYPES[target], source, whole)
    limits = np.iinfo(DTYPES[target])
    if form.has("sat"):
        return lambda value: clip_integer(value, limits).astype(DTYPES[target])
    return lambda value: value.astype(DTYPES[target])


def clip_integer(value: Any, limits: np.iinfo[Any]) -> Any:
    """Clipped in the value's own type, whose limits may be the narrower ones."""
    own = np.iinfo(value.dtype)
    return np.clip(value, max(own.min, int(limits.min)), min(own.max, int(limits.max)))


def between_floats(form: Form, target: str, source: str, whole: str) -> Callable[[Any], Any]:
    mode = form.rounding
    if form.has("relu") and target not in HALVES:
        raise form.unsupported()

    def function(value: Any) -> Any:
        value = widen(value, source) if source in HALVES else value
        if form.has("ftz") and value.dtype == np.float32:
            value = flush(value)
        if form.has("relu"):
            value = np.where(value < 0, value.dtype.type(0), value)
        if whole:
            value = WHOLE[whole](value)
        if form.has("sat"):
            value = saturate(value)
        return to_format(value, target, mode, form.has("ftz"))

    return function


def to_format(value: Any, target: str, mode: str, flushing: bool) -> Any:
    if target in HALVES:
        if value.dtype == np.float64:
            return shorten_exact(value, 0.0, target)
        return shorten(value, target, mode)
    if target == "f64":
        return value.astype(np.float64)
    if value.dtype == np.float64:
        value = canonical(value.astype(np.float32) if mode == "rn" else narrow(value, 0.0, mode))
    else:
        value = canonical(value)
    return flush(value) if flushing else value


def integer_to_float(form: Form, target: str) -> Callable[[Any], Any]:
    mode = form.rounding

    def function(value: Any) -> Any:
        if target in HALVES:
            return integer_to_half(value, target)
        dtype = DTYPES[target]
        nearest = value.astype(dtype)
        if mode == "rn":
            return nearest
        difference = np.array([int(x) - int(y) for x, y in zip(value, nearest)], dtype=object)
        return toward(nearest, np.sign(difference).astype(np.int64), mode)

    return function


def integer_to_half(value: Any, target: str) -> Any:
    """By way of float64 with the lost bits of a 64-bit integer as the error."""
    total = value.astype(np.float64)
    error = np.array([int(x) - int(y) for x, y in zip(value, total)], np.float64) if value.dtype.itemsize == 8 else 0.0
    return shorten_exact(total, error, target)


def float_to_integer(form: Form, dtype: np.dtype[Any], source: str, whole: str) -> Callable[[Any], Any]:
    """Clamped to the integer's range; a NaN gives 0."""
    limits = np.iinfo(dtype)
    least, most = float(limits.min), float(limits.max)
    if not whole:
        raise form.unsupported()

    def function(value: Any) -> Any:
        value = widen(value, source) if source in HALVES else value
        if form.has("ftz") and value.dtype == np.float32:
            value = flush(value)
        value = WHOLE[whole](value.astype(np.float64))
        high, low, wrong = value >= most, value <= least, np.isnan(value)
        inside = np.where(high | low | wrong, 0.0, value).astype(dtype)
        inside = np.where(high, dtype.type(limits.max), inside)
        return np.where(low, dtype.type(limits.min), inside)

    return function


def tensor_float(value: Any) -> Any:
    """cvt.rna.tf32.f32: ten bits of mantissa, ties away from zero."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(value), rounded, bits)


def convert_pair(form: Form, target: str) -> Action:
    """Two float32 to a packed pair: the first operand is the high half."""
    high, low, put = form.source(1, "f32"), form.source(2, "f32"), form.target()
    if form.has("satfinite") or form.rounding not in ("rn", "rz"):
        raise form.unsupported()

    def short(value: Any) -> Any:
        if form.has("relu"):
            value = np.where(value < 0, np.float32(0), value)
        return shorten(value, target, form.rounding)

    def run(machine: Machine, threads: Threads) -> None:
        put(machine, threads, pair(short(low(machine, threads)), short(high(machine, threads))))

    return run


BUILDERS: dict[str, Callable[[Form], Action]] = {"cvt": convert}
