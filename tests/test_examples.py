"""The examples that are shipped: each runs as a user starts it, in a process of its own, from an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import sexpgpu

ROOT = Path(sexpgpu.__file__).parent.parent
EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
# Which of its runs an example is looked at with, where it has several.
RUNS = {"fine-tune.sexp": "tune"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the file, so that its tests compile a kernel once."""
    return tmp_path_factory.mktemp("cache")


def sexpgpu_process(folder: Path, cache: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SEXPGPU_")}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    environment = {**kept, "PYTHONPATH": path, "SEXPGPU_CACHE": str(cache), **variables}
    command = [sys.executable, "-m", "sexpgpu", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def records(folder: Path, done: subprocess.CompletedProcess[str], kind: str = "step") -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    lines = (folder / done.stdout.strip() / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def test_the_builtin_example_learns_and_ends_with_its_memory(tmp_path: Path, cache: Path) -> None:
    done = sexpgpu_process(tmp_path, cache, "run", "--steps", "12")
    losses = [record["train/loss"] for record in records(tmp_path, done)]
    assert losses[0] == pytest.approx(5.55, abs=0.05)
    assert losses[-1] < losses[0] - 1
    assert done.stderr.splitlines()[-1].startswith("memory: peak ")


def test_the_digits_are_learnt(tmp_path: Path, cache: Path) -> None:
    done = sexpgpu_process(tmp_path, cache, "run", str(EXAMPLES / "digits.sexp"), "--steps", "300")
    evaluations = records(tmp_path, done, "eval")
    assert evaluations[-1]["held-out/accuracy"] > 0.9


def test_the_lstm_learns_as_it_does_with_every_value_kept(tmp_path: Path, cache: Path) -> None:
    words = ("run", str(EXAMPLES / "lstm.sexp"), "--variant", "smoke")
    whole = sexpgpu_process(tmp_path, cache, *words, "--steps", "40")
    losses = [record["train/loss"] for record in records(tmp_path, whole)]
    assert losses[0] == pytest.approx(5.55, abs=0.05)
    assert losses[-1] < losses[0] - 1
    kept = sexpgpu_process(tmp_path, cache, *words, "--steps", "40", "--keep-values", SEXPGPU_THREADS="1")
    np.testing.assert_allclose([record["train/loss"] for record in records(tmp_path, kept)], losses, rtol=1e-3)


def test_the_critic_learns_a_distance_between_digits_and_noise(tmp_path: Path, cache: Path) -> None:
    done = sexpgpu_process(tmp_path, cache, "run", str(EXAMPLES / "gradient-penalty.sexp"), "--variant", "smoke")
    assert records(tmp_path, done, "eval")[-1]["held-out/distance"] > 0.5


def test_a_small_residual_network_learns_the_digits(tmp_path: Path, cache: Path) -> None:
    done = sexpgpu_process(tmp_path, cache, "run", str(EXAMPLES / "resnet.sexp"), "--variant", "smoke")
    evaluations = records(tmp_path, done, "eval")
    assert evaluations[-1]["held-out/accuracy"] > 0.9


def test_fine_tuning_keeps_the_frozen_layer_of_the_run_before(tmp_path: Path, cache: Path) -> None:
    words = ("run", str(EXAMPLES / "fine-tune.sexp"), "--variant", "smoke", "--run")
    first = sexpgpu_process(tmp_path, cache, *words, "pretrain")
    assert records(tmp_path, first, "eval")[-1]["held-out/digits-right"] > 0.8
    second = sexpgpu_process(tmp_path, cache, *words, "tune")
    assert "init: 4 of 6 tensors begin as in" in second.stderr
    assert records(tmp_path, second, "eval")[-1]["held-out/parity-right"] > 0.8
    ends = []
    for done, step in ((first, 400), (second, 100)):
        file = tmp_path / done.stdout.strip() / "checkpoints" / f"step-{step:08d}" / "params.safetensors"
        ends.append(load_file(file))
    kept = {name for name in ends[1] if name in ends[0] and np.array_equal(ends[0][name], ends[1][name])}
    assert kept == {"body.first.weight", "body.first.bias"}


def test_charlm_runs_on_a_text_beside_it(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "charlm.sexp").write_text((EXAMPLES / "charlm.sexp").read_text())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text("To be, or not to be, that is the question.\n" * 200)
    done = sexpgpu_process(tmp_path, cache, "run", "charlm.sexp", "--variant", "smoke", "--steps", "3")
    assert [record["step"] for record in records(tmp_path, done)] == [1, 2, 3]


def test_gpt2_runs_at_its_smoke_variant(tmp_path: Path, cache: Path) -> None:
    words = ("run", str(EXAMPLES / "gpt2.sexp"), "--variant", "smoke", "--steps", "3", "--device", "cpu")
    losses = [record["train/loss"] for record in records(tmp_path, sexpgpu_process(tmp_path, cache, *words))]
    # ln 50257: nothing is known yet
    assert losses[0] == pytest.approx(10.82, abs=0.05)


def test_a_run_is_the_same_with_one_thread_on_a_cold_cache_and_two_on_a_warm_one(tmp_path: Path, cache: Path) -> None:
    words = ("run", "--steps", "4", "layers=1", "width=64", "heads=2", "--json")
    made = []
    for number, threads in enumerate(("1", "2")):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = sexpgpu_process(folder, tmp_path / "cache", *words, SEXPGPU_THREADS=threads)
        assert done.returncode == 0, done.stderr
        path = folder / json.loads(done.stdout)["run"]
        lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
        kept = [
            {key: value for key, value in line.items() if not key.startswith(("time", "throughput/", "runtime/"))}
            for line in lines
            if line["kind"] in ("step", "eval")
        ]
        checkpoint = path / "checkpoints" / "step-00000004"
        made.append((kept, *((checkpoint / f"{name}.safetensors").read_bytes() for name in ("params", "optimizer"))))
    assert made[0] == made[1]


def test_a_warm_start_imports_neither_numba_nor_rich_nor_mpi(tmp_path: Path, cache: Path) -> None:
    words = ["run", "--steps", "1", "--quiet"]
    code = (
        f"import sys\nsys.argv = ['sexpgpu', *{words}]\nfrom sexpgpu.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print([name for name in ('numba', 'rich', 'mpi4py', 'safetensors', 'click.testing') if name in sys.modules])"
    )
    assert sexpgpu_process(tmp_path, cache, *words).returncode == 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SEXPGPU_CACHE": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.glob("*.sexp")))
def test_check_and_show_take_every_example(example: str, tmp_path: Path, cache: Path) -> None:
    (tmp_path / example).write_text((EXAMPLES / example).read_text())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "input.txt").write_text("To be, or not to be.\n" * 400)
    run = f" --run {RUNS[example]}" if example in RUNS else ""
    done = sexpgpu_process(tmp_path, cache, "check", example, "--variant", "smoke", *run.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"try it: sexpgpu run {example}{run} --variant smoke --steps 3 --device cpu"


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        ("ir", "return loss="),
        ("grad", "gradient:mlp.first.weight="),
        ("regions", "cross-entropy"),
        ("plan", "arena "),
        ("kernels", "def "),
    ],
)
def test_show_prints_every_stage_of_an_example(stage: str, words: str, tmp_path: Path, cache: Path) -> None:
    done = sexpgpu_process(tmp_path, cache, "show", str(EXAMPLES / "digits.sexp"), stage)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout
