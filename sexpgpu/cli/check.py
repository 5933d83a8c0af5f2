"""`sexpgpu check`: everything short of running, as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from sexpgpu.cli.run import as_problem, json_text
from sexpgpu.device import Device, choose, open_device
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.ir.graph import Node
from sexpgpu.lang.program import Program
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC
from sexpgpu.passes.experiment import Experiment
from sexpgpu.settings import Settings
from sexpgpu.train.cost import Cost, step_cost, too_large_for_cpu
from sexpgpu.train.inherit import asked_for, inherited, located
from sexpgpu.train.launch import problems_of
from sexpgpu.train.model import parameter_count
from sexpgpu.train.progress import size_words
from sexpgpu.train.request import (
    SMOKE,
    Request,
    early_settings,
    final_settings,
    no_smoke_line,
    read_experiment,
    variants_of,
)
from sexpgpu.train.session import Session, counted, lowering_report, prepare

if TYPE_CHECKING:
    from sexpgpu.cli.check_card import CardReport


def check_request(request: Request, as_json: bool, card: str | None = None) -> str:
    """The report. Raises Error or Diagnostics as `run` would. `card`: as on such a card, which need not be here."""
    try:
        early = early_settings(request)
        device = open_device(choose(early), early) if card is None else _planned_card(card, early)
        try:
            return _report(request, early, device, as_json)
        finally:
            device.close()
    except (Error, Diagnostics) as problem:
        if as_json:
            click.echo(json_text({"errors": [as_problem(error) for error in problems_of(problem)]}))
        raise


def _report(request: Request, early: Settings, device: Device, as_json: bool) -> str:
    """What a run on this device would be; nothing is run."""
    program, experiment = read_experiment(request, early)
    session = prepare(experiment, final_settings(request, experiment), device)
    cost = step_cost(session)
    how = how_to_try(request, program, session)
    on_card = _card_report(session)
    begins = beginning(request, session)
    if as_json:
        return json_text(as_facts(session, cost, how) | (on_card.facts() if on_card else {}))
    parts = [
        f"{request.source}: no errors",
        *warnings(program, experiment),
        parameter_table(experiment),
        *begins,
        cost_lines(session, cost),
    ]
    parts += [lowering_report(session), *([on_card.text()] if on_card else []), memory_lines(session), how]
    return "\n\n".join(parts)


def beginning(request: Request, session: Session) -> list[str]:
    """What `:init` gives, fitted to the parameters; that it is not there yet is no error before the run."""
    init = asked_for(session.experiment, request.init)
    if init is None:
        return []
    try:
        path = located(init, session.settings.out, lambda line: None)
    except Error as problem:
        return ["\n".join([f"init: not there yet: {problem.message}", *problem.notes])]
    return ["\n".join(inherited(session.experiment, init, path).lines())]


def _planned_card(name: str, settings: Settings) -> Device:
    from sexpgpu.cli.check_card import planned_card

    return planned_card(name, settings)


def _card_report(session: Session) -> CardReport | None:
    """None: the device is one that is here."""
    if session.device.kind == "cpu":
        return None
    from sexpgpu.cli.check_card import CardReport
    from sexpgpu.cuda.planned import PlannedCard

    return CardReport(session, session.device) if isinstance(session.device, PlannedCard) else None


def warnings(program: Program, experiment: Experiment) -> list[str]:
    """What is allowed and perhaps not meant."""
    known = {*program.prelude, *BUILTINS, *CONSTANTS, *DYNAMIC}
    shadowed = [d for name, d in program.definitions.items() if name in known]
    lines = [f"warning: {d.matched.symbol().span.place}: {d.name} replaces the prelude's in your files" for d in shadowed]
    lines += [f"warning: {words}" for words in experiment.warnings]
    lines += small_tables(experiment)
    return ["\n".join(lines)] if lines else []


def small_tables(experiment: Experiment) -> list[str]:
    """Tables with fewer rows than the data's tokens may ask for."""
    vocabulary = experiment.headers[experiment.options.data].vocabulary
    lines = []
    for node in experiment.training.nodes:
        if node.op != "take" or vocabulary is None or not _is_field(node.inputs[1]):
            continue
        rows = node.inputs[0].shape[node.attributes["axis"]]
        if rows < vocabulary:
            span = node.origins[0].span if node.origins else None
            place = f"{span.place}: " if span else ""
            lines.append(f"warning: {place}a table of {rows} for tokens below {vocabulary}")
    return lines


def _is_field(node: Node) -> bool:
    while node.op in ("cast", "reshape"):
        node = node.inputs[0]
    return node.op == "input" and node.attributes["kind"] == "field"


def parameter_table(experiment: Experiment) -> str:
    """Name, shape, how many, first value, whether it decays and is trained."""
    rows: list[Sequence[str]] = [("parameter", "shape", "numbers", "starts", "")]
    for p in experiment.parameters:
        marks = (
            "buffer"
            if p.buffer
            else " ".join(word for word, holds in (("decays", p.decay), ("not trained", not p.trainable)) if holds)
        )
        shape, law = " ".join(map(str, p.shape)) or "scalar", p.initializer.text().strip("()")
        rows.append((p.name, shape, f"{prod(p.shape):,}", law, marks))
    rows.append(("total", "", f"{parameter_count(experiment):,}", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(
            cell.rjust(w) if column == 2 else cell.ljust(w) for column, (cell, w) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    )


def cost_lines(session: Session, cost: Cost) -> str:
    steps = counted(session.total_steps, "step")
    return f"a step: {cost.tokens:,} {cost.unit}, {cost.flops / 1e9:,.3f} GFLOP in products; {steps}"


def memory_lines(session: Session) -> str:
    """The parts of the memory plan; empty parts are left out."""
    parts = asdict(session.memory)
    where = parts.pop("peak_at")
    lines = [f"  {name:<12}{size_words(size):>12}" for name, size in parts.items() if size]
    lines.append(f"  {'planned':<12}{size_words(session.memory.planned):>12}, at its most in {where}")
    return "\n".join(["memory plan", *lines])


def how_to_try(request: Request, program: Program, session: Session) -> str:
    """The last line: the command that tries this file before a GPU is paid for."""
    file = f"{request.file} --run {request.run}" if request.run else str(request.file)
    if SMOKE in variants_of(program):
        return f"try it: sexpgpu run {file} --variant smoke --steps 3 --device cpu"
    if too_large_for_cpu(session):
        return no_smoke_line(request.file)
    return f"try it: sexpgpu run {file} --steps 3 --device cpu"


def as_facts(session: Session, cost: Cost, how: str) -> dict[str, object]:
    parameters = [
        {"name": p.name, "shape": list(p.shape), "decays": p.decay, "trained": p.trainable}
        for p in session.experiment.parameters
    ]
    memory = {**asdict(session.memory), "planned": session.memory.planned}
    return {"errors": [], "parameters": parameters, "step": asdict(cost), "memory": memory, "try": how}
