"""The same seed gives the same bits: twice, in a fresh process with a cold cache, with one thread and with two."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TIMES = ("time", "throughput/", "runtime/")


def trained(out: Path, model: str, threads: int, cache: str | None = None) -> tuple[str, list[dict[str, Any]]]:
    """SHA-256 of the parameters and optimizer states, and the records without times, of a run in a process of its own."""
    environment = {**os.environ, "SEXPGPU_THREADS": str(threads)}
    if cache is not None:
        environment["SEXPGPU_CACHE"] = cache
    file = HERE / "experiments" / f"{model}.sexp"
    command = [sys.executable, "-m", "sexpgpu", "run", str(file), "--steps", "6", "--out", str(out), "--quiet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = out.glob("*/*")
    (checkpoint,) = folder.glob("checkpoints/step-*")
    digest = hashlib.sha256()
    for name in ("params.safetensors", "optimizer.safetensors"):
        digest.update((checkpoint / name).read_bytes())
    return digest.hexdigest(), records(folder / "metrics.jsonl")


def records(path: Path) -> list[dict[str, Any]]:
    made = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [r for r in made if r["kind"] in ("step", "eval", "diagnostic")]
    return [{k: v for k, v in r.items() if not k.startswith(TIMES)} for r in kept]


@pytest.mark.parametrize("model", ["gpt", "mlp"])
def test_bits_do_not_depend_on_the_process_the_cache_or_the_threads(model: str, tmp_path: Path) -> None:
    first = trained(tmp_path / "first", model, threads=2)
    assert len(first[1]) >= 6
    assert trained(tmp_path / "again", model, threads=2) == first
    for threads in (3, 4):
        assert trained(tmp_path / f"{threads}", model, threads=threads) == first
    (tmp_path / "cold").mkdir(mode=0o700)
    assert trained(tmp_path / "cold-cache", model, threads=1, cache=str(tmp_path / "cold")) == first
