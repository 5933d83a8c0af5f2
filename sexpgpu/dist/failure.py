"""What a rank does when it, or another, fails: the guard speaks, everyone leaves within seconds, nobody waits for ever."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sexpgpu.dist.guard import GO, HERE
from sexpgpu.dist.world import without_launcher
from sexpgpu.errors import Diagnostics, Error

BEAT_S = 1.0
# A rank that its guard has not heard for so long has stopped: its thread for this needs only the interpreter's lock.
SILENCE_S = 60.0
# A guard that has not ended a rank by then has itself failed.
GUARD_S = 10.0
GUARD_START_S = 60.0


class PeerFailed(BaseException):
    """Another rank has failed and its message is printed: this one has nothing to say, and leaves."""


class Link:
    """A rank's line to the guard of its node, and the thread that keeps it."""

    def __init__(self, address: str, rank: int, end: Callable[[int], None]) -> None:
        self.ended = threading.Event()
        self.exit_code = 1
        self._end = end
        self._leaving = False
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect("\0" + address)
        # A guard that is not up yet could not tell which rank was the first to die.
        self._socket.settimeout(GUARD_START_S)
        if self._socket.recv(1) != HERE:
            raise Error("E-DP-008", "the guard of this node's ranks does not start")
        self._socket.settimeout(None)
        self._send({"rank": str(rank)})
        threading.Thread(target=self._listen, name="guard", daemon=True).start()

    def phase(self, name: str) -> None:
        """What this rank does now: said of it if it dies."""
        self._send({"phase": name})

    def leave(self, message: str | None, exit_code: int) -> None:
        """End this process with all others, as soon as they are ready; `message` None: it is another's failure."""
        self.exit_code = exit_code
        if message is not None:
            self._send({"failed": message})
        self._send({"ready": ""})
        time.sleep(GUARD_S)

    def close(self) -> None:
        """The end of a run in which nothing failed."""
        self._leaving = True
        self._send({"bye": ""})
        # Wakes the thread that listens; closing under its hands would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise PeerFailed once the run has ended."""
        if self.ended.is_set():
            raise PeerFailed

    def _send(self, said: Mapping[str, str]) -> None:
        # Where the guard has gone, the thread that listens sees it and ends the run.
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(said).encode() + b"\n")

    def _listen(self) -> None:
        while not self._leaving:
            ready, _, _ = select.select([self._socket], [], [], BEAT_S)
            if not ready:
                self._send({"beat": ""})
            elif not self._leaving:
                self._obey()

    def _obey(self) -> None:
        """END: fail at the next wait; GO: end at once, whatever the main thread does."""
        try:
            heard = self._socket.recv(64)
        except ConnectionError:
            heard = b""
        self.ended.set()
        if not heard:
            write_line("error[E-DP-008]: the guard of this node's ranks has gone")
        if GO in heard or not heard:
            self._end(self.exit_code)


def start_guard(local_size: int, size: int, node: str, silence_s: float = SILENCE_S) -> str:
    """Start the guard of this node's ranks; the address that they connect to."""
    address = f"sexpgpu-{os.getpid()}-{os.urandom(8).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind("\0" + address)
        listener.listen(local_size)
        arguments = [str(listener.fileno()), str(local_size), str(size), node, str(silence_s)]
        subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            env=without_launcher(os.environ),
        )
    return address


def leave(link: Link | None, end: Callable[[int], None], problem: BaseException) -> None:
    """End this rank, and with it the run, because of an exception; does not return.

    An exception that reached the interpreter's exit would have MPI wait there for the other ranks, for ever.
    """
    sys.stdout.flush()
    message, code = words_of(problem)
    if link is None:
        write_line(message)
    else:
        link.leave(None if isinstance(problem, PeerFailed) else message, code)
    end(code)


def words_of(problem: BaseException) -> tuple[str, int]:
    """What is printed of an exception that ends a run, and the exit code."""
    match problem:
        case PeerFailed():
            return "", 1
        case Error() | Diagnostics():
            return problem.render(), 1
        case KeyboardInterrupt():
            return "interrupted", 130
        case SystemExit():
            code = problem.code if isinstance(problem.code, int) else 1
            return (problem.code if isinstance(problem.code, str) else ""), code
        case _:
            return "".join(traceback.format_exception(problem)).rstrip(), 1


def write_line(text: str) -> None:
    """Words on stderr by one system call, so that no other rank's stand between them."""
    if text:
        os.write(2, (text + "\n").encode(errors="replace"))


def ending(mpi: Any, nodes: int) -> Callable[[int], None]:
    """What ends this process. With several nodes it ends those of the others too, whose guards know nothing of it."""

    def end(code: int) -> None:
        if nodes > 1 and mpi.Is_initialized() and not mpi.Is_finalized():
            mpi.COMM_WORLD.Abort(code)
        os._exit(code)

    return end
