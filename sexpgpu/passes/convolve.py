"""Lowering of a convolution's gradients.

    overlap-add of a · b, where the places come from a and the windows from b    windows(a, padded) · b, flipped
    a · windows(b), with few results over many steps                             Σ of such products over parts of them
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from sexpgpu.ir.graph import Node
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.product import free_axes
from sexpgpu.ops.windows import extent
from sexpgpu.passes.access import VIEWS

if TYPE_CHECKING:
    from sexpgpu.passes.lower import Lowerer

# A product of windows with no more results than FEW_RESULTS is a sum of products over parts of no fewer steps than
# LEAST_PART, with no more than PART_RESULTS results in all: workers share the steps, and each window is packed once.
FEW_RESULTS, PART_RESULTS, LEAST_PART = 1 << 16, 1 << 19, 256

# An axis of a product's result: the operand that it comes from and which of its axes it is (a batch axis: of the first).
Source = tuple[int, int]


def overlap_of_product(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """Every element sums over a window of a, in which zeros stand around the places and between them."""
    product, order = inputs[0], tuple(range(len(inputs[0].shape)))
    if product.op == "permute" and product in to.single:
        product, order = product.inputs[0], product.attributes["axes"]
    if product.op != "contract" or product not in to.single:
        return None
    spatial = len(node.attributes["shape"])
    free = _sources(product)
    wanted = [free[axis] for axis in order]
    places, elements, wanted = wanted[-2 * spatial : -spatial], wanted[-spatial:], wanted[:-spatial]
    sides = {side for side, _ in places}, {side for side, _ in elements}
    shared = {(0, axis) for axis in product.attributes["batch"][0]}
    if sides not in (({0}, {1}), ({1}, {0})) or shared.intersection(places + elements):
        return None
    side, axes, window = places[0][0], [axis for _, axis in places], tuple(axis for _, axis in elements)
    source = product.inputs[side]
    names = [axis for axis in range(len(source.shape)) if axis not in axes] + axes
    if names != sorted(names):
        source = _moved(to, node, "permute", source, axes=tuple(names))
    moved = _windows(to, node, source, inputs[0].shape)
    if moved is None:
        return None
    flipped = _moved(to, node, "flip", product.inputs[1 - side], axes=tuple(sorted(window)))
    pairs = {}
    for name in ("batch", "contracted"):
        parts = list(product.attributes[name])
        parts[side] = tuple(names.index(axis) for axis in parts[side])
        if name == "contracted":
            parts[side] += tuple(range(len(names), len(names) + spatial))
            parts[1 - side] += window
        pairs[name] = tuple(parts)
    made = to.add(node, "contract", *((flipped, moved) if side else (moved, flipped)), **pairs)
    to.single.add(made)
    have = [(k, names[axis]) if k == side else (k, axis) for k, axis in _sources(made)]
    back = tuple(have.index(axis) for axis in wanted)
    return made if back == tuple(range(len(back))) else to.add(node, "permute", made, axes=back)


def _sources(product: Node) -> list[Source]:
    """Where each axis of a product's result comes from."""
    batch, contracted = product.attributes["batch"], product.attributes["contracted"]
    left, right = (free_axes(len(x.shape), batch[k], contracted[k]) for k, x in enumerate(product.inputs))
    return [*((0, axis) for axis in batch[0] + left), *((1, axis) for axis in right)]


def _windows(to: Lowerer, node: Node, source: Node, shape: tuple[int, ...]) -> Node | None:
    """The windows of the source that end where its elements' own windows began; None where these reach too far."""
    low, lengths, strides, dilations = (node.attributes[name] for name in ("low", "shape", "strides", "dilations"))
    spatial = len(lengths)
    counts, sizes = shape[-2 * spatial : -spatial], shape[-spatial:]
    before = tuple(extent(k, d) - 1 - a for k, d, a in zip(sizes, dilations, low, strict=True))
    after = tuple(n - 1 + a - (p - 1) * s for n, a, p, s in zip(lengths, low, counts, strides, strict=True))
    if min(*before, *after) < 0:
        return None
    rest = (0,) * (len(source.shape) - spatial)
    interior = rest + tuple(s - 1 for s in strides)
    if any((*before, *after, *interior)):
        source = _moved(to, node, "pad", source, low=rest + before, high=rest + after, interior=interior, value=0)
    return _moved(to, node, "windows", source, sizes=sizes, strides=(1,) * spatial, dilations=dilations)


def _moved(to: Lowerer, node: Node, op: str, x: Node, **attributes: Any) -> Node:
    """A view or padding with zeros; of what is read as f32, of the narrow elements."""
    if x.op == "widen":
        return to.add(node, "widen", to.add(node, op, x.inputs[0], **attributes))
    return to.add(node, op, x, **attributes)


def parts_of_product(to: Lowerer, node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """A convolution's weight gradient: few results of a long sum, over the windows' outermost axis among others."""
    contracted, results = node.attributes["contracted"], max(node.tensor.elements, 1)
    side = next((k for k, x in enumerate(inputs) if _reads_windows(x)), None)
    if side is None or 0 not in contracted[side] or node.attributes["batch"][0] or node.dtype not in FLOATS:
        return None
    length = prod(inputs[side].shape[axis] for axis in contracted[side])
    rows, pair = inputs[side].shape[0], contracted[side].index(0)
    most = min(rows, PART_RESULTS // results, length // LEAST_PART) if results <= FEW_RESULTS else 1
    parts = max((n for n in range(1, most + 1) if rows % n == 0), default=1)
    if parts == 1:
        return None
    cut, batch, inner = [], [], []
    for x, axes in zip(inputs, contracted, strict=True):
        at = axes[pair]
        cut.append(_moved(to, node, "reshape", x, shape=(*x.shape[:at], parts, rows // parts, *x.shape[at + 1 :])))
        batch.append((at,))
        inner.append(tuple(axis + (axis >= at) for axis in axes))
    made = to.add(node, "contract", *cut, batch=tuple(batch), contracted=tuple(inner))
    return to.add(node, "sum", made, axes=(0,))


def _reads_windows(x: Node) -> bool:
    while x.op == "widen" or (x.op in VIEWS and x.op != "windows"):
        x = x.inputs[0]
    return x.op == "windows"
