"""Room for forms nested deep: the functions that walk them call themselves at every level."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Calls of the language may be nested 1,000 deep and forms inside each function, too; Python counts each step of both.
_RECURSION_LIMIT = 120_000


@contextmanager
def deep_recursion() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
