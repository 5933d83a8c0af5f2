"""An interrupted run that goes on equals an unbroken one, bit for bit; what is no checkpoint of it is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bitwise import HERE, records, trained

FILE = HERE / "experiments" / "gpt.sexp"
CHECKPOINTED = "run.checkpoint=(every 1)"


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "sexpgpu", "run", str(FILE), "--steps", "6", "--out", str(out), *options]


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(out, *options), capture_output=True, text=True, timeout=240, check=False)


def folder_of(out: Path) -> Path:
    (folder,) = out.glob("*/*")
    return folder


def killed_after(out: Path, step: int, number: int) -> int:
    """A run that gets a signal once the checkpoint of `step` is there; its exit code."""
    process = subprocess.Popen(command(out, CHECKPOINTED), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not list(out.glob(f"*/*/checkpoints/step-{step:08d}/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    return process.wait(60)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, object]]]:
    return trained(tmp_path_factory.mktemp("unbroken"), "gpt", threads=2)


def outcome(out: Path) -> tuple[str, list[dict[str, object]]]:
    """What `trained` gives, of a run that was resumed: superseded records are left out."""
    import hashlib

    folder = folder_of(out)
    digest = hashlib.sha256()
    for name in ("params.safetensors", "optimizer.safetensors"):
        digest.update((folder / "checkpoints" / "step-00000006" / name).read_bytes())
    kept: dict[int, dict[str, object]] = {}
    for record in records(folder / "metrics.jsonl"):
        kept[int(record["step"])] = record
    return digest.hexdigest(), [kept[step] for step in sorted(kept)]


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_killed_run_goes_on_bit_for_bit(
    step: int, tmp_path: Path, unbroken: tuple[str, list[dict[str, object]]]
) -> None:
    killed_after(tmp_path, step, signal.SIGKILL)
    done = run(tmp_path, CHECKPOINTED, "--resume", "latest")
    assert done.returncode == 0, done.stderr
    assert "resumed from step" in done.stderr
    assert outcome(tmp_path) == unbroken
    resumes = [json.loads(x) for x in (folder_of(tmp_path) / "metrics.jsonl").read_text().splitlines() if '"resume"' in x]
    assert len(resumes) == 1 and resumes[0]["from"] >= step


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_step_saves_and_exits(number: int, code: int, tmp_path: Path) -> None:
    assert killed_after(tmp_path, 1, number) == code
    folder = folder_of(tmp_path)
    assert json.loads((folder / "status.json").read_text())["state"] == "interrupted"
    assert list((folder / "checkpoints").glob("step-*"))


def test_a_finished_run_says_so_and_more_steps_go_on(tmp_path: Path) -> None:
    assert run(tmp_path, CHECKPOINTED).returncode == 0
    again = run(tmp_path, CHECKPOINTED, "--resume", "latest")
    assert again.returncode == 0 and "finished already: step 6 of 6" in again.stderr
    more = run(tmp_path, CHECKPOINTED, "--resume", "latest", "--steps", "7")
    assert more.returncode == 0 and "resumed from step 6" in more.stderr
    assert (folder_of(tmp_path) / "checkpoints" / "step-00000007").is_dir()


def test_nothing_to_resume_is_a_fresh_start_for_latest_and_an_error_for_a_path(tmp_path: Path) -> None:
    fresh = run(tmp_path, "--resume", "latest")
    assert fresh.returncode == 0 and "a fresh start" in fresh.stderr
    missing = run(tmp_path, "--resume", "20010101")
    assert missing.returncode == 1 and "E-CKPT-002" in missing.stderr


def test_what_is_damaged_is_passed_over_and_another_experiment_refused(tmp_path: Path) -> None:
    assert run(tmp_path, CHECKPOINTED).returncode == 0
    folder = folder_of(tmp_path)
    newest = folder / "checkpoints" / "step-00000006" / "params.safetensors"
    content = bytearray(newest.read_bytes())
    content[-1] ^= 1
    newest.write_bytes(content)
    done = run(tmp_path, CHECKPOINTED, "--resume", "latest")
    assert done.returncode == 0 and "passed over" in done.stderr and "resumed from step 5" in done.stderr
    other = run(tmp_path, CHECKPOINTED, "run.clip-grad-norm=0.5", "--resume", "latest")
    assert other.returncode == 1 and "E-CKPT-001" in other.stderr
    explicit = run(tmp_path, CHECKPOINTED, "--resume", str(folder / "checkpoints" / "step-00000003"))
    assert explicit.returncode == 0 and "resumed from step 3" in explicit.stderr


def test_another_count_of_ranks_is_refused_naming_both(tmp_path: Path) -> None:
    from sexpgpu.errors import Error
    from sexpgpu.train import checkpoint, resume
    from sexpgpu.train.folder import RunFolder

    state = {"step": 4, "ranks": 2, "nodes": 1, "training-hash": "x"}
    path = checkpoint.save(tmp_path, 4, {}, {}, state)
    resumed = resume.Resumed(RunFolder(tmp_path), checkpoint.load(path))
    with pytest.raises(Error, match="2 ranks, this launch has 1") as caught:
        resume.check(resumed, {"ranks": 1, "nodes": 1, "training-hash": "x"}, "", lambda line: None)
    assert caught.value.code == "E-DP-002"
