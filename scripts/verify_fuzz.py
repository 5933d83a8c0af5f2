"""Coverage-guided fuzzing (atheris) of what reads a user's file: bytes to an experiment, or to diagnostics.

`scripts/verify fuzz` runs this file again as the fuzzer's own process, which ends at the first finding.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# How much of a file one run may have, in bytes, and how long it may take, in seconds.
LONGEST, SLOWEST = 8_192, 20


def check(found: Any, seconds: int) -> None:
    """Fuzzes for so long; a finding's file is kept and named."""
    if importlib.util.find_spec("atheris") is None:
        found.check(False, "atheris is not installed: pip install atheris (wheels for Python 3.11 to 3.14 on Linux)")
        return
    with tempfile.TemporaryDirectory(prefix="sexpgpu-fuzz-") as folder:
        corpus, kept = Path(folder) / "corpus", Path.cwd()
        corpus.mkdir()
        for k, text in enumerate(_seeds()):
            (corpus / f"{k:03}").write_text(text, encoding="utf-8")
        options = [f"-max_total_time={seconds}", f"-max_len={LONGEST}", f"-timeout={SLOWEST}", "-rss_limit_mb=4096",
                   f"-artifact_prefix={kept}/fuzz-", "-print_final_stats=1"]  # fmt: skip
        done = subprocess.run(
            [sys.executable, __file__, str(corpus), *options], cwd=folder, stderr=subprocess.PIPE, text=True, check=False
        )
        runs = re.search(r"number_of_executed_units: (\d+)", done.stderr)
        coverage = re.findall(r"cov: (\d+)", done.stderr)
        counted = f"{int(runs.group(1)):,} runs" if runs else "no runs counted"
        files = f"{len(list(corpus.iterdir())):,} files in the corpus"
        words = f"fuzzing without a finding: {seconds} s, {counted}, {files}, coverage {coverage[-1] if coverage else 0}"
        found.check(done.returncode == 0 and runs is not None, words, done.stderr[-8_000:])


def _seeds() -> list[str]:
    sys.path.insert(0, str(ROOT / "tests"))
    from fuzzing import seeds

    return seeds()


def main() -> None:
    """The fuzzer's process: coverage is that of the language's own modules."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    import atheris

    with atheris.instrument_imports(include=["sexpgpu.lang", "sexpgpu.passes.elaboration"]):
        from fuzzing import check_bytes, mutated, seeds

    texts = seeds()

    def mutator(data: bytes, longest: int, seed: int) -> bytes:
        """Half of all files change in their bytes, half in their forms and tokens."""
        if seed % 2:
            return bytes(atheris.Mutate(data, longest))
        text = data.decode("utf-8", "replace")
        return mutated(Random(seed), [text], texts).encode("utf-8", "replace")[:longest]

    atheris.Setup(sys.argv, check_bytes, custom_mutator=mutator)
    os.chdir(tempfile.gettempdir())
    atheris.Fuzz()


if __name__ == "__main__":
    main()
