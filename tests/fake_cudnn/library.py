"""cuDNN's functions over a simulated driver: descriptors, one engine, and graphs evaluated by NumPy in the card's memory."""

from __future__ import annotations

import ctypes
import itertools
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from sexpgpu.cuda.cudnn import FUNCTIONS, Attribute, Kind
from sexpgpu.cuda.cudnn_graph import OperationGraph, Tensor
from tests.fake_cuda import FakeCuda
from tests.fake_cuda.card import Card
from tests.fake_cuda.order import Operation as Work
from tests.fake_cudnn.descriptors import (
    BAD_PARAMETER,
    BY_NUMBER,
    NOT_SUPPORTED,
    Descriptor,
    Invalid,
    fill,
    graph_of,
    require,
)
from tests.fake_cudnn.evaluate import DTYPES, Array, evaluate

EXECUTION_FAILED, INTERNAL_ERROR = 5000, 4000
NAMES = {BAD_PARAMETER: "BAD_PARAM", NOT_SUPPORTED: "NOT_SUPPORTED", EXECUTION_FAILED: "EXECUTION_FAILED"}
ENGINE = 7
# Attributes whose elements cuDNN makes itself: descriptors of these kinds.
MADE = {Attribute.ENGINEHEUR_RESULTS: Kind.ENGINECFG, Attribute.ENGINECFG_ENGINE: Kind.ENGINE}


@dataclass
class Handle:
    card: Card
    stream: int | None = None


class FakeCudnn:
    """`refusal`: what its heuristic says of every graph, in place of an engine; `notes` of its engine. `failures`: calls
    whose next one gives this status. What no program should ask is a finding of the driver's."""

    def __init__(self, driver: FakeCuda, version: int = 91300, workspace_bytes: int = 512, refusal: str = "") -> None:
        self.driver, self.version, self.refusal = driver, version, refusal
        self.workspace_bytes = workspace_bytes
        self.notes: list[int] = []
        self.failures: dict[str, int] = {}
        self.called: Counter[str] = Counter()
        self.held: dict[int, Any] = {}
        self.words = ""
        self.texts: dict[int, Any] = {}
        self.last_handle = 0x9000
        functions = {f.name: f.prototype(self._entry(f.name, f.returns)) for f in FUNCTIONS}
        self.library = SimpleNamespace(**functions)

    def _entry(self, name: str, returns: Any) -> Callable[..., Any]:
        implementation = getattr(self, name)
        return implementation if returns else lambda *arguments: self._answer(name, implementation, arguments)

    def _answer(self, name: str, implementation: Callable[..., None], arguments: Any) -> int:
        self.called[name] += 1
        if name in self.failures:
            return self.failures.pop(name)
        try:
            implementation(*arguments)
        except Invalid as invalid:
            self.words += f"Warning: Reason: {invalid} at: true\n"
            self.driver.findings.append(f"{name}: {invalid}")
            return invalid.status
        except Exception:
            # The calling C code sees no exception: it must not be lost.
            self.driver.findings.append(f"the simulated cuDNN failed in {name}: {traceback.format_exc()}")
            return INTERNAL_ERROR
        return 0

    def _new(self, out: Any, thing: Any) -> None:
        self.last_handle += 16
        self.held[self.last_handle] = thing
        out[0] = self.last_handle

    def _get(self, handle: int) -> Descriptor:
        found = self.held.get(handle)
        require(isinstance(found, Descriptor), f"{handle or 0:#x} is no descriptor, or none any more")
        assert isinstance(found, Descriptor)
        return found

    def _handle(self, handle: int) -> Handle:
        found = self.held.get(handle)
        require(isinstance(found, Handle), f"{handle or 0:#x} is no handle, or none any more")
        assert isinstance(found, Handle)
        return found

    def cudnnGetVersion(self) -> int:
        return self.version

    def cudnnGetErrorString(self, status: int) -> int:
        words = f"CUDNN_STATUS_{NAMES.get(status, status)}".encode()
        return ctypes.addressof(self.texts.setdefault(status, ctypes.create_string_buffer(words)))

    def cudnnGetLastErrorString(self, buffer: int, size: int) -> int:
        words = self.words.encode()[: size - 1] + b"\0"
        ctypes.memmove(buffer, words, len(words))
        self.words = ""
        return -1

    def cudnnCreate(self, out: Any) -> None:
        self._new(out, Handle(self.driver.current))

    def cudnnDestroy(self, handle: int) -> None:
        self._handle(handle)
        del self.held[handle]

    def cudnnSetStream(self, handle: int, stream: int | None) -> None:
        self._handle(handle).stream = stream

    def cudnnBackendCreateDescriptor(self, kind: int, out: Any) -> None:
        self._new(out, Descriptor(Kind(kind), self._get))

    def cudnnBackendDestroyDescriptor(self, handle: int) -> None:
        self._get(handle)
        del self.held[handle]

    def cudnnBackendSetAttribute(self, handle: int, number: int, type_: int, count: int, elements: int) -> None:
        self._get(handle).set(number, type_, count, elements)

    def cudnnBackendFinalize(self, handle: int) -> None:
        self._get(handle).finalize()

    def cudnnBackendGetAttribute(
        self, handle: int, number: int, type_: int, room: int, count: Any, out: int | None
    ) -> None:
        descriptor, attribute = self._get(handle), BY_NUMBER[number]
        require(attribute.value[1].value[0] == type_, f"type {type_} of {attribute.name}")
        if attribute in MADE:
            count[0] = self._made(descriptor, attribute, room, out)
            return
        elements = self._told(descriptor, attribute)
        count[0] = len(elements)
        if out:
            fill(out, attribute.value[1].value[1], elements[:room])

    def _made(self, descriptor: Descriptor, attribute: Attribute, room: int, out: int | None) -> int:
        if attribute is Attribute.ENGINEHEUR_RESULTS and self.refusal:
            self.words += self.refusal
            return 0
        if out:
            require(room >= 1, "no room")
            filled = self._get(ctypes.c_void_p.from_address(out).value or 0)
            require(filled.kind == MADE[attribute], f"{filled.kind.name} for {attribute.name}")
            # What the new one is about.
            filled.values, filled.finalized = {attribute: [descriptor]}, True
        return 1

    def _told(self, descriptor: Descriptor, attribute: Attribute) -> list[Any]:
        if attribute is Attribute.EXECUTION_PLAN_WORKSPACE_SIZE:
            return [self.workspace_bytes]
        if attribute is Attribute.ENGINE_GLOBAL_INDEX:
            return [ENGINE]
        if attribute is Attribute.ENGINE_NUMERICAL_NOTE:
            return self.notes
        if attribute is Attribute.EXECUTION_PLAN_JSON_REPRESENTATION:
            return list(b'{"engine": 7}')
        return descriptor.values[attribute]

    def cudnnBackendExecute(self, handle: int, plan: int, pack: int) -> None:
        of, planned, given = self._handle(handle), self._get(plan), self._get(pack)
        require(of.card is self.driver.current, "a handle of another card")
        require(planned.finalized and given.finalized, "a plan or pack that is not finalized")
        require(planned.one(Attribute.EXECUTION_PLAN_HANDLE) == handle, "a plan of another handle")
        (heuristic,) = planned.other(Attribute.EXECUTION_PLAN_ENGINE_CONFIG).values[Attribute.ENGINEHEUR_RESULTS]
        graph = graph_of(heuristic.other(Attribute.ENGINEHEUR_OPERATION_GRAPH))
        pointers = dict(
            zip(
                given.values[Attribute.VARIANT_PACK_UNIQUE_IDS],
                given.values[Attribute.VARIANT_PACK_DATA_POINTERS],
                strict=True,
            )
        )
        workspace = given.one(Attribute.VARIANT_PACK_WORKSPACE) or 0
        require(not self.workspace_bytes or workspace % 16 == 0 < workspace, f"the workspace at {workspace:#x}")
        call = Execution(of.card, with_numbers(graph, pointers), pointers, workspace, self.workspace_bytes)
        self.driver.give(of.stream, "cudnnBackendExecute", lambda: call.run)


def with_numbers(graph: OperationGraph, pointers: dict[int, int]) -> OperationGraph:
    """The graph with the numbers that are given by value: they are read when the call is made."""
    missing = [t.number for t in graph.tensors.values() if not t.is_virtual and t.number not in pointers]
    require(not missing, f"tensors {missing} have no pointer")

    def known(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.value is None:
            return tensor
        return replace(tensor, value=ctypes.c_float.from_address(pointers[tensor.number]).value)

    def filled(operation: Any) -> Any:
        tensors = {name: known(value) for name, value in vars(operation).items() if isinstance(value, Tensor)}
        return replace(operation, **tensors)

    return OperationGraph(graph.name, tuple(map(filled, graph.operations)))


@dataclass
class Execution:
    """A graph on a card's memory: runs of neighbours are read and written one by one, and nothing between them."""

    card: Card
    graph: OperationGraph
    pointers: dict[int, int]
    workspace: int
    workspace_bytes: int

    def run(self, work: Work) -> None:
        if self.workspace_bytes:
            self.card.touch(work, self.workspace, self.workspace_bytes, True)
        placed = [tensor for tensor in self.graph.tensors.values() if tensor.place is not None]
        memory = {tensor.number: self._read(work, tensor) for tensor in placed}
        evaluate(self.graph, memory)
        for tensor in placed:
            if tensor.number in self.graph.written:
                self._write(work, tensor, memory[tensor.number])

    def _read(self, work: Work, tensor: Tensor) -> Array:
        of = np.dtype(DTYPES[tensor.dtype])
        flat = np.zeros(1 + sum((n - 1) * s for n, s in zip(tensor.sizes, tensor.strides, strict=True)), of)
        if tensor.number not in self.graph.written:
            for first, count in runs(tensor):
                at = self.pointers[tensor.number] + first * of.itemsize
                flat[first : first + count] = self.card.read(work, at, count * of.itemsize).view(of)
        return flat

    def _write(self, work: Work, tensor: Tensor, flat: Array) -> None:
        for first, count in runs(tensor):
            at = self.pointers[tensor.number] + first * flat.itemsize
            self.card.write(work, at, flat[first : first + count].view(np.uint8))


def runs(tensor: Tensor) -> Iterator[tuple[int, int]]:
    """Where neighbours begin in a tensor, and how many they are."""
    axes = list(zip(tensor.sizes, tensor.strides, strict=True))
    along = max((n for n, step in axes if step == 1), default=1)
    if along > 1:
        axes.remove((along, 1))
    for place in itertools.product(*(range(n) for n, _ in axes)):
        yield sum(i * step for i, (_, step) in zip(place, axes, strict=True)), along
