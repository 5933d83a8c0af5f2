"""The training loop: step, record, evaluation, checkpoint, in this order, until the end or a request to stop."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from sexpgpu.dist.exchange import Exchange
from sexpgpu.errors import Error
from sexpgpu.passes.experiment import Checkpoint, Stop
from sexpgpu.train import checkpoint
from sexpgpu.train.folder import RunFolder
from sexpgpu.train.metrics import MetricsWriter
from sexpgpu.train.model import Model
from sexpgpu.train.progress import Progress
from sexpgpu.train.session import Session, lowering_report, memory_annotation
from sexpgpu.train.status import State, Status, StatusWriter
from sexpgpu.train.step import StepResult, not_finite_words
from sexpgpu.train.stopping import Stopped, StopRequest

if TYPE_CHECKING:
    from sexpgpu.train.timings import Timings


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended: its last step, loss and evaluations."""

    path: Path
    step: int
    loss: float | None
    evaluations: Mapping[str, float] = msgspec.field(default_factory=dict)
    # Whether this rank speaks for the run.
    first: bool = True


class Training:
    """One run in its folder."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        progress: Progress,
        request: StopRequest,
        facts: Mapping[str, Any],
        clock: Callable[[], float] = time.time,
        resumed: Mapping[str, Any] | None = None,
    ) -> None:
        """`resumed`: the state.json of the checkpoint that the session's model was loaded from."""
        self.session, self.folder, self.progress, self.request, self.facts = session, folder, progress, request, facts
        self.clock = clock
        self.exchange = session.exchange
        # Rank zero alone writes the run folder.
        self.writes = self.exchange.world.first
        self.metrics: MetricsWriter | Unwritten = MetricsWriter(folder.metrics) if self.writes else Unwritten()
        self.status: StatusWriter | Unwritten = StatusWriter(folder.status) if self.writes else Unwritten()
        self.total = session.total_steps
        self.loss: float | None = None
        self.evaluations: dict[str, float] = {}
        self.stopper = Patience(session.experiment.options.stop)
        self.best = Best(session.experiment.options.checkpoint)
        self._saved: int | None = None
        self._first = 1
        if resumed is not None:
            self._first = int(resumed["step"]) + 1
            self._saved = int(resumed["step"])
            self.stopper.restore(resumed.get("patience", {}))
            self.best.restore(resumed.get("best", {}))
            session.step.scale.restore(resumed.get("loss-scale", {}))
        self.timings = _timings(session) if session.settings.timings else None
        self._begin = clock()

    def run(self) -> Outcome:
        """Train to the end. The status file says how it ended, whatever happens."""
        step = self._first - 1
        try:
            if step:
                self.metrics.write({"kind": "annotation", "name": "resume", "from": step})
            self._annotate()
            self.progress.start(self.total)
            for step in range(self._first, self.total + 1):
                self._say("running", step - 1)
                self._step(step)
                if self.stopper.reached:
                    self.progress.line(self.stopper.words(step))
                    break
                self._stop_if_asked(step)
            self._save(step)
        except Stopped:
            self._say("interrupted", step)
            raise
        except Error as error:
            self._say("failed", step, error.code)
            raise
        except BaseException:
            self._say("failed", step)
            raise
        finally:
            peak, planned = self.session.device.peak_bytes(), self.session.memory.planned
            self.metrics.write({"kind": "annotation", "name": "memory-peak", "peak": peak, "planned": planned})
            self.metrics.close()
            if self.timings is not None and self.writes:
                self._report(self.timings)
        self._say("done", step)
        return Outcome(self.folder.path, step, self.loss, dict(self.evaluations), self.writes)

    def _annotate(self) -> None:
        self.metrics.write(memory_annotation(self.session))
        self.metrics.write({"kind": "annotation", "name": "stacking", "degree": 1, "how": "a call is one microbatch"})
        rows = {name: asdict(lowering) for name, lowering in self.session.lowerings.items()}
        self.metrics.write(
            {"kind": "annotation", "name": "lowering", "device": self.session.device.description, "graphs": rows}
        )
        if self.writes:
            self.folder.lowering.write_text(lowering_report(self.session) + "\n", encoding="utf-8")

    def _report(self, timings: Timings) -> None:
        """The table of times, also at the end of the lowering report, and the trace."""
        report = timings.report()
        self.progress.line(report)
        try:
            with self.folder.lowering.open("a", encoding="utf-8") as file:
                file.write(f"{report}\n")
            timings.write_trace(self.folder.trace)
        except OSError as problem:
            self.progress.line(f"the times are not written: {problem}")
        else:
            self.progress.line(f"trace of the last steps, for chrome://tracing or ui.perfetto.dev: {self.folder.trace}")

    def _step(self, step: int) -> None:
        self.exchange.phase(f"step {step}")
        begin = time.perf_counter_ns()
        result = self.session.step.run(step)
        end = time.perf_counter_ns()
        seconds = (end - begin) / 1e9
        if self.timings is not None:
            self.timings.add(step, begin, end)
        self.loss = result.loss
        for line in self.session.device.report():
            self.progress.line(line)
            self.metrics.write({"kind": "annotation", "name": "device", "step": step, "words": line})
        if result.loss_scale is not None:
            self._tell_scale(step, result, result.loss_scale)
        record = self._record(step, result, seconds)
        if step % self.session.experiment.options.log_every == 0 or step == self.total:
            self.metrics.write(record)
        self.progress.step(step, self.total, record)
        self._evaluate(step)
        options = self.session.experiment.options.checkpoint
        if options is not None and step % options.every == 0 and step != self.total:
            self._save(step)

    def _tell_scale(self, step: int, result: StepResult, before: float) -> None:
        """What `:precision float16` did: a step that was skipped, a scale that changed."""
        after = self.session.step.scale.value
        if after != before:
            facts = {"applied": result.applied, "from": before, "to": after}
            self.metrics.write({"kind": "annotation", "name": "loss-scale", "step": step, **facts})
        if not result.applied:
            why = not_finite_words(result.loss, result.gradient_norm)
            self.progress.line(f"step {step}/{self.total} is skipped: {why}; loss scale {before:.0f} → {after:.0f}")

    def _record(self, step: int, result: StepResult, seconds: float) -> dict[str, Any]:
        feed = self.session.step.feed
        examples = sum(feed.portions.real(step, microbatch) for microbatch in range(feed.microbatches(step)))
        record: dict[str, Any] = {"kind": "step", "step": step, "time": self.clock(), "train/loss": result.loss}
        if result.learning_rate is not None:
            record["train/lr"] = result.learning_rate
        record["train/grad_norm"] = result.gradient_norm
        if result.loss_scale is not None:
            record["train/loss_scale"] = result.loss_scale
        record["throughput/tokens_per_s"] = examples * self.session.tokens_per_example / seconds
        record["runtime/peak_bytes"] = self.session.device.peak_bytes()
        record["runtime/step_ms"] = seconds * 1e3
        return record

    def _evaluate(self, step: int) -> None:
        for evaluator in self.session.evaluators:
            if evaluator.due(step, self.total):
                found = evaluator.run(step, self.total, self.session.step.updates(step))
                self.evaluations |= found
                self.metrics.write({"kind": "eval", "step": step, "time": self.clock(), **found})
                words = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
                self.progress.line(f"step {step:>{len(str(self.total))}}/{self.total}  {words}")
                self.stopper.see(found)
                self.best.see(found, step)

    def _stop_if_asked(self, step: int) -> None:
        # Ranks leave together: a signal that one of them got, or a file that one saw first, is all ranks'.
        mine = (self.request.exit_code or 0) + 1 if self.request.asked() else 0
        agreed = self.exchange.agree(mine)
        if agreed and step < self.total:
            self._save(step)
            self.progress.line(f"stopped after step {step}")
            raise Stopped(agreed - 1)

    def _save(self, step: int) -> None:
        """Write a checkpoint of this step, then remove those that `:keep` does not keep."""
        if self._saved == step:
            return
        self._say("checkpointing", step)
        self._saved = step
        if self.exchange.world.size > 1:
            self.exchange.phase(f"checkpoint of step {step}")
            refuse_disagreement(self.exchange, self.session.model, step)
        if self.writes:
            self._write_checkpoint(step)

    def _unread(self, memories: Mapping[str, Any]) -> dict[str, checkpoint.Unread]:
        """Tensors of the device as a checkpoint takes them."""
        look = self.session.device.look
        return {
            name: checkpoint.Unread(np.dtype(np.float32), memory.type.shape, partial(look, memory))
            for name, memory in memories.items()
        }

    def _write_checkpoint(self, step: int) -> None:
        model, folder = self.session.model, self.folder
        state = {"step": step, "patience": self.stopper.state(), "best": self.best.state(), **self.facts}
        if self.session.step.scale.dynamic:
            state["loss-scale"] = self.session.step.scale.state()
        copies = [path for path in (folder.experiment, folder.settings, folder.graph) if path.exists()]
        held = (model.parameters, model.states, model.averages)
        parameters, states, averages = (self._unread(memories) for memories in held)
        path = checkpoint.save(folder.checkpoints, step, parameters, states, state, copies, averages)
        self.metrics.write({"kind": "annotation", "name": "checkpoint", "step": step, "path": path.name})
        options = self.session.experiment.options.checkpoint
        if options is not None and options.keep is not None:
            best = [] if self.best.step is None else [folder.checkpoints / checkpoint.folder_name(self.best.step)]
            checkpoint.prune(folder.checkpoints, options.keep, best)

    def _say(self, state: State, step: int, code: str | None = None) -> None:
        done = step - self._first + 1
        eta = (self.clock() - self._begin) / done * (self.total - step) if done > 0 else None
        loss = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        self.status.update(
            Status(state, step, self.total, os.getpid(), os.uname().nodename, self.exchange.world.size, loss, eta, code)
        )


def _timings(session: Session) -> Timings:
    """Imported by the runs that ask for it."""
    from sexpgpu.train.timings import Timings

    return Timings(session)


class Unwritten:
    """What ranks other than zero have for a file of the run folder."""

    def write(self, record: Mapping[str, Any]) -> None:
        """Rank zero writes it."""

    def update(self, status: Status) -> None:
        """Rank zero writes it."""

    def close(self) -> None:
        """Nothing is open."""


def refuse_disagreement(exchange: Exchange, model: Model, step: int) -> None:
    """E-DP-004 where a rank's parameters or states are not those of rank zero, bit for bit."""
    from xxhash import xxh3_64_intdigest

    averages = {f"average of {name}": memory for name, memory in model.averages.items()}
    memories = {**model.parameters, **model.states, **averages}
    mine = {name: xxh3_64_intdigest(model.device.look(memory).data) for name, memory in memories.items()}
    told = exchange.broadcast(mine)
    differing = [name for name in mine if mine[name] != told[name]]
    if exchange.agree(len(differing)):
        found = (
            f"{differing[0]} of rank {exchange.world.rank} is not that of rank 0"
            if differing
            else "another rank's differs"
        )
        raise Error(
            "E-DP-004",
            f"the ranks' parameters or optimizer states disagree at step {step}: {found}",
            notes=[
                f"{exchange.world.size} ranks, SEXPGPU_DEVICES={os.environ.get('SEXPGPU_DEVICES', '')}",
                "this checkpoint was not written: --resume latest continues from the one before",
            ],
        )


class Patience:
    """`:stop (patience 5 held-out/loss)`: so many evaluations without a lower value end the run."""

    def __init__(self, stop: Stop | None) -> None:
        self.stop = stop
        self.lowest = math.inf
        self.waited = 0

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"lowest": self.lowest if math.isfinite(self.lowest) else None, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        lowest = state.get("lowest")
        self.lowest = math.inf if lowest is None else lowest
        self.waited = state.get("waited", 0)

    @property
    def reached(self) -> bool:
        return self.stop is not None and self.waited >= self.stop.patience

    def see(self, found: Mapping[str, float]) -> None:
        if self.stop is None or self.stop.record not in found:
            return
        value = found[self.stop.record]
        self.waited = 0 if value < self.lowest else self.waited + 1
        self.lowest = min(self.lowest, value)

    def words(self, step: int) -> str:
        assert self.stop is not None
        return f"ends after step {step}: {self.stop.record} has not fallen in {self.waited} evaluations (:stop)"


class Best:
    """`:best held-out/loss min`: the step whose checkpoint is kept beside the newest."""

    def __init__(self, options: Checkpoint | None) -> None:
        self.rule: tuple[str, str] | None = None if options is None else options.best
        self.every: int = 1 if options is None else options.every
        self.value: float | None = None
        self.step: int | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"value": self.value, "step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.value, self.step = state.get("value"), state.get("step")

    def see(self, found: Mapping[str, float], step: int) -> None:
        if self.rule is None or self.rule[0] not in found or step % self.every:
            return
        value = found[self.rule[0]]
        if math.isnan(value):
            return
        better = self.value is None or (value < self.value if self.rule[1] == "min" else value > self.value)
        if better:
            self.value, self.step = value, step
