"""scripts/gpu: what it says without a GPU, its sections on the simulated card, its limits, and what it makes of results."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.cuda import driver
from sexpgpu.settings import Settings
from tests.fake_cuda import FakeCuda
from tests.on_fake_cuda import install, nothing_wrong, settings_in

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from card import command, timing, versus  # noqa: E402
from card.results import outcome_of  # noqa: E402
from card.sections import SECTIONS, Outcome, Section  # noqa: E402
from card.symbols import audit  # noqa: E402
from card.timing import Limits  # noqa: E402
from card.training import medians  # noqa: E402
from peers.comparison import PEERS, Comparison, Row  # noqa: E402
from peers.tasks import SIZES, Task  # noqa: E402


def script(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "scripts" / "gpu", *words]
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)


def test_without_a_gpu_it_ends_with_the_reason_and_measures_nothing(tmp_path: Path) -> None:
    done = script("--into", str(tmp_path / "data.json"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("scripts/gpu: no GPU can be used here: ")
    assert not (tmp_path / "data.json").exists()


def test_kernels_and_runs_pass_on_the_simulated_card(tmp_path: Path) -> None:
    done = script("--simulated", "--select", "corpus and gelu or digits-sim", "--into", str(tmp_path / "data.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["simulated"] and data["card"]["name"] == "NVIDIA A100-SXM4-80GB"
    kernels, runs = (data["sections"][name] for name in ("kernels", "runs"))
    assert kernels["words"] == runs["words"] == "1 passed"
    (losses,) = runs["data"]["losses"]
    assert losses["example"] == "digits" and losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-5)


def test_what_needs_a_card_is_no_section_of_the_simulated_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="no section timing here; there are kernels, runs"):
        command.main(["--simulated", "--only", "timing"])


def test_a_section_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    noted = tmp_path / "process"
    child = (
        "import subprocess; made = subprocess.Popen(['sleep', '60']);"
        f"open({str(noted)!r}, 'w').write(str(made.pid)); made.wait()"
    )
    made = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
    while not (noted.exists() and noted.read_text()):
        time.sleep(0.01)
    assert not command.wait(made, 0.1)
    assert made.returncode is not None
    with pytest.raises(ProcessLookupError):
        for _ in range(500):
            os.kill(int(noted.read_text()), 0)
            time.sleep(0.01)


def test_a_section_that_fails_tells_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(simulated: bool, select: str) -> Outcome:
        raise ValueError("no such thing")

    monkeypatch.setitem(SECTIONS, "symbols", Section(broken, 1))
    made = command._run(argparse.Namespace(section="symbols", simulated=False, select=""))
    assert (made.state, made.words) == ("failed", "ValueError: no such thing")


def test_a_function_that_a_library_has_not_is_named() -> None:
    whole = FakeCuda().library
    assert audit("libcuda", lambda: whole, driver.TABLE).words == f"all {len(driver.FUNCTIONS)} functions"
    without = FakeCuda(missing=["cuGraphLaunch"]).library
    assert audit("libcuda", lambda: without, driver.TABLE).missing == ("cuGraphLaunch",)


def results(folder: Path, *cases: str) -> Path:
    path = folder / "results.xml"
    path.write_text(
        "<testsuite>"
        + "".join(f'<testcase classname="t" name="n" time="1">{c}</testcase>' for c in cases)
        + "</testsuite>"
    )
    return path


@pytest.mark.parametrize(
    "cases, state, words",
    [
        (["", "<skipped message='the simulator alone counts'/>"], "ok", "1 passed, 1 the simulator's"),
        (["", "<failure/>"], "failed", "1 passed, 1 failed"),
        (["", "<error/>"], "failed", "1 passed, 1 failed"),
        (["", "<skipped message='no GPU'/>"], "failed", "1 passed, 1 skipped"),
        ([], "failed", "no test was found"),
    ],
)
def test_only_what_ran_on_the_card_counts(cases: list[str], state: str, words: str, tmp_path: Path) -> None:
    made = outcome_of(results(tmp_path, *cases))
    assert (made.state, made.words) == (state, words)


TINY = {"L": 1, "C": 32, "H": 2, "T": 16, "B": 2, "V": 64}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = FakeCuda()
    install(made, monkeypatch)
    yield made
    assert nothing_wrong(made)


def test_copies_and_products_are_timed_by_events(fake: FakeCuda, tmp_path: Path) -> None:
    device = timing.open_cuda(settings_in(tmp_path, timings=True), 0)
    # An operation takes a millisecond there.
    assert timing.copy_rate(device, 1 << 12, 3) == pytest.approx(2 * (1 << 12) * 1e3)
    assert timing.product_rate(device, "f32", 64, 2) == pytest.approx(2 * 64**3 * 1e3)
    device.close()


def test_every_launch_of_gpt2s_step_has_a_row_with_its_bound(
    fake: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(folder: Path, **flags: Any) -> Settings:
        return settings_in(folder, timings=True, device="cuda", **flags)

    # Of copies and products the sizes are a real card's.
    monkeypatch.setattr(timing, "copy_rate", lambda device: 1e12)
    monkeypatch.setattr(timing, "product_rate", lambda device, dtype: 39e12)
    monkeypatch.setattr(timing, "settings", settings)
    monkeypatch.setattr(timing, "STEPS", 2)
    monkeypatch.setitem(SIZES, "tiny", ("gpt", TINY))
    state, _, facts = timing.measured("tiny")
    facts = json.loads(json.dumps(facts))
    assert state == "ok" and facts["copy_bytes_a_second"] == 1e12
    assert "product 4096³ bf16, own: 39.0 TFLOP/s, 12% of the data sheet's" in facts["lines"]
    for step in facts["steps"].values():
        rows = step["rows"]
        assert step["ms"] > 0 and {row["graph"] for row in rows} == {"train", "update"}
        assert {"product", "row", "map"} <= {row["kind"] for row in rows}
        assert all(
            0 < row["least_ms"] == pytest.approx(row["share"] * row["ms"]) for row in rows if row["kind"] == "product"
        )
        assert rows == sorted(rows, key=lambda row: -row["ms"])


def test_the_first_steps_of_a_training_count_for_nothing() -> None:
    ms = [900.0, 80.0, 3.0, 5.0, 4.0]
    steps = [
        {"kind": "step", "runtime/step_ms": m, "throughput/tokens_per_s": 1e3 / m, "runtime/peak_bytes": 7} for m in ms
    ]
    assert medians([{"kind": "begin"}, *steps]) == {"ms": 4.0, "tokens_a_second": 250.0, "peak_bytes": 7}


def test_a_bound_is_memory_or_arithmetic_whichever_takes_longer() -> None:
    limits = Limits(bytes_a_second=100.0, f32_flops=10.0, bf16_flops=40.0)
    assert limits.seconds(flops=50.0, moved=100.0, narrow=False) == 5.0
    assert limits.seconds(flops=50.0, moved=200.0, narrow=True) == 2.0
    assert Limits(100.0).seconds(flops=50.0, moved=100.0, narrow=False) == 1.0


def test_beside_pytorch_times_rates_and_memory_are_told() -> None:
    def row(name: str, *ms: float) -> Row:
        blocks = [{"ms": m, "others": 0.0, "peak": 1, "children": 0, "device_peak": 3 << 30} for m in ms]
        return Row(PEERS[name], "", 3.0, 0.5, 0, {}, [5.5], blocks)

    made = Comparison(
        Task("gpt2-batch-8", "bf16", 2, "cuda"), False, [row("sexpgpu", 50, 50), row("pytorch", 100, 100)]
    )
    facts = versus.row_facts(made, made.rows[1])
    assert facts["units_a_second"] == pytest.approx(8 * 1024 / 0.1) and facts["ratio"] == [0.5, 0.5, 0.5]
    assert versus.words_of("bf16", facts) == (
        "bf16 PyTorch eager: 100.00 ms a step, 81,920 tokens/s, 3.00 GiB; sexpgpu takes 0.50 (0.50 – 0.50) of its time"
    )


def test_without_torch_the_comparison_is_absent_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versus, "find_spec", lambda name: None)
    assert versus.compared(lambda line: None) == ("absent", "torch is not installed", {})
