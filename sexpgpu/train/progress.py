"""What a run says while it goes: lines on stderr and in log.txt, and on a terminal a live bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

# Off a terminal: a line for the first steps, then at most this many for the rest, and one when so long nothing was said.
FIRST_STEPS = (1, 2, 5)
LINES = 20
QUIET_S = 15.0


class Progress:
    """Where a run's words go. `quiet` keeps them off the terminal; the log has them all the same."""

    def __init__(
        self, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._clock = clock
        self._log: TextIO | None = None
        self._before: list[str] = []
        self._bar: Any = None
        self._task: Any = None
        self._said = clock()
        # What a step's throughput counts: examples where the data has no sequences.
        self.unit = "tokens"

    def log_to(self, path: Path) -> None:
        """Write all lines, also those said so far, to a file."""
        self._log = path.open("a", encoding="utf-8")
        self._log.writelines(f"{line}\n" for line in self._before)
        self._before.clear()

    def line(self, text: str) -> None:
        """One or several lines, at once."""
        if self._log is not None:
            self._log.write(f"{text}\n")
            self._log.flush()
        else:
            self._before.append(text)
        if not self._quiet:
            if self._bar is not None:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._stream.write(f"{text}\n")
                self._stream.flush()
        self._said = self._clock()

    def start(self, total: int, done: int = 0) -> None:
        """Begin the live bar, on a terminal."""
        if self._quiet or not self._stream.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        console = Console(file=self._stream)
        columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn())
        self._bar = Bar(
            *columns, TextColumn("{task.fields[words]}"), console=console, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._bar.add_task("", total=total, completed=done, words="")
        self._bar.start()

    def step(self, step: int, total: int, record: dict[str, Any]) -> None:
        """A step is done: the bar moves, or now and then a line is written."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, words=step_words(record, self.unit))
        due = step in FIRST_STEPS or step == total or step % max(1, total // LINES) == 0
        if self._bar is None and (due or self._clock() - self._said > QUIET_S):
            self.line(f"step {step:>{len(str(total))}}/{total}  {step_words(record, self.unit)}")

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._log is not None:
            self._log.close()
            self._log = None


def step_words(record: dict[str, Any], unit: str = "tokens") -> str:
    parts = [f"loss {record['train/loss']:.4f}"]
    if "train/lr" in record:
        parts.append(f"lr {record['train/lr']:.2e}")
    if "train/loss_scale" in record:
        parts.append(f"scale {record['train/loss_scale']:.0f}")
    parts += [f"norm {record['train/grad_norm']:.3f}", f"{record['throughput/tokens_per_s']:,.0f} {unit}/s"]
    return "  ".join([*parts, f"{record['runtime/step_ms']:.1f} ms"])


def size_words(size: float) -> str:
    """`2.7 GiB`, as the devices page writes sizes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError(size)
