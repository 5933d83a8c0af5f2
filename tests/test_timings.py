"""Times of a run: every launch is there with its form and line, they add up to the step, and they change nothing."""

from __future__ import annotations

import json
import platform
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sexpgpu.interp import tape_code
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.tape import Workers, most_takes
from sexpgpu.plan.kernel import Access, Generated, Indexed, Matrix, Place, Product
from sexpgpu.plan.work import bytes_of
from sexpgpu.train.launch import run
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request
from tests import programs

FILE = """(defloader digits (builtin "digits" :batch 16))
(defloader again (builtin "digits" :batch 16))
(deflayer classifier (x)
  (linear
    (relu (linear x 24 :name "hidden"))
    10 :name "logits"))
(defrun fit :data digits :loss (cross-entropy (classifier x) y)
  :optimizer (adamw :lr 1e-2)
  :microbatches 2 :steps 5 :eval (every 3 again :batches 2))
"""
STEPS = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run without and one with times, with one kernel cache, which `plain` filled first."""
    folder = tmp_path_factory.mktemp("timings")
    (folder / "fit.sexp").write_text(FILE)
    paths = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEXPGPU_CACHE", str(folder / "cache"))
        for name, timings in (("plain", False), ("timed", True)):
            flags = {"out": str(folder / name), "timings": timings, "threads": 2}
            paths[name] = run(Request(folder / "fit.sexp", flags=flags), Progress(quiet=True)).path
            kernels = sorted(p.name for p in (folder / "cache").rglob("*.kernel"))
            (folder / f"{name}.json").write_text(json.dumps(kernels))
    return {**paths, "folder": folder}


def table(made: dict[str, Path]) -> list[str]:
    """The report's lines, from the file that has the lowering report."""
    lines = (made["timed"] / "lowering.txt").read_text().splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("timings: ")) :]


def events(made: dict[str, Path]) -> list[dict[str, Any]]:
    return [e for e in json.loads((made["timed"] / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]


def test_times_change_no_bit_and_no_kernel(made: dict[str, Path]) -> None:
    plain, timed = (read_metrics(made[name] / "metrics.jsonl") for name in ("plain", "timed"))
    wanted = ("train/loss", "train/grad_norm", "again/loss")
    picked = [[[r.get(k) for k in wanted] for r in records if r["kind"] != "annotation"] for records in (plain, timed)]
    assert picked[0] == picked[1] and len(picked[0]) == STEPS + 2
    before, after = (set(json.loads((made["folder"] / f"{n}.json").read_text())) for n in ("plain", "timed"))
    # The tape itself is the one kernel that times need.
    assert before < after and len(after) == len(before) + 1
    assert not (made["plain"] / "trace.json").exists()


def test_a_tape_without_times_has_none_of_their_code() -> None:
    plain, timed = (tape_code.source(platform.machine(), t) for t in (False, True))
    own = [line for line in timed.splitlines() if line not in plain.splitlines()]
    assert "  %begin = call i64 @now(ptr %c)" in own
    assert "@now" not in plain and "@log" not in plain
    assert all(line in timed.splitlines() for line in plain.splitlines())


def test_the_rows_add_up_to_the_step(made: dict[str, Path]) -> None:
    lines = table(made)
    head = re.fullmatch(rf"timings: 4 steps \(2 to {STEPS}\), ([\d.]+) ms each", lines[0])
    assert head is not None
    rows = lines[2 : next(i for i, line in enumerate(lines) if line.startswith("  again: "))]
    parts = [float(re.search(r" ([\d.]+) +[\d.]+%", row)[1]) for row in rows]  # type: ignore[index]
    # Every figure is rounded to a thousandth.
    assert sum(parts) == pytest.approx(float(head[1]), abs=0.0005 * (len(parts) + 1))
    assert all(part >= 0 for part in parts)
    steps = [r["runtime/step_ms"] for r in read_metrics(made["timed"] / "metrics.jsonl") if r["kind"] == "step"]
    assert float(head[1]) == pytest.approx(np.mean(steps[1:]), abs=0.001)


def test_the_table_names_forms_lines_and_launches(made: dict[str, Path]) -> None:
    rows = {tuple(re.split(r"  +", line.strip())[:4]) for line in table(made)}
    # Two microbatches a step. The first layer: forward, by its weight; the second: by its input too.
    assert {("linear", "fit.sexp:5", "product", "4"), ("linear", "fit.sexp:4", "product", "6")} <= rows
    assert ("adamw", "fit.sexp:8", "map", "4") in rows
    assert any(row[0].startswith("cross-entropy") and row[1] == "fit.sexp:7" for row in rows)
    products = [line.split() for line in table(made) if "product" in line]
    assert all(float(words[-2]) > 0 and 0 < float(words[-1]) <= 2.0 for words in products)


def test_the_trace_has_every_launch_of_the_last_steps_inside_its_call(made: dict[str, Path]) -> None:
    found = events(made)
    assert [e["name"] for e in found if e["cat"] == "step"] == [f"step {n}" for n in (3, 4, 5)]
    calls = [e for e in found if e["cat"] == "call"]
    assert [c["name"] for c in calls].count("train") == 6 and [c["name"] for c in calls].count("update") == 3
    launches = {g: {e["args"]["launch"] for e in found if e["args"].get("graph") == g} for g in ("train", "update")}
    annotation = next(r for r in read_metrics(made["timed"] / "metrics.jsonl") if r.get("name") == "lowering")
    for graph, numbers in launches.items():
        row = annotation["graphs"][graph]
        assert numbers == set(range(row["kernels"] + row["products"]))
    for call in calls:
        inside = [e for e in found if e["tid"] and call["ts"] <= e["ts"] < call["ts"] + call["dur"]]
        assert inside and {e["args"]["graph"] for e in inside} == {call["name"]}
        # The trace rounds ns to a float of µs.
        assert max(e["ts"] + e["dur"] for e in inside) <= call["ts"] + call["dur"] + 0.01
    assert {(e["name"], e["args"]["place"]) for e in found if e["tid"]} >= {("linear", "fit.sexp:4")}


def test_no_worker_does_two_things_at_once(made: dict[str, Path]) -> None:
    for worker in (1, 2):
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events(made) if e["tid"] == worker)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(spans))


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_a_log_has_room_for_every_way_to_share_blocks(workers: int) -> None:
    for blocks in (1, 2, 7, 100, 4097, 1 << 20):
        left, takes = blocks, 0
        while left:
            left -= max(1, left // (2 * workers))
            takes += 1
        assert takes <= most_takes(blocks, workers)


def test_a_timed_tape_notes_every_block_once(tmp_path: Path) -> None:
    from sexpgpu.interp.executor import Engine
    from tests.test_tape import Plans

    engine = Engine(3, tmp_path, timed=True)
    x, y = np.ones(200_000, np.float32), np.empty(200_000, np.float32)
    names = Plans(x=x, y=y)
    launch = Generated(programs.gelu(), (x.size,), (Access(names.place("x"), (1,)),), (Access(names.place("y"), (1,)),))
    executable = names.run(engine, names.plan(launch, launch))
    rows = engine.workers.events()
    for number, record in enumerate(executable._tape.records):
        assert rows[rows[:, 1] == number][:, 2].sum() == record.blocks > 1
    assert (rows[:, 4] >= rows[:, 3]).all() and set(rows[:, 0]) <= {0, 1, 2}
    first, second = (rows[rows[:, 1] == number] for number in (0, 1))
    assert second[:, 3].min() >= first[:, 4].max()
    engine.close()


def test_bytes_count_an_element_once() -> None:
    place = Place(0)
    kernel = Generated(programs.softmax(), (6, 8), (Access(place, (8, 1)),), (Access(place, (8, 1)),))
    assert bytes_of(kernel) == 2 * 6 * 8 * 4
    shared = Generated(programs.softmax(), (6, 8), (Access(place, (0, 1)),), (Access(place, (8, 1)),))
    assert bytes_of(shared) == 8 * 4 + 6 * 8 * 4
    product = Product("f32", 2, 3, 5, *(Matrix(place, 1, 1, starts) for starts in ((0, 10), (0, 0), (0, 6))))
    assert bytes_of(product) == 4 * (2 * 10 + 15 + 2 * 6)
    take = Indexed("take", "f32", "i32", 1, 100, 7, 3, (place, place), place)
    assert bytes_of(take) == 2 * 7 * 3 * 4 + 7 * 4


def test_workers_are_not_timed_unless_asked(tmp_path: Path) -> None:
    workers = Workers(1, Cache(tmp_path))
    assert not workers.timed and not workers._logs
    workers.close()
