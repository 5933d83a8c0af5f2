"""Descriptors as a simulated cuDNN holds them, and the operation graph that they say."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sexpgpu.cuda.cudnn import DTYPES, Attribute, DataType, Kind, PointwiseMode, Reducing, Type
from sexpgpu.cuda.cudnn_graph import MatMul, Operation, OperationGraph, Pointwise, Reduction, Reshape, Tensor
from sexpgpu.plan.kernel import Place

BAD_PARAMETER, NOT_FINALIZED, NOT_SUPPORTED = 2000, 2004, 3000
BY_NUMBER = {attribute.value[0]: attribute for attribute in Attribute}
OUR_NAMES = {number: name for name, number in DTYPES.items()}


class Invalid(Exception):
    """A call gives this status."""

    def __init__(self, why: str, status: int = BAD_PARAMETER) -> None:
        super().__init__(why)
        self.status = status


def require(holds: bool, why: str, status: int = BAD_PARAMETER) -> None:
    if not holds:
        raise Invalid(why, status)


# What a descriptor must have before it is finalized.
NEEDED: Mapping[Kind, tuple[Attribute, ...]] = {
    Kind.TENSOR: (
        Attribute.TENSOR_UNIQUE_ID, Attribute.TENSOR_DATA_TYPE, Attribute.TENSOR_DIMENSIONS, Attribute.TENSOR_STRIDES,
        Attribute.TENSOR_BYTE_ALIGNMENT,
    ),
    Kind.POINTWISE: (Attribute.POINTWISE_MODE, Attribute.POINTWISE_MATH_PREC),
    Kind.MATMUL: (Attribute.MATMUL_COMP_TYPE,),
    Kind.REDUCTION: (Attribute.REDUCTION_OPERATOR, Attribute.REDUCTION_COMP_TYPE),
    Kind.OPERATION_MATMUL: (
        Attribute.OPERATION_MATMUL_ADESC, Attribute.OPERATION_MATMUL_BDESC, Attribute.OPERATION_MATMUL_CDESC,
        Attribute.OPERATION_MATMUL_DESC,
    ),
    Kind.OPERATION_POINTWISE: (
        Attribute.OPERATION_POINTWISE_PW_DESCRIPTOR, Attribute.OPERATION_POINTWISE_XDESC,
        Attribute.OPERATION_POINTWISE_YDESC,
    ),
    Kind.OPERATION_REDUCTION: (
        Attribute.OPERATION_REDUCTION_XDESC, Attribute.OPERATION_REDUCTION_YDESC, Attribute.OPERATION_REDUCTION_DESC,
    ),
    Kind.OPERATION_RESHAPE: (Attribute.OPERATION_RESHAPE_XDESC, Attribute.OPERATION_RESHAPE_YDESC),
    Kind.OPERATIONGRAPH: (Attribute.OPERATIONGRAPH_HANDLE, Attribute.OPERATIONGRAPH_OPS),
    Kind.ENGINEHEUR: (Attribute.ENGINEHEUR_OPERATION_GRAPH, Attribute.ENGINEHEUR_MODE),
    Kind.EXECUTION_PLAN: (Attribute.EXECUTION_PLAN_HANDLE, Attribute.EXECUTION_PLAN_ENGINE_CONFIG),
    Kind.VARIANT_PACK: (
        Attribute.VARIANT_PACK_UNIQUE_IDS, Attribute.VARIANT_PACK_DATA_POINTERS, Attribute.VARIANT_PACK_WORKSPACE,
    ),
}  # fmt: skip


@dataclass
class Descriptor:
    """`values`: elements of every attribute; `get` finds other descriptors by their handles."""

    kind: Kind
    get: Callable[[int], Descriptor]
    values: dict[Attribute, list[Any]] = field(default_factory=dict)
    finalized: bool = False

    def set(self, number: int, type_: int, count: int, elements: int) -> None:
        require(not self.finalized, f"{self.kind.name} is finalized already")
        require(number in BY_NUMBER, f"attribute {number}")
        attribute = BY_NUMBER[number]
        of, element = attribute.value[1].value
        require(of == type_, f"type {type_} of {attribute.name}")
        self.values[attribute] = list((element * count).from_address(elements)) if count else []

    def finalize(self) -> None:
        require(self.kind in NEEDED, f"{self.kind.name} is cuDNN's own to fill")
        missing = [attribute.name for attribute in NEEDED[self.kind] if attribute not in self.values]
        require(not missing, f"{self.kind.name} lacks {missing}")
        for attribute, elements in self.values.items():
            of: Type = attribute.value[1]
            if of is Type.BACKEND_DESCRIPTOR:
                for other in elements:
                    unfinished = f"{self.get(other).kind.name} in {attribute.name} is not finalized"
                    require(self.get(other).finalized, unfinished, NOT_FINALIZED)
        self.finalized = True

    def one(self, attribute: Attribute, default: Any = None) -> Any:
        found = self.values.get(attribute, [default])
        require(len(found) == 1, f"{len(found)} elements of {attribute.name}")
        return found[0]

    def other(self, attribute: Attribute) -> Descriptor:
        return self.get(self.one(attribute))


def tensor_of(descriptor: Descriptor) -> Tensor:
    """A tensor's place is the buffer of its own number; one that is given by value has the number 0 here."""
    number = descriptor.one(Attribute.TENSOR_UNIQUE_ID)
    by_value = descriptor.one(Attribute.TENSOR_IS_BY_VALUE, False)
    virtual = descriptor.one(Attribute.TENSOR_IS_VIRTUAL, False)
    require(not (by_value and virtual), f"tensor {number} is by value and virtual")
    return Tensor(
        number,
        OUR_NAMES[DataType(descriptor.one(Attribute.TENSOR_DATA_TYPE))],
        tuple(descriptor.values[Attribute.TENSOR_DIMENSIONS]),
        tuple(descriptor.values[Attribute.TENSOR_STRIDES]),
        None if virtual or by_value else Place(number),
        0.0 if by_value else None,
    )


def operation_of(descriptor: Descriptor) -> Operation:
    def tensor(attribute: Attribute) -> Tensor:
        return tensor_of(descriptor.other(attribute))

    def optional(attribute: Attribute) -> Tensor | None:
        return tensor(attribute) if attribute in descriptor.values else None

    if descriptor.kind == Kind.OPERATION_MATMUL:
        return MatMul(
            tensor(Attribute.OPERATION_MATMUL_ADESC),
            tensor(Attribute.OPERATION_MATMUL_BDESC),
            tensor(Attribute.OPERATION_MATMUL_CDESC),
        )
    if descriptor.kind == Kind.OPERATION_RESHAPE:
        return Reshape(tensor(Attribute.OPERATION_RESHAPE_XDESC), tensor(Attribute.OPERATION_RESHAPE_YDESC))
    if descriptor.kind == Kind.OPERATION_REDUCTION:
        operator: Any = Reducing(
            descriptor.other(Attribute.OPERATION_REDUCTION_DESC).one(Attribute.REDUCTION_OPERATOR)
        ).name
        return Reduction(
            operator, tensor(Attribute.OPERATION_REDUCTION_XDESC), tensor(Attribute.OPERATION_REDUCTION_YDESC)
        )
    pointwise = descriptor.other(Attribute.OPERATION_POINTWISE_PW_DESCRIPTOR)
    mode: Any = PointwiseMode(pointwise.one(Attribute.POINTWISE_MODE)).name
    return Pointwise(
        mode,
        tensor(Attribute.OPERATION_POINTWISE_XDESC),
        tensor(Attribute.OPERATION_POINTWISE_YDESC),
        optional(Attribute.OPERATION_POINTWISE_BDESC),
        optional(Attribute.OPERATION_POINTWISE_TDESC),
        pointwise.one(Attribute.POINTWISE_AXIS),
    )


def graph_of(descriptor: Descriptor) -> OperationGraph:
    operations = descriptor.values[Attribute.OPERATIONGRAPH_OPS]
    return OperationGraph("given", tuple(operation_of(descriptor.get(operation)) for operation in operations))


def fill(out: int, of: Any, elements: list[Any]) -> None:
    """Writes elements where a caller wants them."""
    if elements:
        (of * len(elements)).from_address(out)[:] = elements if of is not ctypes.c_char else bytes(elements)
