"""`check FILE --device cuda --card NAME`: what that card would do, worked out without one, is what the simulated one says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sexpgpu
from sexpgpu.api import load
from sexpgpu.cli.main import CARD_NAMES, commands
from sexpgpu.cuda.cards import CARDS
from sexpgpu.cuda.model import Bounds, call_bounds
from sexpgpu.errors import Error
from tests.fake_cuda import FakeCuda
from tests.on_fake_cuda import install

DIGITS = str(Path(sexpgpu.__file__).parent / "examples" / "digits.sexp")
SIM = (DIGITS, "--variant", "sim", "--device", "cuda")


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEXPGPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def checked(*words: str) -> str:
    done = CliRunner().invoke(commands, ["check", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_names_every_known_card() -> None:
    assert list(CARDS) == list(CARD_NAMES)


def test_the_report_is_the_one_that_a_run_on_such_a_card_begins_with(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = checked(*SIM, "--card", "a100")
    driver = FakeCuda()
    install(driver, monkeypatch)
    trainer = load(DIGITS, variant="sim").trainer(device="cuda")
    head, *rows = trainer.lowering.splitlines()
    trainer._session.device.close()
    assert f"{head}; planned, the card is not here" in planned
    # What was compiled and what the cache held is of this run alone.
    rows = [row for row in rows if not row.strip().startswith("kernels: ")]
    assert len(rows) > 3
    for row in rows:
        assert row in planned


def test_every_kernel_has_its_registers_spills_and_what_it_computes() -> None:
    text = checked(*SIM, "--card", "h100")
    rows = re.findall(
        r"^((?:map|row|column|product|many|gather)_\w+) +(\d+) +(\d+) +(\d+) +\d+ +[\d.]+ +(.*)", text, re.M
    )
    count = re.search(r"kernels for sm_90, (\d+) kernels in", text)
    assert count and len(rows) == int(count[1])
    assert all(16 > int(times) > 0 and 255 >= int(registers) > 0 for _, times, registers, _, _ in rows)
    assert all(spilled == "0" for _, _, _, spilled, _ in rows)
    assert any("adamw (digits.sexp:" in where for *_, where in rows)


def test_a_time_is_only_ever_the_models() -> None:
    text = checked(*SIM, "--card", "l4")
    (line,) = [line for line in text.splitlines() if line.startswith("step time: ")]
    assert "at least" in line and line.endswith("model, never compared with this card)")


def test_what_the_card_cannot_hold_is_refused_as_by_a_run() -> None:
    # A weight of 40,000², its gradient and the two states of its optimizer: 24 GiB. The L4 has 22 GiB, the A100 80 GiB.
    words = (DIGITS, "hidden=40000", "--device", "cuda")
    with pytest.raises(Error) as caught:
        checked(*words, "--card", "l4")
    assert caught.value.code == "E-MEM-001"
    assert re.fullmatch(r"the run needs \S+ GiB, 21\.0 GiB are free", caught.value.message)
    assert "of 79.0 GiB free" in checked(*words, "--card", "a100")


def test_a_card_is_for_the_device_cuda() -> None:
    with pytest.raises(Error, match="--card h100 plans for a CUDA card, and the device is cpu") as caught:
        checked(DIGITS, "--card", "h100")
    assert caught.value.code == "E-RUN-007" and caught.value.notes == ["add --device cuda"]


def test_json_has_card_kernels_and_model() -> None:
    facts = json.loads(checked(*SIM, "--card", "b200", "--json"))
    assert facts["card"] == {"name": "NVIDIA B200", "arch": "sm_100", "free": CARDS["b200"].memory_bytes - 2**30}
    assert all(kernel["registers"] > 0 and kernel["uses"] for kernel in facts["kernels"])
    model = facts["model"]
    assert model["step_seconds_at_least"] == pytest.approx(model["memory_s"] + model["arithmetic_s"])
    assert model["note"] == "model, never compared with this card"


def test_the_bound_of_a_product_is_its_bytes_or_its_operations() -> None:
    from sexpgpu.codegen.cuda_program import cuda_program
    from sexpgpu.ir.graph import Graph
    from sexpgpu.plan.build import plan

    card = CARDS["a100"]
    for m, k, n in ((4096, 4096, 4096), (1, 4096, 4096)):
        graph = Graph("product")
        shapes = {"a": (m, k), "b": (k, n)}
        operands = [
            graph.add("input", (), {"kind": "field", "name": name, "dtype": "f32", "shape": shape})
            for name, shape in shapes.items()
        ]
        graph.outputs["c"] = graph.add("contract", operands, {"batch": ((), ()), "contracted": ((1,), (0,))})
        bounds = call_bounds(cuda_program(plan(graph, native=False)), card)
        flops, moved = 2 * m * n * k / 19.5e12, 4 * (m * k + k * n + m * n) / 2.039e12
        expected = Bounds(0.0, flops) if flops > moved else Bounds(moved)
        assert bounds.memory_s == pytest.approx(expected.memory_s)
        assert bounds.arithmetic_s == pytest.approx(expected.arithmetic_s)
    assert flops < moved
