"""Runs in this process: whole, or stopped after some steps and gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sexpgpu.train import checkpoint
from sexpgpu.train.launch import run
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request

TIMES = ("time", "throughput/", "runtime/")


def run_folder(file: Path, out: Path, steps: int, **options: Any) -> Path:
    """The folder of a run of so many steps; `options` are of the request, `flags` aside settings."""
    flags = {"steps": steps, "out": str(out), **options.pop("flags", {})}
    return run(Request(file, flags=flags, **options), Progress(quiet=True)).path


def kept(folder: Path, step: int) -> dict[str, bytes]:
    """The tensors of a checkpoint, by file and name."""
    whole = folder / "checkpoints" / checkpoint.folder_name(step)
    return {path.name: path.read_bytes() for path in sorted(whole.glob("*.safetensors"))}


def records(folder: Path) -> list[Mapping[str, Any]]:
    """Steps and evaluations, without times."""
    made = [r for r in read_metrics(folder / "metrics.jsonl") if r["kind"] in ("step", "eval")]
    return [{k: v for k, v in record.items() if not k.startswith(TIMES)} for record in made]


def assert_a_resume_is_exact(file: Path, folder: Path, steps: int, stops: tuple[int, ...], **options: Any) -> Path:
    """Going on from each of `stops` gives the checkpoint's bits and the later records of an unbroken run; its folder."""
    whole = run_folder(file, folder / "whole", steps, **options)
    for stop in stops:
        out = folder / f"stopped-{stop}"
        run_folder(file, out, stop, **options)
        gone_on = run_folder(file, out, steps, resume="latest", **options)
        assert kept(gone_on, steps) == kept(whole, steps)
        # The shorter run had its last evaluation at its end.
        assert [r for r in records(gone_on) if r["step"] > stop] == [r for r in records(whole) if r["step"] > stop]
    return whole
