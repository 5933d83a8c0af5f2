"""A simulated CUDA driver: C functions with the prototypes of our own table, over simulated cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from sexpgpu.cuda.cubin import arch_of, resources
from sexpgpu.cuda.driver import FUNCTIONS
from sexpgpu.cuda.library import DRIVER
from sexpgpu.cuda.nvrtc import Compiled
from tests import simulator
from tests.fake_cuda.card import A100, Figures
from tests.fake_cuda.code import Code
from tests.fake_cuda.code_calls import CodeCalls
from tests.fake_cuda.memory_calls import MemoryCalls
from tests.fake_cuda.order import Order
from tests.fake_cuda.order_calls import OrderCalls
from tests.fake_cuda.queries import Queries


class FakeCuda(Queries, MemoryCalls, OrderCalls, CodeCalls):
    """`load` stands in for ctypes.CDLL. `missing`: functions that this driver does not have; `start`: what cuInit gives."""

    def __init__(
        self,
        *figures: Figures,
        order: Order = "eager",
        version: int = 13000,
        start: int = 0,
        missing: Sequence[str] = (),
    ) -> None:
        super().__init__(figures or (A100,), order, version, start)
        functions = {f.name: f.prototype(self._entry(f.name)) for f in FUNCTIONS if f.name not in missing}
        self.library = SimpleNamespace(**functions)

    def load(self, name: str) -> Any:
        if name != DRIVER:
            raise OSError(name)
        return self.library

    def register(self, compiled: Compiled) -> None:
        """Machine code will run as the PTX of the same source."""
        made = resources(compiled.cubin, compiled.log)
        self.images[compiled.cubin] = Code(simulator.load(compiled.ptx), made, arch_of(compiled.cubin))

    def _entry(self, name: str) -> Callable[..., int]:
        implementation = getattr(self, name)
        return lambda *arguments: self.answer(name, implementation, arguments)
