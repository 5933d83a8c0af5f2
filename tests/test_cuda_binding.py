"""Tables of C functions, bound to a library made of C function pointers."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from sexpgpu.cuda.binding import CallFailed, Function, FunctionMissing, Table, bind

HALVE = Function("halve", (ctypes.c_int, ctypes.POINTER(ctypes.c_int)))
MEANING = Function("meaning", (ctypes.c_int,), ctypes.c_char_p)


class HalveFailed(CallFailed):
    pass


TABLE = Table((HALVE, MEANING), lambda calls, number: str(calls.meaning(number).decode()), HalveFailed)


def library() -> Any:
    """Halves an even number; an odd one is error 7."""

    def halve(number: int, half: Any) -> int:
        half[0] = number // 2
        return 7 * (number % 2)

    words = ctypes.c_char_p(b"the number is odd")
    # A C callback that gives a string gives its address.
    meaning = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int)(lambda number: ctypes.cast(words, ctypes.c_void_p).value)
    return SimpleNamespace(halve=HALVE.prototype(halve), meaning=meaning)


def test_a_bound_function_is_called_with_its_argument_types() -> None:
    half = ctypes.c_int()
    bind(library(), TABLE).halve(10, ctypes.byref(half))
    assert half.value == 5
    with pytest.raises(ctypes.ArgumentError):
        bind(library(), TABLE).halve(10.5, ctypes.byref(half))


def test_a_status_other_than_0_raises_the_librarys_own_words() -> None:
    with pytest.raises(HalveFailed, match="halve gives error 7, the number is odd") as caught:
        bind(library(), TABLE).halve(3, ctypes.byref(ctypes.c_int()))
    assert (caught.value.call, caught.value.number, caught.value.meaning) == ("halve", 7, "the number is odd")


def test_a_function_that_gives_a_value_is_not_checked() -> None:
    assert bind(library(), TABLE).meaning(1) == b"the number is odd"


def test_a_library_without_a_function_is_named_with_it() -> None:
    with pytest.raises(FunctionMissing, match="has no function halve"):
        bind(SimpleNamespace(), TABLE)
