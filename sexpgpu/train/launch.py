"""From a file and its settings to a finished run: what `sexpgpu run` and `Experiment.train` do."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sexpgpu
from sexpgpu.device import Device, choose, open_device
from sexpgpu.dist.exchange import Exchange, joined
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.installed import version_of
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.program import Program, load_program
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.settings import Settings, Sources, read_file, resolve
from sexpgpu.train import resume
from sexpgpu.train.cost import too_large_for_cpu
from sexpgpu.train.flatten import flatten
from sexpgpu.train.folder import RunFolder, create_run_folder, writing
from sexpgpu.train.identity import NUMERICS_VERSION, experiment_hash, graph_text, training_hash
from sexpgpu.train.loader import header as read_header
from sexpgpu.train.loop import Outcome, Training
from sexpgpu.train.metrics import not_written
from sexpgpu.train.model import initial_parameters
from sexpgpu.train.progress import Progress
from sexpgpu.train.resume import Resumed
from sexpgpu.train.session import Session, header, lowering_report, memory_line, prepare, unit_of
from sexpgpu.train.status import replace_json
from sexpgpu.train.stopping import Stopped, StopRequest

SMOKE = "smoke"


@dataclass(frozen=True)
class Request:
    """What was asked for. `sets` are KEY=VALUE; `flags` are settings given on the command line, by name."""

    file: Path
    variants: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    run: str | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    name: str | None = None
    allow_outside: bool = False
    resume: str | None = None

    @property
    def source(self) -> str:
        """File and variants, as the header shows them."""
        return ", ".join([self.file.name, *(f"variant {variant}" for variant in self.variants)])


def read_program(request: Request) -> Program:
    """The file's definitions. A variant smoke that the file does not have gets the line of the devices page."""
    program = load_program(
        request.file, request.variants, request.sets, request.run, allow_outside=request.allow_outside
    )  # fmt: skip
    if SMOKE in request.variants and SMOKE not in variants_of(program):
        for problem in program.problems:
            if problem.code == "E-NAME-006" and SMOKE in problem.message:
                problem.notes.append(no_smoke_line(request.file))
    return program


def read_experiment(request: Request, early: Settings) -> tuple[Program, Experiment]:
    """The file's program, and the experiment that it elaborates to."""
    program = read_program(request)
    steps = early.steps if early.origins["steps"] == "flag" else None
    return program, elaborate(program, lambda spec: read_header(spec, early.cache), steps=steps)


def variants_of(program: Program) -> list[str]:
    return [definition.name for definition in program.of_kind("variant")]


def no_smoke_line(file: Path) -> str:
    return f"no smoke variant: check it on the GPU with sexpgpu run {file} --device cuda --steps 3"


def early_settings(request: Request, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings as far as they are known before the file is read."""
    return resolve(_sources(request, environment, {}))


def final_settings(request: Request, experiment: Experiment, environment: Mapping[str, str] | None = None) -> Settings:
    """All settings, the run's own options among them."""
    options = experiment.options
    run = {"seed": options.seed, "steps": options.steps, "precision": options.precision}
    return resolve(_sources(request, environment, run))


def _sources(request: Request, environment: Mapping[str, str] | None, run: Mapping[str, Any]) -> Sources:
    file, path = read_file(request.file.parent)
    return Sources(request.flags, os.environ if environment is None else environment, run, file, path)


def run(request: Request, progress: Progress, stop: StopRequest | None = None) -> Outcome:
    """Train, from the file to the last line. Raises Error, Diagnostics, Stopped.

    Under a launcher this process is one rank; an error of any rank is said once and ends all of them.
    """
    with joined(os.environ, agreed=(Stopped,)) as exchange:
        return _run(request, progress if exchange.world.first else Progress(quiet=True), stop or StopRequest(), exchange)


def _run(request: Request, progress: Progress, stop: StopRequest, exchange: Exchange) -> Outcome:
    early = early_settings(request)
    choice = choose(early)
    if choice.kind == "cuda":
        open_device(choice, early)
    program, experiment = read_experiment(request, early)
    settings = final_settings(request, experiment)
    if settings.origins["threads"] == "default":
        # Ranks of a node share its cores out.
        settings = replace(settings, threads=exchange.threads)
    if choice.reason:
        progress.line(choice.reason)
    return train(request, program, experiment, settings, open_device(choice, settings), progress, stop, exchange)


def train(
    request: Request,
    program: Program,
    experiment: Experiment,
    settings: Settings,
    device: Device,
    progress: Progress,
    stop: StopRequest,
    exchange: Exchange,
) -> Outcome:
    """Everything after elaboration: plan, folder, initial values, loop, last words."""
    exchange.phase("planning and compiling")
    session = prepare(experiment, settings, device, exchange)
    experiment = session.experiment
    text = graph_text(experiment)
    digest = experiment_hash(experiment, text)
    progress.unit = unit_of(session)
    progress.line(header(session, request.source, digest))
    progress.line(lowering_report(session))
    if SMOKE not in variants_of(program) and too_large_for_cpu(session):
        progress.line(no_smoke_line(request.file))
    if experiment.options.diagnostics:
        progress.line("diagnostics are not written by this version: " + ", ".join(experiment.options.diagnostics))
    facts = _facts(session, digest)
    resumed = _resumed(request, session, facts, text, progress)
    if resumed is not None and resumed.step >= session.total_steps:
        progress.line(f"finished already: step {resumed.step} of {session.total_steps} in {resumed.folder.path}")
        return Outcome(resumed.folder.path, resumed.step, None, first=exchange.world.first)
    folder = resumed.folder if resumed else _new_folder(settings, request.name or experiment.name, digest, exchange)
    with writing(folder) if exchange.world.first else nullcontext():
        if exchange.world.first:
            progress.log_to(folder.log)
        if resumed is None:
            if exchange.world.first:
                try:
                    _describe(folder, request, program, settings, text)
                except OSError as problem:
                    raise not_written(folder.path, problem) from problem
            values = initial_parameters(experiment, settings.seed, settings.threads, normals=session.device.normals)
            session.model.start(values)
            del values
        else:
            # An earlier request to stop was heard; this launch is the answer to it.
            if exchange.world.first:
                folder.stop.unlink(missing_ok=True)
            session.model.resume(resumed.checkpoint.parameters, resumed.checkpoint.states)
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


def _describe(folder: RunFolder, request: Request, program: Program, settings: Settings, text: str) -> None:
    """The files that say what this run is."""
    folder.experiment.write_text(flatten(program), encoding="utf-8")
    folder.graph.write_text(text, encoding="utf-8")
    asked = {
        "file": str(request.file),
        "variants": list(request.variants),
        "set": list(request.sets),
        "run": request.run,
    }
    replace_json(folder.settings, {**asked, "hypers": hypers(program), "settings": settings.plain()})
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


def hypers(program: Program) -> dict[str, str]:
    """The value in force of every hyperparameter, as it would be written."""
    made = {}
    for definition in program.of_kind("hyper"):
        overrides = program.overrides.get(definition.name, ())
        made[definition.name] = print_form(overrides[-1].value if overrides else definition.matched.one("VALUE"))
    return made


def problems_of(error: Error | Diagnostics) -> Sequence[Error]:
    return error.errors if isinstance(error, Diagnostics) else [error]
