"""What tests/gpu asks of a card, asked of the simulated one: the same plans through the driver, and what is found there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.cuda.nvrtc import Compiled
from sexpgpu.errors import Error
from tests import cuda_corpus, programs
from tests.fake_cuda import FakeCuda
from tests.on_card import OpenCard, open_card
from tests.on_fake_cuda import compiled, nothing_wrong
from tests.programs import empty


@pytest.fixture
def card() -> Iterator[OpenCard]:
    driver = FakeCuda()

    def registered(source: str, arch: str) -> Compiled:
        made = compiled(source, arch)
        driver.register(made)
        return made

    made = open_card(driver.load, compile=registered)
    yield made
    made.context.close()
    assert nothing_wrong(driver)


def normal(*shape: int) -> Any:
    return np.random.default_rng(4).normal(size=shape).astype(np.float32)


def test_a_program_gives_numpys_softmax_through_the_driver(card: OpenCard) -> None:
    x, y = normal(5, 33), empty((5, 33))
    made = card.faces()["run_program"](programs.softmax(), [x], [y])
    e = np.exp(x.astype(float) - x.max(1, keepdims=True))
    assert np.allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)
    assert made.findings == [] and len(made.outcomes) == 1


def test_what_is_written_beside_a_buffer_is_found(card: OpenCard) -> None:
    (case,) = [case for case in cuda_corpus.maps() if case.name == "gelu"]

    def one_too_far(source: str) -> str:
        assert "1025" in source
        return source.replace("1025", "1026")

    made = card.faces()["Simulated"](case.plan, rewrite=one_too_far)
    for name, array in case.arrays:
        made.bind(name, array)
    made.run()
    assert made.findings == ["written beside a buffer of 4100 bytes"]


def test_what_only_the_simulator_counts_is_no_result_of_a_card(card: OpenCard) -> None:
    made = card.faces()["run_program"](programs.gelu(), [normal(7)], [empty((7,))])
    (outcome,) = [outcome for _, outcome in made.outcomes]
    with pytest.raises(pytest.skip.Exception, match="the simulator alone"):
        assert outcome.traffic


def test_where_there_is_no_card_the_error_is_that_of_a_run() -> None:
    driver = FakeCuda(start=100)
    with pytest.raises(Error, match="no GPU is visible") as caught:
        open_card(driver.load)
    assert caught.value.code == "E-DEV-001"


def test_every_module_that_runs_plans_on_the_simulator_runs_them_on_a_card_too() -> None:
    here = Path(__file__).parent
    simulated = {file for file in here.glob("test_cuda_*.py") if "on_simulator import" in file.read_text()}
    on_card = "".join(file.read_text() for file in (here / "gpu").glob("test_*.py"))
    # The sums of a device are asked of the device, in test_card_device.py; graphs of examples by whole runs.
    elsewhere = {"test_cuda_sums", "test_cuda_examples"}
    missing = [file.stem for file in simulated if f"from tests.{file.stem} import" not in on_card]
    assert set(missing) <= elsewhere
