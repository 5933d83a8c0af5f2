"""From a file and its settings to a finished run: what `sexpgpu run` and `Experiment.train` do."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import sexpgpu
from sexpgpu.device import Device, choose, open_device, refuse_absent
from sexpgpu.dist.exchange import Exchange, joined
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.installed import version_of
from sexpgpu.settings import Settings
from sexpgpu.train import resume
from sexpgpu.train.cost import too_large_for_cpu
from sexpgpu.train.folder import RunFolder, create_run_folder, writing
from sexpgpu.train.identity import NUMERICS_VERSION, experiment_hash, graph_text, training_hash
from sexpgpu.train.inherit import Inherited, asked_for, begun, inherited, located
from sexpgpu.train.loop import Outcome, Training
from sexpgpu.train.metrics import not_written
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import SMOKE, Request, early_settings, final_settings, no_smoke_line
from sexpgpu.train.resume import Resumed
from sexpgpu.train.session import Session, header, lowering_report, memory_line, prepare, unit_of
from sexpgpu.train.start import Start, Starts, fresh
from sexpgpu.train.status import replace_json
from sexpgpu.train.stopping import Stopped, StopRequest


def run(request: Request, progress: Progress, stop: StopRequest | None = None) -> Outcome:
    """Train, from the file to the last line. Raises Error, Diagnostics, Stopped.

    Under a launcher this process is one rank; an error of any rank is said once and ends all of them.
    """
    with joined(os.environ, agreed=(Stopped,)) as exchange:
        return _run(
            request, progress if exchange.world.first else Progress(quiet=True), stop or StopRequest(), exchange
        )


def _run(request: Request, progress: Progress, stop: StopRequest, exchange: Exchange) -> Outcome:
    early = early_settings(request)
    choice = choose(early)
    refuse_absent(choice, early.devices)
    ranks = exchange.world.size
    starts = Starts(request, early, progress.line, ranks)
    start = starts.find() or fresh(request, early, ranks)
    settings = final_settings(request, start.experiment)
    if settings.origins["threads"] == "default":
        # Ranks of a node share its cores out.
        settings = replace(settings, threads=exchange.threads)
    if choice.reason:
        progress.line(choice.reason)
    device = open_device(choice, settings)
    try:
        session = prepared(start, starts, settings, device, exchange)
        return train(request, start, session, progress, stop)
    finally:
        device.close()


def prepared(start: Start, starts: Starts, settings: Settings, device: Device, exchange: Exchange) -> Session:
    """The run, ready for its first step; what is new of it is kept for the next start."""
    exchange.phase("planning and compiling")
    session = prepare(start.experiment, settings, device, exchange, graphs=start.graphs)
    if start.graphs is None and exchange.world.first:
        starts.keep(start, session.experiment.options.precision, session.step.graphs)
    return session


def train(request: Request, start: Start, session: Session, progress: Progress, stop: StopRequest) -> Outcome:
    """Everything after planning: folder, initial values, loop, last words."""
    experiment, settings, device, exchange = session.experiment, session.settings, session.device, session.exchange
    text = graph_text(experiment)
    digest = experiment_hash(experiment, text)
    progress.unit = unit_of(session)
    progress.line(header(session, request.source, digest))
    for words in experiment.warnings:
        progress.line(f"warning: {words}")
    progress.line(lowering_report(session))
    if SMOKE not in start.variants and too_large_for_cpu(session):
        progress.line(no_smoke_line(request.file))
    if experiment.options.diagnostics:
        progress.line("diagnostics are not written by this version: " + ", ".join(experiment.options.diagnostics))
    facts = _facts(session, digest)
    resumed = _resumed(request, session, facts, text, progress)
    if resumed is not None and resumed.step >= session.total_steps:
        progress.line(f"finished already: step {resumed.step} of {session.total_steps} in {resumed.folder.path}")
        return Outcome(resumed.folder.path, resumed.step, None, first=exchange.world.first)
    begins = None if resumed else _inherited(request, session, progress)
    folder = resumed.folder if resumed else _new_folder(settings, request.name or experiment.name, digest, exchange)
    with writing(folder) if exchange.world.first else nullcontext():
        if exchange.world.first:
            progress.log_to(folder.log)
        if resumed is None:
            if exchange.world.first:
                try:
                    _describe(folder, request, start, settings, text, begins)
                except OSError as problem:
                    raise not_written(folder.path, problem) from problem
            given = begins.taken if begins else {}
            session.model.start(begun(experiment, settings.seed, settings.threads, given, device.normals))
        else:
            # An earlier request to stop was heard; this launch is the answer to it.
            if exchange.world.first:
                folder.stop.unlink(missing_ok=True)
            found = resumed.checkpoint
            session.model.resume(found.parameters, found.states, found.averages)
            progress.line(f"resumed from step {resumed.step}: {resumed.checkpoint.path}")
        stop.watch(folder.stop)
        state = resumed.checkpoint.state if resumed else None
        try:
            outcome = Training(session, folder, progress, stop, facts, resumed=state).run()
        finally:
            progress.line(f"results: {folder.path}")
            progress.line(memory_line(device.peak_bytes(), session.memory.planned))
            progress.close()
    return outcome


def _resumed(
    request: Request, session: Session, facts: Mapping[str, Any], text: str, progress: Progress
) -> Resumed | None:
    """The checkpoint that the run goes on from, checked; None for a fresh start."""
    if request.resume is None:
        return None
    exchange = session.exchange
    resumed = None
    if exchange.world.first:
        name = request.name or session.experiment.name
        resumed = resume.find(session.settings.out, name, request.resume, progress.line)
    # Rank zero chooses, the others are told.
    path = exchange.broadcast("" if resumed is None else str(resumed.checkpoint.path))
    if path and resumed is None:
        resumed = resume.find(session.settings.out, "", path, progress.line)
    if resumed is not None:
        resume.check(resumed, facts, text, progress.line)
    return resumed


def _inherited(request: Request, session: Session, progress: Progress) -> Inherited | None:
    """What a fresh run begins with, where it asks for another's tensors."""
    init = asked_for(session.experiment, request.init)
    if init is None:
        return None
    exchange = session.exchange
    path = str(located(init, session.settings.out, progress.line)) if exchange.world.first else ""
    # Rank zero chooses, the others are told.
    found = inherited(session.experiment, init, Path(exchange.broadcast(path)))
    for line in found.lines():
        progress.line(line)
    return found


def _new_folder(settings: Settings, run: str, digest: str, exchange: Exchange) -> RunFolder:
    """A run folder that rank zero makes."""
    made = str(create_run_folder(settings.out, run, digest).path) if exchange.world.first else ""
    return RunFolder(Path(exchange.broadcast(made)))


def _facts(session: Session, digest: str) -> dict[str, Any]:
    """What state.json holds beside the step: enough to go on, and to see what differs."""
    options = session.experiment.options
    return {
        "total-steps": session.total_steps,
        "microbatches": session.microbatches,
        "global-batch": options.global_batch,
        "ranks": session.exchange.world.size,
        "nodes": session.exchange.world.nodes,
        "seed": session.settings.seed,
        "precision": session.settings.precision,
        "experiment-hash": digest,
        "training-hash": training_hash(session.experiment, session.settings.seed),
        "numerics": NUMERICS_VERSION,
        "device": session.device.description,
        "stacking": 1,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    names = ("numpy", "numba", "llvmlite")
    own = {"sexpgpu": sexpgpu.__version__, "python": platform.python_version()}
    return own | {name: version_of(name) for name in names}


def _describe(
    folder: RunFolder, request: Request, start: Start, settings: Settings, text: str, begins: Inherited | None
) -> None:
    """The files that say what this run is."""
    folder.experiment.write_text(start.text, encoding="utf-8")
    folder.graph.write_text(text, encoding="utf-8")
    asked = {
        "file": str(request.file),
        "variants": list(request.variants),
        "set": list(request.sets),
        "run": request.run,
        "init": str(begins.path.absolute()) if begins else None,
    }
    replace_json(folder.settings, {**asked, "hypers": start.hypers, "settings": settings.plain()})
    # platform.platform() reads the interpreter's file to name the C library too, which takes 13 ms.
    system = os.uname()
    environment = {name: value for name, value in os.environ.items() if name.startswith(("SEXPGPU_", "OMP_"))}
    facts = {
        "argv": sys.argv,
        "platform": f"{system.sysname}-{system.release}-{system.machine}",
        "machine": platform.machine(),
        "threads": settings.threads,
    }
    replace_json(folder.environment, {**facts, "versions": versions(), "variables": environment})


def problems_of(error: Error | Diagnostics) -> Sequence[Error]:
    return error.errors if isinstance(error, Diagnostics) else [error]
