"""Comparisons, selections, logic on predicates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.dtypes import DTYPES, HALVES
from tests.simulator.form import Action, Form
from tests.simulator.formats import widen
from tests.simulator.machine import Machine
from tests.simulator.rounding import flush
from tests.simulator.threads import Threads

ORDERED: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}
JOINS: dict[str, Callable[[Any, Any], Any]] = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def comparison(name: str, floating: bool) -> Callable[[Any, Any], Any]:
    """A comparison with a NaN is false, and true where its name ends in u."""
    if not floating:
        return ORDERED[name]
    if name in ("num", "nan"):
        return lambda x, y: (np.isnan(x) | np.isnan(y)) == (name == "nan")
    if name == "ne":
        return lambda x, y: (x != y) & ~(np.isnan(x) | np.isnan(y))
    if name in ORDERED:
        return ORDERED[name]
    compare = ORDERED[name[:-1]]
    return lambda x, y: compare(x, y) | np.isnan(x) | np.isnan(y)


def compared(form: Form) -> Callable[[Machine, Threads], Any]:
    kind = form.type
    if kind.endswith("x2"):
        raise form.unsupported()
    half = kind in HALVES
    x, y = form.source(1), form.source(2)
    function = comparison(form.modifiers[0], half or form.dtype.kind == "f")
    flushing = form.has("ftz") and not half

    def run(machine: Machine, threads: Threads) -> Any:
        a, b = x(machine, threads), y(machine, threads)
        if half:
            a, b = widen(a, kind), widen(b, kind)
        if flushing:
            a, b = flush(a), flush(b)
        return np.asarray(function(a, b))

    return run


def set_predicate(form: Form) -> Action:
    """setp: a second target takes the comparison's opposite; a third operand is joined to both."""
    compare = compared(form)
    put, put_opposite = form.two_targets()
    join = JOINS.get(form.one_of("and", "or", "xor"))
    other = form.source(3, "pred") if join else None

    def run(machine: Machine, threads: Threads) -> None:
        result = compare(machine, threads)
        opposite = ~result if put_opposite else None
        if join and other:
            known = other(machine, threads)
            result = join(result, known)
            opposite = None if opposite is None else join(opposite, known)
        put(machine, threads, result)
        if put_opposite:
            put_opposite(machine, threads, opposite)

    return run


def set_value(form: Form) -> Action:
    """set: all bits, or 1.0, where the comparison holds."""
    compare, put = compared(form), form.target()
    kinds = [word for word in form.modifiers if word in DTYPES]
    if kinds[0] not in ("u32", "s32", "f32") or form.one_of("and", "or", "xor"):
        raise form.unsupported()
    true, false = (np.float32(1), np.float32(0)) if kinds[0] == "f32" else (np.uint32(0xFFFFFFFF), np.uint32(0))
    return lambda machine, threads: put(machine, threads, np.where(compare(machine, threads), true, false))


def select(form: Form) -> Action:
    x, y, condition, put = form.source(1), form.source(2), form.source(3, "pred"), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        put(machine, threads, np.where(condition(machine, threads), x(machine, threads), y(machine, threads)))

    return run


def select_by_sign(form: Form) -> Action:
    """slct: the first where the third operand is not negative."""
    kinds = [word for word in form.modifiers if word in DTYPES]
    x, y, condition, put = form.source(1, kinds[0]), form.source(2, kinds[0]), form.source(3, kinds[1]), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        put(machine, threads, np.where(condition(machine, threads) >= 0, x(machine, threads), y(machine, threads)))

    return run


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "setp": set_predicate,
    "set": set_value,
    "selp": select,
    "slct": select_by_sign,
}
