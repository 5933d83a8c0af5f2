"""A failing driver or library as the user's error: what was called, and what it says of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from sexpgpu.cuda.binding import CallFailed
from sexpgpu.cuda.driver import DriverError
from sexpgpu.errors import Error

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def told(call: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Lets a call of the driver or of a library that fails be E-DEV-005."""

    @wraps(call)
    def wrapped(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return call(*arguments, **named)
        except CallFailed as error:
            raise failure(error) from error

    return wrapped


def failure(error: CallFailed) -> Error:
    notes = ["go on from the last checkpoint with --resume latest"]
    if isinstance(error, DriverError) and error.sticky:
        notes.insert(0, "the card takes no more work from this process; see nvidia-smi and dmesg")
    return Error("E-DEV-005", f"the CUDA device failed: {error}", notes=notes)
