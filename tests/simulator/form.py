"""An instruction's operands → functions that read and write them, found once and used at every execution."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulator.dtypes import DTYPES, Array, reinterpret
from tests.simulator.machine import Machine
from tests.simulator.program import Instruction, Kernel
from tests.simulator.report import Fault
from tests.simulator.rounding import canonical, flush
from tests.simulator.threads import Threads

Action = Callable[[Machine, Threads], None]
Read = Callable[[Machine, Threads], Any]
Write = Callable[[Machine, Threads, Any], None]

SHARED_WINDOW, LOCAL_WINDOW, PARAMETER_WINDOW = 0x7E00_0000_0000, 0x7D00_0000_0000, 0x7C00_0000_0000
ADDRESS = re.compile(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]")
SYMBOL = re.compile(r"([A-Za-z_$][\w$@]*)(?:\s*\+\s*(\d+))?")


@dataclass(frozen=True)
class Form:
    """One instruction of a kernel while it is decoded."""

    kernel: Kernel
    instruction: Instruction

    @property
    def modifiers(self) -> tuple[str, ...]:
        return self.instruction.modifiers

    @property
    def type(self) -> str:
        """The last type among the modifiers."""
        if not self.types:
            raise self.unsupported()
        return self.types[-1]

    @property
    def types(self) -> list[str]:
        return [word for word in self.modifiers if word in DTYPES]

    @property
    def dtype(self) -> np.dtype[Any]:
        return DTYPES[self.type]

    @property
    def bits(self) -> int:
        return self.dtype.itemsize * 8

    @property
    def count(self) -> int:
        return len(self.instruction.operands)

    def has(self, *words: str) -> bool:
        return all(word in self.modifiers for word in words)

    def one_of(self, *words: str, default: str = "") -> str:
        return next((word for word in self.modifiers if word in words), default)

    @property
    def rounding(self) -> str:
        return self.one_of("rn", "rz", "rm", "rp", default="rn")

    def unsupported(self) -> Fault:
        one = self.instruction
        name = ".".join((one.opcode, *one.modifiers))
        return Fault("unsupported", f"{self.kernel.name}, {one.where}: the simulator does not know {name}")

    def text(self, place: int) -> str:
        return self.instruction.operands[place]

    def parts(self, place: int) -> list[str]:
        """The elements of a vector operand, or the operand alone."""
        text = self.text(place)
        return [part.strip() for part in text[1:-1].split(",")] if text.startswith("{") else [text]

    # Reading

    def source(self, place: int, kind: str | None = None) -> Read:
        return self.reader(self.text(place), kind or self.type)

    def sources(self, place: int, kind: str | None = None) -> list[Read]:
        return [self.reader(part, kind or self.type) for part in self.parts(place)]

    def reader(self, text: str, kind: str) -> Read:
        dtype = DTYPES[kind]
        if text.startswith("!"):
            inner = self.reader(text[1:], kind)
            return lambda machine, threads: ~inner(machine, threads)
        if text in self.kernel.registers:
            return self._register(self.kernel.registers[text], dtype)
        if text.startswith("%") or text == "WARP_SZ":
            return special(text.replace("%WARP_SZ", "WARP_SZ"), dtype)
        if text[:1].isdigit() or text[:1] == "-":
            constant = immediate(text, dtype)
            return lambda machine, threads: constant
        return self._symbol(text, dtype)

    def _register(self, number: int, dtype: np.dtype[Any]) -> Read:
        held = DTYPES[self.kernel.register_types[number]]
        if held == dtype:
            return lambda machine, threads: machine.value(number, threads)
        if held.itemsize == dtype.itemsize and "b" not in (held.kind, dtype.kind):
            return lambda machine, threads: machine.value(number, threads).view(dtype)
        return lambda machine, threads: reinterpret(machine.value(number, threads), dtype)

    def _symbol(self, text: str, dtype: np.dtype[Any]) -> Read:
        found = SYMBOL.fullmatch(text)
        if not found:
            raise self.unsupported()
        name, offset = found[1], int(found[2] or 0)
        if name in self.kernel.symbols:
            value = self.kernel.symbols[name][1] + offset
            return lambda machine, threads: dtype.type(value)
        if name in self.kernel.parameters:
            value = self.kernel.parameters[name].offset + offset
            return lambda machine, threads: dtype.type(value)

        def address(machine: Machine, threads: Threads) -> Any:
            if name not in machine.launch.symbols:
                machine.fault("unsupported", f"nothing is named {name}")
            return dtype.type(machine.launch.symbols[name] + offset)

        return address

    def address_base(self, place: int) -> str:
        found = ADDRESS.fullmatch(self.text(place))
        if not found:
            raise self.unsupported()
        return found[1]

    def address_offset(self, place: int) -> int:
        found = ADDRESS.fullmatch(self.text(place))
        return int(found[2] or "0", 0) if found else 0

    def address(self, place: int) -> Read:
        """The int64 address of each thread that a bracketed operand means."""
        base, offset = self.address_base(place), np.int64(self.address_offset(place))
        if base in self.kernel.registers:
            number = self.kernel.registers[base]
            narrow = DTYPES[self.kernel.register_types[number]].itemsize == 4
            read = self.reader(base, "u32" if narrow else "s64")
        else:
            read = self.reader(base, "s64")

        def address(machine: Machine, threads: Threads) -> Array:
            value = read(machine, threads)
            if value.dtype != np.int64:
                value = value.astype(np.int64)
            return machine.spread(value + offset if offset else value, threads)

        return address

    # Writing

    def target(self, place: int = 0) -> Write:
        return self.writer(self.text(place))

    def targets(self, place: int = 0) -> list[Write]:
        return [self.writer(part) for part in self.parts(place)]

    def writer(self, text: str) -> Write:
        if text == "_":
            return lambda machine, threads, value: None
        if text not in self.kernel.registers:
            raise self.unsupported()
        number = self.kernel.registers[text]
        dtype = DTYPES[self.kernel.register_types[number]]

        def write(machine: Machine, threads: Threads, value: Any) -> None:
            machine.define(number, threads, value if value.dtype == dtype else reinterpret(value, dtype))

        return write

    def two_targets(self, place: int = 0) -> tuple[Write, Write | None]:
        """`d` or `d|p`."""
        names = self.text(place).split("|")
        return self.writer(names[0].strip()), self.writer(names[1].strip()) if len(names) > 1 else None

    # Whole instructions

    def elementwise(self, function: Callable[..., Any], kind: str | None = None, first: int = 1) -> Action:
        """target = function(sources), flushed and made canonical where the type is floating point."""
        reads = [self.source(place, kind) for place in range(first, self.count)]
        put = self.target(0)
        if DTYPES[kind or self.type].kind == "f":
            return self._floating(function, reads, put)
        if len(reads) == 2:
            x, y = reads
            return lambda machine, threads: put(machine, threads, function(x(machine, threads), y(machine, threads)))
        return lambda machine, threads: put(
            machine, threads, np.asarray(function(*(read(machine, threads) for read in reads)))
        )

    def _floating(self, function: Callable[..., Any], reads: list[Read], put: Write) -> Action:
        flushing, saturating = self.has("ftz"), self.has("sat")

        def run(machine: Machine, threads: Threads) -> None:
            given = [read(machine, threads) for read in reads]
            if flushing:
                given = [flush(one) for one in given]
            value = canonical(function(*given))
            if flushing:
                value = flush(value)
            put(machine, threads, saturate(value) if saturating else value)

        return run


def saturate(value: Any) -> Any:
    """Into [0, 1]; a NaN and −0 become +0."""
    return np.where(value > 0, np.minimum(value, value.dtype.type(1)), value.dtype.type(0))


def special(name: str, dtype: np.dtype[Any]) -> Read:
    def read(machine: Machine, threads: Threads) -> Any:
        value = machine.specials.get(name)
        if value is None:
            machine.fault("unsupported", f"the simulator does not know the special register {name}")
        assert value is not None
        return reinterpret(value[threads.pick] if value.ndim else value, dtype)

    return read


def immediate(text: str, dtype: np.dtype[Any]) -> Any:
    if text[:2] in ("0f", "0F"):
        bits = np.frombuffer(struct.pack("<I", int(text[2:], 16)), np.float32)[0]
    elif text[:2] in ("0d", "0D"):
        bits = np.frombuffer(struct.pack("<Q", int(text[2:], 16)), np.float64)[0]
    elif dtype.kind == "f":
        return dtype.type(float(text))
    elif dtype.kind == "b":
        return np.bool_(int(text, 0) != 0)
    else:
        value = int(text.rstrip("U"), 0) % (1 << 8 * dtype.itemsize)
        return np.array(value, f"u{dtype.itemsize}").view(dtype)[()]
    return bits.astype(dtype) if dtype.kind == "f" and bits.dtype != dtype else reinterpret(bits, dtype)
