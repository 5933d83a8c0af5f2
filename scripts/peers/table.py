"""A comparison as a Markdown section, and its place in the docs between two markers."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from peers.comparison import Comparison, Row

DOCS = Path(__file__).parents[2] / "docs"
COLUMNS = "sexpgpu / peer | quartiles | ms a step | {unit}/s | peak MiB | a compiler's MiB | cold s | warm s"
END = "<!-- end of bench peers -->"


def marker(made: Comparison) -> str:
    return f"<!-- bench peers: {made.task.name} {made.task.precision}{' busy' if made.busy else ''} -->"


def section(made: Comparison) -> str:
    """Table and circumstances."""
    task = made.task
    head = f"| {task.name}, {task.precision} | {COLUMNS.format(unit=task.model.UNIT)} |"
    rule = "| --- |" + " ---: |" * (head.count("|") - 2)
    rows = [line(made, row) for row in made.rows if row.blocks]
    missing = [f"{row.peer.name} was not here ({row.missing})." for row in made.rows if row.missing]
    return "\n".join([head, rule, *rows, "", circumstances(made), *missing])


def line(made: Comparison, row: Row) -> str:
    ratios = made.ratios(row)
    spread = ratios if len(ratios) < 2 else statistics.quantiles(ratios, n=4, method="inclusive")
    ours = row is made.rows[0]
    cells = [
        row.peer.name,
        "" if ours else f"**{statistics.median(ratios):.2f}**",
        "" if ours else f"{spread[0]:.2f} – {spread[-1]:.2f}",
        f"{row.ms:.2f}" if row.ms < 100 else f"{row.ms:.0f}",
        f"{made.task.model.units(made.task.size) / row.ms * 1e3:,.0f}",
        f"{row.peak / 2**20:.0f}",
        f"{row.children / 2**20:.0f}" if row.children else "",
        f"{row.cold_s:.2f}",
        f"{row.warm_s:.2f}",
    ]
    return f"| {' | '.join(cells)} |"


def circumstances(made: Comparison) -> str:
    versions: dict[str, str] = {}
    for row in made.rows:
        versions |= row.versions
    named = ", ".join(f"{package} {version}" for package, version in versions.items())
    blocks = len(made.rows[0].blocks)
    busy = ", one busy process on the same cores" if made.busy else ""
    return (
        f"{datetime.now(UTC):%Y-%m-%d}, {processor()}, {made.task.threads} of {os.cpu_count()} cores, "
        f"{blocks} blocks in turn{busy}; others used {made.others:.2f} cores meanwhile{priority()}. {named}."
    )


def priority() -> str:
    """How far the scheduler favours or hinders this process and its group, where it does: figures depend on it."""
    group = Path("/proc/self/autogroup")
    found = re.search(r"nice (-?\d+)", group.read_text()) if group.exists() else None
    levels = {"nice": os.getpriority(os.PRIO_PROCESS, 0), "autogroup nice": int(found[1]) if found else 0}
    said = [f"{name} {level}" for name, level in levels.items() if level]
    return f"; scheduled at {' and '.join(said)}" if said else ""


def processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    names = re.search(r"model name\s*: (.+)", text)
    flags = set(text.split("flags", 1)[-1].split("\n", 1)[0].split())
    vectors = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else ""
    return " with ".join(part for part in (names[1] if names else "a CPU", vectors) if part)


def write(made: Comparison, pages: Sequence[Path]) -> list[Path]:
    """Put the section in the place of the one with its marker on every page that has one; the first page gets it anyway."""
    whole = f"{marker(made)}\n{section(made)}\n{END}"
    changed = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = re.search(re.escape(marker(made)) + r"\n.*?" + re.escape(END), text, re.DOTALL)
        if found:
            text = text[: found.start()] + whole + text[found.end() :]
        elif page == pages[0]:
            text = f"{text.rstrip()}\n\n{whole}\n"
        else:
            continue
        page.write_text(text, encoding="utf-8")
        changed.append(page)
    return changed
