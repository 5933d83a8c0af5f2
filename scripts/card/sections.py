"""The sections of `scripts/gpu`: what each looks at, how long it may take, what it found."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RUNS = "test_card_examples.py"


@dataclass(frozen=True)
class Outcome:
    """`state`: ok, failed, or absent, where what it needs beside a card is not installed. `data["lines"]` are printed."""

    state: str
    words: str
    data: dict[str, Any] = field(default_factory=dict)

    def facts(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """`run(simulated, select)`."""

    run: Callable[[bool, str], Outcome]
    limit_s: float
    on_simulator: bool = False


def found(simulated: bool, select: str) -> Outcome:
    """The card that is here, as a run finds it."""
    from sexpgpu.cuda.probe import probe_driver, require
    from sexpgpu.device import Choice, refuse_absent
    from sexpgpu.errors import Error

    load = None
    if simulated:
        from tests.fake_cuda import FakeCuda

        load = FakeCuda().load
    try:
        if not simulated:
            refuse_absent(Choice("cuda", 0))
        driver = probe_driver(load)
        card = require(driver, 0)
    except Error as problem:
        return Outcome("failed", "; ".join([problem.message, *problem.notes[:1]]))
    served = ".".join(map(str, driver.version or ()))
    capability = ".".join(map(str, card.capability))
    words = (
        f"{card.name}, compute capability {capability}, {card.memory_bytes / 2**30:.1f} GiB, driver for CUDA {served}"
    )
    return Outcome("ok", words, {**asdict(card), "cuda": served})


def symbols(simulated: bool, select: str) -> Outcome:
    from card.symbols import audit, libraries

    made = [audit(name, load, table) for name, load, table in libraries()]
    lines = [f"{each.library}: {each.words}" for each in made]
    wrong = any(each.missing or each.problem for each in made)
    return Outcome("failed" if wrong else "ok", f"{sum(each.count for each in made)} functions", {"lines": lines})


def kernels(simulated: bool, select: str) -> Outcome:
    return tests(
        [str(p) for p in sorted((ROOT / "tests" / "gpu").glob("test_*.py")) if "examples" not in p.name],
        simulated,
        select,
    )


def runs(simulated: bool, select: str) -> Outcome:
    return tests([str(ROOT / "tests" / "gpu" / RUNS)], simulated, select)


def tests(files: list[str], simulated: bool, select: str) -> Outcome:
    """Some of tests/gpu, by pytest in a process of its own."""
    from card.results import outcome_of

    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "gpu",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={results}",
            *files,
        ]
        environment = {**os.environ, "TEST_CARD": "simulated" if simulated else ""}
        done = subprocess.run([*command, *(["-k", select] if select else [])], cwd=ROOT, env=environment, check=False)
        if not results.exists():
            return Outcome("failed", f"pytest ended with {done.returncode}")
        return outcome_of(results)


def timing(simulated: bool, select: str) -> Outcome:
    from card.timing import measured

    return Outcome(*measured())


def training(simulated: bool, select: str) -> Outcome:
    from card.training import trained

    return Outcome(*trained())


def versus(simulated: bool, select: str) -> Outcome:
    from card.versus import compared

    return Outcome(*compared(lambda line: print(line, flush=True)))


FOUND = Section(found, 60)
SECTIONS = {
    "symbols": Section(symbols, 120),
    "kernels": Section(kernels, 1800, on_simulator=True),
    "runs": Section(runs, 1800, on_simulator=True),
    "timing": Section(timing, 900),
    "training": Section(training, 1800),
    "versus": Section(versus, 3600),
}
