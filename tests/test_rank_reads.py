"""What each rank of a launch reads of the data: its own microbatches' windows, and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_ranks import environment, mpirun

# 24 windows of 5: two steps of four microbatches of three windows are one epoch.
FILE = """
(defloader d (text "d.txt" :tokenizer (bytes) :seq 5 :batch 3))
(defrun go :data d :optimizer (sgd :lr 0.1) :steps 2 :microbatches 4 :seed 3
  :loss (cross-entropy (linear (one-hot tokens 256) 256) targets))
"""
# Writes down the first byte of every window that this rank takes out of the text.
PROGRAM = """
import json, os
from sexpgpu.__main__ import main
from sexpgpu.dist.world import launch_of
from sexpgpu.train import sources

taken, windows_at = [], sources.windows_at

def recorded(parts, starts, length):
    taken.extend(starts.tolist())
    return windows_at(parts, starts, length)

sources.windows_at = recorded
try:
    main()
finally:
    with open(f"rank-{launch_of(os.environ).rank}.json", "w") as file:
        json.dump(taken, file)
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_read_disjoint_windows_that_are_together_all(tmp_path: Path, ranks: int) -> None:
    (tmp_path / "d.txt").write_bytes(bytes(65 + n % 50 for n in range(24 * 5 + 1)))
    (tmp_path / "e.sexp").write_text(FILE)
    command = [mpirun(), "-n", str(ranks), sys.executable, "-c", PROGRAM, "run", "e.sexp", "--out", "runs"]
    done = subprocess.run(
        command, env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=100,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    taken = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    assert [len(starts) for starts in taken] == [24 // ranks] * ranks
    assert sorted(start for starts in taken for start in starts) == list(range(0, 120, 5))
