"""`mpirun -n K sexpgpu run`: the bits of one rank, one voice, and errors that are said once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bitwise import HERE, records
from test_ranks import environment, mpirun

FILE = HERE / "experiments" / "gpt.sexp"


def launch(ranks: int, out: Path, *options: str) -> list[str]:
    file = [str(FILE), "run.microbatches=4", "--steps", "3", "--out", str(out)]
    return [mpirun(), "-n", str(ranks), sys.executable, "-m", "sexpgpu", "run", *file, *options]


def run(ranks: int, out: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        launch(ranks, out, *options), env=environment(**more), capture_output=True, text=True, timeout=200,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip


def outcome(out: Path) -> tuple[bytes, bytes, list[dict[str, object]]]:
    (folder,) = out.glob("*/*")
    (checkpoint,) = folder.glob("checkpoints/step-00000003")
    files = [(checkpoint / name).read_bytes() for name in ("params.safetensors", "optimizer.safetensors")]
    return files[0], files[1], records(folder / "metrics.jsonl")


def test_one_two_and_four_ranks_end_with_the_same_bits(tmp_path: Path) -> None:
    first = run(1, tmp_path / "1")
    assert first.returncode == 0, first.stderr
    expected = outcome(tmp_path / "1")
    for ranks, threads in ((2, "1"), (2, "2"), (4, "1")):
        done = run(ranks, tmp_path / f"{ranks}-{threads}", SEXPGPU_THREADS=threads)
        assert done.returncode == 0, done.stderr
        assert outcome(tmp_path / f"{ranks}-{threads}") == expected
        assert done.stderr.count("lowering: cpu") == 1 and done.stderr.count("step 1/3") == 1
        assert len(done.stdout.split()) == 1


def test_evaluation_is_shared_out_and_summed_alike(tmp_path: Path) -> None:
    options = ("run.eval=(every 2 recorded :batches 5)",)
    assert run(1, tmp_path / "1", *options).returncode == 0
    assert run(2, tmp_path / "2", *options).returncode == 0
    assert outcome(tmp_path / "1")[2] == outcome(tmp_path / "2")[2]
    assert any("recorded/loss" in record for record in outcome(tmp_path / "1")[2])


def test_microbatches_that_do_not_divide_are_refused_once(tmp_path: Path) -> None:
    done = run(3, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("error[E-DP-003]") == 1
    assert "4 microbatches do not divide over 3 ranks" in done.stderr
    assert "pick a device count that divides :microbatches: 1, 2, 4" in done.stderr
    assert not tmp_path.exists() or not list(tmp_path.glob("*/*"))


def test_a_wrong_file_is_said_once(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sexp"
    wrong.write_text("(def a (+ b 1))\n")
    command = [mpirun(), "-n", "2", sys.executable, "-m", "sexpgpu", "run", str(wrong)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL, check=False
    )
    assert done.returncode != 0
    assert done.stderr.count("error[E-NAME-001]") == 1 and "Traceback" not in done.stderr


def test_a_resume_on_another_count_of_ranks_names_both(tmp_path: Path) -> None:
    assert run(2, tmp_path).returncode == 0
    other = run(1, tmp_path, "--resume", "latest", "--steps", "5")
    assert other.returncode == 1 and "E-DP-002" in other.stderr
    assert "written with 2 ranks, this launch has 1" in other.stderr
    same = run(2, tmp_path, "--resume", "latest", "--steps", "5")
    assert same.returncode == 0 and "resumed from step 3" in same.stderr


def rank_of(process: int) -> int | None:
    """A rank that a launcher's process started, or None while there is none."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            given = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"sexpgpu" in command and b"SEXPGPU_TEST_LAUNCH=%d" % process in given and b"mpirun" not in command[0]:
            ranks = [x for x in given if x in (b"PMI_RANK=1", b"OMPI_COMM_WORLD_RANK=1")]
            if ranks:
                return int(folder.name)
    return None


def test_a_rank_that_is_killed_ends_the_run_with_one_message(tmp_path: Path) -> None:
    mark = os.getpid()
    command = launch(2, tmp_path, "--steps", "1000000", "run.checkpoint=(every 5)")
    process = subprocess.Popen(
        command, env=environment(SEXPGPU_TEST_LAUNCH=str(mark)), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("*/*/checkpoints/step-*/manifest.json")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    victim = rank_of(mark)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    begin = time.monotonic()
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert process.returncode != 0
    assert said.count("error[E-DP-008]") == 1, said
    assert rank_of(mark) is None
    (folder,) = tmp_path.glob("*/*")
    assert json.loads((folder / "status.json").read_text())["ranks"] == 2


def test_the_built_in_example_trains_on_two_ranks(tmp_path: Path) -> None:
    command = [mpirun(), "-n", "2", sys.executable, "-m", "sexpgpu", "run", "--steps", "2"]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=250, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("parameters  437,760") == 1 and "2 ranks" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("planned (+0.0%)"), "memory that ranks share is planned as it is held"
    assert len(list(tmp_path.glob("runs/builtin/*"))) == 1


@pytest.mark.parametrize("ranks", [2])
def test_a_stop_file_lets_all_ranks_save_and_leave(ranks: int, tmp_path: Path) -> None:
    process = subprocess.Popen(
        launch(ranks, tmp_path, "--steps", "1000000"), env=environment(), stderr=subprocess.PIPE, text=True,
        stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while (
        not list(tmp_path.glob("*/*/metrics.jsonl"))
        or b'"step"' not in next(tmp_path.glob("*/*/metrics.jsonl")).read_bytes()
    ):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    (folder,) = tmp_path.glob("*/*")
    (folder / "STOP").touch()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopped after step" in said
    assert list(folder.glob("checkpoints/step-*/manifest.json"))
