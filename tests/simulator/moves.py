"""mov, loads and stores of every space, address conversions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.form import LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, Action, Form
from tests.simulator.machine import Machine
from tests.simulator.memory import BASE
from tests.simulator.space import Space
from tests.simulator.threads import Threads

WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAMETER_WINDOW, "global": 0, "const": 0}
GENERIC = {"global": BASE, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAMETER_WINDOW}


def move(form: Form) -> Action:
    """Also packs a vector into a register, and unpacks one."""
    targets, sources = form.parts(0), form.parts(1)
    if len(sources) > 1:
        return pack(form)
    if len(targets) > 1:
        return unpack(form)
    read, put = form.source(1), form.target()
    return lambda machine, threads: put(machine, threads, read(machine, threads))


def pack(form: Form) -> Action:
    width = form.bits // len(form.parts(1))
    reads, put, dtype = form.sources(1, f"b{width}"), form.target(), np.dtype(f"u{form.dtype.itemsize}")

    def run(machine: Machine, threads: Threads) -> None:
        value: Any = dtype.type(0)
        for place, read in enumerate(reads):
            value = value | read(machine, threads).astype(dtype) << dtype.type(place * width)
        put(machine, threads, value)

    return run


def unpack(form: Form) -> Action:
    width = form.bits // len(form.parts(0))
    read, puts, dtype = form.source(1, f"b{form.bits}"), form.targets(), np.dtype(f"u{width // 8}")

    def run(machine: Machine, threads: Threads) -> None:
        value = read(machine, threads)
        for place, put in enumerate(puts):
            put(machine, threads, (value >> value.dtype.type(place * width)).astype(dtype))

    return run


def convert_address(form: Form) -> Action:
    """cvta adds a space's window, cvta.to takes it away."""
    window = np.uint64(WINDOWS.get(form.one_of(*WINDOWS), 0))
    read, put, back = form.source(1), form.target(), form.has("to")

    def run(machine: Machine, threads: Threads) -> None:
        value = read(machine, threads).astype(np.uint64)
        put(machine, threads, value - window if back else value + window)

    return run


def is_in_space(form: Form) -> Action:
    space, read, put = form.one_of(*WINDOWS), form.source(1, "s64"), form.target()
    low = BASE if space in ("global", "const") else WINDOWS[space]
    return lambda machine, threads: put(machine, threads, np.asarray(read(machine, threads) >> 40 == low >> 40))


def spaces(machine: Machine, space: str, threads: Threads, address: Array) -> Iterator[tuple[Space, Threads, Any]]:
    """Where each part of the threads accesses: (space, threads, addresses there). Generic addresses go by window."""
    known: dict[str, Space] = {
        "global": machine.memory,
        "shared": machine.shared,
        "local": machine.local,
        "param": machine.parameters,
    }
    if space:
        yield known["global" if space == "const" else space], threads, address
        return
    window = address >> 40
    for name, base in GENERIC.items():
        here = window == base >> 40
        offset = 0 if name == "global" else base
        if here.all():
            yield known[name], threads, address - offset
            return
        if here.any():
            yield known[name], threads.where(here), address[here] - offset
    lost = ~np.isin(window, [base >> 40 for base in GENERIC.values()])
    if lost.any():
        machine.fault("wild-address", f"{int(address[lost][0]):#x} lies in no space of memory")


def load(form: Form) -> Action:
    space = form.one_of("global", "shared", "local", "const", "param")
    base = form.address_base(1)
    if space == "param" and base in form.kernel.parameters:
        return load_parameter(form, base)
    if space == "param" and base in form.kernel.symbols:
        space = "local"
    address, puts, dtype = form.address(1), form.targets(), form.dtype
    read_only = form.has("nc")

    def run(machine: Machine, threads: Threads) -> None:
        for where, part, at in spaces(machine, space, threads, address(machine, threads)):
            words = where.load(machine, part, at, dtype.itemsize, len(puts), read_only)
            for put, word in zip(puts, words):
                put(machine, part, word.view(dtype))

    return run


def load_parameter(form: Form, name: str) -> Action:
    """A parameter by its name: one value for all threads."""
    offset = form.kernel.parameters[name].offset + form.address_offset(1)
    puts, dtype = form.targets(), form.dtype

    def run(machine: Machine, threads: Threads) -> None:
        for place, put in enumerate(puts):
            put(
                machine, threads, np.frombuffer(machine.launch.parameters, dtype, 1, offset + place * dtype.itemsize)[0]
            )

    return run


def store(form: Form) -> Action:
    space = form.one_of("global", "shared", "local", "const", "param").replace("param", "local")
    bits = f"b{form.bits}"
    address, reads, width = form.address(0), form.sources(1, bits), form.dtype.itemsize

    def run(machine: Machine, threads: Threads) -> None:
        for where, part, at in spaces(machine, space, threads, address(machine, threads)):
            where.store(machine, part, at, width, [read(machine, part) for read in reads])

    return run


def nothing(form: Form) -> Action:
    return lambda machine, threads: None


def outside_call(form: Form) -> Action:
    """The device's own functions: vprintf prints nothing here, a failed assertion stops the kernel."""
    known = {"vprintf": nothing, "__assertfail": trap}
    if form.text(0) not in known:
        raise form.unsupported()
    return known[form.text(0)](form)


def trap(form: Form) -> Action:
    return lambda machine, threads: machine.fault("trap", "the kernel stopped itself")


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "mov": move,
    "cvta": convert_address,
    "isspacep": is_in_space,
    "ld": load,
    "ldu": load,
    "st": store,
    "call": outside_call,
    "trap": trap,
    "brkpt": trap,
    **dict.fromkeys(
        ("membar", "fence", "prefetch", "prefetchu", "nanosleep", "griddepcontrol", "discard", "applypriority"), nothing
    ),
}
