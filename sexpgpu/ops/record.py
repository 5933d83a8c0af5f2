"""What an operation of the IR is: one record that says everything about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sexpgpu.ir.types import NodeType

if TYPE_CHECKING:
    from sexpgpu.ir.graph import Node


class TypeMismatch(Exception):
    """Operands that do not fit an operation: the code and the words; elaboration adds the place."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


# The cotangent of each input: a node, or None where no gradient flows. Called with (dy, y, inputs, attributes).
Vjp = Callable[..., Sequence["Node | None"]]


class Op(msgspec.Struct, frozen=True):
    """One primitive.

    signature  what stands in the reference: `sum(x: F[*s]; axis) -> F[*drop(s, axis)]`
    infer      the result's type from the operands' types and the attributes
    run        its NumPy meaning: arrays in, array out (float64 arrays give the float64 meaning)
    vjp        the derivative (None: no gradient flows through it)
    kind       how the planner treats it: `pointwise`, `reduce`, `view`, or the name of its own kernel
    numba, cuda  for pointwise operations, the spelling of the scalar expression
    """

    name: str
    signature: str
    infer: Callable[..., NodeType]
    run: Callable[..., Any]
    vjp: Vjp | None
    kind: str
    numba: str = ""
    cuda: str = ""
