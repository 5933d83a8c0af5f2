"""Where an interrupted run goes on: the checkpoint that `--resume` means, and whether this experiment may take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sexpgpu.errors import Error
from sexpgpu.train import checkpoint
from sexpgpu.train.checkpoint import Checkpoint
from sexpgpu.train.folder import RunFolder

LATEST = "latest"
# What may differ from the checkpoint, said in a line where it does: bits can change.
TOLD = ("device", "versions", "stacking", "numerics")


class Resumed(msgspec.Struct, frozen=True):
    """The folder that the run goes on in and the checkpoint that it starts from."""

    folder: RunFolder
    checkpoint: Checkpoint

    @property
    def step(self) -> int:
        return int(self.checkpoint.state["step"])


def find(out: Path, run: str, asked: str, say: Callable[[str], None]) -> Resumed | None:
    """The newest whole checkpoint that is meant. `latest` with none there is None; a PATH without one is E-CKPT-002.

    Checkpoints that are not whole are passed over, each with a line that says why.
    """
    if asked == LATEST:
        for folder in run_folders(out / run):
            found = newest(folder, say)
            if found is not None:
                return found
        say(f"nothing to resume under {out / run}: a fresh start")
        return None
    path = _named(out, asked)
    if checkpoint.NAME.fullmatch(path.name):
        return Resumed(RunFolder(path.parent.parent), checkpoint.load(path))
    found = newest(RunFolder(path), say)
    if found is None:
        raise Error("E-CKPT-002", f"{path} has no whole checkpoint", notes=["name another run or checkpoint"])
    return found


def run_folders(of_run: Path) -> list[RunFolder]:
    """The folders of a run by id, newest first: an id begins with its time."""
    if not of_run.is_dir():
        return []
    paths = [path for path in of_run.iterdir() if path.is_dir()]
    return [RunFolder(path) for path in sorted(paths, key=lambda path: path.name, reverse=True)]


def newest(folder: RunFolder, say: Callable[[str], None]) -> Resumed | None:
    """The newest whole checkpoint of a run folder; those passed over are said."""
    for _, path in checkpoint.found(folder.checkpoints):
        try:
            return Resumed(folder, checkpoint.load(path))
        except Error as problem:
            say(f"passed over: {problem.message}")
    return None


def _named(out: Path, asked: str) -> Path:
    """A path as it is, else the run folder whose id begins so."""
    path = Path(asked)
    if path.is_dir():
        return path
    matching = [p for p in sorted(out.glob(f"*/{asked}*")) if p.is_dir()] if "/" not in asked else []
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = ", ".join(str(p) for p in matching[:5])
        raise Error("E-CKPT-002", f"{asked} begins the id of several runs", notes=[f"they are {names}"])
    raise Error("E-CKPT-002", f"there is no run or checkpoint {asked}", notes=[f"runs are looked for under {out}"])


def check(resumed: Resumed, facts: Mapping[str, Any], graph: str, say: Callable[[str], None]) -> None:
    """Refuses another experiment (E-CKPT-001) and another count of ranks or nodes (E-DP-002); tells what changes bits."""
    state, path = resumed.checkpoint.state, resumed.checkpoint.path
    for name in ("ranks", "nodes"):
        if state.get(name) != facts[name]:
            raise Error(
                "E-DP-002",
                f"the checkpoint was written with {state.get(name)} {name}, this launch has {facts[name]}",
                notes=[f"resume with {state.get(name)} {name}: {path}"],
            )
    if state.get("training-hash") != facts["training-hash"]:
        notes = _first_difference(path, graph) or _differing(state, facts)
        raise Error("E-CKPT-001", f"{path} is of another experiment", notes=notes)
    for name in TOLD:
        if state.get(name) != facts[name]:
            say(f"{name} differs from the checkpoint's ({state.get(name)}, now {facts[name]}): bits may change")


def _first_difference(path: Path, graph: str) -> list[str]:
    """The first line in which the two graphs differ."""
    try:
        before = (path / "graph.txt").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for old, new in zip(before, graph.splitlines(), strict=False):
        if old != new:
            return ["first difference of the graphs", f"checkpoint: {old.strip()}", f"now:        {new.strip()}"]
    return []


def _differing(state: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    told = [
        f"{name}: {state.get(name)} in the checkpoint, {facts[name]} now"
        for name in facts
        if state.get(name) != facts[name]
    ]
    return [line for line in told if not line.startswith(("training-hash", "experiment-hash"))] or ["options differ"]
