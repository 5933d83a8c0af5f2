"""The simulated driver's calls about itself, its cards and their contexts."""

from __future__ import annotations

import ctypes
from typing import Any

from tests.fake_cuda.card import INVALID_VALUE, Card, Figures
from tests.fake_cuda.code import Kernel
from tests.fake_cuda.errors import ERRORS
from tests.fake_cuda.state import FIRST_CONTEXT, FIRST_DEVICE, INVALID_CONTEXT, State
from tests.fake_cuda.streams import Refused

NO_DEVICE, INVALID_DEVICE = 100, 101


class Queries(State):
    def cuInit(self, flags: int) -> None:
        if self.start:
            raise Refused(self.start)
        if not self.cards:
            raise Refused(NO_DEVICE)
        self.started = True

    def cuDriverGetVersion(self, version: Any) -> None:
        version[0] = self.version

    def cuGetErrorName(self, number: int, text: Any) -> None:
        self._say(number, 0, text)

    def cuGetErrorString(self, number: int, text: Any) -> None:
        self._say(number, 1, text)

    def cuDeviceGetCount(self, count: Any) -> None:
        count[0] = len(self.cards)

    def cuDeviceGet(self, device: Any, ordinal: int) -> None:
        if not 0 <= ordinal < len(self.cards):
            raise Refused(INVALID_DEVICE)
        device[0] = FIRST_DEVICE + ordinal

    def cuDeviceGetName(self, text: int, size: int, device: int) -> None:
        name = self.card_of(device).figures.name.encode()[: size - 1] + b"\0"
        ctypes.memmove(text, name, len(name))

    def cuDeviceGetUuid_v2(self, uuid: Any, device: int) -> None:
        uuid[0].bytes[:] = [self.card_of(device).number + 1] * 16

    def cuDeviceTotalMem_v2(self, size: Any, device: int) -> None:
        size[0] = self.card_of(device).figures.memory_bytes

    def cuDeviceGetAttribute(self, value: Any, number: int, device: int) -> None:
        value[0] = attribute_of(self.card_of(device).figures, number)

    def cuDevicePrimaryCtxRetain(self, context: Any, device: int) -> None:
        card = self.card_of(device)
        card.retained += 1
        context[0] = FIRST_CONTEXT + card.number

    def cuDevicePrimaryCtxRelease_v2(self, device: int) -> None:
        card = self.card_of(device)
        if not card.retained:
            raise Refused(INVALID_CONTEXT)
        card.retained -= 1
        if not card.retained:
            self._end(card)

    def _end(self, card: Card) -> None:
        """A context's end frees all of it. What was to be given back before is a leak, where the card was not broken."""
        mine = {handle: held for handle, held in self.handles.items() if held.card is card}
        if not card.broken:
            self.unreturned += [type(held.thing).__name__ for held in mine.values() if type(held.thing) is not Kernel]
            self.unreturned += [f"{size} bytes of {card.figures.name}" for size in card.blocks.values()]
        for handle in mine:
            del self.handles[handle]
        card.blocks.clear()
        card.broken = card.used_bytes = 0

    def cuCtxSetCurrent(self, context: int | None) -> None:
        self.here.card = None if context is None else self.cards[context - FIRST_CONTEXT]

    def cuCtxSynchronize(self) -> None:
        card = self.uncaptured()
        streams = [*self.streams(card), card.null]
        self.wait_for([made for stream in streams for made in stream.frontier])

    def _say(self, number: int, which: int, text: Any) -> None:
        if number not in ERRORS:
            raise Refused(INVALID_VALUE)
        words = self.words.setdefault((number, which), ctypes.create_string_buffer(ERRORS[number][which].encode()))
        ctypes.cast(text, ctypes.POINTER(ctypes.c_void_p))[0] = ctypes.addressof(words)


def attribute_of(figures: Figures, number: int) -> int:
    """A device attribute as cuda.h numbers it. One that no figure gives is asked in vain."""
    major, minor = figures.capability
    known = {16: figures.multiprocessors, 38: figures.l2_bytes, 75: major, 76: minor, 97: figures.shared_bytes_opt_in}
    if number not in known:
        raise Refused(INVALID_VALUE)
    return known[number]
