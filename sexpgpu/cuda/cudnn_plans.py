"""Operation graphs planned by cuDNN, for a card that is here or for one that is only described; its refusals in its words."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from sexpgpu.cuda.context import Stream
from sexpgpu.cuda.cudnn import (
    DTYPES,
    HANDLE,
    Attribute,
    CudnnFailed,
    Descriptors,
    Heuristic,
    Kind,
    NumericalNote,
    PointwiseMode,
    Reducing,
    last_words,
)
from sexpgpu.cuda.cudnn_graph import (
    ALIGNMENT_BYTES,
    MatMul,
    Operation,
    OperationGraph,
    Pointwise,
    Reduction,
    Reshape,
    Tensor,
)
from sexpgpu.plan.kernel import Place

# Reasons of engines that are for other graphs or other cards.
_NOT_FOR_US = ("was not given to the engine", "is supported for this engine")
_NOTES_ROOM = 16


@dataclass(frozen=True)
class Refusal:
    """`reasons`: of each engine that was tried, what it did not like; `text`: all that cuDNN said."""

    reasons: tuple[str, ...]
    text: str = ""

    def __str__(self) -> str:
        return "cuDNN refuses: " + ("; ".join(self.reasons) or self.text.strip() or "it gives no reason")


@dataclass(frozen=True)
class Described:
    """A card that need not be here, as cuDNN's JSON of its properties."""

    properties: str


@dataclass(frozen=True)
class Handle:
    """cuDNN's handle of the card that is current (cudnnCreate)."""

    number: int


Card = Described | Handle


class ExecutionPlan:
    """A planned graph: the engine's number, its workspace, and cuDNN's text of the plan. To be closed."""

    def __init__(self, graph: OperationGraph, card: Card, descriptors: Descriptors, plan: int, engine: int) -> None:
        self.graph, self.engine = graph, engine
        self._card, self._descriptors, self._plan = card, descriptors, plan
        (self.workspace_bytes,) = descriptors.get(plan, Attribute.EXECUTION_PLAN_WORKSPACE_SIZE)

    def close(self) -> None:
        self._descriptors.close()

    @property
    def text(self) -> str:
        """JSON, with the graph as cuDNN understood it."""
        return self._descriptors.text(self._plan, Attribute.EXECUTION_PLAN_JSON_REPRESENTATION)

    def bound(self, address: Callable[[Place], int], workspace: int) -> BoundPlan:
        """The plan on memory; `workspace` is where nothing else writes at the same time (0 where it needs none)."""
        assert isinstance(self._card, Handle), "a plan for a card that is not here"
        return BoundPlan(self._descriptors, self._plan, self._card, self.graph, address, workspace)


class BoundPlan:
    """A plan with its operands' addresses: one call. It ends with its plan."""

    def __init__(
        self,
        descriptors: Descriptors,
        plan: int,
        handle: Handle,
        graph: OperationGraph,
        address: Callable[[Place], int],
        workspace: int,
    ) -> None:
        self._calls, self._plan, self._handle = descriptors.calls, plan, handle
        # cuDNN reads numbers from the host at every call: they must stay where they are.
        self._numbers: list[ctypes.c_float] = []
        pointers: dict[int, int] = {}
        for tensor in graph.tensors.values():
            if tensor.place is not None:
                pointers[tensor.number] = address(tensor.place)
            elif tensor.value is not None:
                self._numbers.append(ctypes.c_float(tensor.value))
                pointers[tensor.number] = ctypes.addressof(self._numbers[-1])
        self._pack = descriptors.make(
            Kind.VARIANT_PACK,
            (
                (Attribute.VARIANT_PACK_UNIQUE_IDS, list(pointers)),
                (Attribute.VARIANT_PACK_DATA_POINTERS, list(pointers.values())),
                (Attribute.VARIANT_PACK_WORKSPACE, workspace),
            ),
        )

    def run(self, stream: Stream) -> None:
        self._calls.cudnnSetStream(self._handle.number, stream.handle)
        self._calls.cudnnBackendExecute(self._handle.number, self._plan, self._pack)


def plan(
    calls: Any, graph: OperationGraph, card: Card, most_workspace_bytes: int | None = None
) -> ExecutionPlan | Refusal:
    """The first plan that cuDNN proposes, whose results are the same in every run, and whose workspace is not too large."""
    descriptors = Descriptors(calls)
    last_words(calls)  # what was said before is about other graphs
    reasons: list[str] = []
    try:
        operations = _graph(descriptors, graph, card)
        properties = _properties(descriptors, card)
        for mode in (Heuristic.A, Heuristic.FALLBACK):
            for engine in _proposals(descriptors, operations, properties, mode):
                made = _execution_plan(descriptors, engine, card, properties, reasons)
                if made is None:
                    continue
                planned = ExecutionPlan(graph, card, descriptors, made, engine.number)
                if most_workspace_bytes is None or planned.workspace_bytes <= most_workspace_bytes:
                    return planned
                reasons.append(f"engine {engine.number} needs a workspace of {planned.workspace_bytes} bytes")
    except CudnnFailed as failed:
        descriptors.close()
        return _refusal(failed.meaning, reasons)
    text = last_words(calls)
    descriptors.close()
    return _refusal(text, reasons)


def _refusal(text: str, reasons: list[str]) -> Refusal:
    return Refusal(tuple(dict.fromkeys((*reasons, *reasons_in(text)))), text)


def reasons_in(text: str) -> tuple[str, ...]:
    """Of each engine in cuDNN's words the first reason, which is the innermost; those alone that concern our graph."""
    found: list[str] = []
    for part in re.split(r"^(?=\{)", text, flags=re.M):
        reason = re.search(r"Reason: (.*)", part)
        if reason is not None and not any(words in reason[1] for words in _NOT_FOR_US):
            # After "at:" stands the condition in cuDNN's own code.
            found.append(reason[1].partition(" at: ")[0].strip())
    return tuple(dict.fromkeys(found))


# -- descriptors of a graph


def _properties(descriptors: Descriptors, card: Card) -> int | None:
    if isinstance(card, Handle):
        return None
    text = card.properties.encode()
    return descriptors.make(Kind.DEVICEPROP, ((Attribute.DEVICEPROP_JSON_REPRESENTATION, text),))


def _graph(descriptors: Descriptors, graph: OperationGraph, card: Card) -> int:
    tensors = {number: _tensor(descriptors, tensor) for number, tensor in graph.tensors.items()}
    operations = [_operation(operation, descriptors, tensors) for operation in graph.operations]
    handle = [(Attribute.OPERATIONGRAPH_HANDLE, card.number)] if isinstance(card, Handle) else []
    return descriptors.make(Kind.OPERATIONGRAPH, [*handle, (Attribute.OPERATIONGRAPH_OPS, operations)])


def _tensor(descriptors: Descriptors, tensor: Tensor) -> int:
    return descriptors.make(
        Kind.TENSOR,
        (
            (Attribute.TENSOR_UNIQUE_ID, tensor.number),
            (Attribute.TENSOR_DATA_TYPE, DTYPES[tensor.dtype]),
            (Attribute.TENSOR_DIMENSIONS, tensor.sizes),
            (Attribute.TENSOR_STRIDES, tensor.strides),
            (Attribute.TENSOR_BYTE_ALIGNMENT, ALIGNMENT_BYTES),
            (Attribute.TENSOR_IS_VIRTUAL, tensor.is_virtual),
            (Attribute.TENSOR_IS_BY_VALUE, tensor.value is not None),
        ),
    )


@singledispatch
def _operation(operation: Operation, descriptors: Descriptors, tensors: Mapping[int, int]) -> int:
    raise AssertionError(operation)


@_operation.register
def _(operation: MatMul, descriptors: Descriptors, tensors: Mapping[int, int]) -> int:
    matmul = descriptors.make(Kind.MATMUL, ((Attribute.MATMUL_COMP_TYPE, DTYPES["f32"]),))
    return descriptors.make(
        Kind.OPERATION_MATMUL,
        (
            (Attribute.OPERATION_MATMUL_ADESC, tensors[operation.a.number]),
            (Attribute.OPERATION_MATMUL_BDESC, tensors[operation.b.number]),
            (Attribute.OPERATION_MATMUL_CDESC, tensors[operation.y.number]),
            (Attribute.OPERATION_MATMUL_DESC, matmul),
        ),
    )


@_operation.register
def _(operation: Pointwise, descriptors: Descriptors, tensors: Mapping[int, int]) -> int:
    of: list[tuple[Attribute, Any]] = [
        (Attribute.POINTWISE_MODE, PointwiseMode[operation.mode]),
        (Attribute.POINTWISE_MATH_PREC, DTYPES[operation.precision]),
    ]
    if operation.axis is not None:
        of.append((Attribute.POINTWISE_AXIS, operation.axis))
    pointwise = descriptors.make(Kind.POINTWISE, of)
    optional = (
        (Attribute.OPERATION_POINTWISE_BDESC, operation.b),
        (Attribute.OPERATION_POINTWISE_TDESC, operation.chosen),
    )
    return descriptors.make(
        Kind.OPERATION_POINTWISE,
        (
            (Attribute.OPERATION_POINTWISE_PW_DESCRIPTOR, pointwise),
            (Attribute.OPERATION_POINTWISE_XDESC, tensors[operation.x.number]),
            *((attribute, tensors[tensor.number]) for attribute, tensor in optional if tensor is not None),
            (Attribute.OPERATION_POINTWISE_YDESC, tensors[operation.y.number]),
        ),
    )


@_operation.register
def _(operation: Reduction, descriptors: Descriptors, tensors: Mapping[int, int]) -> int:
    reduction = descriptors.make(
        Kind.REDUCTION,
        (
            (Attribute.REDUCTION_OPERATOR, Reducing[operation.operator]),
            (Attribute.REDUCTION_COMP_TYPE, DTYPES["f32"]),
        ),
    )
    return descriptors.make(
        Kind.OPERATION_REDUCTION,
        (
            (Attribute.OPERATION_REDUCTION_XDESC, tensors[operation.x.number]),
            (Attribute.OPERATION_REDUCTION_YDESC, tensors[operation.y.number]),
            (Attribute.OPERATION_REDUCTION_DESC, reduction),
        ),
    )


@_operation.register
def _(operation: Reshape, descriptors: Descriptors, tensors: Mapping[int, int]) -> int:
    return descriptors.make(
        Kind.OPERATION_RESHAPE,
        (
            (Attribute.OPERATION_RESHAPE_XDESC, tensors[operation.x.number]),
            (Attribute.OPERATION_RESHAPE_YDESC, tensors[operation.y.number]),
        ),
    )


# -- engines


@dataclass(frozen=True)
class _Proposal:
    """An engine's configuration that the heuristic proposes, and the engine's number."""

    configuration: int
    number: int


def _proposals(descriptors: Descriptors, graph: int, properties: int | None, mode: Heuristic) -> list[_Proposal]:
    of = [(Attribute.ENGINEHEUR_OPERATION_GRAPH, graph), (Attribute.ENGINEHEUR_MODE, mode)]
    if properties is not None:
        of.append((Attribute.ENGINEHEUR_DEVICEPROP, properties))
    heuristic = descriptors.make(Kind.ENGINEHEUR, of)
    count = descriptors.count(heuristic, Attribute.ENGINEHEUR_RESULTS)
    found: list[_Proposal] = []
    for made in descriptors.fill(heuristic, Attribute.ENGINEHEUR_RESULTS, Kind.ENGINECFG, count) if count else ():
        (engine,) = descriptors.fill(made, Attribute.ENGINECFG_ENGINE, Kind.ENGINE)
        (number,) = descriptors.get(engine, Attribute.ENGINE_GLOBAL_INDEX)
        if NumericalNote.NONDETERMINISTIC not in descriptors.get(engine, Attribute.ENGINE_NUMERICAL_NOTE, _NOTES_ROOM):
            found.append(_Proposal(made, number))
    return found


def _execution_plan(
    descriptors: Descriptors, proposal: _Proposal, card: Card, properties: int | None, reasons: list[str]
) -> int | None:
    of: list[tuple[Attribute, Any]] = [(Attribute.EXECUTION_PLAN_ENGINE_CONFIG, proposal.configuration)]
    if isinstance(card, Handle):
        of.append((Attribute.EXECUTION_PLAN_HANDLE, card.number))
    else:
        of.append((Attribute.EXECUTION_PLAN_DEVICEPROP, properties))
    try:
        return descriptors.make(Kind.EXECUTION_PLAN, of)
    except CudnnFailed as failed:
        reasons.extend(reasons_in(failed.meaning) or (f"engine {proposal.number}: {failed.meaning}",))
        return None


def new_handle(calls: Any) -> Handle:
    """Of the current context's card."""
    made = HANDLE()
    calls.cudnnCreate(ctypes.byref(made))
    assert made.value
    return Handle(made.value)
