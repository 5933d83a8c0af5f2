"""Machine code into this process: flat code by mapping it, other objects through llvmlite. Never needs Numba."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_EMPTY = "define void @sexpgpu_nothing() { ret void }"


def target_machine() -> Any:
    """LLVM's view of this CPU, with every instruction that it has."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    # x86-64: constants by short addresses, which flat code keeps valid. Elsewhere code may lie anywhere.
    model = "small" if target.triple.startswith("x86_64") else "jitdefault"
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel=model, jit=True)


class Mapped:
    """Flat code in executable memory; it lives as long as this does."""

    def __init__(self, memory: mmap.mmap) -> None:
        import numpy as np

        self.memory = memory
        self.bytes = np.frombuffer(memory, np.uint8)
        self.address = int(self.bytes.ctypes.data)

    @staticmethod
    def of_file(path: Path) -> Mapped:
        """The file's pages themselves, shared with every process that runs them. OSError where a mount forbids it."""
        with path.open("rb") as file:
            return Mapped(mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC))

    @staticmethod
    def of_bytes(code: bytes) -> Mapped:
        """A copy in memory of this process."""
        protection = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        memory = mmap.mmap(-1, max(len(code), 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, protection)
        memory[: len(code)] = code
        return Mapped(memory)


class Linked:
    """ELF objects in an engine of llvmlite; the code lives as long as this does."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        import llvmlite.binding as llvm

        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_EMPTY), target_machine())
        for data in objects.values():
            self.engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        self.engine.finalize_object()
        self.addresses = {name: int(self.engine.get_function_address(name)) for name in objects}
