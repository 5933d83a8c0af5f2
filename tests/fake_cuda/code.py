"""Machine code that a simulated card runs as the PTX of the same source."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.cuda.cubin import Resources
from tests import simulator


@dataclass(eq=False)
class Code:
    """What a cubin is: PTX for the simulator, and what each kernel takes of a card. `arch`: 80 for sm_80."""

    module: simulator.Module
    resources: dict[str, Resources]
    arch: int


@dataclass(eq=False)
class Module:
    code: Code


@dataclass(eq=False)
class Kernel:
    """A kernel of a loaded module, and how much shared memory was asked for."""

    module: Module
    name: str
    dynamic_shared_bytes: int = 48 << 10

    @property
    def resources(self) -> Resources:
        return self.module.code.resources[self.name]
