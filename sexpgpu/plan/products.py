"""Products: each contract as one launch on matrices, read and written through the strides of views.

Free axes that do not step evenly together become batch entries; an operand that has no matrix form is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from sexpgpu.ir.graph import Node
from sexpgpu.ops.product import free_axes
from sexpgpu.passes.access import contiguous
from sexpgpu.plan.kernel import Matrix, Place, Product
from sexpgpu.plan.located import Located, Loops, falling, join, narrow_operands, starts_of
from sexpgpu.plan.looped import looped_product
from sexpgpu.plan.trace import Storage

if TYPE_CHECKING:
    from sexpgpu.plan.build import Builder

# Loops that two operands share: (size, stride in the first, stride in the second).
Shared = list[tuple[int, int, int]]
# A product is cut into no more entries than this for the sake of a copy saved, of no fewer rows and columns than that.
MOST_ENTRIES, FEWEST = 256, 8


@dataclass(frozen=True)
class _Side:
    """One side of the result: the loop that is the matrix's own (size, step in the operand, step in the result), and
    those that become batch entries."""

    size: int
    step: int
    out_step: int
    entries: Shared


class Products:
    """Lowers the contracts of one graph; copies of operands are made once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.copies: dict[tuple[Node, tuple[int, ...]], Storage] = {}

    def contract(self, node: Node, out: Storage) -> None:
        located = [self.builder.heavy.located(operand) for operand in narrow_operands(node)]
        sides = [found for found in located if found is not None]
        made = _product(node, sides, out) if len(sides) == len(located) else None
        made = made or self._looped(node, located, out) or self._copied(node, located, out)
        assert made is not None, node
        self.builder.add(made)

    def _looped(self, node: Node, located: Sequence[Located | None], out: Storage) -> Product | None:
        """On operands that are no matrices; what is read backward is copied, which reads it forward."""
        sides = _with_copies(node, [None if found is None or found.is_backward else found for found in located])
        return looped_product(node, self._there(node, sides), out) if looped_product(node, sides, out) is not None else None

    def _copied(self, node: Node, located: Sequence[Located | None], out: Storage) -> Product | None:
        """With as few operands copied as there must be; what no strides express is None already."""
        for copied in ((0,), (1,), (0, 1)):
            sides = _with_copies(node, [None if k in copied else found for k, found in enumerate(located)])
            if _product(node, sides, out) is not None:
                break
        return _product(node, self._there(node, sides), out)

    def _there(self, node: Node, sides: Sequence[Located]) -> list[Located]:
        """The operands, copies made."""
        return [
            side if side.place is not None else Located(self._copy(operand, side.strides), side.loops)
            for operand, side in zip(narrow_operands(node), sides, strict=True)
        ]

    def _copy(self, operand: Node, strides: tuple[int, ...]) -> Place:
        key = (operand, strides)
        if key not in self.copies:
            storage = self.builder.buffers.arena("copy", operand, strides)
            self.builder.copy(operand, storage)
            self.copies[key] = storage
        return self.copies[key].place


def _with_copies(node: Node, located: Sequence[Located | None]) -> list[Located]:
    """The operands, those that are None as copies with batch axes first and contracted ones last, in the order in which
    the other operand steps along them."""
    contracted = node.attributes["contracted"]
    order = list(range(len(contracted[0])))
    for found, axes in zip(located, contracted, strict=True):
        if found is not None:
            order = falling(found, axes)
    sides: list[Located] = []
    for k, found in enumerate(located):
        if found is None:
            found = _copy_of(node.inputs[k], node.attributes["batch"][k], [contracted[k][i] for i in order])
        sides.append(found)
    return sides


def _copy_of(operand: Node, batch: Sequence[int], contracted: Sequence[int]) -> Located:
    order = (*batch, *free_axes(operand.tensor.rank, tuple(batch), tuple(contracted)), *contracted)
    steps = contiguous(tuple(operand.shape[i] for i in order))
    strides = tuple(steps[order.index(i)] for i in range(len(order)))
    return Located(None, [[(n, s)] if n > 1 else [] for n, s in zip(operand.shape, strides, strict=True)], strides)


def _product(node: Node, sides: Sequence[Located], out: Storage) -> Product | None:
    """The launch, or None where an operand has no matrix form."""
    batch, contracted = node.attributes["batch"], node.attributes["contracted"]
    order = falling(sides[0] if sides[0].place is not None else sides[1], contracted[0 if sides[0].place is not None else 1])
    inner = [join([loop for k in order for loop in side.loops[axes[k]]]) for side, axes in zip(sides, contracted, strict=True)]
    if any(len(loops) > 1 for loops in inner):
        return None
    (k, a_inner), (_, b_inner) = (loops[0] if loops else (1, 1) for loops in inner)
    if k > 1 and min(a_inner, b_inner) <= 0:
        return None
    shared = len(batch[0])
    left = free_axes(len(sides[0].loops), batch[0], contracted[0])
    right = free_axes(len(sides[1].loops), batch[1], contracted[1])
    results = [range(shared, shared + len(left)), range(shared + len(left), shared + len(left) + len(right))]
    free = [
        _shared([side.loops[i] for i in axes], [out.strides[i] for i in result])
        for side, axes, result in zip(sides, (left, right), results, strict=True)
    ]
    turned = not _has_unit(free[1]) and _has_unit(free[0])
    rows = _side(free[1] if turned else free[0], (b_inner if turned else a_inner) == 1 or k == 1, False)
    columns = _side(free[0] if turned else free[1], (a_inner if turned else b_inner) == 1 or k == 1, True)
    if rows is None or columns is None or not _worth(rows, columns):
        return None
    m, n = (columns, rows) if turned else (rows, columns)
    a, b = (
        Matrix(
            side.place or Place(-1),
            step,
            inner_step,
            starts_of([*(side.loops[i] for i in axes), *_entries(entries)]),
        )
        for side, axes, step, inner_step, entries in (
            (sides[0], batch[0], m.step, a_inner, [(m.entries, True), (n.entries, False)]),
            (sides[1], batch[1], n.step, b_inner, [(m.entries, False), (n.entries, True)]),
        )
    )
    b = Matrix(b.place, b.column, b.row, b.starts)
    of_batch: list[Loops] = [[(n, step)] if n > 1 else [] for n, step in zip(node.shape[:shared], out.strides, strict=False)]
    of_entries: list[Loops] = [[(size, step)] for size, _, step in (*m.entries, *n.entries)]
    starts = starts_of([*of_batch, *of_entries])
    dtype = narrow_operands(node)[0].dtype
    result = None if node.dtype == dtype else node.dtype
    if turned:
        c = Matrix(out.place, n.out_step if n.size > 1 else m.size, 1, starts)
        return Product(dtype, n.size, m.size, k, _turned(b), _turned(a), c, (node.index,), result=result)
    c = Matrix(out.place, m.out_step if m.size > 1 else n.size, 1, starts)
    return Product(dtype, m.size, n.size, k, a, b, c, (node.index,), result=result)


def _turned(matrix: Matrix) -> Matrix:
    return Matrix(matrix.place, matrix.column, matrix.row, matrix.starts)


def _entries(groups: Sequence[tuple[Shared, bool]]) -> list[Loops]:
    """The loops of batch entries in one operand: its own step, or none where they are the other's."""
    return [[(size, step if own else 0)] for loops, own in groups for size, step, _ in loops]


def _shared(axes: Sequence[Loops], out: Sequence[int]) -> Shared:
    """The loops of free axes with their steps in the operand and the result, neighbours joined where both step evenly."""
    made: Shared = []
    for loops, stride in zip(axes, out, strict=True):
        below = prod(size for size, _ in loops)
        for size, step in loops:
            below //= size
            out_step = stride * below
            if made and made[-1][1] == step * size and made[-1][2] == out_step * size:
                made[-1] = (made[-1][0] * size, step, out_step)
            else:
                made.append((size, step, out_step))
    return made


def _has_unit(loops: Shared) -> bool:
    return not loops or any(step == 1 for _, _, step in loops)


def _side(loops: Shared, inner_is_unit: bool, is_column: bool) -> _Side | None:
    """The largest loop that a matrix can have as its own: of step 1 in the result's columns, and in the operand where
    its other step is not 1."""
    if not loops:
        return _Side(1, 1, 1, [])

    def fits(loop: tuple[int, int, int]) -> bool:
        _, step, out_step = loop
        if is_column and out_step != 1:
            return False
        return step == 1 or (inner_is_unit and step > 0)

    own = max((loop for loop in loops if fits(loop)), key=lambda loop: loop[0], default=None)
    if own is None:
        return None
    return _Side(*own, [loop for loop in loops if loop is not own])


def _worth(rows: _Side, columns: _Side) -> bool:
    """Whether the pieces are few and large enough, where there are any."""
    entries = prod(size for size, _, _ in (*rows.entries, *columns.entries))
    if entries > MOST_ENTRIES:
        return False
    return all(not side.entries or side.size >= FEWEST for side in (rows, columns))


def fits_product(node: Node, strides: Sequence[int]) -> bool:
    """Whether a product can write its result with these strides, its operands copied if need be."""
    batch, contracted = node.attributes["batch"], node.attributes["contracted"]
    sides = [_copy_of(x, batch[k], contracted[k]) for k, x in enumerate(node.inputs)]
    return _product(node, sides, Storage(Place(-1), tuple(strides), 1)) is not None
