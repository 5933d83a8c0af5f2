"""The one file of `interp` that calls machine code through ctypes: kernels, the system's calls, a BLAS library."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

# void kernel(args, lo, hi, scratch)
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def callable_at(address: int) -> Any:
    """The kernel at this address as a Python function; it runs without the interpreter's lock."""
    return _CALL(address)


def _address(library: Any, name: str) -> int:
    found = getattr(library, name, None)
    return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0


class SystemCalls(msgspec.Struct, frozen=True):
    """Addresses of what a worker calls; `syscall` is 0 where futexes are not known."""

    sched_yield: int
    usleep: int
    syscall: int
    clock_gettime: int


def system_calls() -> SystemCalls:
    """The system's own."""
    library = ctypes.CDLL(None)
    known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    syscall = _address(library, "syscall") if known else 0
    names = ("sched_yield", "usleep", "clock_gettime")
    sched_yield, usleep, clock_gettime = (_address(library, name) for name in names)
    return SystemCalls(sched_yield, usleep, syscall, clock_gettime)


class Blas(msgspec.Struct, frozen=True):
    """cblas_sgemm's address and the library's name."""

    sgemm: int
    name: str


# Symbols of the builds that NumPy and SciPy bring: name of sgemm, of the call that sets threads, of the description.
_BUILDS = (
    ("scipy_cblas_sgemm64_", "scipy_openblas_set_num_threads64_", "scipy_openblas_get_config64_"),
    ("cblas_sgemm64_", "openblas_set_num_threads64_", "openblas_get_config64_"),
    ("scipy_cblas_sgemm", "scipy_openblas_set_num_threads", "scipy_openblas_get_config"),
    ("cblas_sgemm", "openblas_set_num_threads", "openblas_get_config"),
)


def _libraries() -> Iterator[Path]:
    """OpenBLAS as NumPy's and SciPy's wheels carry it."""
    import importlib.util

    for package in ("numpy", "scipy"):
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        home = Path(spec.origin).parent
        for folder in (home.parent / f"{package}.libs", home / ".dylibs", home / ".libs"):
            yield from sorted(folder.glob("*openblas*"))


def find_blas() -> Blas | None:
    """The first library that has sgemm, set to one thread: its own threads would change bits and fight ours."""
    for path in _libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            continue
        for sgemm, set_threads, config in _BUILDS:
            address, threads = _address(library, sgemm), getattr(library, set_threads, None)
            if address and threads is not None:
                threads(1)
                return Blas(address, _described(library, config))
    return None


def _described(library: Any, config: str) -> str:
    """`OpenBLAS 0.3.30 SkylakeX`."""
    call = getattr(library, config, None)
    if call is None:
        return "OpenBLAS"
    call.restype = ctypes.c_char_p
    parts = (call() or b"").decode().split()
    shown = [p for p in parts if "=" not in p and not p.isupper() and "_" not in p]
    return " ".join(shown)
