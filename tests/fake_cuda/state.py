"""What the simulated driver holds, and how its calls come in: failures that a test asks for, handles, the current card."""

from __future__ import annotations

import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.fake_cuda.card import Card, Figures
from tests.fake_cuda.code import Code
from tests.fake_cuda.host import HostMemory
from tests.fake_cuda.order import Operation, Order, Schedule
from tests.fake_cuda.streams import CAPTURE_UNSUPPORTED, Refused, Stream, Work, give

NOT_INITIALIZED, INVALID_CONTEXT, INVALID_HANDLE, UNKNOWN = 3, 201, 400, 999
# The driver answers these in any state.
ALWAYS = ("cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuDevicePrimaryCtxRelease_v2")
# Handles of devices and contexts begin here: a handle is no ordinal.
FIRST_DEVICE, FIRST_CONTEXT = 40, 0xC000

Kind = TypeVar("Kind")


@dataclass
class Failure:
    """The next `times` calls after the first `after` give this number."""

    number: int
    times: int
    after: int


@dataclass
class Held:
    """What a handle stands for, on which card; a kernel is its module's and is not given back."""

    card: Card
    thing: Any


@dataclass
class State:
    """`findings`: what no program should do, `faults`: what kernels did; `unreturned`: what a context's end had to free."""

    figures: Sequence[Figures]
    order: Order = "eager"
    version: int = 13000
    start: int = 0
    findings: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unreturned: list[str] = field(default_factory=list)
    called: Counter[str] = field(default_factory=Counter)
    handles: dict[int, Held] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    images: dict[bytes, Code] = field(default_factory=dict)
    # What simulated libraries beside the driver hold.
    libraries: list[Callable[[], list[str]]] = field(default_factory=list)
    # Dependencies (node, earlier node) that graphs shall lack, by the nodes' names.
    forgotten_edges: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.order)
        self.started = False
        self.cards = [Card(figures, n, self.findings, self.faults) for n, figures in enumerate(self.figures)]
        self.last_handle = 0x1000
        self.here = threading.local()
        self.host = HostMemory(self.findings)
        # Texts that the program was given pointers to.
        self.words: dict[tuple[int, int], Any] = {}

    def fail(self, call: str, number: int, times: int = 1, after: int = 0) -> None:
        """Calls of this name will fail."""
        self.failures[call] = Failure(number, times, after)

    def answer(self, name: str, implementation: Callable[..., None], arguments: Sequence[Any]) -> int:
        """What a call returns."""
        self.called[name] += 1
        try:
            number = self._asked_failure(name, arguments) or self._state_of(name)
            if number:
                return number
            implementation(*arguments)
        except Refused as refused:
            return refused.number
        except Exception:
            # The calling C code sees no exception: it must not be lost.
            self.findings.append(f"the simulated driver failed in {name}: {traceback.format_exc()}")
            return UNKNOWN
        return 0

    def _asked_failure(self, name: str, arguments: Sequence[Any]) -> int:
        failure = self.failures.get(name)
        if failure is None:
            return 0
        if failure.after:
            failure.after -= 1
            return 0
        if name == "cuStreamEndCapture":
            # A capture ends whatever comes of it.
            stream = self.get(arguments[0], Stream)
            assert stream.capture is not None
            for joined in stream.capture.frontiers:
                joined.capture = None
        failure.times -= 1
        if not failure.times:
            del self.failures[name]
        return failure.number

    def _state_of(self, name: str) -> int:
        if name in ALWAYS:
            return 0
        if not self.started:
            return NOT_INITIALIZED
        # One may turn to another card from a broken one.
        card = None if name == "cuCtxSetCurrent" else getattr(self.here, "card", None)
        return 0 if card is None else int(card.broken)

    def card_of(self, device: int) -> Card:
        if not FIRST_DEVICE <= device < FIRST_DEVICE + len(self.cards):
            raise Refused(101)
        return self.cards[device - FIRST_DEVICE]

    @property
    def current(self) -> Card:
        card: Card | None = getattr(self.here, "card", None)
        if card is None or not card.retained:
            raise Refused(INVALID_CONTEXT)
        return card

    def new(self, thing: Any) -> int:
        self.last_handle += 16
        self.handles[self.last_handle] = Held(self.current, thing)
        return self.last_handle

    def get(self, handle: int | None, kind: type[Kind]) -> Kind:
        held = self.handles.get(handle or 0)
        if held is None or not isinstance(held.thing, kind):
            self.findings.append(f"{handle or 0:#x} is no {kind.__name__}, or none any more")
            raise Refused(INVALID_HANDLE)
        return held.thing

    def drop(self, handle: int, kind: type[Kind]) -> Kind:
        thing = self.get(handle, kind)
        del self.handles[handle]
        return thing

    def stream(self, handle: int | None) -> Stream:
        return self.get(handle, Stream) if handle else self.current.null

    def give(self, handle: int | None, name: str, work: Work) -> None:
        """Work for a stream, of which the device does what it likes at once."""
        card, stream = self.current, self.stream(handle)
        if stream.blocking and stream.capture is None:
            others = self._blocking(card) if stream is card.null else [card.null]
            stream.frontier = list(dict.fromkeys(made for other in [stream, *others] for made in other.frontier))
        give(self.schedule, stream, name, lambda: card.guarded(work()))
        if stream is card.null:
            for other in self._blocking(card):
                other.frontier = list(stream.frontier)
        self.schedule.progress()

    def streams(self, card: Card) -> list[Stream]:
        things = [held.thing for held in self.handles.values() if held.card is card]
        return [thing for thing in things if isinstance(thing, Stream)]

    def _blocking(self, card: Card) -> list[Stream]:
        return [stream for stream in self.streams(card) if stream.blocking]

    def uncaptured(self) -> Card:
        """The current card, for calls that a capture forbids: they make it useless."""
        captured = [stream for stream in self.streams(self.current) if stream.capture is not None]
        for stream in captured:
            assert stream.capture is not None
            stream.capture.valid = False
        if captured:
            raise Refused(CAPTURE_UNSUPPORTED)
        return self.current

    def wait_for(self, operations: Sequence[Operation]) -> None:
        """The host waits, and learns what went wrong."""
        self.schedule.finish(operations)
        self.host.seen(self.schedule.host)
        if self.current.broken:
            raise Refused(self.current.broken)

    def held(self) -> list[str]:
        """What a program has not given back."""
        things = [type(held.thing).__name__ for held in self.handles.values() if type(held.thing).__name__ != "Kernel"]
        blocks = [f"{size} bytes of {card.figures.name}" for card in self.cards for size in card.blocks.values()]
        contexts = [f"the context of {card.figures.name}" for card in self.cards for _ in range(card.retained)]
        beside = [thing for library in self.libraries for thing in library()]
        return [*things, *blocks, *contexts, *self.unreturned, *beside]
