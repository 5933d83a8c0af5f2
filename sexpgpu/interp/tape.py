"""The native executor: a tape of kernel calls, run by worker threads without the interpreter's lock.

One foreign call runs a whole tape. Of each record the workers take blocks until none is left; blocks are cut by shape
alone, and each has the same bits whoever computes it. Between calls the workers spin for some microseconds, then
sleep until the next call wakes them.
"""

from __future__ import annotations

import math
import os
import platform
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sexpgpu.interp import tape_code as words
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.kernels import load_kernels
from sexpgpu.interp.native import callable_at, system_calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

LINE_BYTES = 64


class Record(msgspec.Struct, frozen=True):
    """A kernel's address, its argument words, its units and how many of them make a block."""

    function: int
    arguments: NDArray[np.int64]
    units: int
    units_per_block: int

    @property
    def blocks(self) -> int:
        return -(-self.units // self.units_per_block)


class Tape(msgspec.Struct, frozen=True):
    """Records as the native code reads them, with what they point at."""

    table: NDArray[np.int64]
    records: tuple[Record, ...]
    scratch_bytes: int


def aligned(size_bytes: int, alignment: int = LINE_BYTES) -> NDArray[np.uint8]:
    """Bytes that begin on a cache line and are not touched yet."""
    raw = np.empty(size_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size_bytes]


def most_takes(blocks: int, workers: int) -> int:
    """How often blocks of a record are taken at most. While 4W or more are left, a take leaves at most 1 − 1/3W of them."""
    return min(blocks, 4 * workers + math.ceil(3 * workers * math.log(blocks)))


def record_tape(records: Sequence[Record], scratch_bytes: int) -> Tape:
    """The tape of these records, in order: each begins when the one before it is done."""
    kept = tuple(r for r in records if r.units > 0)
    assert len(kept) <= words.MOST_RECORDS and all(r.blocks <= words.MOST_BLOCKS for r in kept)
    rows = [(r.function, r.arguments.ctypes.data, r.units, r.units_per_block, r.blocks) for r in kept]
    table = np.array(rows, np.int64).reshape(len(kept), words.RECORD_WORDS)
    return Tape(table, kept, scratch_bytes)


class Workers:
    """Threads that run tapes, worker 0 being whoever calls. `close` (or the end of the process) ends them.

    `timed` workers note when they began and ended which blocks; others run code that has nothing of it.
    """

    def __init__(self, count: int, cache: Cache, timed: bool = False) -> None:
        assert count >= 1, count
        self.count = count
        self.timed = timed
        source = words.source(platform.machine(), timed)
        self._kernels = load_kernels({source: lambda: source}, cache)
        self._call = callable_at(self._kernels.addresses[source])
        self._control = np.frombuffer(aligned(8 * (words.SCRATCH + 2 * count), 128), np.int64)
        self._control[:] = 0
        self._control[words.WORKERS] = count
        self._control[words.POSITION] = words.IDLE
        # Tables are copied here, and grown-out ones are kept: a worker that wakes late may still look at the last.
        self._tables = [np.zeros(1024, np.int64)]
        system = system_calls()
        self._control[words.YIELD] = system.sched_yield
        self._control[words.USLEEP] = system.usleep
        self._control[words.SYSCALL] = system.syscall
        self._control[words.CLOCK] = system.clock_gettime
        self._process = os.getpid()
        self._scratch: list[NDArray[np.uint8]] = [aligned(0)] * count
        self._logs: list[NDArray[np.int64]] = []
        self._lock = threading.Lock()
        threads = [self._thread(number) for number in range(1, count)]
        self._finalizer = weakref.finalize(
            self, _end, self._call, self._control, threads, (self._kernels, self._tables)
        )

    def _thread(self, number: int) -> threading.Thread:
        arguments = (self._control.ctypes.data, 1, number, 0)
        thread = threading.Thread(target=self._call, args=arguments, name=f"sexpgpu-worker-{number}", daemon=True)
        thread.start()
        return thread

    def _provide_scratch(self, size_bytes: int) -> None:
        """Each worker's own; on lines of its own, so that workers do not disturb each other."""
        if size_bytes > self._scratch[0].size:
            self._scratch = [aligned(size_bytes, 4096) for _ in range(self.count)]
            for number, scratch in enumerate(self._scratch):
                self._control[words.SCRATCH + number] = scratch.ctypes.data

    def _provide_logs(self, tape: Tape) -> None:
        """Empty logs with room for every event of the tape, whoever takes which blocks."""
        room = sum(most_takes(record.blocks, self.count) for record in tape.records)
        if not self._logs or room > self._logs[0][1]:
            size = words.LOG_WORDS + words.EVENT_WORDS * room
            self._logs = [np.zeros(size, np.int64) for _ in range(self.count)]
            for number, log in enumerate(self._logs):
                log[1] = room
                self._control[words.SCRATCH + self.count + number] = log.ctypes.data
        for log in self._logs:
            log[0] = 0

    def events(self) -> NDArray[np.int64]:
        """What the timed workers did in the last call, a row an event: worker, record, blocks, begin and end in ns."""
        made = []
        for number, log in enumerate(self._logs):
            count, room = int(log[0]), int(log[1])
            assert count <= room, (count, room)
            rows = log[words.LOG_WORDS : words.LOG_WORDS + words.EVENT_WORDS * count].reshape(count, words.EVENT_WORDS)
            made.append(np.column_stack([np.full(count, number), rows]))
        return np.concatenate(made)

    def _copied(self, tape: Tape) -> int:
        """The address of the tape's table in memory that stays."""
        if tape.table.size > self._tables[-1].size:
            self._tables.append(np.zeros(2 * tape.table.size, np.int64))
        self._tables[-1][: tape.table.size] = tape.table.ravel()
        return int(self._tables[-1].ctypes.data)

    def run(self, tape: Tape) -> None:
        """Runs the tape's records; returns when all are done."""
        assert self._finalizer.alive and self._process == os.getpid(), "the workers have ended, or are a parent's"
        if not len(tape.table):
            return
        with self._lock:
            self._provide_scratch(tape.scratch_bytes)
            if self.timed:
                self._provide_logs(tape)
            self._control[words.TAPE] = self._copied(tape)
            self._control[words.RECORDS] = len(tape.table)
            self._call(self._control.ctypes.data, 0, 0, 0)

    def close(self) -> None:
        """Ends the threads; no tape may be running."""
        self._finalizer()


def _end(call: Any, control: NDArray[np.int64], threads: list[threading.Thread], held: Any) -> None:
    """`held`: the code that the threads are in and the memory that they read, until they are gone."""
    control[words.STOP] = 1
    call(control.ctypes.data, 0, 0, 0)
    for thread in threads:
        thread.join()
    del held
