"""scripts/bench peers: its table, where it is written, and what it does with peers that are missing or disagree."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from peers import gpt  # noqa: E402
from peers.command import PAGES  # noqa: E402
from peers.comparison import PEERS, Comparison, Disagreement, Row, agree, compare  # noqa: E402
from peers.table import circumstances, line, marker, section, write  # noqa: E402
from peers.tasks import SIZES, Task  # noqa: E402

SECTION = re.compile(r"<!-- bench peers: (.+?) -->\n(.*?)<!-- end of bench peers -->", re.DOTALL)
TOY = Task("toy", "f32", 2)


def row(name: str, *ms: float) -> Row:
    blocks = [{"ms": m, "others": 0.25, "peak": 64 << 20, "children": 0} for m in ms]
    return Row(PEERS[name], "", 3.0, 0.5, 100 << 20, {"torch": "2.0"}, [5.5, 5.4], blocks)


def test_ratios_are_taken_block_by_block() -> None:
    made = Comparison(TOY, False, [row("sexpgpu", 10, 40, 10, 10), row("pytorch", 20, 80, 40, 10)])
    # Both slowed down in the second block; its ratio is that of the first all the same.
    assert made.ratios(made.rows[1]) == [0.25, 0.5, 0.5, 1.0]
    cells = [cell.strip() for cell in line(made, made.rows[1]).strip("|").split("|")]
    # 8 × 64 tokens in the median 30 ms; the lower quartile of four lies three quarters from 0.25 to 0.5.
    assert cells == ["PyTorch eager", "**0.50**", "0.44 – 0.62", "30.00", "17,067", "64", "100", "3.00", "0.50"]


def test_a_section_replaces_its_own_and_no_other(tmp_path: Path) -> None:
    pages = [tmp_path / "a.md", tmp_path / "b.md"]
    for page in pages:
        page.write_text("before\n")
    first = Comparison(TOY, False, [row("sexpgpu", 10), row("pytorch", 20)])
    busy = Comparison(TOY, True, [row("sexpgpu", 11), row("pytorch", 44)])
    assert write(first, pages) == pages[:1] and write(busy, pages) == pages[:1]
    pages[1].write_text(f"quoted\n{marker(busy)}\nold\n<!-- end of bench peers -->\nafter\n")
    again = Comparison(TOY, True, [row("sexpgpu", 12), row("pytorch", 96)])
    assert write(again, pages) == pages
    assert pages[1].read_text() == f"quoted\n{marker(again)}\n{section(again)}\n<!-- end of bench peers -->\nafter\n"
    assert section(first) in pages[0].read_text() and section(again) in pages[0].read_text()
    assert section(busy) not in pages[0].read_text()


@pytest.mark.parametrize("other", [[5.5, 5.4001], [5.5, float("nan")]])
def test_losses_that_differ_end_the_comparison(other: list[float]) -> None:
    theirs = row("pytorch", 20)
    theirs.losses = other
    with pytest.raises(Disagreement, match="step 2: sexpgpu has loss 5.4, PyTorch eager"):
        agree(TOY, [row("sexpgpu", 10), theirs])


@pytest.mark.parametrize("name", ["toy", "resnet"])
def test_the_model_has_a_value_for_every_parameter_and_no_other(name: str) -> None:
    import sexpgpu

    task = Task(name, "f32", 2)
    model, size = task.model, task.size
    made = sexpgpu.load(ROOT / "scripts" / "peers" / model.FILE, set=model.hypers(size))
    needed = {p.name: p.shape for p in made.elaborated.parameters}
    assert {name: value.shape for name, value in model.ours(size, model.weights(size)).items()} == needed


def test_the_batches_of_the_gpt_are_tokens() -> None:
    size = SIZES["toy"][1]
    assert all(np.issubdtype(field.dtype, np.int32) for field in gpt.batches(size, 1)[0].values())


def test_ours_is_compared_where_no_other_peer_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    without = PEERS["jax"].__class__("nobody", "peer_of_nobody", "")
    made = compare(TOY, [PEERS["sexpgpu"], without], 2, 0.01, False, said.append)
    ours, missing = made.rows
    assert len(ours.blocks) == 2 and ours.ms > 0 and ours.peak > 2**20
    # Random tokens of 256: ln 256 = 5.545, and weights so small change little.
    assert ours.losses[0] == pytest.approx(5.545, abs=0.05)
    assert "No module named 'peers.peer_of_nobody'" in missing.missing
    assert "nobody was not here" in section(made)


def test_what_other_pages_quote_is_what_the_benchmarks_page_has() -> None:
    own = dict(SECTION.findall(PAGES[0].read_text()))
    assert own
    for page in PAGES[1:]:
        for name, quoted in SECTION.findall(page.read_text()):
            assert quoted == own.get(name), (page.name, name)


def test_a_priority_that_is_not_the_usual_one_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Comparison(TOY, False, [row("sexpgpu", 10)])
    monkeypatch.setattr("pathlib.Path.exists", lambda self: False)
    monkeypatch.setattr("os.getpriority", lambda which, who: 0)
    assert "scheduled at" not in circumstances(made)
    monkeypatch.setattr("os.getpriority", lambda which, who: -5)
    assert "; scheduled at nice -5." in circumstances(made)
