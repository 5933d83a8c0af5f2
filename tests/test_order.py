"""The order in which an epoch visits its windows."""

from __future__ import annotations

import numpy as np
import pytest

from sexpgpu.train.order import offset, order

COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 97, 127, 128, 129, 1000, 1009, 4095, 4096, 4097, 15_685, 65_537]


@pytest.mark.parametrize("count", COUNTS)
def test_an_epoch_visits_every_window_once(count: int) -> None:
    for seed, epoch in ((0, 0), (0, 1), (1337, 5)):
        visited = order(seed, epoch, np.arange(count), count)
        assert np.array_equal(np.sort(visited), np.arange(count))


def test_a_position_is_computed_alone_as_in_the_whole_epoch() -> None:
    whole = order(3, 2, np.arange(1009), 1009)
    for index in (0, 1, 500, 1008):
        assert order(3, 2, index, 1009) == whole[index]
    backwards = order(3, 2, np.arange(1009)[::-1].reshape(1, 1009), 1009)
    assert np.array_equal(backwards, whole[::-1].reshape(1, 1009))


def test_epochs_seeds_and_file_order_all_differ() -> None:
    orders = [order(seed, epoch, np.arange(200), 200) for seed in (0, 1) for epoch in (0, 1, 2)] + [np.arange(200)]
    # Two random orders of 200 agree in about one place; ten is beyond chance.
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert np.count_nonzero(one == other) < 10


def test_both_orders_of_two_windows_occur() -> None:
    assert {tuple(order(seed, 0, [0, 1], 2).tolist()) for seed in range(20)} == {(0, 1), (1, 0)}


def test_every_place_is_about_equally_likely() -> None:
    counts = np.zeros((5, 5))
    for seed in range(2000):
        counts[np.arange(5), order(seed, 0, np.arange(5), 5)] += 1
    # 400 expected in each cell, deviation 18; six deviations.
    assert np.max(np.abs(counts - 400)) < 110


def test_neighbours_do_not_stay_together() -> None:
    steps = np.diff(order(0, 0, np.arange(4096), 4096))
    assert np.count_nonzero(np.abs(steps) == 1) < 20


def test_a_count_beyond_32_bits_works() -> None:
    count = 3 * 2**40 + 1
    visited = order(0, 0, np.arange(count - 1000, count), count)
    assert len(set(visited.tolist())) == 1000 and visited.min() >= 0 and visited.max() < count


def test_the_first_epoch_is_not_shifted_and_later_ones_are_by_less_than_a_window() -> None:
    assert offset(0, 0, 64) == 0
    shifts = [offset(0, epoch, 64) for epoch in range(1, 200)]
    assert min(shifts) >= 0 and max(shifts) < 64 and len(set(shifts)) > 40
    assert shifts != [offset(1, epoch, 64) for epoch in range(1, 200)]
    assert {offset(0, epoch, 1) for epoch in range(5)} == {0}


def test_the_order_is_pinned() -> None:
    assert order(1337, 0, np.arange(12), 12).tolist() == [8, 7, 6, 9, 5, 11, 0, 3, 1, 10, 2, 4]
    assert [offset(1337, epoch, 256) for epoch in range(5)] == [0, 0, 67, 178, 139]
