"""`scripts/gpu`: what it measures runs on a simulated card, and without a card it says so."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.device import Choice, refuse_absent
from sexpgpu.errors import Error
from tests.fake_cuda import FakeCuda
from tests.on_fake_cuda import nothing_wrong, opened

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu"


def script() -> Any:
    loader = SourceFileLoader("scripts_gpu", str(SCRIPT))
    spec = spec_from_loader("scripts_gpu", loader)
    assert spec is not None
    made = module_from_spec(spec)
    loader.exec_module(made)
    return made


def test_its_bounds_are_measured_on_a_simulated_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    found = script().bounds(device, copied_bytes=1 << 12, size=32)
    # An operation takes a millisecond there.
    assert found == {
        "copy, bytes a second": pytest.approx(2 * (1 << 12) * 1e3),
        "f32, flops a second": pytest.approx(2 * 32**3 * 1e3),
        "bf16, flops a second": pytest.approx(2 * 32**3 * 1e3),
    }
    device.close()
    assert nothing_wrong(driver)


def test_without_a_card_it_ends_with_the_reason() -> None:
    try:
        refuse_absent(Choice("cuda", 0))
    except Error as problem:
        done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert f"error[E-DEV-001]: {problem.message}" in done.stderr
