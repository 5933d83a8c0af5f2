"""Work in the order that streams, events and graphs allow, and no more: a choice among the legal orders, and who is before whom.

A lane is a chain of operations, each of which is before the next: a stream, or a chain of a graph's nodes. An operation's
clock has, of every lane, how many of its operations are before it (its own included).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Lane = Hashable
Clock = dict[Lane, int]
# `eager`: each runs when it is given. `lazy`: nothing runs before the host has to have it, the newest first. A number is
# the seed of a choice made anew at every step.
Order = Literal["eager", "lazy"] | int


@dataclass(eq=False)
class Operation:
    """Something that runs on a device once all of `after` is done."""

    number: int
    name: str
    lane: Lane
    run: Callable[[Operation], None]
    after: Sequence[Operation]
    clock: Clock
    done: bool = False

    @property
    def place(self) -> int:
        """Which one of its lane it is."""
        return self.clock[self.lane]

    @property
    def ready(self) -> bool:
        return all(earlier.done for earlier in self.after)


def join(clocks: Iterable[Clock]) -> Clock:
    """What is before whoever has seen all of these."""
    seen: Clock = {}
    for clock in clocks:
        for lane, place in clock.items():
            if place > seen.get(lane, 0):
                seen[lane] = place
    return seen


@dataclass
class Schedule:
    """All work that was given and is not done. `host` is what the host knows to be done."""

    order: Order = "eager"
    pending: list[Operation] = field(default_factory=list)
    host: Clock = field(default_factory=dict)
    places: Clock = field(default_factory=dict)
    given: int = 0

    def __post_init__(self) -> None:
        self.choice = random.Random(self.order if isinstance(self.order, int) else 0)

    def give(self, name: str, lane: Lane, after: Sequence[Operation], run: Callable[[Operation], None]) -> Operation:
        """A new operation after these, and after all that the host has seen done."""
        clock = join([self.host, *(earlier.clock for earlier in after)])
        self.places[lane] = clock[lane] = self.places.get(lane, 0) + 1
        self.given += 1
        made = Operation(self.given, name, lane, run, [earlier for earlier in after if not earlier.done], clock)
        self.pending.append(made)
        return made

    def progress(self) -> None:
        """What a device may do while the host goes on."""
        if self.order == "eager":
            self.run_all()
        elif self.order != "lazy":
            for _ in range(self.choice.randrange(3)):
                self.step()

    def step(self) -> None:
        """One operation that may run runs."""
        ready = [operation for operation in self.pending if operation.ready]
        if ready:
            self._run(self.choice.choice(ready))

    def finish(self, wanted: Sequence[Operation]) -> None:
        """The host waits for these: they and what is before them run, and what the order takes with them."""
        while not all(operation.done for operation in wanted):
            self._run(self._next(wanted))
        self.host = join([self.host, *(operation.clock for operation in wanted)])

    def _next(self, wanted: Sequence[Operation]) -> Operation:
        needed = _before(wanted) if self.order == "lazy" else self.pending
        ready = [operation for operation in needed if operation.ready]
        assert ready, "work waits for itself"
        if isinstance(self.order, int):
            return self.choice.choice(ready)
        return ready[0] if self.order == "eager" else ready[-1]

    def _run(self, operation: Operation) -> None:
        self.pending.remove(operation)
        operation.run(operation)
        operation.done = True
        # What is done holds nothing any more.
        operation.after = ()

    def run_all(self) -> None:
        """The device becomes idle; the host learns nothing of it."""
        while self.pending:
            self._run(self._next(self.pending))


def _before(wanted: Sequence[Operation]) -> list[Operation]:
    """All that is not done of these and of what they wait for, the earlier ones first."""
    found: dict[Operation, None] = {}
    left = list(wanted)
    while left:
        operation = left.pop()
        if not operation.done and operation not in found:
            found[operation] = None
            left += operation.after
    return list(reversed(found))
