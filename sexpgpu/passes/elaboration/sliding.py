"""The table of sliding windows, of which the prelude makes convolutions and pools."""

from __future__ import annotations

from sexpgpu.ir.graph import Node
from sexpgpu.ops.windows import extent, positions
from sexpgpu.passes.elaboration.lowering import size_text
from sexpgpu.passes.elaboration.machine import Machine
from sexpgpu.passes.elaboration.shaping import permuted, reshaped
from sexpgpu.passes.elaboration.table import row
from sexpgpu.passes.elaboration.values import Builtin, Problem, Value, describe, integer, tensor


def _each_axis(m: Machine, x: Value, n: Value) -> tuple[Value, ...]:
    count = integer(n, "each-axis")
    if not isinstance(x, tuple):
        return (x,) * count
    if len(x) != count:
        raise Problem("E-SHAPE-001", f"one number for all or a list of {int(count)}, one an axis, not {describe(x)}")
    return x


def _counts(values: Value, n: int, what: str) -> list[int]:
    made = [int(integer(v, f"windows: {what}")) for v in (values if isinstance(values, tuple) else (values,) * n)]
    if len(made) != n:
        raise Problem("E-SHAPE-001", f"windows: {what} has {len(made)} numbers for {n} axes")
    if min(made, default=1) < 1:
        raise Problem("E-SHAPE-001", f"windows: {what} is at least 1, not {min(made)}")
    return made


def _windows(m: Machine, x: Value, sizes: Value, stride: Value, dilation: Value) -> Node:
    node = tensor(x, "windows")
    many = len(sizes) if isinstance(sizes, tuple) else 1
    lead = node.tensor.rank - many
    if lead < 0:
        raise Problem("E-SHAPE-004", f"windows over {many} axes of {node.type}")
    size, step, gap = _counts(sizes, many, "a size"), _counts(stride, many, ":stride"), _counts(dilation, many, ":dilation")
    for axis, (n, d) in enumerate(zip(size, gap), lead):
        if extent(n, d) > node.shape[axis]:
            reach = f"{n}" + (f" with dilation {d}, so {extent(n, d)} long," if d > 1 and n > 1 else "")
            there = size_text(node.shape[axis], node.tensor.label(axis))
            raise Problem("E-SHAPE-001", f"a window of {reach} is larger than axis {axis}, which has {there} with its padding")
    return windows(node, tuple(size), tuple(step), tuple(gap))


def windows(node: Node, sizes: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...]) -> Node:
    """Windows of the last axes; those that do not overlap are a reshape, so that their gradient is one, too."""
    lead = node.tensor.rank - len(sizes)
    counts = tuple(map(positions, node.shape[lead:], sizes, strides, dilations))
    if any(size != 1 and (size != stride or dilation != 1) for size, stride, dilation in zip(sizes, strides, dilations)):
        attributes = {"sizes": sizes, "strides": strides, "dilations": dilations}
        return node.graph.add("windows", (node,), attributes)
    steps = (1,) * lead + tuple(stride if size == 1 else 1 for size, stride in zip(sizes, strides))
    limits = node.shape[:lead] + tuple((n - 1) * stride + size for n, size, stride in zip(counts, sizes, strides))
    whole = (0,) * node.tensor.rank
    if limits != node.shape or set(steps) != {1}:
        node = node.graph.add("slice", (node,), {"starts": whole, "limits": limits, "steps": steps})
    if set(sizes) == {1}:
        return reshaped(node, (*node.shape, *sizes))
    pairs = [n for pair in zip(counts, sizes) for n in pair]
    axes = (*range(lead), *range(lead, lead + len(pairs), 2), *range(lead + 1, lead + len(pairs), 2))
    return permuted(reshaped(node, (*node.shape[:lead], *pairs)), axes)


def rows() -> list[Builtin]:
    """The rows of this table."""
    return [
        row("(windows X SIZES :stride 1 :dilation 1)", _windows,
            "The windows of X's last axes: axes of their places, then axes within a window."),
        row("(each-axis X N)", _each_axis, "X for each of N axes: a list of N as it is, else N times X."),
    ]  # fmt: skip
