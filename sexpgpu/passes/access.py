"""Affine access: how an element of a node, seen from a kernel's loops, is found in the node that a view reads.

An `Index` is the index along one axis: start + Σ coefficient · loop. An access is one Index an axis. Views map an access
of their result to one of their operand; a reshape may need a loop cut in two (`Refine`), or have no affine form.
"""

from __future__ import annotations

from math import prod

from sexpgpu.ir.graph import Node

# (start, ((loop, coefficient), …)), loops in ascending order.
Index = tuple[int, tuple[tuple[int, int], ...]]
Access = tuple[Index, ...]
ZERO: Index = (0, ())

# `widen` reads bf16 or f16 as f32: registers hold both so.
VIEWS = frozenset(("reshape", "permute", "broadcast", "slice", "flip", "windows", "widen"))


class Refine(Exception):
    """Loop `loop` has to be cut into `outer` × `inner` for an access to be affine."""

    def __init__(self, loop: int, inner: int) -> None:
        super().__init__(loop, inner)
        self.loop = loop
        self.inner = inner


class NotAffine(Exception):
    """Strides cannot express an access. `reshape` is the view at fault: its operand has to lie row-major in memory;
    or `uneven` are the values that have to, so that a row or column steps evenly."""

    def __init__(self, reshape: Node | None = None, uneven: tuple[Node, ...] = ()) -> None:
        super().__init__(reshape, uneven)
        self.reshape = reshape
        self.uneven = uneven


class NoDigits(Exception):
    """An index that is no sum of whole digits over the other shape."""


def scaled(index: Index, factor: int, shift: int = 0) -> Index:
    """factor · index + shift."""
    return index[0] * factor + shift, tuple((loop, c * factor) for loop, c in index[1])


def joined(indices: list[tuple[Index, int]]) -> Index:
    """Σ stride · index."""
    start = 0
    terms: dict[int, int] = {}
    for (first, parts), stride in indices:
        start += first * stride
        for loop, c in parts:
            terms[loop] = terms.get(loop, 0) + c * stride
    return start, tuple(sorted((loop, c) for loop, c in terms.items() if c))


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return tuple(strides)


def pull(view: Node, access: Access, sizes: list[int]) -> Access:
    """The access of a view's operand that reads what `access` reads of the view. `sizes`: the loops' sizes."""
    operand, attributes = view.inputs[0], view.attributes
    if view.op == "widen":
        return access
    if view.op == "permute":
        made: list[Index] = [ZERO] * len(access)
        for k, axis in enumerate(attributes["axes"]):
            made[axis] = access[k]
        return tuple(made)
    if view.op == "broadcast":
        return tuple(ZERO if n == 1 else access[d] for n, d in zip(operand.shape, attributes["dims"], strict=True))
    if view.op == "slice":
        parts = zip(access, attributes["starts"], attributes["steps"], strict=True)
        return tuple(scaled(index, step, start) for index, start, step in parts)
    if view.op == "flip":
        axes = attributes["axes"]
        return tuple(
            scaled(index, -1, n - 1) if i in axes else index
            for i, (index, n) in enumerate(zip(access, operand.shape, strict=True))
        )
    if view.op == "windows":
        spatial = len(attributes["sizes"])
        lead = len(access) - 2 * spatial
        windows, elements = access[lead : lead + spatial], access[lead + spatial :]
        steps = zip(windows, attributes["strides"], elements, attributes["dilations"], strict=True)
        return (*access[:lead], *(joined([(p, stride), (j, dilation)]) for p, stride, j, dilation in steps))
    try:
        return reshaped(operand.shape, view.shape, access, sizes)
    except NoDigits:
        raise NotAffine(view) from None


def reshaped(source: tuple[int, ...], target: tuple[int, ...], access: Access, sizes: list[int]) -> Access:
    """The access of shape `source` that reads the same element as `access` does of shape `target`."""
    made: list[Index] = [ZERO] * len(source)
    if prod(source) == 0:
        return tuple(made)  # runs of axes are not told apart by how many elements they have
    i = j = 0
    while i < len(source) or j < len(target):
        # The smallest run of axes on both sides with the same number of elements.
        first, second = i, j
        left = right = 1
        while True:
            if left == right and (i > first or j > second):
                break
            if left <= right and i < len(source):
                left *= source[i]
                i += 1
            elif j < len(target):
                right *= target[j]
                j += 1
            else:
                left *= source[i]
                i += 1
        _group(source[first:i], target[second:j], access[second:j], sizes, made, first)
    return tuple(made)


def _group(
    source: tuple[int, ...], target: tuple[int, ...], access: Access, sizes: list[int], made: list[Index], first: int
) -> None:
    """One run: the row-major number of the element over `target`, taken apart over `source`."""
    start, terms = joined(list(zip(access, contiguous(target), strict=True)))
    rest = list(terms)
    # Innermost axis first: its index takes the terms below `stride · size`.
    stride = 1
    for k in range(len(source) - 1, -1, -1):
        size, above = source[k], stride * source[k]
        if size == 1:
            continue
        mine: list[tuple[int, int]] = []
        later: list[tuple[int, int]] = []
        for loop, c in rest:
            if c < 0 or c % stride:
                raise NoDigits
            if c % above == 0:
                later.append((loop, c))
            elif c * (sizes[loop] - 1) < above:
                mine.append((loop, c // stride))
            else:
                # The loop runs over this axis and the ones before it.
                if above % c or sizes[loop] % (above // c):
                    raise NoDigits
                raise Refine(loop, above // c)
        begin = start // stride % size
        if begin + sum(c * (sizes[loop] - 1) for loop, c in mine) >= size:
            raise NoDigits
        made[first + k] = (begin, tuple(mine))
        rest, stride = later, above
