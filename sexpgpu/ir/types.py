"""Dtypes, tensor types and the promotion of dtypes."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Literal

Dtype = Literal["f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool"]
DTYPES: tuple[Dtype, ...] = ("f32", "bf16", "f16", "i32", "i64", "u8", "u32", "bool")
FLOATS = frozenset(("f32", "bf16", "f16"))
INTEGERS = frozenset(("i32", "i64", "u8", "u32"))
SIZES: dict[str, int] = {"f32": 4, "bf16": 2, "f16": 2, "i32": 4, "i64": 8, "u8": 1, "u32": 4, "bool": 1}

# A tensor of this many elements or more is refused before anything is allocated (E-SHAPE).
MAXIMUM_ELEMENTS = 1 << 48


@dataclass(frozen=True, slots=True)
class TensorType:
    """`f32[batch=16 seq=256]`; labels say where a size came from and take no part in identity."""

    dtype: Dtype
    shape: tuple[int, ...]
    labels: tuple[str | None, ...] = field(default=(), compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * SIZES[self.dtype]

    def label(self, axis: int) -> str | None:
        return self.labels[axis] if axis < len(self.labels) else None

    def with_labels(self, labels: tuple[str | None, ...]) -> TensorType:
        return TensorType(self.dtype, self.shape, labels)

    def __str__(self) -> str:
        sizes = (f"{self.label(i)}={n}" if self.label(i) else str(n) for i, n in enumerate(self.shape))
        return f"{self.dtype}[{' '.join(sizes)}]"


# What a node gives: one tensor, or several (a region, top-k), taken apart by `get` nodes.
NodeType = TensorType | tuple[TensorType, ...]

_INTEGER_JOIN: dict[frozenset[str], Dtype] = {
    frozenset(("u8", "i32")): "i32",
    frozenset(("u8", "i64")): "i64",
    frozenset(("u8", "u32")): "u32",
    frozenset(("i32", "i64")): "i64",
    frozenset(("u32", "i64")): "i64",
}


def promote(a: Dtype, b: Dtype) -> Dtype | None:
    """The dtype of an operation on two tensors, or None where there is none (i32 with u32).

    bool < u8 < i32 < i64, u8 < u32 < i64; f16 with bf16 is f32; an integer with a float takes the float's.
    """
    if a == b:
        return a
    if a == "bool":
        return b
    if b == "bool":
        return a
    if a in FLOATS and b in FLOATS:
        return "f32"
    if a in FLOATS:
        return a
    if b in FLOATS:
        return b
    return _INTEGER_JOIN.get(frozenset((a, b)))
