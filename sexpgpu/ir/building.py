"""Building graphs without pauses: nothing of a graph is garbage while it is built."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's collector, also as a decorator. Nodes live as long as their graph: looking for garbage among them
    takes longer than making them, and more so the more there are."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
