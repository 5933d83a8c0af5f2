"""The parameters of a launch: addresses where its text has places, numbers as they are, each of 64 bits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from sexpgpu.codegen.cuda_source import Argument, CudaLaunch, Scratch, Words
from sexpgpu.cuda.context import Kernel, Launch
from sexpgpu.plan.kernel import Place

WORD = (1 << 64) - 1


def prepared(kernel: Kernel, launch: CudaLaunch, address: Callable[[Place], int], workspace: int) -> Launch:
    """A launch with what it is given. `workspace`: where the scratch of all launches is."""

    def word(argument: Place | Scratch | int) -> int:
        if isinstance(argument, Place):
            return address(argument)
        if isinstance(argument, Scratch):
            return workspace + argument.offset_bytes
        # Two's complement.
        return argument & WORD

    def value(argument: Argument) -> Any:
        if isinstance(argument, Words):
            return (ctypes.c_uint64 * len(argument.words))(*map(word, argument.words))
        return ctypes.c_uint64(word(argument))

    values = [value(argument) for argument in launch.arguments]
    return kernel.prepare(launch.grid, (launch.kernel.threads, 1, 1), values, launch.shared_bytes)
