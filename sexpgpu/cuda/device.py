"""A CUDA card as a device: memory is the card's, a graph is planned, compiled by NVRTC and launched through the driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sexpgpu.backend import Call, DeviceKind, Lowering
from sexpgpu.codegen.cuda_program import CudaProgram, card_plan, cuda_program
from sexpgpu.cuda import library
from sexpgpu.cuda.allocator import Arena, Block
from sexpgpu.cuda.arch import choose_arch
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context
from sexpgpu.cuda.driver import TABLE
from sexpgpu.cuda.engine import Engine
from sexpgpu.cuda.executable import CudaExecutable
from sexpgpu.cuda.failure import told
from sexpgpu.cuda.library import DRIVER
from sexpgpu.cuda.nvrtc import supported_archs
from sexpgpu.cuda.probe import Card, probe_driver, require
from sexpgpu.cuda.products import Division
from sexpgpu.errors import Error
from sexpgpu.initial import Normals
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Generated, Plan, Product, flattened
from sexpgpu.plan.lifetime import aligned
from sexpgpu.settings import Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# The libraries' own memory.
RESERVED_BYTES = 1 << 30


@dataclass(frozen=True)
class CudaMemory:
    """A contiguous tensor in a block of the card's memory, or in the arena that all graphs share."""

    type: TensorType
    holder: Block | Arena
    offset_bytes: int = 0

    @property
    def address(self) -> int:
        return self.holder.address + self.offset_bytes


class CudaDevice:
    """One card. Everything is done in order, on one stream; the host waits only where it reads."""

    kind: DeviceKind = "cuda"
    # Initial values are drawn by NumPy.
    normals: Normals | None = None

    def __init__(self, card: Card, engine: Engine, settings: Settings) -> None:
        self.card = card
        self.engine = engine
        self._settings = settings

    @property
    def description(self) -> str:
        major, minor = self.card.capability
        return f"cuda compute_{major}{minor} {self.card.name}, patterns off"

    @told
    def allocate(self, type: TensorType) -> CudaMemory:
        block = self.engine.allocator.allocate(type.size_bytes)
        self.engine.stream.fill(block.address, 0, block.size_bytes)
        return CudaMemory(type, block)

    def landing(self, type: TensorType) -> CudaMemory:
        self.engine.arena.reserve(type.size_bytes)
        return CudaMemory(type, self.engine.arena)

    def part(self, memory: CudaMemory, offset_elements: int, type: TensorType) -> CudaMemory:
        return CudaMemory(type, memory.holder, memory.offset_bytes + offset_elements * SIZES[memory.type.dtype])

    def adopt(self, array: Array) -> CudaMemory:
        raise Error("E-DEV-001", "several ranks on cuda are not available yet", notes=["start one process"])

    @told
    def write(self, memory: CudaMemory, array: Array) -> None:
        dtype = numpy_dtype(memory.type.dtype)
        whole = np.ascontiguousarray(np.broadcast_to(np.asarray(array), memory.type.shape), dtype)
        if whole.nbytes:
            self.engine.upload(memory.address, whole)

    @told
    def read(self, memory: CudaMemory) -> Array:
        made: Array = np.empty(memory.type.shape, numpy_dtype(memory.type.dtype))
        if made.nbytes:
            self.engine.download(memory.address, made)
        return made

    def look(self, memory: CudaMemory) -> Array:
        return self.read(memory)

    @told
    def prepare(
        self, graph: Graph, seed: int, lands: Mapping[str, CudaMemory] | None = None, keeps: CudaMemory | None = None
    ) -> CudaExecutable:
        report = tuple(self.engine.report)
        self.engine.report.clear()
        program, division, base, lowering = lowered(graph, self._settings, self.engine.divide, lands, keeps, report)
        return CudaExecutable(graph, program, division, self.engine, seed, base, lowering)

    @told
    def add(self, target: CudaMemory, source: CudaMemory) -> None:
        self.engine.add(target.address, source.address, target.type.elements)

    @told
    def copy(self, target: CudaMemory, source: CudaMemory) -> None:
        if target.type.size_bytes:
            self.engine.stream.copy(target.address, source.address, target.type.size_bytes)

    @told
    def square_sum(self, memory: CudaMemory) -> float:
        return self.engine.square_sum(memory.address, memory.type.elements)

    def timed_calls(self) -> Sequence[Call]:
        made = tuple(self.engine.calls or ())
        if self.engine.calls:
            self.engine.calls.clear()
        return made

    def peak_bytes(self) -> int:
        return self.engine.allocator.peak_bytes

    @told
    def free_bytes(self) -> int:
        """What this run may hold, with what it holds already; the libraries have their own."""
        free = self.engine.context.memory_bytes()[0] + self.engine.allocator.held_bytes
        limit = self._settings.memory
        return max((free if limit is None else min(free, limit)) - RESERVED_BYTES, 0)

    def report(self) -> list[str]:
        """Lines that came up since this was last asked."""
        lines = list(self.engine.allocator.report)
        self.engine.allocator.report.clear()
        return lines

    @told
    def close(self) -> None:
        """Gives everything back to the driver."""
        self.engine.close()


class Landed(Protocol):
    """Memory in the arena that graphs share, which need not be there yet."""

    @property
    def type(self) -> TensorType: ...

    @property
    def offset_bytes(self) -> int: ...


def lowered(
    graph: Graph,
    settings: Settings,
    divide: Callable[[Plan], Division],
    lands: Mapping[str, Landed] | None,
    keeps: Landed | None,
    report: Sequence[str] = (),
) -> tuple[CudaProgram, Division, int, Lowering]:
    """What a card runs for a graph and who runs its products, where its values begin in the arena, and what the report
    says of it."""
    landing = {name: memory.offset_bytes for name, memory in (lands or {}).items()}
    made = card_plan(graph, keep_values=settings.keep_values, landing=landing)
    division = divide(made)
    program = cuda_program(made, division.elsewhere, division.attending.around)
    base = 0 if keeps is None else aligned(keeps.offset_bytes + keeps.type.size_bytes)
    every = list(flattened(made.launches))
    products = sum(isinstance(launch, Product) for launch in every)
    lowering = Lowering(
        nodes=len(graph.nodes),
        kernels=len(every) - products - len(division.done | division.graphs.done),
        fused=sum(isinstance(x, Generated) and _computes(x) > 1 for x in every),
        products=products,
        arena_bytes=base + made.arena_bytes,
        product_engine=division.words,
        workspace_bytes=max(program.workspace_bytes, division.native_workspace_bytes) + division.workspace_bytes,
        notes=(*report, *division.notes, *made.notes),
    )
    return program, division, base, lowering


def _computes(launch: Generated) -> int:
    """How many operations a kernel computes, constants and casts of indices aside."""
    return sum(instruction.op != "constant" for instruction in launch.program.body)


@told
def open_cuda(settings: Settings, ordinal: int, load: Callable[[str], Any] | None = None) -> CudaDevice:
    """The card of an ordinal. Raises E-DEV-001 where driver or card cannot run what we compile."""
    load = load or library.load_driver
    driver = probe_driver(load)
    card = require(driver, ordinal)
    calls = bind(load(DRIVER), TABLE)
    calls.cuInit(0)
    arch = choose_arch(card.capability, supported_archs())
    context = Context(calls, ordinal)
    try:
        engine = Engine(context, arch.name, settings)
    except BaseException:
        context.close()
        raise
    if len(driver.cards) > 1:
        words = f"cards: {len(driver.cards)} are visible, and this run uses cuda:{ordinal} alone"
        engine.report.append(f"{words}; one run on several is not available yet")
    if arch.report:
        engine.report.append(arch.report)
    return CudaDevice(card, engine, settings)
