"""The simulated driver's calls about memory, the card's and the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fake_cuda.card import INVALID_VALUE
from tests.fake_cuda.host import Pinned, view
from tests.fake_cuda.order import Operation
from tests.fake_cuda.state import Held, State
from tests.fake_cuda.streams import Refused


class MemoryCalls(State):
    def cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        card = self.current
        free[0], total[0] = card.figures.memory_bytes - card.used_bytes, card.figures.memory_bytes

    def cuMemAlloc_v2(self, address: Any, size_bytes: int) -> None:
        address[0] = self.uncaptured().allocate(size_bytes)

    def cuMemFree_v2(self, address: int) -> None:
        card = self.uncaptured()
        if address not in card.blocks:
            self.findings.append(f"{address:#x} is freed, and is no allocation, or none any more")
            raise Refused(INVALID_VALUE)
        # The driver waits until the card is idle; that the host did not is a finding of its own.
        self.schedule.run_all()
        card.free(address, self.schedule.host)

    def cuMemHostAlloc(self, address: Any, size_bytes: int, flags: int) -> None:
        self.uncaptured()
        if not size_bytes:
            raise Refused(INVALID_VALUE)
        made = self.host.allocate(size_bytes)
        address[0] = made.address
        self.handles[made.address] = Held(self.current, made)

    def cuMemFreeHost(self, address: int) -> None:
        self.uncaptured()
        self.schedule.run_all()
        self.host.free(self.drop(address, Pinned))

    def cuMemcpyHtoDAsync_v2(self, target: int, host: int, size_bytes: int, stream: int | None) -> None:
        card = self.current
        card.inside(target, size_bytes)
        pinned = self.host.pinned(host, size_bytes)
        self._needs_pinned(pinned, stream)

        def work() -> Callable[[Operation], None]:
            # The driver copies memory that is not pinned before it returns.
            taken = None if pinned else view(host, size_bytes).copy()
            upload = self.host.upload(host, size_bytes) if pinned else None

            def run(operation: Operation) -> None:
                if upload is not None:
                    upload.operation = operation
                card.write(operation, target, view(host, size_bytes).copy() if taken is None else taken)

            return run

        self.give(stream, "a copy to the device", work)

    def cuMemcpyDtoHAsync_v2(self, host: int, source: int, size_bytes: int, stream: int | None) -> None:
        card = self.current
        card.inside(source, size_bytes)
        pinned = self.host.pinned(host, size_bytes)
        self._needs_pinned(pinned, stream)

        def run(operation: Operation) -> None:
            view(host, size_bytes)[:] = card.read(operation, source, size_bytes)

        self.give(stream, "a copy to the host", lambda: run)
        if not pinned:
            self.wait_for(self.stream(stream).frontier)

    def _needs_pinned(self, pinned: bool, stream: int | None) -> None:
        if not pinned and self.stream(stream).capture:
            self.uncaptured()

    def cuMemcpyDtoDAsync_v2(self, target: int, source: int, size_bytes: int, stream: int | None) -> None:
        card = self.current
        card.inside(target, size_bytes)
        card.inside(source, size_bytes)
        self.give(stream, "a copy", lambda: lambda operation: card.copy(operation, target, source, size_bytes))

    def cuMemsetD8Async(self, target: int, byte: int, count: int, stream: int | None) -> None:
        self._fill(target, np.full(count, byte, np.uint8), stream)

    def cuMemsetD32Async(self, target: int, word: int, count: int, stream: int | None) -> None:
        self._fill(target, np.full(count, word, np.uint32).view(np.uint8), stream)

    def _fill(self, target: int, data: Any, stream: int | None) -> None:
        card = self.current
        card.inside(target, data.nbytes)
        self.give(stream, "a fill", lambda: lambda operation: card.write(operation, target, data))
