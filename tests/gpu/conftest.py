"""The tests of our kernels and of whole runs, on a card: `pytest -m gpu tests/gpu`. Without one they are skipped, with the
reason. TEST_CARD=simulated puts the simulated driver in its place, which shows that the tests themselves are right."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from sexpgpu.cuda.device import CudaDevice, open_cuda
from sexpgpu.errors import Error
from tests import on_simulator
from tests.fake_cuda import FakeCuda
from tests.on_card import OpenCard, open_card
from tests.on_fake_cuda import compiled, install, settings_in
from tests.on_fake_cuda import opened as opened_on_fake

SIMULATED = os.environ.get("TEST_CARD", "") == "simulated"


def reason_without_a_card() -> str:
    """Why no card can be used here; '' where one can."""
    if SIMULATED:
        return ""
    from sexpgpu.device import Choice, refuse_absent

    try:
        refuse_absent(Choice("cuda", 0))
    except Error as problem:
        return "; ".join([problem.message, *problem.notes[:1]])
    return ""


@pytest.fixture(scope="session")
def absent() -> str:
    return reason_without_a_card()


@pytest.fixture(autouse=True)
def needs_a_card(absent: str) -> None:
    if absent:
        pytest.skip(absent)


@pytest.fixture(scope="session")
def card(absent: str) -> Iterator[OpenCard]:
    """One context for all tests of kernels."""
    if absent:
        pytest.skip(absent)
    driver = FakeCuda()

    def compile(source: str, arch: str):  # type: ignore[no-untyped-def]
        made = compiled(source, arch)
        driver.register(made)
        return made

    made = open_card(driver.load, compile=compile) if SIMULATED else open_card()
    yield made
    made.context.close()
    assert driver.findings == [] and driver.held() == []


def modules_of_tests() -> list[ModuleType]:
    """Whatever runs plans on the simulator."""
    return [m for name, m in sys.modules.items() if name == "tests.cuda_corpus" or name.startswith("tests.test_")]


@pytest.fixture
def kernels_on_the_card(card: OpenCard, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests' modules have of on_simulator.py is on_card.py's."""
    for name, face in card.faces().items():
        for module in modules_of_tests():
            if getattr(module, name, None) is getattr(on_simulator, name):
                monkeypatch.setattr(module, name, face)


@pytest.fixture
def device(absent: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudaDevice]:
    """A card as a run opens it."""
    made = opened_on_fake(FakeCuda(), monkeypatch, tmp_path) if SIMULATED else open_cuda(settings_in(tmp_path), 0)
    yield made
    made.close()


@pytest.fixture
def a_card_for_runs(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens the device cuda in this test finds a card."""
    if SIMULATED:
        install(FakeCuda(), monkeypatch)
