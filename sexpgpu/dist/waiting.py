"""Waiting for other ranks: polls that sleep between looks, end when a rank has failed, and never last for ever."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sexpgpu.errors import Error

# Looks without a pause (some tens of microseconds), then with a short one, then with a longer one: no wait burns a core.
SPINS = 100
PAUSE_S = 50e-6
LONG_PAUSE_S = 500e-6
LONG_AFTER_S = 0.2
CHECK_S = 0.1
# A rank that lives and yet does nothing for so long never will: an error of ours.
DEADLINE_S = 3600.0


def wait_until(
    done: Callable[[], bool], check: Callable[[], None], phase: str, deadline_s: float | None = DEADLINE_S
) -> None:
    """Return once `done` says so. `check` raises when waiting has no more use; it is asked now and then.

    deadline_s None: as long as the other ranks live. Raises E-DP-008 at the deadline.
    """
    for _ in range(SPINS):
        if done():
            return
    begin = time.monotonic()
    checked = begin
    while not done():
        now = time.monotonic()
        if now - checked > CHECK_S:
            check()
            checked = now
        if deadline_s is not None and now - begin > deadline_s:
            raise Error("E-DP-008", f"no other rank came to {phase} within {deadline_s:g} s")
        time.sleep(PAUSE_S if now - begin < LONG_AFTER_S else LONG_PAUSE_S)


def wait_for(requests: Any, check: Callable[[], None], phase: str, deadline_s: float | None = DEADLINE_S) -> None:
    """Return once an MPI request, or each of a list of them, is complete."""
    if isinstance(requests, list):
        wait_until(lambda: all(request.Test() for request in requests), check, phase, deadline_s)
    else:
        wait_until(requests.Test, check, phase, deadline_s)
