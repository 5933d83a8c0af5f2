"""Regions of attention as launches of their own: operands read and results written through the strides of views."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from sexpgpu.ir.graph import Node
from sexpgpu.passes.access import contiguous
from sexpgpu.passes.attention import AttentionBody
from sexpgpu.plan.kernel import Access, Attention
from sexpgpu.plan.located import Located, Loops, join
from sexpgpu.plan.trace import Storage

if TYPE_CHECKING:
    from sexpgpu.plan.build import Builder


def lower_attention(builder: Builder, node: Node) -> None:
    """Adds the launch of a region and says where its results are."""
    found: AttentionBody = node.attributes["attention"]
    q, k, v = node.inputs[:3]
    dtype, loads = _floats(builder, node.inputs[: 6 if found.backward else 3])
    if found.mask is not None:
        loads.append(_mask(builder, node.inputs[-1], (*q.shape[:3], k.shape[2])))
    further = {get.attributes["index"]: get for get in builder.graph.nodes if get.op == "get" and get.inputs[0] is node}
    stores = [_result(builder, node)]
    if found.backward:
        stores += [_result(builder, further.get(n), node.inputs[n]) for n in (1, 2)]
    elif 1 in further:
        stores.append(_result(builder, further[1]))
    builder.add(
        Attention(
            backward=found.backward,
            causal=found.causal,
            masked=found.mask is not None,
            scale=found.scale,
            batch=q.shape[0],
            heads=q.shape[1],
            group=q.shape[1] // k.shape[1],
            rows=q.shape[2],
            columns=k.shape[2],
            width=q.shape[3],
            value_width=v.shape[3],
            loads=tuple(loads),
            stores=tuple(stores),
            nodes=(node.index,),
            dtype=dtype,
        )
    )


def _floats(builder: Builder, operands: Sequence[Node]) -> tuple[str, list[Access]]:
    """The dtype of q, k, v and dout, and all operands: as they are in memory where these are all bf16 or all f16 there and
    the device takes them so, else as f32."""
    if builder.narrow_attention:
        found = {k: _in_place(builder, operands[k], widened=True) for k in (0, 1, 2, 5) if k < len(operands)}
        dtypes = {None if one is None else one[0] for one in found.values()}
        if dtypes in ({"bf16"}, {"f16"}):
            narrow = {k: one[1] for k, one in found.items() if one is not None}
            return str(dtypes.pop()), [narrow.get(k) or _rows(builder, x) for k, x in enumerate(operands)]
    return "f32", [_rows(builder, operand) for operand in operands]


def _result(builder: Builder, node: Node | None, like: Node | None = None) -> Access:
    """Where a result will be; one that nothing reads is like another value."""
    if node is None:
        assert like is not None
        return _access(builder.buffers.arena("attention", like))
    storage = builder.result(node)
    builder.buffers.storage[node] = storage
    assert storage.strides[-1] == 1, (node, storage)
    return _access(storage)


def _access(storage: Storage) -> Access:
    return Access(storage.place, storage.strides[:3])


def _rows(builder: Builder, operand: Node) -> Access:
    """An operand [batch heads rows width], or [batch heads rows] of log-sum-exps, which lie row-major; else a copy."""
    found = _in_place(builder, operand)
    return _access(builder.copied(operand)) if found is None else found[1]


def _in_place(builder: Builder, operand: Node, *, widened: bool = False) -> tuple[str, Access] | None:
    """What the elements of such an operand are in memory and how they lie there; None where it has to be copied."""
    found = builder.heavy.located(operand, widened=widened)
    strides = None if found is None else _strides(found, operand.shape)
    if found is None or found.place is None or strides is None or not _fits(operand.shape, strides):
        return None
    return found.dtype, Access(found.place, strides[:3])


def _fits(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    if len(shape) == 3:
        return strides == contiguous(shape)
    return strides[3] == 1 and strides[2] >= shape[3]


def _mask(builder: Builder, operand: Node, shape: tuple[int, ...]) -> Access:
    """The mask's strides along batch, heads, rows and columns, however the body splits the heads."""
    found = builder.heavy.located(operand)
    strides = None
    if found is not None and found.place is not None:
        split = len(operand.shape) - 4
        heads = [loop for loops in found.loops[1 : 2 + split] for loop in loops]
        strides = _strides(Located(found.place, [found.loops[0], heads, *found.loops[2 + split :]]), shape)
    if found is None or found.place is None or strides is None:
        return Access(builder.copied(operand).place, contiguous(shape))
    return Access(found.place, strides)


def _strides(found: Located, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """One stride an axis (of an axis of one element as in row-major order); None where an axis does not step evenly."""
    made: list[int] = []
    for size, own, loops in zip(shape, contiguous(shape), found.loops, strict=True):
        joined: Loops = join(loops)
        if len(joined) > 1 or prod(n for n, _ in joined) != size:
            return None
        made.append(joined[0][1] if joined else own)
    return tuple(made)
