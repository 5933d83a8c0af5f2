"""Which device runs: its kind is chosen and the device opened here, and nothing above this file knows which it is."""

from __future__ import annotations

import msgspec

from sexpgpu.backend import (
    Call,
    CompilesTogether,
    Counter,
    Device,
    DeviceKind,
    Executable,
    Lowering,
    Memory,
    OutOfRange,
)
from sexpgpu.errors import Error
from sexpgpu.settings import Settings

__all__ = [
    "Call",
    "Choice",
    "CompilesTogether",
    "Counter",
    "Device",
    "DeviceKind",
    "Executable",
    "Lowering",
    "Memory",
    "OutOfRange",
    "choose",
    "open_device",
    "refuse_absent",
]

TO_THE_CPU = "to run on the CPU: --device cpu"


class Choice(msgspec.Struct, frozen=True):
    """The device of a run, and why where it was `auto`."""

    kind: DeviceKind
    ordinal: int | None
    reason: str = ""


def choose(settings: Settings) -> Choice:
    """The device kind that the settings ask for. `auto` takes cuda where it can run, and says why not otherwise."""
    first = settings.devices[0] if settings.devices else None
    if settings.device == "auto":
        problem = _problem_of_cuda(Choice("cuda", first), settings)
        if problem is not None:
            return Choice("cpu", None, f"device auto: cpu, because {_reason(problem)}")
        return Choice("cuda", first, "device auto: cuda is available")
    kind, _, ordinal = settings.device.partition(":")
    return Choice("cuda" if kind == "cuda" else "cpu", int(ordinal) if ordinal else first)


def _problem_of_cuda(choice: Choice, settings: Settings) -> Error | None:
    try:
        refuse_absent(choice, settings.devices)
    except Error as problem:
        return problem
    return None


def _reason(problem: Error) -> str:
    """What is best mended first."""
    return missing_for_cuda()[0] if missing_for_cuda() else problem.message


def missing_for_cuda() -> list[str]:
    """What keeps this process from using a CUDA device, in the order in which it is best mended; empty: nothing."""
    import platform

    from sexpgpu.cuda import library

    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return [f"this machine is {machine}, and the CUDA device needs Linux x86_64"]
    missing = []
    try:
        library.load_driver(library.DRIVER)
    except OSError:
        missing.append(f"no NVIDIA driver is found ({library.DRIVER}); a 580 series or newer is needed")
    needed = (wheel for wheel in library.LIBRARIES if not wheel.optional)
    wheels = [wheel.distribution for wheel in needed if not all(map(library.find, wheel.objects))]
    if wheels:
        missing.append(f"the CUDA libraries are not installed ({', '.join(wheels)})")
    return missing


def refuse_absent(choice: Choice, listed: tuple[int, ...] | None = None) -> None:
    """E-DEV-001 where the device cannot be had, E-DP-001 where a `listed` ordinal is not there. Nothing is opened."""
    if choice.kind != "cuda":
        return
    from sexpgpu.cuda.probe import probe_driver, require

    missing = missing_for_cuda()
    if missing:
        asked = "cuda" if choice.ordinal is None else f"cuda:{choice.ordinal}"
        notes = [*missing, "needs sexpgpu-linux-cuda, or pip install 'sexpgpu[cuda]' on Linux", TO_THE_CPU]
        raise Error("E-DEV-001", f"device {asked} cannot be used here", notes=notes)
    driver = probe_driver()
    _refuse_listed(listed or (), len(driver.cards))
    try:
        require(driver, choice.ordinal or 0)
    except Error as problem:
        problem.notes.append(TO_THE_CPU)
        raise


def _refuse_listed(devices: tuple[int, ...], visible: int) -> None:
    fix = "list visible ordinals once each, SEXPGPU_DEVICES=0,1"
    for ordinal in devices:
        if visible and ordinal >= visible:
            message = f"SEXPGPU_DEVICES names ordinal {ordinal}; {visible} visible, counted from 0"
            raise Error("E-DP-001", message, notes=[fix])
    if len(devices) > 1:
        notes = [f"name one of them, SEXPGPU_DEVICES={devices[0]}"]
        raise Error("E-DEV-001", "one run on several GPUs is not available yet", notes=notes)


def open_device(choice: Choice, settings: Settings) -> Device:
    """The device, ready to hold memory. A device that cannot be had is E-DEV-001: never another one instead."""
    if choice.kind == "cuda":
        refuse_absent(choice, settings.devices)
        from sexpgpu.cuda.device import open_cuda

        return open_cuda(settings, choice.ordinal or 0)
    from sexpgpu.interp.device import open_cpu

    return open_cpu(settings)
