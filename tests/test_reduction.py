"""The canonical tree of sums over microbatches."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sexpgpu.dist.reduction import SumPlan, lanes_of, middle, plan_sum, share_of, tree_nodes, tree_sum_f64

Array32 = NDArray[np.float32]


def by_definition(values: list[Array32], i: int, j: int) -> Array32:
    """T[i, j), as the contract defines it."""
    if j - i == 1:
        return values[i]
    power = 1
    while power * 2 < j - i:
        power *= 2
    return by_definition(values, i, i + power) + by_definition(values, i + power, j)


def lanes_by_definition(values: list[Array32], lanes: int) -> list[Array32]:
    length = len(values) // lanes
    sums = []
    for lane in range(lanes):
        total = values[lane * length]
        for value in values[lane * length + 1 : (lane + 1) * length]:
            total = total + value
        sums.append(total)
    return sums


def carried_out(plan: SumPlan, values: list[Array32]) -> list[Array32]:
    buffers = [np.full_like(values[0], np.nan) for _ in range(plan.buffers)]
    for operation in plan.operations:
        target = buffers[operation.target]
        match operation.kind:
            case "write":
                target[...] = values[operation.source]
            case "accumulate":
                target += values[operation.source]
            case "add":
                target += buffers[operation.source]
    return buffers


def gradients(calls: int) -> list[Array32]:
    """Values of very different sizes, so that another order of sums gives other bits."""
    random = np.random.default_rng(calls)
    return [(random.standard_normal(50) * 10.0 ** random.integers(-6, 7, 50)).astype(np.float32) for _ in range(calls)]


CALLS = [*range(1, 41), 48, 64, 97, 100, 128, 160]


@pytest.mark.parametrize("calls", CALLS)
def test_a_plan_gives_the_bits_of_the_definition_within_five_buffers(calls: int) -> None:
    values, lanes = gradients(calls), lanes_of(calls)
    plan = plan_sum(calls, lanes)
    assert plan.nodes == ((0, lanes),) and plan.buffers <= 5
    expected = by_definition(lanes_by_definition(values, lanes), 0, lanes)
    assert carried_out(plan, values)[0].tobytes() == expected.tobytes()
    assert sum(operation.kind != "add" for operation in plan.operations) == calls


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 6, 8, 16])
def test_ranks_hold_nodes_that_the_tree_joins_to_the_same_bits(ranks: int) -> None:
    for calls in (4, 12, 16, 32, 48):
        lanes = lanes_of(calls)
        values = gradients(calls)
        nodes: dict[tuple[int, int], Array32] = {}
        for rank in range(ranks):
            low, high = share_of(rank, ranks, lanes)
            plan = plan_sum(calls, lanes, low, high)
            assert plan.buffers <= 5
            nodes |= dict(zip(plan.nodes, carried_out(plan, values), strict=False))

        def joined(i: int, j: int, nodes: dict[tuple[int, int], Array32] = nodes) -> Array32:
            found = nodes.get((i, j))
            return joined(i, middle(i, j), nodes) + joined(middle(i, j), j, nodes) if found is None else found

        alone = carried_out(plan_sum(calls, lanes), values)[0]
        assert joined(0, lanes).tobytes() == alone.tobytes()


@pytest.mark.parametrize(
    ("low", "high", "at"), [(0, 2, 1), (0, 3, 2), (0, 4, 2), (0, 5, 4), (0, 8, 4), (0, 9, 8), (8, 12, 10), (4, 7, 6)]
)
def test_the_tree_divides_at_the_largest_power_of_two_below(low: int, high: int, at: int) -> None:
    assert middle(low, high) == at


@pytest.mark.parametrize(
    ("calls", "lanes"), [(1, 1), (5, 5), (16, 16), (17, 1), (18, 9), (20, 10), (32, 16), (34, 2), (45, 15), (64, 16)]
)
def test_lanes_are_the_largest_divisor_that_is_at_most_sixteen(calls: int, lanes: int) -> None:
    assert lanes_of(calls) == lanes


def test_one_lane_is_one_buffer_summed_left_to_right() -> None:
    assert lanes_of(12, 1) == 1
    plan = plan_sum(12, 1)
    assert plan.buffers == 1
    assert [operation.kind for operation in plan.operations] == ["write"] + ["accumulate"] * 11


def test_the_nodes_of_a_share_are_the_largest_that_fit() -> None:
    assert tree_nodes(0, 6, 6) == ((0, 6),)
    assert tree_nodes(0, 3, 6) == ((0, 2), (2, 3))
    assert tree_nodes(3, 6, 6) == ((3, 4), (4, 6))
    assert tree_nodes(2, 14, 16) == ((2, 4), (4, 8), (8, 12), (12, 14))
    assert tree_nodes(3, 3, 6) == ()


def test_shares_cover_every_leaf_once_and_may_be_empty() -> None:
    for leaves in range(1, 20):
        for ranks in range(1, 8):
            held = [leaf for rank in range(ranks) for leaf in range(*share_of(rank, ranks, leaves))]
            assert held == list(range(leaves))
    assert share_of(0, 4, 2) == (0, 0)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13, 100])
def test_losses_are_summed_by_the_tree_in_float64(count: int) -> None:
    values = (np.random.default_rng(count).standard_normal(count) * 10.0 ** np.arange(count)).tolist()

    def tree(i: int, j: int) -> float:
        if j - i == 1:
            return float(values[i])
        power = 1
        while power * 2 < j - i:
            power *= 2
        return tree(i, i + power) + tree(i + power, j)

    assert tree_sum_f64(values) == (tree(0, count) if count else 0.0)
