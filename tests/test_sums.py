"""Sums over flat buffers by all workers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from on_cpu import engine

from sexpgpu.interp.sums import BLOCK

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 13])
def test_squares_are_summed_in_float64(size: int) -> None:
    x = RNG.normal(size=size).astype(np.float32)
    exact = math.fsum(float(v) ** 2 for v in x)
    # Every square is exact in float64; at most BLOCK / 8 additions a lane, each of half a unit's error.
    assert abs(engine().sums.square_sum(x) - exact) <= BLOCK / 8 * 2.0**-53 * exact


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_sum_of_squares_is_not_finite_where_one_element_is_not(bad: float) -> None:
    x = RNG.normal(size=2 * BLOCK + 5).astype(np.float32)
    for place in (0, 4097, x.size - 1):
        y = x.copy()
        y[place] = bad
        assert not math.isfinite(engine().sums.square_sum(y))


def test_the_sum_of_squares_does_not_depend_on_the_workers() -> None:
    x = RNG.normal(size=7 * BLOCK + 77).astype(np.float32)
    assert len({engine(threads).sums.square_sum(x) for threads in (1, 2, 3, 4)}) == 1


@pytest.mark.parametrize("size", [1, 15, 4096, 3 * BLOCK + 1])
def test_a_buffer_is_added_in_place(size: int) -> None:
    x, y = (RNG.normal(size=size).astype(np.float32) for _ in range(2))
    expected = x + y
    engine().sums.add(x, y)
    assert np.array_equal(x, expected)
