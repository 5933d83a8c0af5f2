"""Helper processes: a module of ours, run by itself with a request on its standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import subprocess


Item = TypeVar("Item")
# The process that wants a helper's work.
_PARENT = "SEXPGPU_HELPER_OF"


def start_helper(module: str, request: Any) -> subprocess.Popen[bytes]:
    """`python -m MODULE` with the request as JSON; it finds what this process finds and is heard only by its exit code."""
    import json
    import subprocess

    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    environment = {**os.environ, "PYTHONPATH": path, _PARENT: str(os.getpid())}
    helper = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    assert helper.stdin is not None
    try:
        helper.stdin.write(json.dumps(request).encode())
        helper.stdin.close()
    except BrokenPipeError:
        # It died at its start; its exit code is reported with the others'.
        pass
    return helper


def while_wanted(items: Iterable[Item]) -> Iterator[Item]:
    """The items, in a helper, until the process that wants them has ended: one that is killed ends no helper."""
    for item in items:
        if str(os.getppid()) != os.environ.get(_PARENT):
            return
        yield item


def end_helpers(helpers: Sequence[subprocess.Popen[bytes]]) -> list[str]:
    """Ends those that still run; a line about each that had failed before."""
    failed = [helper for helper in helpers if helper.poll() not in (None, 0)]
    for helper in helpers:
        helper.kill()
        helper.wait()
    return [f"kernels: a helper process failed with exit code {helper.returncode}" for helper in failed]


def rotated(order: Sequence[str], start: int) -> list[str]:
    """From another place on, and round to it."""
    start %= len(order)
    return [*order[start:], *order[:start]]


def orders(keys: Sequence[str], count: int) -> list[list[str]]:
    """In which order each of `count` processes takes the keys. Neighbours meet in the middle of what is theirs: a process
    that caught up with another would from then on do what the other does at the same time."""
    ends = [k * len(keys) // count for k in range(count + 1)]
    return [rotated(keys, ends[k + 1])[::-1] if k % 2 else rotated(keys, ends[k]) for k in range(count)]
