"""A card as a device: memory, sums in the CPU's order, updates launched one by one and as a graph."""

from __future__ import annotations

from typing import Any

import pytest

from sexpgpu.cuda.device import CudaDevice
from tests.test_cuda_device import Sides, cpu, update  # noqa: F401
from tests.test_cuda_device import test_a_part_is_the_same_memory as test_a_part_is_the_same_memory
from tests.test_cuda_device import test_memory_is_zeros_until_it_is_written as test_memory_is_zeros_until_it_is_written
from tests.test_cuda_device import (
    test_memory_that_nobody_has_is_used_again as test_memory_that_nobody_has_is_used_again,
)
from tests.test_cuda_device import test_sums_have_the_cpus_bits as test_sums_have_the_cpus_bits
from tests.test_cuda_device import test_what_is_written_is_read as test_what_is_written_is_read

pytestmark = [pytest.mark.gpu]


@pytest.fixture
def rig(device: CudaDevice) -> tuple[None, CudaDevice]:
    """The tests of the simulated device take a driver too."""
    return None, device


def test_an_update_has_the_cpus_bits_launched_and_as_a_graph(cpu: Any, device: CudaDevice) -> None:  # noqa: F811
    sides = Sides(update(), cpu, device)
    for step in (1, 2, 3, 4):
        sides.run(step)
    sides.agree()
