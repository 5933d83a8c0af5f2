"""The canonical tree in which microbatches are summed: the same bits for one rank and for many.

T[i, j) = T[i, m) + T[m, j) with m = i + the largest power of two below j − i. Gradients are large, so C calls of the
training graph are first folded into L lanes of C / L consecutive calls, each summed left to right in one buffer; the
tree runs over the lanes. Losses are single numbers and go through the tree over all calls, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

MOST_LANES = 16

Node = tuple[int, int]


class SumOperation(msgspec.Struct, frozen=True):
    """One step of a sum over numbered buffers.

    write: call `source` leaves its gradients in buffer `target`; accumulate: it adds them to what is there;
    add: buffer `target` += buffer `source`.
    """

    kind: Literal["write", "accumulate", "add"]
    target: int
    source: int


class SumPlan(msgspec.Struct, frozen=True):
    """The operations in order; afterwards node `nodes[k]` of the tree over lanes stands in buffer k."""

    operations: tuple[SumOperation, ...]
    nodes: tuple[Node, ...]
    buffers: int


def middle(low: int, high: int) -> int:
    """Where the tree divides [low, high), two leaves or more."""
    assert high - low >= 2, (low, high)
    return low + (1 << (high - low - 1).bit_length() - 1)


def lanes_of(calls: int, most: int = MOST_LANES) -> int:
    """The largest divisor of the number of calls that is at most `most` (`:sum-lanes`)."""
    return next(lanes for lanes in range(min(calls, most), 0, -1) if calls % lanes == 0)


def share_of(rank: int, ranks: int, leaves: int) -> Node:
    """The leaves [low, high) that a rank holds, perhaps none."""
    return rank * leaves // ranks, (rank + 1) * leaves // ranks


def tree_nodes(low: int, high: int, leaves: int) -> tuple[Node, ...]:
    """The maximal nodes of T[0, leaves) that lie within [low, high), from left to right: what a rank of that share sums."""
    if low >= high:
        return ()
    waiting, found = [(0, leaves)], []
    while waiting:
        first, last = waiting.pop()
        if low <= first and last <= high:
            found.append((first, last))
        elif first < high and low < last:
            cut = middle(first, last)
            waiting += [(cut, last), (first, cut)]
    return tuple(found)


def plan_sum(calls: int, lanes: int, low: int = 0, high: int | None = None) -> SumPlan:
    """How a rank that holds lanes [low, high) sums its calls; by default all, into buffer 0.

    Results wait on a stack, one buffer each, and two neighbours join as soon as the tree joins them: with 16 lanes no
    more than five wait at a time.
    """
    assert calls % lanes == 0, (calls, lanes)
    high = lanes if high is None else high
    nodes = tree_nodes(low, high, lanes)
    joins = {join for node in nodes for join in joins_of(*node)}
    operations: list[SumOperation] = []
    stack: list[Node] = []
    buffers = 0
    for lane in range(low, high):
        stack.append((lane, lane + 1))
        buffers = max(buffers, len(stack))
        operations += lane_operations(lane, calls // lanes, len(stack) - 1)
        while len(stack) > 1 and (stack[-2][0], stack[-1][0], stack[-1][1]) in joins:
            (first, _), (_, last) = stack[-2:]
            stack[-2:] = [(first, last)]
            operations.append(SumOperation("add", len(stack) - 1, len(stack)))
    assert tuple(stack) == nodes, (stack, nodes)
    return SumPlan(tuple(operations), nodes, buffers)


def lane_operations(lane: int, length: int, buffer: int) -> list[SumOperation]:
    """The calls of one lane, left to right, into one buffer."""
    first = lane * length
    rest = [SumOperation("accumulate", buffer, call) for call in range(first + 1, first + length)]
    return [SumOperation("write", buffer, first), *rest]


def joins_of(low: int, high: int) -> list[tuple[int, int, int]]:
    """Every (low, middle, high) at which the tree below a node adds."""
    waiting, found = [(low, high)], []
    while waiting:
        first, last = waiting.pop()
        if last - first > 1:
            cut = middle(first, last)
            found.append((first, cut, last))
            waiting += [(first, cut), (cut, last)]
    return found


def tree_sum_f64(values: Sequence[float]) -> float:
    """The sum of one number a call, by the tree over all calls."""
    sums: list[tuple[Node, float]] = []
    joins = set(joins_of(0, len(values)))
    for call, value in enumerate(values):
        sums.append(((call, call + 1), float(value)))
        while len(sums) > 1 and (sums[-2][0][0], *sums[-1][0]) in joins:
            (left, left_sum), (right, right_sum) = sums[-2:]
            sums[-2:] = [((left[0], right[1]), left_sum + right_sum)]
    assert len(sums) <= 1, sums
    return sums[0][1] if sums else 0.0
