"""What was asked for: a file with its variants, values and settings; and the experiment that it says."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sexpgpu.settings import Settings, Sources, read_file, resolve
from sexpgpu.train.loader import header

if TYPE_CHECKING:
    from sexpgpu.lang.program import Program
    from sexpgpu.loaderspec import Header, LoaderSpec
    from sexpgpu.passes.experiment import Experiment
    from sexpgpu.source import Source

SMOKE = "smoke"


class Request(msgspec.Struct, frozen=True):
    """What was asked for. `sets` are KEY=VALUE; `flags` are settings given on the command line, by name."""

    file: Path
    variants: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    run: str | None = None
    flags: Mapping[str, Any] = msgspec.field(default_factory=dict)
    name: str | None = None
    allow_outside: bool = False
    resume: str | None = None
    init: str | None = None

    @property
    def source(self) -> str:
        """File and variants, as the header shows them."""
        return ", ".join([self.file.name, *(f"variant {variant}" for variant in self.variants)])


def read_program(request: Request) -> Program:
    """The file's definitions. A variant smoke that the file does not have gets the line of the devices page."""
    from sexpgpu.lang.program import load_program

    program = load_program(
        request.file, request.variants, request.sets, request.run, allow_outside=request.allow_outside
    )  # fmt: skip
    if SMOKE in request.variants and SMOKE not in variants_of(program):
        for problem in program.problems:
            if problem.code == "E-NAME-006" and SMOKE in problem.message:
                problem.notes.append(no_smoke_line(request.file))
    return program


def program_again(request: Request, source: Source) -> Program:
    """The program of a file's text as it was read before."""
    from sexpgpu.lang.program import program_of

    return program_of(source, request.variants, request.sets, request.run, allow_outside=request.allow_outside)


def elaborated(
    program: Program, early: Settings, read: Callable[[LoaderSpec], Header] | None = None, ranks: int = 1
) -> Experiment:
    """The experiment that a program says; `read` gives the headers of its data."""
    from sexpgpu.passes.elaborate import elaborate

    return elaborate(program, read or (lambda spec: header(spec, early.cache)), steps=steps_flag(early), ranks=ranks)


def read_experiment(request: Request, early: Settings) -> tuple[Program, Experiment]:
    """The file's program, and the experiment that it elaborates to."""
    program = read_program(request)
    return program, elaborated(program, early)


def steps_flag(early: Settings) -> int | None:
    """`--steps`, which wins over the run's :steps or :epochs."""
    return early.steps if early.origins["steps"] == "flag" else None


def variants_of(program: Program) -> tuple[str, ...]:
    return tuple(definition.name for definition in program.of_kind("variant"))


def hypers_of(program: Program) -> dict[str, str]:
    """The value in force of every hyperparameter, as it would be written."""
    from sexpgpu.lang.printer import print_form

    made = {}
    for definition in program.of_kind("hyper"):
        overrides = program.overrides.get(definition.name, ())
        made[definition.name] = print_form(overrides[-1].value if overrides else definition.matched.one("VALUE"))
    return made


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
