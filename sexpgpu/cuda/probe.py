"""What is here of CUDA: the driver and its cards, asked without using them, and whether they can run what we compile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sexpgpu.cuda import library
from sexpgpu.cuda.binding import FunctionMissing, bind
from sexpgpu.cuda.driver import QUERY_TABLE, DeviceAttribute, DriverError, Status
from sexpgpu.cuda.library import DRIVER
from sexpgpu.errors import Error

# The driver's own number of the CUDA version that it serves; 13.0 is what driver 580 brings.
LEAST_CUDA = (13, 0)
LEAST_CAPABILITY = (8, 0)
NEEDED_DRIVER = "a driver of the 580 series (CUDA 13.0) or newer is needed"


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


def probe_driver(load: Callable[[str], Any] | None = None) -> Driver:
    """Driver and cards. No context is made, so nothing is taken from them."""
    try:
        calls = bind((load or library.load_driver)(DRIVER), QUERY_TABLE)
    except OSError:
        return Driver(None, problem=f"no NVIDIA driver is found ({DRIVER})")
    except FunctionMissing as missing:
        return Driver(None, problem=f"{DRIVER} is no NVIDIA driver: {missing}")
    try:
        calls.cuInit(0)
    except DriverError as error:
        # A driver without a card says so here; the stub that toolkits bring gives another number.
        if error.number != Status.NO_DEVICE:
            return Driver(None, problem=f"the NVIDIA driver does not start: {error}")
    found = _version(calls)
    try:
        return Driver(found, tuple(card(calls, ordinal) for ordinal in range(_count(calls))))
    except DriverError as error:
        return Driver(found, problem=str(error))


def require(driver: Driver, ordinal: int) -> Card:
    """The card of an ordinal, where driver and card can run what we compile; else E-DEV-001 with what is found and needed."""
    if driver.version is None:
        raise Error("E-DEV-001", driver.problem, notes=[NEEDED_DRIVER])
    if driver.version < LEAST_CUDA:
        raise Error("E-DEV-001", f"the NVIDIA driver serves CUDA {_dotted(driver.version)}", notes=[NEEDED_DRIVER])
    if driver.problem:
        raise Error("E-DEV-001", f"the NVIDIA driver does not answer: {driver.problem}", notes=["see nvidia-smi"])
    if ordinal >= len(driver.cards):
        seen = f"{len(driver.cards)} visible, counted from 0" if driver.cards else "no GPU is visible"
        raise Error("E-DEV-001", f"there is no device cuda:{ordinal}: {seen}", notes=["see nvidia-smi"])
    card = driver.cards[ordinal]
    if card.capability < LEAST_CAPABILITY:
        found = f"{card.name} has compute capability {_dotted(card.capability)}"
        raise Error("E-DEV-001", found, notes=[f"{_dotted(LEAST_CAPABILITY)} or newer is needed: A100, L4, H100"])
    return card


def card(calls: Any, ordinal: int) -> Card:
    """A card as the driver describes it; `calls` are bound to the driver's table."""
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    calls.cuDeviceGet(ctypes.byref(device), ordinal)
    calls.cuDeviceGetName(name, len(name), device)
    calls.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    major = attribute(calls, DeviceAttribute.CAPABILITY_MAJOR, device.value)
    minor = attribute(calls, DeviceAttribute.CAPABILITY_MINOR, device.value)
    return Card(ordinal, name.value.decode(errors="replace"), (major, minor), memory.value)


def attribute(calls: Any, number: DeviceAttribute, device: int) -> int:
    value = ctypes.c_int()
    calls.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _version(calls: Any) -> tuple[int, int]:
    version = ctypes.c_int()
    calls.cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000, version.value % 1000 // 10


def _count(calls: Any) -> int:
    count = ctypes.c_int()
    try:
        calls.cuDeviceGetCount(ctypes.byref(count))
    except DriverError:
        # Not initialised, as there is no device.
        return 0
    return count.value


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
