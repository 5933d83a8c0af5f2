"""What cuDNN is asked to compute, as data: tensors and operations on them, in the words of its graph API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from sexpgpu.plan.kernel import Place

Mode = Literal[
    "ADD", "SUB", "MUL", "DIV", "EXP", "LOG", "GELU_FWD", "GELU_APPROX_TANH_FWD", "CMP_GE", "GEN_INDEX", "BINARY_SELECT"
]  # fmt: skip
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class Tensor:
    """`number` is its name. `place` None and no `value`: virtual, it lives within the operation graph alone. `value`: a number
    that is given at every call, from the host's memory."""

    number: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    place: Place | None = None
    value: float | None = None

    @property
    def is_virtual(self) -> bool:
        return self.place is None and self.value is None


@dataclass(frozen=True)
class MatMul:
    """y = a b, of the last two axes; where b has fewer heads (axis 1) than a, each serves a group of neighbours. In f32."""

    a: Tensor
    b: Tensor
    y: Tensor


@dataclass(frozen=True)
class Pointwise:
    """y = mode(x, b), operands broadcast. BINARY_SELECT: x where `chosen`, else b. GEN_INDEX: an element's place along
    `axis` of x. `precision` is what it computes in."""

    mode: Mode
    x: Tensor
    y: Tensor
    b: Tensor | None = None
    chosen: Tensor | None = None
    axis: int | None = None
    precision: str = "f32"


@dataclass(frozen=True)
class Reduction:
    """y = x added up, or its largest, over the axes where y is smaller; heads are reduced by groups of neighbours."""

    operator: Literal["ADD", "MAX"]
    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Reshape:
    """y is x's memory, seen by y's sizes and strides."""

    x: Tensor
    y: Tensor


Operation = MatMul | Pointwise | Reduction | Reshape


def operands(operation: Operation) -> tuple[Tensor, ...]:
    """All that an operation reads, and last what it writes."""
    if isinstance(operation, MatMul):
        return operation.a, operation.b, operation.y
    if isinstance(operation, Pointwise):
        return tuple(t for t in (operation.x, operation.b, operation.chosen, operation.y) if t is not None)
    return operation.x, operation.y


@dataclass(frozen=True)
class OperationGraph:
    """Operations in an order in which they can be computed. `name` is for reports."""

    name: str
    operations: tuple[Operation, ...]

    @property
    def tensors(self) -> dict[int, Tensor]:
        """By their numbers."""
        return {tensor.number: tensor for operation in self.operations for tensor in operands(operation)}

    @property
    def written(self) -> frozenset[int]:
        return frozenset(operands(operation)[-1].number for operation in self.operations)


@dataclass
class Drawing:
    """A graph that is being written: it numbers the tensors and gives virtual ones row-major strides."""

    name: str
    operations: list[Operation] = field(default_factory=list)
    last: int = 0

    def tensor(
        self,
        dtype: str,
        sizes: Sequence[int],
        strides: Sequence[int] | None = None,
        place: Place | None = None,
        value: float | None = None,
    ) -> Tensor:
        self.last += 1
        steps = row_major(sizes) if strides is None else tuple(strides)
        return Tensor(self.last, dtype, tuple(sizes), steps, place, value)

    def number(self, value: float, rank: int = 4) -> Tensor:
        return self.tensor("f32", (1,) * rank, value=value)

    def matmul(self, a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        self.operations.append(MatMul(a, b, y))
        return y

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """A virtual product, kept as it was summed."""
        return self.matmul(a, b, self.tensor("f32", (*a.sizes[:-1], b.sizes[-1])))

    def pointwise(
        self, mode: Mode, x: Tensor, b: Tensor | None = None, y: Tensor | None = None, dtype: str = "f32"
    ) -> Tensor:
        y = y or self.tensor(dtype, x.sizes)
        self.operations.append(Pointwise(mode, x, y, b))
        return y

    def position(self, x: Tensor, axis: int) -> Tensor:
        y = self.tensor("i32", x.sizes)
        self.operations.append(Pointwise("GEN_INDEX", x, y, axis=axis))
        return y

    def at_least(self, x: Tensor, b: Tensor) -> Tensor:
        y = self.tensor("bool", x.sizes)
        self.operations.append(Pointwise("CMP_GE", x, y, b, precision="bool"))
        return y

    def select(self, chosen: Tensor, x: Tensor, b: Tensor) -> Tensor:
        y = self.tensor("f32", x.sizes)
        self.operations.append(Pointwise("BINARY_SELECT", x, y, b, chosen))
        return y

    def reduce(self, operator: Literal["ADD", "MAX"], x: Tensor, y: Tensor | None = None) -> Tensor:
        """Over the last axis, where `y` does not say otherwise."""
        y = y or self.tensor("f32", (*x.sizes[:-1], 1))
        self.operations.append(Reduction(operator, x, y))
        return y

    def turned(self, x: Tensor, dtype: str) -> Tensor:
        """The last two axes of x change places, not its memory."""
        *outer, rows, columns = x.sizes
        *steps, row, column = x.strides
        y = self.tensor(dtype, (*outer, columns, rows), (*steps, column, row))
        self.operations.append(Reshape(x, y))
        return y

    def done(self) -> OperationGraph:
        return OperationGraph(self.name, tuple(self.operations))


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return tuple(strides)
