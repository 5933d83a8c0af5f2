"""Which values of a row or column program wait for which reduction, and which are kept instead of computed again.

A row is passed over several times: pass s sees the results of all reductions of earlier passes. Softmax has three
passes (maximum; sum of exponentials; quotients), layernorm three. An element value that a later pass needs again is
computed again where that is cheap, and kept in the worker's scratch where a transcendental would be repeated. All of
this follows from the program's structure alone, so the bits do too.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import msgspec

from sexpgpu.plan.kernel import Program

EXPENSIVE = frozenset(
    ("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "pow", "floordiv", "mod", "random")
)


class Stages(msgspec.Struct, frozen=True):
    """`element[v]`: the value differs along the reduced loop; `stage[v]`: the first pass that can compute it;
    `passes[s]`: the values that pass s computes, in order; `kept`: values stored in their first pass and read after it;
    `reads[s]`: the kept values that pass s reads; `stores[s]`: the numbers of the element stores written in pass s."""

    element: tuple[bool, ...]
    stage: tuple[int, ...]
    passes: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]
    stores: tuple[tuple[int, ...], ...]


def _levels(program: Program) -> tuple[list[bool], list[int]]:
    """Column programs' loads are elements whatever their stride along the columns is."""
    row = program.kind != "column"
    element = [not row or load.inner != "zero" for load in program.loads]
    stage = [0] * len(program.loads)
    for instruction in program.body:
        reduces = instruction.op.startswith("reduce_")
        element.append(not reduces and any(element[a] for a in instruction.arguments))
        stage.append(max((stage[a] for a in instruction.arguments), default=0) + (1 if reduces else 0))
    return element, stage


def arguments_of(program: Program, value: int) -> tuple[int, ...]:
    """The values that a value is made of; a load is made of none."""
    return program.body[value - len(program.loads)].arguments if value >= len(program.loads) else ()


def is_reduction(program: Program, value: int) -> bool:
    return value >= len(program.loads) and program.body[value - len(program.loads)].op.startswith("reduce_")


def _store_passes(program: Program, element: list[bool], stage: list[int], last: int) -> list[list[int]]:
    """A store over a load's memory waits for the last pass, which is the last to read it."""
    made: list[list[int]] = [[] for _ in range(last + 1)]
    for number, store in enumerate(program.stores):
        if program.kind == "map" or store.inner != "zero":
            made[last if store.alias is not None else stage[store.value]].append(number)
    return made


def _roots(program: Program, stage: Sequence[int], stores: Sequence[Sequence[int]]) -> list[list[int]]:
    """The values that every pass is there for: what it reduces and what it stores."""
    roots = []
    for number, written in enumerate(stores):
        reduced = [
            arguments_of(program, v)[0]
            for v in range(len(stage))
            if is_reduction(program, v) and stage[v] == number + 1
        ]
        roots.append(reduced + [program.stores[s].value for s in written])
    return roots


def analyse(program: Program) -> Stages:
    """The passes of a map (one) or row program. (A column program's stores are written after the last of its passes.)"""
    element, stage = _levels(program)
    reductions = [v for v in range(len(element)) if is_reduction(program, v)]
    last = max((stage[v] for v in reductions), default=0)
    row = program.kind != "column"
    stores = _store_passes(program, element, stage, last) if row else [[] for _ in range(last + 1)]
    roots = _roots(program, stage, stores)
    kept = _kept(program, element, roots) if row else set()
    passes: list[tuple[int, ...]] = []
    reads: list[tuple[int, ...]] = []
    known: set[int] = set()
    for needed in roots:
        values = needed_values(program, element, needed, kept & known)
        reads.append(tuple(sorted(values & kept & known)))
        passes.append(tuple(sorted(values - (kept & known))))
        known |= values
    return Stages(
        tuple(element), tuple(stage), tuple(passes), tuple(reads), tuple(sorted(kept)), tuple(map(tuple, stores))
    )


def roots_of(program: Program, stages: Stages) -> list[list[int]]:
    """What every pass of a row program reduces and stores."""
    return _roots(program, stages.stage, stages.stores)


def needed_values(program: Program, element: Sequence[bool], roots: Sequence[int], stop: Set[int]) -> set[int]:
    """The element values that the roots need, down to loads and to the values in `stop`."""
    found: set[int] = set()
    waiting = [v for v in roots if element[v]]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            if value not in stop:
                waiting += [a for a in arguments_of(program, value) if element[a]]
    return found


def _kept(program: Program, element: list[bool], roots: list[list[int]]) -> set[int]:
    """Expensive values that more than one pass needs."""
    loads = len(program.loads)
    kept: set[int] = set()
    computed: set[int] = set()
    for needed in roots:
        dear = {
            v
            for v in needed_values(program, element, needed, kept)
            if v >= loads and program.body[v - loads].op in EXPENSIVE
        }
        again = dear & computed - kept
        kept |= again
        # What only the repeated values needed is not needed again.
        computed |= {v for v in needed_values(program, element, needed, kept) if v in dear}
    return kept
