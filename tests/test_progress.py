"""What a run says: lines off a terminal, a live bar on one, everything in the log."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sexpgpu.train.progress import LINES, Progress, size_words, step_words

RECORD = {
    "train/loss": 2.5,
    "train/lr": 1e-3,
    "train/grad_norm": 0.75,
    "throughput/tokens_per_s": 12345.6,
    "runtime/step_ms": 20.04,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_step_in_words() -> None:
    assert step_words(RECORD) == "loss 2.5000  lr 1.00e-03  norm 0.750  12,346 tokens/s  20.0 ms"
    without = {key: value for key, value in RECORD.items() if key != "train/lr"}
    assert step_words(without).startswith("loss 2.5000  norm 0.750")


def test_off_a_terminal_the_first_steps_and_then_a_twentieth_each_get_a_line() -> None:
    stream = io.StringIO()
    progress = Progress(stream=stream, clock=Clock())
    progress.start(1000)
    for step in range(1, 1001):
        progress.step(step, 1000, RECORD)
    shown = [int(line.split()[1].split("/")[0]) for line in stream.getvalue().splitlines()]
    assert shown == [1, 2, 5, *range(50, 1001, 50)]
    assert len(shown) == LINES + 3
    assert "\x1b" not in stream.getvalue()


def test_slow_steps_get_a_line_each_quarter_minute() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = Progress(stream=stream, clock=clock)
    for step in range(6, 13):
        clock.now += 6
        progress.step(step, 1000, RECORD)
    assert [line.split()[1] for line in stream.getvalue().splitlines()] == ["8/1000", "11/1000"]


def test_quiet_keeps_words_off_the_stream_and_in_the_log(tmp_path: Path) -> None:
    stream = io.StringIO()
    progress = Progress(quiet=True, stream=stream)
    progress.line("before the folder is there")
    progress.log_to(tmp_path / "log.txt")
    progress.line("after")
    progress.close()
    assert stream.getvalue() == ""
    assert (tmp_path / "log.txt").read_text() == "before the folder is there\nafter\n"


def test_on_a_terminal_a_bar_counts_steps_and_lines_stand_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    progress = Progress(stream=stream)
    progress.start(10)
    progress.step(3, 10, RECORD)
    progress.line("step 3/10  held-out/loss 2.4 [markup] stays")
    progress.close()
    text = stream.getvalue()
    assert "step 3/10" in text
    assert "loss 2.5000" in text
    assert "held-out/loss 2.4 [markup] stays\n" in text


@pytest.mark.parametrize(
    ("size", "words"), [(12, "12 B"), (1536, "1.5 KiB"), (2.7 * 2**30, "2.7 GiB"), (5000 * 2**30, "5000.0 GiB")]
)
def test_sizes_are_written_as_the_devices_page_does(size: float, words: str) -> None:
    assert size_words(size) == words


def test_the_first_line_comes_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    """It must stand on the screen within 0.3 s; so what it needs is what `--version` needs, and msgspec, a few
    milliseconds that the records of every start are made with."""
    code = (
        "import sys\nsys.argv = ['sexpgpu', 'run', 'nowhere.sexp']\n"
        "from sexpgpu.train.progress import Progress\nfrom sexpgpu.__main__ import main\n"
        "def line(self, text):\n"
        "    print(text, [m for m in ('numpy', 'rich', 'numba', 'llvmlite') if m in sys.modules])\n"
        "    sys.exit(0)\n"
        "Progress.line = line\nmain()\n"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.endswith(": nowhere.sexp []\n")
