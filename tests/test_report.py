"""What a run says, in the form of the devices page; golden files with the numbers masked.

UPDATE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_bitwise import HERE

GOLDEN = HERE / "golden"


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """stderr and the records of a run of two steps."""
    out = tmp_path_factory.mktemp("report")
    file = HERE / "experiments" / "gpt.sexp"
    command = [sys.executable, "-m", "sexpgpu", "run", str(file), "--steps", "2", "--out", str(out)]
    done = subprocess.run(
        command, env={**os.environ, "SEXPGPU_THREADS": "2"}, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    (metrics,) = out.glob("*/*/metrics.jsonl")
    text = done.stderr.replace(str(out), "OUT").replace(str(file), "FILE")
    return text, [json.loads(line) for line in metrics.read_text().splitlines()]


def masked(text: str) -> str:
    """Numbers as N, vector classes and engines of products as words, so that any machine gives the same text."""
    text = re.sub(r"(AVX-512|AVX2|SSE4\.2|SVE|NEON|no vectors)", "SIMD", text)
    text = re.sub(r"products \([^)\n]*\)", "products (ENGINES)", text)
    text = re.sub(r"hash [0-9a-f]{8}", "hash HASH", text)
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{8}", "ID", text)
    text = re.sub(r"[-+]?\d[\d,.]*(e[-+]\d+)?", "N", text)
    return re.sub(r" +", " ", text)


def test_the_words_of_a_run_are_the_golden_ones(said: tuple[str, list[dict[str, Any]]]) -> None:
    path = GOLDEN / "run.txt"
    made = masked(said[0])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(made)
    assert made == path.read_text()


def test_the_report_has_the_rows_of_the_devices_page(said: tuple[str, list[dict[str, Any]]]) -> None:
    lines = said[0].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("lowering: cpu 2 threads, "))
    rows = [line for line in lines[start + 1 :] if line.startswith("  ")]
    assert re.fullmatch(r"  train {21}\d+ nodes, \d+ kernels \(\d+ fused\), \d+ products \(.+\)", rows[0])
    assert re.fullmatch(r"  memory {20}[\d.]+ [KMG]iB of [\d.]+ [KMG]iB free", rows[-2])
    assert re.match(r"  stacking {18}1: ", rows[-1])
    assert re.fullmatch(r"memory: peak [\d.]+ [KMG]iB of [\d.]+ [KMG]iB planned \([+-]\d+\.\d%\)", lines[-1])


def test_the_lines_are_annotations_too(said: tuple[str, list[dict[str, Any]]]) -> None:
    annotations = {r["name"]: r for r in said[1] if r["kind"] == "annotation"}
    assert {"memory", "stacking", "lowering", "checkpoint", "memory-peak"} <= set(annotations)
    memory = annotations["memory"]
    parts = ("parameters", "optimizer", "gradients", "constants", "cached", "workspaces", "live")
    assert sum(memory[part] for part in parts) == memory["planned"]
    assert memory["free"] > memory["planned"] and memory["peak_at"]
    peak = annotations["memory-peak"]
    assert peak["planned"] == memory["planned"]
    steps = [r for r in said[1] if r["kind"] == "step"]
    assert len(steps) == 2 and all(0 < r["runtime/peak_bytes"] <= peak["peak"] for r in steps)


def test_the_folder_holds_what_the_page_lists(said: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    assert GOLDEN.is_dir()
    names = (
        "experiment.sexp settings.json env.json graph.txt lowering.txt metrics.jsonl status.json log.txt checkpoints"
    )
    file = HERE / "experiments" / "gpt.sexp"
    command = [sys.executable, "-m", "sexpgpu", "run", str(file), "--steps", "0", "--out", str(tmp_path), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert set(names.split()) <= {path.name for path in folder.iterdir()}
    assert (folder / "checkpoints" / "step-00000000" / "manifest.json").is_file()
