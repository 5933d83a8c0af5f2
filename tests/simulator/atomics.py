"""atom and red: one thread after another, in the order of their places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.simulator.dtypes import DTYPES, HALVES
from tests.simulator.form import Action, Form
from tests.simulator.formats import halves, pair, shorten, widen
from tests.simulator.machine import Machine
from tests.simulator.moves import spaces
from tests.simulator.rounding import larger, smaller
from tests.simulator.threads import Threads

Step = Callable[[Any, list[Any]], Any]
WHOLE_ARRAY: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
OPERATIONS = (*WHOLE_ARRAY, "exch", "cas", "inc", "dec")


def step(name: str, kind: str) -> Step:
    """The new value from the old one and the operands."""
    if kind in HALVES:
        return half_add(kind)
    if DTYPES[kind].kind == "f" and name in ("min", "max"):
        choose = smaller if name == "min" else larger
        return lambda old, given: choose(np.asarray(old), np.asarray(given[0]))[()]
    special: dict[str, Step] = {
        "exch": lambda old, given: given[0],
        "cas": lambda old, given: given[1] if old == given[0] else old,
        "inc": lambda old, given: old.dtype.type(0) if old >= given[0] else old + old.dtype.type(1),
        "dec": lambda old, given: given[0] if old == 0 or old > given[0] else old - old.dtype.type(1),
    }
    if name in special:
        return special[name]
    function = WHOLE_ARRAY[name]
    return lambda old, given: function(old, given[0])


def half_add(kind: str) -> Step:
    def add(old: Any, new: Any) -> Any:
        return shorten(widen(np.atleast_1d(old), kind) + widen(np.atleast_1d(new), kind), kind)

    def both(old: Any, given: list[Any]) -> Any:
        if not kind.endswith("x2"):
            return add(old, given[0])[0]
        return pair(*(add(x, y) for x, y in zip(halves(old), halves(given[0]))))[0]

    return both


def atomic(form: Form) -> Action:
    returns = form.instruction.opcode == "atom"
    name, kind = form.one_of(*OPERATIONS), form.type
    if not name or (kind in HALVES and name != "add") or len(form.parts(form.count - 1)) > 1:
        raise form.unsupported()
    first = 1 if returns else 0
    address = form.address(first)
    reads = [form.source(place) for place in range(first + 1, form.count)]
    put = form.target() if returns else None
    space, function = form.one_of("global", "shared"), step(name, kind)
    together = WHOLE_ARRAY.get(name) if not returns and kind not in HALVES else None

    def run(machine: Machine, threads: Threads) -> None:
        for where, part, at in spaces(machine, space, threads, address(machine, threads)):
            places = where.combine(machine, part, at, form.dtype.itemsize)
            held = where.bytes.view(form.dtype)
            given = [machine.spread(read(machine, part), part) for read in reads]
            if together is not None:
                together.at(held, places, given[0])
                continue
            old = one_by_one(held, places, given, function)
            if put:
                put(machine, part, old)

    return run


def one_by_one(held: Any, places: Any, given: list[Any], function: Step) -> Any:
    """What each thread found there before its own turn."""
    old = np.zeros(len(places), held.dtype)
    for number, place in enumerate(places):
        old[number] = held[place]
        held[place] = function(held[place], [one[number] for one in given])
    return old


BUILDERS: dict[str, Callable[[Form], Action]] = {"atom": atomic, "red": atomic}
