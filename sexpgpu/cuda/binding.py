"""Tables of C functions: each function's name and argument types stand once, for the real library and a simulated one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Function:
    """A C function. `returns` None: it returns a status, 0 where all is well; else a value of this type, not a status."""

    name: str
    arguments: tuple[Any, ...]
    returns: Any = None

    @property
    def prototype(self) -> Any:
        """The C type of a pointer to it: a simulated library makes its own functions of this type."""
        return ctypes.CFUNCTYPE(self.returns or ctypes.c_int, *self.arguments)


class CallFailed(Exception):
    """A call that returned a status other than 0. `meaning` is the library's own words for the number."""

    def __init__(self, call: str, number: int, meaning: str) -> None:
        super().__init__(f"{call} gives error {number}, {meaning}")
        self.call, self.number, self.meaning = call, number, meaning


class FunctionMissing(Exception):
    """A library without a function of its table: another version than the table was written for."""


@dataclass(frozen=True)
class Table:
    """All functions that are used of one library. `decode` words a status, asking the bound library itself."""

    functions: tuple[Function, ...]
    decode: Callable[[Any, int], str]
    failure: type[CallFailed] = CallFailed


def bind(library: Any, table: Table) -> Any:
    """The functions of a table as attributes. A call whose status is not 0 raises the table's failure.

    `library` is a ctypes.CDLL, or any object that has a C function of the right prototype under each name.
    """
    calls = SimpleNamespace()
    for function in table.functions:
        try:
            pointer = getattr(library, function.name)
        except AttributeError:
            name = getattr(library, "_name", type(library).__name__)
            raise FunctionMissing(f"{name} has no function {function.name}") from None
        pointer.argtypes = function.arguments
        pointer.restype = function.returns or ctypes.c_int
        setattr(calls, function.name, pointer if function.returns else _checked(function.name, pointer, calls, table))
    return calls


def _checked(name: str, pointer: Any, calls: Any, table: Table) -> Callable[..., None]:
    def call(*arguments: Any) -> None:
        number = pointer(*arguments)
        if number:
            raise table.failure(name, number, table.decode(calls, number))

    return call
