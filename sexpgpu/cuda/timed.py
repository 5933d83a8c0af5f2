"""How long each launch of a call takes on the card, by events between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sexpgpu.cuda.context import Context, Stream

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


class Work(Protocol):
    """A launch of a kernel, or the calls of a library: what is given to a stream."""

    def run(self, stream: Stream) -> None: ...


class TimedLaunches:
    """Launches with their numbers in the plan; an event stands before the first one and after each."""

    def __init__(self, context: Context, stream: Stream, launches: Sequence[tuple[int, Work]]) -> None:
        self._stream = stream
        self._launches = launches
        self._marks = [context.event(timed=True) for _ in range(len(launches) + 1)]

    def run(self) -> Array:
        """One call, to its end. A row for each launch: its number, 0 (the worker), begin and end in ns of the host's
        clock."""
        self._stream.record(self._marks[0])
        self._marks[0].synchronize()
        # The card has no clock that the host reads: what it does now begins now.
        begin_ns = time.perf_counter_ns()
        for (_, launch), mark in zip(self._launches, self._marks[1:], strict=True):
            launch.run(self._stream)
            self._stream.record(mark)
        self._marks[-1].synchronize()
        passed = [begin_ns + round(1e6 * mark.milliseconds_since(self._marks[0])) for mark in self._marks]
        numbers = np.array([number for number, _ in self._launches], np.int64)
        return np.column_stack([numbers, np.zeros_like(numbers), passed[:-1], passed[1:]])

    def close(self) -> None:
        for mark in self._marks:
            mark.close()
