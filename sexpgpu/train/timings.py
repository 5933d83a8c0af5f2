"""Where the time of a step goes: every launch by form and line, as a table and as a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sexpgpu.backend import Call
from sexpgpu.train.session import Session

if TYPE_CHECKING:
    from sexpgpu.plan.work import Work

# The trace has the last so many steps, the table so many rows a graph.
TRACED_STEPS = 3
ROWS = 40
STEP_GRAPHS = ("train", "update")
_COLUMNS = ("launches", "ms", "share", "GF/s", "GB/s", "workers")


@dataclass(frozen=True)
class TimedStep:
    """A step and the calls since the one before it, evaluations among them. Times are ns of one clock."""

    step: int
    begin_ns: int
    end_ns: int
    calls: tuple[Call, ...]


class GraphTimes:
    """Sums over calls of one graph, by launch: wall time from the first worker's begin to the last one's end, and the
    workers' own time."""

    def __init__(self, works: Sequence[Work]) -> None:
        self.works = works
        self.calls = 0
        self.call_ns = 0
        self.wall_ns = np.zeros(len(works), np.int64)
        self.worked_ns = np.zeros(len(works), np.int64)

    def add(self, call: Call) -> None:
        launch, _, begin, end = call.events.T
        first = np.full(len(self.works), np.iinfo(np.int64).max)
        last = np.zeros(len(self.works), np.int64)
        np.minimum.at(first, launch, begin)
        np.maximum.at(last, launch, end)
        seen = last > 0
        self.wall_ns[seen] += last[seen] - first[seen]
        np.add.at(self.worked_ns, launch, end - begin)
        self.calls += 1
        self.call_ns += call.end_ns - call.begin_ns


class Timings:
    """Gathers the timed calls of a run. The first step touches memory for the first time, so it counts only if alone."""

    def __init__(self, session: Session) -> None:
        self._device = session.device
        named = {"train": session.step.training, "update": session.step.update}
        named |= {evaluator.evaluation.loader: evaluator.executable for evaluator in session.evaluators}
        self._names = {id(executable): name for name, executable in named.items()}
        self._begin()
        self._traced: deque[TimedStep] = deque(maxlen=TRACED_STEPS)

    def _begin(self) -> None:
        self.graphs: dict[str, GraphTimes] = {}
        self.steps: list[int] = []
        self.step_ns = 0

    def add(self, step: int, begin_ns: int, end_ns: int) -> None:
        """A step is done."""
        made = TimedStep(step, begin_ns, end_ns, tuple(self._device.timed_calls()))
        if len(self._traced) == 1:
            self._begin()
        self._traced.append(made)
        self.steps.append(step)
        self.step_ns += end_ns - begin_ns
        for call in made.calls:
            name = self._names[id(call.executable)]
            self.graphs.setdefault(name, GraphTimes(call.executable.works)).add(call)

    def report(self) -> str:
        """The table: the graphs of a step, a row each form and line; then those of evaluations, a call each."""
        if not self.steps:
            return "timings: no step was done"
        count = len(self.steps)
        steps = f"step {self.steps[0]}" if count == 1 else f"{count} steps ({self.steps[0]} to {self.steps[-1]})"
        lines = [f"timings: {steps}, {self.step_ns / count / 1e6:.3f} ms each", _cells("form", "place", "kind", _COLUMNS)]
        inside = 0
        for name in STEP_GRAPHS:
            if name in self.graphs:
                lines += graph_rows(name, self.graphs[name], count, self.step_ns)
                inside += self.graphs[name].call_ns
        lines.append(_row("feed, sums, checks", "", "host", None, self.step_ns - inside, count, self.step_ns))
        for name, graph in self.graphs.items():
            if name not in STEP_GRAPHS:
                lines.append(f"  {name}: {graph.calls} calls, {graph.call_ns / graph.calls / 1e6:.3f} ms each")
                lines += graph_rows(name, graph, graph.calls, graph.call_ns)
        return "\n".join(lines)

    def write_trace(self, path: Path) -> None:
        """The last steps in the trace event format."""
        import json

        path.write_text(json.dumps({"traceEvents": list(self._events()), "displayTimeUnit": "ms"}), encoding="utf-8")

    def _events(self) -> Iterator[dict[str, Any]]:
        workers = {int(w) for step in self._traced for call in step.calls for w in call.events[:, 1]}
        for number, name in [(0, "steps"), *((w + 1, f"worker {w}") for w in sorted(workers))]:
            yield {"name": "thread_name", "ph": "M", "pid": 0, "tid": number, "args": {"name": name}}
        for step in self._traced:
            yield _event(f"step {step.step}", "step", 0, step.begin_ns, step.end_ns, {})
            for call in step.calls:
                yield from _call_events(self._names[id(call.executable)], call)


def _call_events(graph: str, call: Call) -> Iterator[dict[str, Any]]:
    yield _event(graph, "call", 0, call.begin_ns, call.end_ns, {})
    works = call.executable.works
    for launch, worker, begin, end in call.events.tolist():
        work = works[launch]
        facts = {"place": work.place, "graph": graph, "launch": launch, "flops": work.flops, "bytes": work.bytes}
        yield _event(work.form, work.kind, worker + 1, begin, end, facts)


def _event(name: str, kind: str, thread: int, begin: int, end: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """A whole event; times are microseconds."""
    times = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
    return {"name": name, "cat": kind, "ph": "X", "pid": 0, "tid": thread, **times, "args": facts}


def graph_rows(name: str, graph: GraphTimes, count: int, whole_ns: int) -> list[str]:
    """Rows of a graph, the longest first, each an average of `count`; the last is the time between its launches."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for number, work in enumerate(graph.works):
        groups.setdefault((work.form, work.place, work.kind), []).append(number)
    ordered = sorted(groups.values(), key=lambda numbers: -int(graph.wall_ns[numbers].sum()))
    shown = [_group_row(graph, numbers, count, whole_ns) for numbers in ordered[:ROWS]]
    rest = [number for numbers in ordered[ROWS:] for number in numbers]
    if rest:
        wall = int(graph.wall_ns[rest].sum())
        shown.append(_row(f"{len(ordered) - ROWS} more of {name}", "", "", len(rest), wall, count, whole_ns))
    between = graph.call_ns - int(graph.wall_ns.sum())
    return [*shown, _row(f"between launches of {name}", "", "tape", None, between, count, whole_ns)]


def _group_row(graph: GraphTimes, numbers: list[int], count: int, whole_ns: int) -> str:
    first = graph.works[numbers[0]]
    wall, worked = int(graph.wall_ns[numbers].sum()), int(graph.worked_ns[numbers].sum())
    launches = len(numbers) * graph.calls / count
    flops = graph.calls * sum(graph.works[n].flops for n in numbers)
    size = graph.calls * sum(graph.works[n].bytes for n in numbers)
    # A product is bound by its arithmetic, everything else by memory. Both are per ns, so G per second.
    rates = (_rate(flops, wall), "") if flops else ("", _rate(size, wall))
    return _row(first.form, first.place, first.kind, launches, wall, count, whole_ns, (*rates, _rate(worked, wall)))


def _rate(amount: int, wall_ns: int) -> str:
    return f"{amount / wall_ns:.1f}" if wall_ns else ""


def _row(
    form: str,
    place: str,
    kind: str,
    launches: float | None,
    ns: int,
    count: int,
    whole_ns: int,
    rates: Iterable[str] = ("", "", ""),
) -> str:
    shown = "" if launches is None else f"{launches:g}"
    share = f"{100 * ns / whole_ns:.1f}%" if whole_ns else ""
    return _cells(form, place, kind, (shown, f"{ns / count / 1e6:.3f}", share, *rates))


def _cells(form: str, place: str, kind: str, figures: Iterable[str]) -> str:
    return f"  {form:<38}  {place:<20}  {kind:<12}{''.join(f'{figure:>9}' for figure in figures)}".rstrip()
