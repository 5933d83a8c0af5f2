"""Random programs have, bit for bit, the values that NumPy's twins of the formulas and the law of sums give."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sexpgpu.interp.executor import Engine
from tests.programs import run_program
from tests.random_programs import RandomProgram


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(2, tmp_path_factory.mktemp("cache"))
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(16))
def test_a_random_program_has_the_bits_of_its_meaning(engine: Engine, seed: int) -> None:
    with np.errstate(all="ignore"):
        made = RandomProgram(seed)
    run_program(engine, made.builder.program(), made.loads, made.outputs)
    for output, expected in zip(made.outputs, made.expected, strict=True):
        assert np.array_equal(output, expected, equal_nan=True)
