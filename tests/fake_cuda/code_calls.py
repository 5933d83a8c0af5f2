"""The simulated driver's calls about machine code: modules, kernels, launches."""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

from tests.fake_cuda.card import INVALID_VALUE
from tests.fake_cuda.code import Kernel, Module
from tests.fake_cuda.state import State
from tests.fake_cuda.streams import Refused

INVALID_IMAGE, NO_BINARY, NOT_FOUND, OUT_OF_RESOURCES = 200, 209, 500, 701
SHARED_BYTES, LOCAL_BYTES, REGISTERS, DYNAMIC_SHARED_BYTES = 1, 3, 4, 8
# What is so on every card since compute capability 8.0.
MOST_THREADS, MOST_REGISTERS, SHARED_WITHOUT_ASKING = 1024, 65536, 48 << 10
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
_HEADER = struct.Struct("<16sHHIQQQI6H")


class CodeCalls(State):
    def cuModuleLoadDataEx(self, module: Any, image: int, count: int, options: Any, values: Any) -> None:
        self.uncaptured()
        cubin = ctypes.string_at(image, elf_bytes(image))
        if cubin not in self.images:
            self.findings.append("machine code is loaded whose PTX is not registered")
            raise Refused(INVALID_IMAGE)
        code = self.images[cubin]
        major, minor = self.current.figures.capability
        if code.arch // 10 != major or code.arch % 10 > minor:
            raise Refused(NO_BINARY)
        module[0] = self.new(Module(code))

    def cuModuleUnload(self, module: int) -> None:
        self.schedule.run_all()
        gone = self.drop(module, Module)
        kernels = [
            n for n, held in self.handles.items() if isinstance(held.thing, Kernel) and held.thing.module is gone
        ]
        for handle in kernels:
            del self.handles[handle]

    def cuModuleGetFunction(self, kernel: Any, module: int, name: bytes) -> None:
        loaded = self.get(module, Module)
        if name.decode() not in loaded.code.resources:
            raise Refused(NOT_FOUND)
        kernel[0] = self.new(Kernel(loaded, name.decode()))

    def cuFuncGetAttribute(self, value: Any, number: int, kernel: int) -> None:
        asked = self.get(kernel, Kernel)
        known = {
            SHARED_BYTES: asked.resources.shared_bytes,
            LOCAL_BYTES: asked.resources.stack_bytes,
            REGISTERS: asked.resources.registers,
            DYNAMIC_SHARED_BYTES: asked.dynamic_shared_bytes,
        }
        if number not in known:
            raise Refused(INVALID_VALUE)
        value[0] = known[number]

    def cuFuncSetAttribute(self, kernel: int, number: int, value: int) -> None:
        asked = self.get(kernel, Kernel)
        most = self.current.figures.shared_bytes_opt_in - asked.resources.shared_bytes
        if number != DYNAMIC_SHARED_BYTES or not 0 <= value <= most:
            raise Refused(INVALID_VALUE)
        asked.dynamic_shared_bytes = value

    def cuLaunchKernel(self, kernel: int, *arguments: Any) -> None:
        grid, block = arguments[:3], arguments[3:6]
        shared_bytes, stream, pointers = arguments[6:9]
        launched, card = self.get(kernel, Kernel), self.current
        self._check_launch(launched, grid, block, shared_bytes)
        # The driver copies the parameters' values before it returns.
        sizes = [size for _, size in launched.resources.parameters]
        values = [ctypes.string_at(pointers[n], size) for n, size in enumerate(sizes)]
        module, name = launched.module.code.module, launched.name
        self.give(
            stream,
            name,
            lambda: lambda operation: card.launch(operation, module, name, grid, block, values, shared_bytes),
        )

    def _check_launch(self, kernel: Kernel, grid: Any, block: Any, shared_bytes: int) -> None:
        threads = math.prod(block)
        if not math.prod(grid) or any(n > most for n, most in zip(grid, MOST_BLOCKS)):
            raise Refused(INVALID_VALUE)
        if not threads or threads > MOST_THREADS or block[2] > 64:
            raise Refused(INVALID_VALUE)
        static = kernel.resources.shared_bytes
        if static + shared_bytes > SHARED_WITHOUT_ASKING and shared_bytes > kernel.dynamic_shared_bytes:
            raise Refused(INVALID_VALUE)
        # Registers go to whole warps, eight of each lane at a time.
        warps, registers = -(-threads // 32), -(-kernel.resources.registers // 8) * 8
        most = kernel.resources.max_threads
        if warps * 32 * registers > MOST_REGISTERS or (most is not None and threads > most):
            raise Refused(OUT_OF_RESOURCES)


def elf_bytes(image: int) -> int:
    """The size of an ELF file, which nobody tells the driver: its tables of headers and of sections say it."""
    fields = _HEADER.unpack(ctypes.string_at(image, _HEADER.size))
    if fields[0][:4] != b"\x7fELF":
        raise Refused(INVALID_IMAGE)
    programs, sections = fields[5], fields[6]
    _, program_bytes, program_count, section_bytes, section_count, _ = fields[8:]
    table = ctypes.string_at(image + sections, section_bytes * section_count)
    rows = [struct.unpack_from("<IIQQQQ", table, n * section_bytes) for n in range(section_count)]
    # A section of type 8 has no bytes in the file.
    ends = [offset + size for _, kind, _, _, offset, size in rows if kind != 8]
    return int(max([programs + program_bytes * program_count, sections + section_bytes * section_count, *ends]))
