"""The GPT-2 example as a user runs it on the card, batch 8, in f32 and bf16, its products by cuBLASLt or by our own kernels."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STEPS = 20
# The first steps compile and capture.
LEFT_OUT = 2
FIGURES = {
    "ms": "runtime/step_ms",
    "tokens_a_second": "throughput/tokens_per_s",
    "peak_bytes": "runtime/peak_bytes",
}


def trained() -> tuple[str, str, dict[str, Any]]:
    """State, words and data of the section."""
    facts: dict[str, Any] = {"lines": []}
    for precision in ("off", "bfloat16"):
        for products in ("library", "own"):
            name = f"precision {precision}, products {products}"
            made = facts[name] = training({"SEXPGPU_PRODUCTS": products}, ("--precision", precision))
            facts["lines"].append(f"{name}: {words_of(made)}")
    failed = any("failed" in made for name, made in facts.items() if name != "lines")
    return "failed" if failed else "ok", f"gpt2.sexp batch=8, {STEPS} steps", facts


def training(variables: Mapping[str, str], words: Sequence[str]) -> dict[str, Any]:
    """Medians of a run's steps, or the last words of one that failed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sexpgpu", "run", str(ROOT / "sexpgpu/examples/gpt2.sexp"), "batch=8"]
        command += ["--device", "cuda", "--steps", str(STEPS), "--out", folder, "--quiet", *words]
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": done.stderr[-2000:]}
        (file,) = Path(folder).rglob("metrics.jsonl")
        return medians([json.loads(line) for line in file.read_text().splitlines()])


def medians(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = [record for record in records if record["kind"] == "step"][LEFT_OUT:]
    return {name: statistics.median(record[key] for record in steps) for name, key in FIGURES.items()}


def words_of(made: Mapping[str, Any]) -> str:
    if "failed" in made:
        return f"failed: {made['failed'].strip().splitlines()[-1:]}"
    return f"{made['ms']:.2f} ms a step, {made['tokens_a_second']:,.0f} tokens/s, {made['peak_bytes'] / 2**30:.2f} GiB"
