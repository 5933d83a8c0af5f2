"""`sexpgpu doctor`: the report on stdout, and the exit code that a run here would begin with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from sexpgpu.doctor import examine


def print_report(as_json: bool) -> int:
    """Look at this machine and print it; 1 where the chosen device cannot run or a variable is wrong."""
    report = examine(os.environ, Path())
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(report.plain()).decode())
    else:
        click.echo(report.render())
    return report.exit_code
