"""What is here of CUDA: the driver and its cards, asked without using them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sexpgpu.cuda.library import DRIVER

# The driver's own number of the CUDA version that it serves; 13.0 is what driver 580 brings.
LEAST_CUDA = (13, 0)
LEAST_CAPABILITY = (8, 0)
# Attributes of a device, as cuda.h numbers them.
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
NO_DEVICE = 100


@dataclass(frozen=True)
class Card:
    """A visible device, by its ordinal."""

    ordinal: int
    name: str
    capability: tuple[int, int]
    memory_bytes: int


@dataclass(frozen=True)
class Driver:
    """The driver as it answers. `version` None: there is none, and `problem` says why."""

    version: tuple[int, int] | None
    cards: tuple[Card, ...] = ()
    problem: str = ""


class _Refused(Exception):
    """A call of the driver that gave an error's number."""

    def __init__(self, call: str, number: int) -> None:
        super().__init__(f"{call} gives error {number}")
        self.number = number


def library_loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def probe_driver(load: Callable[[str], Any] = ctypes.CDLL) -> Driver:
    """Driver and cards. No context is made, so nothing is taken from them."""
    try:
        library = load(DRIVER)
    except OSError:
        return Driver(None, problem=f"no NVIDIA driver is found ({DRIVER})")
    version = ctypes.c_int()
    try:
        _call(library, "cuInit", 0)
    except _Refused as refused:
        # A driver without a card says so here; the stub that toolkits bring gives another number.
        if refused.number != NO_DEVICE:
            return Driver(None, problem=f"the NVIDIA driver does not start: {refused}")
    _call(library, "cuDriverGetVersion", ctypes.byref(version))
    found = (version.value // 1000, version.value % 1000 // 10)
    try:
        return Driver(found, tuple(_card(library, ordinal) for ordinal in range(_count(library))))
    except _Refused as refused:
        return Driver(found, problem=str(refused))


def _call(library: Any, name: str, *arguments: Any) -> None:
    number = getattr(library, name)(*arguments)
    if number:
        raise _Refused(name, number)


def _count(library: Any) -> int:
    count = ctypes.c_int()
    try:
        _call(library, "cuDeviceGetCount", ctypes.byref(count))
    except _Refused:
        # Not initialised, as there is no device.
        return 0
    return count.value


def _card(library: Any, ordinal: int) -> Card:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(100)
    _call(library, "cuDeviceGet", ctypes.byref(device), ordinal)
    _call(library, "cuDeviceGetName", name, len(name), device)
    _call(library, "cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    capability = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        value = ctypes.c_int()
        _call(library, "cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Card(ordinal, name.value.decode(errors="replace"), (capability[0], capability[1]), memory.value)
