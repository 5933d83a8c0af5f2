"""Which element values the threads of a row keep in registers from one pass over the row to a later one.

Where they keep enough, every element of memory is read once. What is kept follows from the program alone: all loads that
later passes need, then, as long as it takes no more registers, a value in place of those that it is made of (the sum of
two loads instead of both, the exponentials instead of the logits).
"""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.codegen.source import result_dtype
from sexpgpu.codegen.stages import Stages, needed_values, roots_of
from sexpgpu.plan.kernel import Program


@dataclass(frozen=True, slots=True)
class Passes:
    """`made[s]`: the element values that pass s loads and computes, in order; `read[s]`: the kept values that it reads;
    `kept`: every value that a later pass reads; `registers`: the most that are kept at once, of one element."""

    made: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    kept: frozenset[int]
    registers: int


def passes_keeping_nothing(program: Program, stages: Stages) -> Passes:
    """Every pass loads and computes all that it needs."""
    return _passes(program, stages, frozenset())


def passes_reading_once(program: Program, stages: Stages) -> Passes:
    """No load is made twice, no dear value computed twice."""
    loads = {n for n, load in enumerate(program.loads) if load.kind == "memory"}
    made = _passes(program, stages, frozenset(loads | set(stages.kept)))
    for value in range(len(program.loads), len(stages.element)):
        if stages.element[value]:
            other = _passes(program, stages, made.kept | {value})
            made = other if other.registers <= made.registers else made
    return made


def _passes(program: Program, stages: Stages, keep: frozenset[int]) -> Passes:
    made: list[tuple[int, ...]] = []
    read: list[tuple[int, ...]] = []
    known: set[int] = set()
    for roots in roots_of(program, stages):
        values = needed_values(program, stages.element, roots, keep & known)
        read.append(tuple(sorted(values & keep & known)))
        made.append(tuple(sorted(values - (keep & known))))
        known |= values
    kept = frozenset(value for values in read for value in values)
    return Passes(tuple(made), tuple(read), kept, _registers(program, made, read))


def _registers(program: Program, made: list[tuple[int, ...]], read: list[tuple[int, ...]]) -> int:
    """The most that wait between two passes."""
    most = 0
    for number in range(1, len(made)):
        before = {value for values in made[:number] for value in values}
        later = {value for values in read[number:] for value in values}
        most = max(most, sum(2 if result_dtype(program, v) == "i64" else 1 for v in before & later))
    return most
