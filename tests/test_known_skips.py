"""scripts/check_skips fails for what was skipped without being known, and for nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_skips"


@pytest.mark.parametrize(
    "skipped, code",
    [("tests.gpu.test_card_map::test_x[3]", 0), ("tests.test_cuda_map::test_x", 1), ("tests.gpus::test_x", 1)],
)
def test_only_a_skip_that_is_known_passes(skipped: str, code: int, tmp_path: Path) -> None:
    module, _, name = skipped.partition("::")
    results = tmp_path / "results.xml"
    results.write_text(f'<testsuite><testcase classname="{module}" name="{name}"><skipped/></testcase></testsuite>')
    done = subprocess.run([sys.executable, SCRIPT, results], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert (skipped in done.stderr) == bool(code)
