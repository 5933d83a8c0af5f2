"""The command line of `scripts/gpu`: sections one after another, each a process with a limit; their data, the summary."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from card.sections import FOUND, SECTIONS, Outcome

ROOT = Path(__file__).resolve().parents[2]
# What a process may take to end after it was told to.
GRACE_S = 10
NO_GPU = 2


def parser(words: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scripts/gpu", description=words, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--only", default="", metavar="NAMES", help=f"some of {','.join(SECTIONS)}")
    made.add_argument("--simulated", action="store_true", help="kernels and runs on the simulated card")
    made.add_argument("--select", default="", metavar="WORDS", help="tests of kernels and runs to take, as pytest's -k")
    made.add_argument("--into", type=Path, default=Path("gpu.json"), metavar="FILE", help="the data; default gpu.json")
    made.add_argument("--limit", type=float, default=1.0, metavar="X", help="so many times the time of every section")
    made.add_argument("--section", help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str], words: str = "") -> int:
    options = parser(words).parse_args(arguments)
    if options.section:
        options.into.write_text(json.dumps(_run(options).facts()))
        return 0
    names = chosen(options)
    found = started("found", options)
    if found["state"] != "ok":
        print(f"scripts/gpu: no GPU can be used here: {found['words']}", file=sys.stderr)
        return NO_GPU
    print(f"{'simulated: ' if options.simulated else ''}{found['words']}", flush=True)
    sections: dict[str, Any] = {}
    for name in names:
        sections[name] = started(name, options)
        print(summary(name, sections[name]), flush=True)
        # After each, so that what was measured is kept whatever comes.
        options.into.write_text(json.dumps(data(options, found, sections), indent=1) + "\n")
    wrong = [name for name, section in sections.items() if section["state"] not in ("ok", "absent")]
    print(f"{options.into}: {', '.join(wrong)} failed" if wrong else f"{options.into}: all is well")
    return 1 if wrong else 0


def chosen(options: argparse.Namespace) -> list[str]:
    possible = [name for name, section in SECTIONS.items() if section.on_simulator or not options.simulated]
    names = [name for name in options.only.split(",") if name] or possible
    for name in names:
        if name not in possible:
            sys.exit(f"scripts/gpu: no section {name} here; there are {', '.join(possible)}")
    return names


def _run(options: argparse.Namespace) -> Outcome:
    """A section, in its own process."""
    section = FOUND if options.section == "found" else SECTIONS[options.section]
    try:
        return section.run(options.simulated, options.select)
    except Exception as problem:
        import traceback

        return Outcome("failed", f"{type(problem).__name__}: {problem}", {"traceback": traceback.format_exc()})


def started(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A section's facts: `state` ok, absent, failed or timed out, `words` for the summary, `data`, `seconds`."""
    section = FOUND if name == "found" else SECTIONS[name]
    limit_s = section.limit_s * options.limit
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "facts.json"
        command = [sys.executable, str(ROOT / "scripts" / "gpu"), "--section", name, "--into", str(into)]
        command += ["--simulated"] * options.simulated + ["--select", options.select]
        begin = time.monotonic()
        with open(Path(folder) / "said", "w+") as said:
            child = subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=said, start_new_session=True)
            ended = wait(child, limit_s)
            said.seek(0)
            last = said.read()[-4000:]
        seconds = round(time.monotonic() - begin, 1)
        if not ended:
            return {"state": "timed out", "words": f"not done after {limit_s:.0f} s", "said": last, "seconds": seconds}
        if not into.exists():
            return {"state": "failed", "words": f"ended with {child.returncode}", "said": last, "seconds": seconds}
        facts = json.loads(into.read_text())
        return {**facts, "seconds": seconds, **({"said": last} if facts["state"] == "failed" else {})}


def wait(child: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Whether a process ended in time; one that did not is ended, with all that it started."""
    try:
        child.wait(limit_s)
        return True
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as late:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(child.pid, number)
                child.wait(GRACE_S)
                break
            except (subprocess.TimeoutExpired, ProcessLookupError):
                # A process that waits in the driver may not even be killed; nobody waits for it any longer.
                continue
        if isinstance(late, KeyboardInterrupt):
            raise
        return False


def summary(name: str, section: dict[str, Any]) -> str:
    head = f"{section['state']:<9} {name:<8} {section['seconds']:7.1f} s  {section['words']}"
    lines = section.get("data", {}).get("lines", [])
    if section["state"] in ("failed", "timed out"):
        lines = [*lines, *section.get("said", "").splitlines()[-15:]]
    return "\n".join([head, *(f"    {line}" for line in lines)])


def data(options: argparse.Namespace, found: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "commit": commit.stdout.strip(),
        "simulated": options.simulated,
        "python": platform.python_version(),
        "card": found.get("data", {}),
        "sections": sections,
    }
