"""A driver without a card, which cuDNN asks for when it plans without one. For a process of its own: it stays loaded."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from typing import Any

from sexpgpu.cuda.library import DRIVER
from tests.fake_cudnn.shared_object import TABLE, shared_object

# What the driver's stub that toolkits bring answers, and a driver that sees no card.
STUB_LIBRARY, NO_DEVICE = 34, 100
_CUDA = 13000
_WORDS = ctypes.create_string_buffer(b"a driver without a card")
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int

# Kernels are loaded for their attributes, which are all zero, and never run.
_ABSENT = (
    "cuCtxGetCurrent", "cuLinkCreate", "cuLinkAddData", "cuLinkComplete", "cuLinkDestroy", "cuLaunchKernel",
    "cuLaunchCooperativeKernel", "cuLaunchKernelEx", "cuDeviceGet", "cuLibraryLoadFromFile", "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col", "cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuOccupancyMaxPotentialClusterSize",
)  # fmt: skip


class NoCard:
    """The driver, loaded for all of this process under its name."""

    def __init__(self) -> None:
        self.last_handle = 0x1000
        functions = self._functions()
        folder = tempfile.TemporaryDirectory()
        path = os.path.join(folder.name, DRIVER)
        with open(path, "wb") as file:
            file.write(shared_object(DRIVER, list(functions)))
        self.library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        folder.cleanup()
        table = (_POINTER * len(functions)).in_dll(self.library, TABLE)
        self.kept = [ctypes.CFUNCTYPE(_INT, *arguments)(call) for arguments, call in functions.values()]
        for k, function in enumerate(self.kept):
            table[k] = ctypes.cast(function, _POINTER).value

    def _functions(self) -> dict[str, tuple[tuple[Any, ...], Callable[..., int]]]:
        def words(_: int, text: int) -> int:
            return give(text, ctypes.addressof(_WORDS))

        def handle(out: int, *_: Any) -> int:
            self.last_handle += 16
            return give(out, self.last_handle)

        def nothing(*_: Any) -> int:
            return 0

        asked: dict[str, tuple[tuple[Any, ...], Callable[..., int]]] = {
            "cuInit": ((_INT,), lambda _: NO_DEVICE),
            "cuDriverGetVersion": ((_POINTER,), lambda out: give(out, _CUDA, _INT)),
            "cuDeviceGetCount": ((_POINTER,), lambda out: give(out, 0, _INT) or NO_DEVICE),
            "cuGetErrorName": ((_INT, _POINTER), words),
            "cuGetErrorString": ((_INT, _POINTER), words),
            "cuLibraryLoadData": ((_POINTER,) * 8, handle),
            "cuLibraryGetKernel": ((_POINTER,) * 3, handle),
            "cuLibraryUnload": ((_POINTER,), nothing),
            "cuKernelGetAttribute": ((_POINTER, _INT, _POINTER, _INT), lambda out, *_: give(out, 0, _INT)),
            "cuKernelSetAttribute": ((_INT, _INT, _POINTER, _INT), nothing),
            "cuModuleLoadData": ((_POINTER,) * 2, handle),
            "cuModuleGetFunction": ((_POINTER,) * 3, handle),
            "cuModuleUnload": ((_POINTER,), nothing),
        }
        return asked | {name: ((_POINTER,) * 6, lambda *_: STUB_LIBRARY) for name in _ABSENT}


def give(out: int, value: int, of: Any = _POINTER) -> int:
    """Writes an answer where the caller wants it."""
    ctypes.cast(out, ctypes.POINTER(of))[0] = value
    return 0
