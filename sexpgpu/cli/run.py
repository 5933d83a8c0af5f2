"""`sexpgpu run` and `train`: signals, the run itself, its result on stdout."""

from __future__ import annotations

import click

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.settings import explain, unknown_variables
from sexpgpu.train.launch import problems_of, run
from sexpgpu.train.loop import Outcome
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request, early_settings
from sexpgpu.train.stopping import StopRequest, listening


def explain_settings(request: Request) -> str:
    return explain(early_settings(request))


def run_request(request: Request, progress: Progress, as_json: bool) -> None:
    """Train; on stdout the run's folder, or with --json its outcome."""
    import os

    for line in unknown_variables(os.environ):
        progress.line(line)
    stop = StopRequest()
    try:
        with listening(stop, progress.line):
            outcome = run(request, progress, stop)
    except (Error, Diagnostics) as problem:
        if as_json:
            click.echo(json_text({"errors": [as_problem(error) for error in problems_of(problem)]}))
        raise
    if outcome.first:
        click.echo(json_text(result(outcome)) if as_json else str(outcome.path))


def result(outcome: Outcome) -> dict[str, object]:
    return {"run": str(outcome.path), "step": outcome.step, "train/loss": outcome.loss, **outcome.evaluations}


def as_problem(error: Error) -> dict[str, object]:
    place = (
        {}
        if error.span is None
        else {"file": error.span.source.name, "line": error.span.line, "column": error.span.column}
    )
    return {"code": error.code, "message": error.message, **place, "notes": error.notes}


def json_text(content: dict[str, object]) -> str:
    import msgspec

    from sexpgpu.train.metrics import plain

    return msgspec.json.encode(plain(content)).decode()
