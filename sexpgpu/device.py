"""Which device runs: its kind is chosen and the device opened here, and nothing above this file knows which it is."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.backend import Call, Counter, Device, DeviceKind, Executable, Lowering, Memory, OutOfRange
from sexpgpu.errors import Error
from sexpgpu.settings import Settings

__all__ = [
    "Call",
    "Choice",
    "Counter",
    "Device",
    "DeviceKind",
    "Executable",
    "Lowering",
    "Memory",
    "OutOfRange",
    "choose",
    "open_device",
]


@dataclass(frozen=True)
class Choice:
    """The device of a run, and why where it was `auto`."""

    kind: DeviceKind
    ordinal: int | None
    reason: str = ""


def choose(settings: Settings) -> Choice:
    """The device kind that the settings ask for. `auto` takes cuda where it can run, and says why not otherwise."""
    if settings.device == "auto":
        missing = missing_for_cuda()
        if missing:
            return Choice("cpu", None, f"device auto: cpu, because {missing[0]}")
        return Choice("cuda", None, "device auto: cuda is available")
    kind, _, ordinal = settings.device.partition(":")
    return Choice("cuda" if kind == "cuda" else "cpu", int(ordinal) if ordinal else None)


def missing_for_cuda() -> list[str]:
    """What keeps this process from using a CUDA device, in the order in which it is best mended; empty: nothing."""
    import platform

    from sexpgpu.cuda.library import DRIVER, LIBRARIES, find
    from sexpgpu.cuda.probe import library_loads

    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return [f"this machine is {machine}, and the CUDA device needs Linux x86_64"]
    missing = []
    if not library_loads(DRIVER):
        missing.append(f"no NVIDIA driver is found ({DRIVER}); a 580 series or newer is needed")
    needed = (library for library in LIBRARIES if not library.optional)
    wheels = [library.distribution for library in needed if not all(map(find, library.objects))]
    if wheels:
        missing.append(f"the CUDA libraries are not installed ({', '.join(wheels)})")
    missing.append("this version of sexpgpu has no CUDA backend yet")
    return missing


def open_device(choice: Choice, settings: Settings) -> Device:
    """The device, ready to hold memory. A device that cannot be had is E-DEV-001: never another one instead."""
    if choice.kind == "cuda":
        asked = "cuda" if choice.ordinal is None else f"cuda:{choice.ordinal}"
        notes = [*missing_for_cuda(), "needs sexpgpu-linux-cuda, or pip install 'sexpgpu[cuda]' on Linux"]
        raise Error(
            "E-DEV-001", f"device {asked} cannot be used here", notes=[*notes, "to run on the CPU: --device cpu"]
        )
    from sexpgpu.interp.device import open_cpu

    return open_cpu(settings)
