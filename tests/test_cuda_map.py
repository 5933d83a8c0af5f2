"""Pointwise CUDA kernels have the CPU's bits in the simulator, at every tail, layout and dtype, and nothing is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp.executor import Engine
from tests import programs
from tests.on_simulator import run_program
from tests.programs import Builder, empty

SIZES = (1, 2, 3, 7, 31, 32, 33, 255, 256, 257, 1023, 1024, 1025, 4100)
RNG = np.random.default_rng(11)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def agree(engine: Engine, program: Any, operands: list[Any], outputs: list[Any]) -> None:
    """Both write the same bits, and the detectors are silent."""
    theirs = [output.copy() for output in outputs]
    programs.run_program(engine, program, operands, theirs)
    simulated = run_program(program, operands, outputs)
    assert simulated.findings == []
    for ours, expected in zip(outputs, theirs, strict=True):
        assert ours.tobytes() == expected.tobytes()


@pytest.mark.parametrize("size", SIZES)
def test_gelu_has_the_cpus_bits_at_every_size(engine: Engine, size: int) -> None:
    agree(engine, programs.gelu(), [normal(size)], [empty((size,))])
