"""How long a card would take at least, each launch at the peak of its memory or of its arithmetic: a model, no measurement."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.codegen.cuda_program import CudaProgram
from sexpgpu.cuda.cards import KnownCard
from sexpgpu.plan.kernel import Kernel, Product, repeated
from sexpgpu.plan.report import flops_of
from sexpgpu.plan.work import bytes_of


@dataclass(frozen=True)
class Bounds:
    """Seconds of launches that memory bounds, and of those that arithmetic does."""

    memory_s: float = 0.0
    arithmetic_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.memory_s + self.arithmetic_s

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.memory_s + other.memory_s, self.arithmetic_s + other.arithmetic_s)

    def times(self, count: int) -> Bounds:
        return Bounds(count * self.memory_s, count * self.arithmetic_s)


def launch_bounds(launch: Kernel, card: KnownCard) -> Bounds:
    """Of one launch that moves every operand once."""
    narrow = isinstance(launch, Product) and launch.dtype in ("bf16", "f16")
    memory_s = bytes_of(launch) / card.bytes_a_second
    arithmetic_s = flops_of(launch) / (card.bf16_flops if narrow else card.f32_flops)
    return Bounds(0.0, arithmetic_s) if arithmetic_s > memory_s else Bounds(memory_s)


def call_bounds(program: CudaProgram, card: KnownCard) -> Bounds:
    """Of one call of a program."""
    total = Bounds()
    for launch, times in repeated(program.plan.launches):
        total += launch_bounds(launch, card).times(times)
    return total
