"""CUDA C to machine code by NVRTC, which needs neither a driver nor a card."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sexpgpu.cuda.binding import CallFailed, Function, Table, bind
from sexpgpu.cuda.library import NVRTC, library_of, load
from sexpgpu.errors import Error

# Products and sums are rounded one by one: the same formula then gives the same bits as on the CPU.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=--warn-on-spills")
_AROUND = 3  # lines of a source that are shown before and after one with an error
_NAME = "kernels.cu"

_int_p, _size_p, _program = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p
_strings = ctypes.POINTER(ctypes.c_char_p)


class NvrtcFailed(CallFailed):
    """A call of NVRTC that gave an error."""


FUNCTIONS = Table(
    (
        Function("nvrtcVersion", (_int_p, _int_p)),
        Function("nvrtcGetNumSupportedArchs", (_int_p,)),
        Function("nvrtcGetSupportedArchs", (_int_p,)),
        Function(
            "nvrtcCreateProgram",  # the program, source, name, count of headers, their texts, their names
            (ctypes.POINTER(_program), ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, _strings, _strings),
        ),
        Function("nvrtcCompileProgram", (_program, ctypes.c_int, _strings)),
        Function("nvrtcGetProgramLogSize", (_program, _size_p)),
        Function("nvrtcGetProgramLog", (_program, ctypes.c_char_p)),
        Function("nvrtcGetPTXSize", (_program, _size_p)),
        Function("nvrtcGetPTX", (_program, ctypes.c_char_p)),
        Function("nvrtcGetCUBINSize", (_program, _size_p)),
        Function("nvrtcGetCUBIN", (_program, ctypes.c_char_p)),
        Function("nvrtcDestroyProgram", (ctypes.POINTER(_program),)),
        Function("nvrtcGetErrorString", (ctypes.c_int,), ctypes.c_char_p),
    ),
    decode=lambda calls, number: str(calls.nvrtcGetErrorString(number).decode()),
    failure=NvrtcFailed,
)


@dataclass(frozen=True)
class Compiled:
    """What one source became. `cubin` is empty where the arch is a virtual one (`compute_90`)."""

    cubin: bytes
    ptx: str
    log: str


class SourceRejected(Exception):
    """A source of ours that NVRTC does not compile: a bug of the code generator, with the lines that it means."""

    def __init__(self, failed: str, log: str, source: str) -> None:
        super().__init__(f"{failed}\n{log.rstrip()}\n\n{lines_around_errors(log, source)}".rstrip())
        self.log = log
        self.source = source


@cache
def nvrtc() -> Any:
    """The functions of the installed NVRTC. Raises E-DEV-003 or E-DEV-004 where it cannot be had."""
    return bind(load(NVRTC), FUNCTIONS)


def version(calls: Any = None) -> tuple[int, int]:
    """NVRTC's version, (13, 0)."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    (calls or nvrtc()).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def supported_archs(calls: Any = None) -> tuple[int, ...]:
    """The architectures that NVRTC makes code for, ascending: 80, 90, 100 …"""
    calls = calls or nvrtc()
    count = ctypes.c_int()
    calls.nvrtcGetNumSupportedArchs(ctypes.byref(count))
    archs = (ctypes.c_int * count.value)()
    calls.nvrtcGetSupportedArchs(archs)
    return tuple(sorted(archs))


def compile_source(source: str, arch: str, options: Sequence[str] = OPTIONS, calls: Any = None) -> Compiled:
    """Compiles one source for an arch, `sm_90`. Raises SourceRejected with NVRTC's log where it has errors."""
    calls = calls or nvrtc()
    program = _program()
    calls.nvrtcCreateProgram(ctypes.byref(program), source.encode(), _NAME.encode(), 0, None, None)
    try:
        words = [word.encode() for word in (f"--gpu-architecture={arch}", *options)]
        try:
            calls.nvrtcCompileProgram(program, len(words), (ctypes.c_char_p * len(words))(*words))
        except NvrtcFailed as failed:
            _raise_ours(failed, _text(calls, "ProgramLog", program), source)
        ptx, log = _text(calls, "PTX", program), _text(calls, "ProgramLog", program)
        return Compiled(_bytes(calls, "CUBIN", program) if arch.startswith("sm_") else b"", ptx, log)
    finally:
        calls.nvrtcDestroyProgram(ctypes.byref(program))


def _raise_ours(failed: NvrtcFailed, log: str, source: str) -> None:
    # The one error of a compile that is not the source's: the file that NVRTC looks for by its name.
    if "libnvrtc-builtins" in log:
        message = f"NVRTC does not find its builtins: {log.strip()}"
        raise Error("E-DEV-004", message, notes=[library_of(NVRTC).reinstall])
    raise SourceRejected(str(failed), log, source) from failed


def _bytes(calls: Any, what: str, program: Any) -> bytes:
    size = ctypes.c_size_t()
    getattr(calls, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(calls, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def _text(calls: Any, what: str, program: Any) -> str:
    return _bytes(calls, what, program).rstrip(b"\0").decode(errors="replace")


def lines_around_errors(log: str, source: str) -> str:
    """The numbered lines of a source around those that a log names."""
    lines = source.splitlines()
    named = {int(number) for number in re.findall(rf"^{re.escape(_NAME)}\((\d+)\): (?:catastrophic )?error", log, re.M)}
    shown = {k for number in named for k in range(number - _AROUND, number + _AROUND + 1) if 1 <= k <= len(lines)}
    rows: list[str] = []
    for k in sorted(shown):
        if rows and k - 1 not in shown:
            rows.append("  …")
        rows.append(f"{'>' if k in named else ' '} {k:5} | {lines[k - 1]}")
    return "\n".join(rows)
