"""A card that is not here as a device: everything short of running is done for it, and nothing is held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from sexpgpu.backend import Call, Counter, DeviceKind, Lowering, OutOfRange
from sexpgpu.codegen.cuda_program import CudaProgram
from sexpgpu.cuda.arch import choose_arch
from sexpgpu.cuda.cards import KnownCard
from sexpgpu.cuda.device import RESERVED_BYTES, lowered
from sexpgpu.cuda.matmul import Rules
from sexpgpu.cuda.nvrtc import supported_archs
from sexpgpu.cuda.products import Division, foreseen, own_division
from sexpgpu.initial import Normals
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.plan.kernel import Plan
from sexpgpu.plan.work import Work, works_of
from sexpgpu.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]


@dataclass(frozen=True)
class PlannedMemory:
    """A tensor that would be on the card."""

    type: TensorType
    offset_bytes: int = 0


@dataclass(frozen=True)
class PlannedExecutable:
    """A graph as it would be run; it cannot be."""

    graph: Graph
    program: CudaProgram
    lowering: Lowering

    @property
    def externals(self) -> Mapping[str, TensorType]:
        return self.program.plan.externals

    @cached_property
    def works(self) -> Sequence[Work]:
        return works_of(self.program.plan, self.graph)

    def bind(self, name: str, memory: PlannedMemory) -> None:
        assert memory.type.shape == self.externals[name].shape, name

    def run(self, hosts: Mapping[str, float], counter: Counter) -> None:
        _not_here()

    def output(self, name: str) -> Array:
        _not_here()

    def out_of_range(self) -> Sequence[OutOfRange]:
        return ()


class PlannedCard:
    """A known card. Values that are written to it go nowhere."""

    kind: DeviceKind = "cuda"
    normals: Normals | None = None

    def __init__(self, card: KnownCard, settings: Settings) -> None:
        self.card = card
        self.arch = choose_arch(card.capability, supported_archs())
        self._settings = settings

    @property
    def description(self) -> str:
        major, minor = self.card.capability
        return f"cuda compute_{major}{minor} {self.card.name}, patterns off; planned, the card is not here"

    def allocate(self, type: TensorType) -> PlannedMemory:
        return PlannedMemory(type)

    def landing(self, type: TensorType) -> PlannedMemory:
        return PlannedMemory(type)

    def part(self, memory: PlannedMemory, offset_elements: int, type: TensorType) -> PlannedMemory:
        return PlannedMemory(type, memory.offset_bytes + offset_elements * SIZES[memory.type.dtype])

    def prepare(
        self,
        graph: Graph,
        seed: int,
        lands: Mapping[str, PlannedMemory] | None = None,
        keeps: PlannedMemory | None = None,
    ) -> PlannedExecutable:
        report = [self.arch.report] if self.arch.report else []
        program, _, _, lowering = lowered(graph, self._settings, self._divide, lands, keeps, report)
        return PlannedExecutable(graph, program, lowering)

    def _divide(self, plan: Plan) -> Division:
        settings = self._settings
        if settings.products == "own":
            return own_division(plan)
        return foreseen(plan, Rules(settings.allow_tf32, not settings.deterministic))

    def free_bytes(self) -> int:
        """What a run could hold on a card that nobody else uses."""
        limit = self._settings.memory
        free = self.card.memory_bytes if limit is None else min(limit, self.card.memory_bytes)
        return max(free - RESERVED_BYTES, 0)

    def write(self, memory: PlannedMemory, array: Array) -> None:
        pass

    def adopt(self, array: Array) -> PlannedMemory:
        _not_here()

    def read(self, memory: PlannedMemory) -> Array:
        _not_here()

    def look(self, memory: PlannedMemory) -> Array:
        _not_here()

    def add(self, target: PlannedMemory, source: PlannedMemory) -> None:
        _not_here()

    def copy(self, target: PlannedMemory, source: PlannedMemory) -> None:
        _not_here()

    def square_sum(self, memory: PlannedMemory) -> float:
        _not_here()

    def timed_calls(self) -> Sequence[Call]:
        return ()

    def peak_bytes(self) -> int:
        return 0

    def report(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        pass


def _not_here() -> NoReturn:
    raise AssertionError("a planned card computes nothing")
