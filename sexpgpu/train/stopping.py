"""How a run is asked to stop: Ctrl-C, SIGTERM, SIGUSR1, or a file STOP in the run folder. The step in progress ends first."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# SIGUSR1 is sent where a launcher leaves too little time after SIGTERM; it means the same.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143}


class Stopped(Exception):
    """The run ended early because it was asked to; what there was to save is saved."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


class StopRequest:
    """Whether a stop was asked for, and with which exit code the process then ends."""

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._file: Path | None = None

    def watch(self, file: Path) -> None:
        """Let the appearance of a file count as a request."""
        self._file = file

    def asked(self) -> bool:
        if self.exit_code is None and self._file is not None and self._file.exists():
            self.exit_code = 0
        return self.exit_code is not None

    def receive(self, number: int, say: Callable[[str], None]) -> None:
        """A signal: the first asks to stop after this step, a second ends the process at once."""
        code = EXIT_CODES[signal.Signals(number)]
        if self.exit_code is not None:
            say("stopped at once; nothing more was saved")
            os._exit(code)
        self.exit_code = code
        say(f"{signal.Signals(number).name}: stopping after this step (again: stops at once)")


@contextmanager
def listening(request: StopRequest, say: Callable[[str], None]) -> Iterator[None]:
    """Send the process's signals to the request while the block runs. Only the main thread may."""

    def handler(number: int, _: FrameType | None) -> None:
        request.receive(number, say)

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
