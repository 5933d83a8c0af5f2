"""Times on a card against what bounds them: copies, products, and every kernel of GPT-2's training step, by CUDA events."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.backend import Counter
from sexpgpu.cuda.cards import CARDS, KnownCard
from sexpgpu.cuda.device import CudaDevice, open_cuda
from sexpgpu.ir.graph import Graph
from sexpgpu.settings import Settings, Sources, resolve
from sexpgpu.train.timings import GraphTimes, Timings

COPIED_BYTES = 1 << 30
SIDE, REPEATS, STEPS = 4096, 20, 10
# Rows of the table that are printed; the data has all.
SHOWN = 12


@dataclass(frozen=True)
class Limits:
    """What the card does at most: the bandwidth of a copy that was measured, and rates of the data sheet (0: unknown)."""

    bytes_a_second: float
    f32_flops: float = 0.0
    bf16_flops: float = 0.0

    def seconds(self, flops: float, moved: float, narrow: bool) -> float:
        rate = self.bf16_flops if narrow else self.f32_flops
        return max(moved / self.bytes_a_second, flops / rate if rate else 0.0)


@dataclass(frozen=True)
class Row:
    """Launches of one form, line and kind: milliseconds a step, the least by the limits, and their ratio."""

    graph: str
    form: str
    place: str
    kind: str
    launches: int
    ms: float
    least_ms: float

    @property
    def share_of_bound(self) -> float:
        return self.least_ms / self.ms if self.ms else 0.0


def settings(folder: Path, **flags: Any) -> Settings:
    return resolve(Sources({"out": folder, "device": "cuda", "timings": True, **flags}, os.environ, {}, {}))


def known(name: str) -> KnownCard | None:
    return next((card for card in CARDS.values() if card.name == name), None)


def copy_rate(device: CudaDevice, size_bytes: int = COPIED_BYTES, repeats: int = REPEATS) -> float:
    """Bytes a second that copies within the card's memory read and write, the median of some."""
    context, stream = device.engine.context, device.engine.stream
    source, target = context.allocate(size_bytes), context.allocate(size_bytes)
    marks = [context.event(timed=True) for _ in range(repeats + 1)]
    # The first one finds clocks that are still low.
    stream.fill(source.address, 1, size_bytes)
    stream.copy(target.address, source.address, size_bytes)
    stream.record(marks[0])
    for mark in marks[1:]:
        stream.copy(target.address, source.address, size_bytes)
        stream.record(mark)
    stream.synchronize()
    passed = [later.milliseconds_since(earlier) for earlier, later in pairwise(marks)]
    for owned in (*marks, source, target):
        owned.close()
    return 2 * size_bytes / (statistics.median(passed) / 1e3)


def product_rate(device: CudaDevice, dtype: str, side: int = SIDE, repeats: int = REPEATS) -> float:
    """Operations a second of square matrices' product, the median of some."""
    graph = Graph("product")
    shape = (side, side)
    operands = [
        graph.add("input", (), {"kind": "field", "name": n, "dtype": dtype, "shape": shape}) for n in ("a", "b")
    ]
    graph.outputs["c"] = graph.add("contract", operands, {"batch": ((), ()), "contracted": ((1,), (0,))})
    executable = device.prepare(graph, 0)
    numbers = np.random.default_rng(0)
    for name, type_ in executable.externals.items():
        memory = device.allocate(type_)
        device.write(memory, numbers.normal(size=shape).astype(np.float32))
        executable.bind(name, memory)
    device.timed_calls()
    for _ in range(repeats + 1):
        executable.run({}, Counter())
    calls = [call.events for call in device.timed_calls()]
    seconds = [1e-9 * float((events[:, 3] - events[:, 2]).sum()) for events in calls[1:]]
    return float(2 * side**3 / statistics.median(seconds))


def step_rows(
    size: Mapping[str, int], precision: str, limits: Limits, steps: int, folder: Path
) -> tuple[list[Row], float]:
    """Every form of GPT-2's step by its time, the longest first; and the milliseconds of a step, launches one by one."""
    from peers import gpt

    import sexpgpu
    from sexpgpu.train.model import initial_parameters
    from sexpgpu.train.session import prepare

    experiment = sexpgpu.load(Path(gpt.__file__).with_name(gpt.FILE), set=gpt.hypers(dict(size))).elaborated
    asked = settings(folder, steps=steps, precision="bfloat16" if precision == "bf16" else "off")
    device = open_cuda(asked, 0)
    try:
        given = gpt.batches(dict(size), 2)
        session = prepare(experiment, asked, device, batches=lambda step, microbatch: given[step % len(given)])
        session.model.start(initial_parameters(session.experiment, 0, asked.threads))
        timings = Timings(session)
        for step in range(1, steps + 1):
            begin = time.perf_counter_ns()
            session.step.run(step)
            timings.add(step, begin, time.perf_counter_ns())
        count = len(timings.steps)
        rows = [
            row for name, graph in timings.graphs.items() for row in graph_rows(name, graph, count, precision, limits)
        ]
        return sorted(rows, key=lambda row: -row.ms), timings.step_ns / count / 1e6
    finally:
        device.close()


def graph_rows(name: str, graph: GraphTimes, steps: int, precision: str, limits: Limits) -> list[Row]:
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, work in enumerate(graph.works):
        groups.setdefault((work.form, work.place, work.kind), []).append(number)
    rows = []
    for (form, place, kind), numbers in groups.items():
        works = [graph.works[number] for number in numbers]
        narrow = precision == "bf16" and kind == "product"
        least = sum(limits.seconds(work.flops, work.bytes, narrow) for work in works) * graph.calls / steps
        ms = float(graph.wall_ns[numbers].sum()) / steps / 1e6
        rows.append(Row(name, form, place, kind, len(numbers), ms, 1e3 * least))
    return rows


def measured(size_name: str = "gpt2-batch-8") -> tuple[str, str, dict[str, Any]]:
    """State, words and data of the section."""
    from peers.tasks import SIZES

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        facts: dict[str, Any] = {"lines": [], "products": {}, "steps": {}}
        device = open_cuda(settings(folder), 0)
        card = known(device.card.name)
        bandwidth = facts["copy_bytes_a_second"] = copy_rate(device)
        device.close()
        sheet = f" of {card.bytes_a_second / 1e12:.2f} by its data sheet" if card else ""
        facts["lines"].append(f"copy {bandwidth / 1e12:.2f} TB/s{sheet}")
        for engine in ("own", "library"):
            device = open_cuda(settings(folder, products=engine), 0)
            for dtype in ("f32", "bf16"):
                rate = facts["products"][f"{engine} {dtype}"] = product_rate(device, dtype)
                peak = (card.f32_flops if dtype == "f32" else card.bf16_flops) if card else 0.0
                share = f", {rate / peak:.0%} of the data sheet's" if peak else ""
                facts["lines"].append(f"product {SIDE}³ {dtype}, {engine}: {rate / 1e12:.1f} TFLOP/s{share}")
            device.close()
        limits = Limits(bandwidth, card.f32_flops if card else 0.0, card.bf16_flops if card else 0.0)
        for precision in ("f32", "bf16"):
            rows, ms = step_rows(SIZES[size_name][1], precision, limits, STEPS, folder)
            facts["steps"][precision] = {"ms": ms, "rows": [{**asdict(r), "share": r.share_of_bound} for r in rows]}
            least = sum(row.least_ms for row in rows)
            facts["lines"].append(
                f"{size_name} {precision}: {ms:.2f} ms a step, launches one by one; bound {least:.2f} ms"
            )
            facts["lines"] += [words_of(row) for row in rows[:SHOWN]]
    return "ok", f"copies at {bandwidth / 1e12:.2f} TB/s", facts


def words_of(row: Row) -> str:
    where = f"{row.form} {row.place}"
    return f"  {row.ms:8.3f} ms, {row.share_of_bound:4.0%} of its bound  {row.launches:4} × {row.kind:<10} {where}"
