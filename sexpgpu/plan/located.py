"""Where the elements of a product's operands are: loops along every axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as cartesian

from sexpgpu.ir.graph import Node
from sexpgpu.plan.kernel import Place

# Loops of one axis (or group of axes) of an operand: (size, stride in elements).
Loops = list[tuple[int, int]]


@dataclass(frozen=True)
class Located:
    """An operand: its place (None: a copy that is yet to be made, with these strides), the loops of each axis, and what its
    elements are in memory."""

    place: Place | None
    loops: list[Loops]
    strides: tuple[int, ...] = ()
    dtype: str = ""

    @property
    def is_backward(self) -> bool:
        return any(step < 0 for loops in self.loops for _, step in loops)


def falling(located: Located, contracted: Sequence[int]) -> list[int]:
    """The order of the contracted pairs by falling step."""

    def step(k: int) -> int:
        loops = located.loops[contracted[k]]
        return -(loops[-1][1] if loops else 0)

    return sorted(range(len(contracted)), key=step)


def join(loops: Loops) -> Loops:
    """Neighbouring loops along which the memory steps evenly as one."""
    made: Loops = []
    for size, step in loops:
        if made and made[-1][1] == step * size:
            made[-1] = (made[-1][0] * size, step)
        else:
            made.append((size, step))
    return made


def starts_of(axes: Sequence[Loops]) -> tuple[int, ...]:
    """The offset of every batch entry, row-major over the batch axes."""
    loops = [loop for axis in axes for loop in axis]
    return tuple(sum(parts) for parts in cartesian(*([step * i for i in range(size)] for size, step in loops)))


def narrow_operands(node: Node) -> tuple[Node, ...]:
    """The operands of a product: bf16 or f16 where both are only read as f32."""
    narrow = [x.inputs[0] for x in node.inputs if x.op == "widen"]
    return tuple(narrow) if len(narrow) == 2 and narrow[0].dtype == narrow[1].dtype else node.inputs
