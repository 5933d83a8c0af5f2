"""Sums over whole flat buffers as CUDA C: the CPU's bits, and nothing is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from on_cpu import engine

from sexpgpu.codegen import cuda_sums
from sexpgpu.codegen.cuda_source import CudaLaunch, module_source
from sexpgpu.codegen.sums import BLOCK
from tests import simulator
from tests.on_simulator import compiled

RNG = np.random.default_rng(29)
SIZES = (1, 7, 8, 9, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 17 * BLOCK + 13)


def run(launch: CudaLaunch, first: Any, second: Any) -> list[Any]:
    """A launch of two buffers and what numbers it is given; both buffers after it."""
    memory = simulator.Memory((first.nbytes + second.nbytes) // 256 * 256 + (1 << 16))
    addresses = [memory.allocate(array.nbytes) for array in (first, second)]
    for address, array in zip(addresses, (first, second), strict=True):
        memory.write(address, array)
    numbers = [np.int64(a) for a in launch.arguments if isinstance(a, int)]
    parameters = [*(np.uint64(address) for address in addresses), *numbers]
    module = compiled(module_source((launch.kernel,)))
    outcome = module.launch(launch.kernel.name, launch.grid, (launch.kernel.threads, 1, 1), parameters, memory)
    assert outcome.findings == []
    return [memory.read(at, a.size, a.dtype) for at, a in zip(addresses, (first, second), strict=True)]


@pytest.mark.parametrize("size", SIZES)
def test_sums_of_squares_have_the_cpus_bits(size: int) -> None:
    x = RNG.normal(size=size).astype(np.float32)
    _, sums = run(cuda_sums.square_sums(size), x, np.full(cuda_sums.blocks_of(size), np.nan))
    assert float(sums.sum()) == engine().sums.square_sum(x)


def test_a_sum_of_squares_is_not_finite_where_one_element_is_not() -> None:
    x = RNG.normal(size=2 * BLOCK + 5).astype(np.float32)
    for place in (0, BLOCK + 97, x.size - 1):
        y = x.copy()
        y[place] = np.nan
        _, sums = run(cuda_sums.square_sums(x.size), y, np.zeros(cuda_sums.blocks_of(x.size)))
        assert np.isfinite(sums).sum() == len(sums) - 1


@pytest.mark.parametrize("size", SIZES)
def test_a_buffer_is_added_in_place(size: int) -> None:
    x, y = (RNG.normal(size=size).astype(np.float32) for _ in range(2))
    total, _ = run(cuda_sums.add(size), x, y)
    assert np.array_equal(total, x + y)
