"""Parameters that begin with tensors of another run, a checkpoint or a file: `:init`, `--init` and `(from-file …)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from sexpgpu.errors import Diagnostics, Error, nearest
from sexpgpu.initial import Normals
from sexpgpu.passes.experiment import Experiment, Init, Parameter
from sexpgpu.passes.globs import glob, nearest_glob
from sexpgpu.source import Span
from sexpgpu.train import checkpoint, resume
from sexpgpu.train.datafiles import StoredArray, safetensors_arrays
from sexpgpu.train.folder import RunFolder
from sexpgpu.train.model import initial_parameters

Array32 = NDArray[np.float32]
Reading = Callable[[], Array32]
FLOATS = ("float64", "float32", "float16", "bfloat16")
SUFFIX = ".safetensors"
# So many names stand in a line, the others are counted.
SHOWN = 6


class Inherited(msgspec.Struct, frozen=True):
    """What a run begins with: `taken` by the parameters' names; `missing` are parameters that it does not have, `unused`
    its tensors that no parameter has."""

    path: Path
    taken: Mapping[str, Reading]
    missing: tuple[Parameter, ...]
    unused: tuple[str, ...]

    def lines(self) -> list[str]:
        """What the run says of it."""
        count = len(self.taken) + len(self.missing)
        made = [f"init: {len(self.taken)} of {count} tensors begin as in {self.path}"]
        for words, names in (
            ("not in it, and begin as the file says", [p.name for p in self.missing if p.trainable or p.buffer]),
            ("warning: frozen, and not in it", [p.name for p in self.missing if not (p.trainable or p.buffer)]),
            ("not used of it", self.unused),
        ):
            made += [f"init: {words}: {listed(names)}"] if names else []
        return made


def listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def asked_for(experiment: Experiment, flag: str | None) -> Init | None:
    """The run's `:init`; `--init` takes the place of its RUN|PATH."""
    init = experiment.options.init
    if flag is None:
        return init
    return replace(init or Init(flag), source=flag, run=False, base=Path(), span=None)


def begun(
    experiment: Experiment, seed: int, threads: int, given: Mapping[str, Reading], normals: Normals | None = None
) -> Iterator[tuple[str, Array32]]:
    """Name and first value of every parameter and buffer: as `given`, else read from a file or drawn by its law."""
    read = {**dict(from_files(experiment)), **given}
    yield from initial_parameters(experiment, seed, threads, set(read), normals)
    for name, reading in read.items():
        yield name, reading()


def inherited(experiment: Experiment, init: Init, path: Path) -> Inherited:
    """The tensors at a path, fitted to the parameters by name. Raises Error, and Diagnostics with every misfit."""
    stored = stored_tensors(path, init.raw)
    by_name = renamed(stored, init, path)
    parameters = {p.name: p for p in experiment.parameters}
    taken = {name: parameters[name] for name in parameters if name in by_name}
    missing = tuple(p for name, p in parameters.items() if name not in by_name)
    unused = tuple(old for new, old in by_name.items() if new not in parameters)
    if not taken or (init.strict and (missing or unused)):
        raise _unmatched(init, path, list(parameters), [p.name for p in missing], list(unused))
    made, problems = {}, []
    for name, parameter in taken.items():
        try:
            made[name] = fitted(stored[by_name[name]], parameter, f"{by_name[name]} of {path}", init.span)
        except Error as problem:
            problems.append(problem)
    if problems:
        raise Diagnostics(problems)
    return Inherited(path, made, missing, unused)


def _unmatched(init: Init, path: Path, parameters: list[str], missing: list[str], unused: list[str]) -> Error:
    what = "not the run's parameters alone, as :strict asks" if init.strict else "none of the run's parameters"
    notes = [f"not in it: {listed(missing)}"] if missing else []
    notes += [f"not used of it: {listed(unused)}"] if unused else []
    for name in [] if init.rename else unused[:1]:
        close = nearest(name, parameters) or next((p for p in parameters if p.endswith(name.rpartition(".")[2])), None)
        notes += [f'did you mean :rename (("{name}" "{close}"))?'] if close else []
    return Error("E-CKPT-003", f"{path} has {what}", init.span, notes=notes)


# Where it stands


def located(init: Init, out: Path, say: Callable[[str], None]) -> Path:
    """A checkpoint's folder or a file of tensors. Of a run it is the newest whole checkpoint; E-CKPT-002 without one."""
    where = init.base / init.source
    if not init.run and where.exists():
        if where.is_file() or checkpoint.NAME.fullmatch(where.resolve().name):
            return where
        folders = [where]
    else:
        folders = [out / init.source] if init.run else _runs(out, init.source)
    for folder in folders:
        for run in [RunFolder(folder), *resume.run_folders(folder)]:
            found = resume.newest(run, say)
            if found is not None:
                return found.checkpoint.path
    raise _nothing(init, out)


def _runs(out: Path, source: str) -> list[Path]:
    """The run folders that `latest`, a run's name, an id or its beginning means, the newest first."""
    if not out.is_dir() or "/" in source:
        return []
    if (out / source).is_dir():
        return [out / source]
    matching = [
        path for path in out.glob("*/*") if path.is_dir() and (source == resume.LATEST or path.name.startswith(source))
    ]
    if source != resume.LATEST and len(matching) > 1:
        notes = [f"they are {', '.join(map(str, matching[:5]))}"]
        raise Error("E-CKPT-002", f"{source} begins the id of several runs", notes=notes)
    return sorted(matching, key=lambda path: path.name, reverse=True)


def _nothing(init: Init, out: Path) -> Error:
    if init.run:
        message = f":init: the run {init.source} has no whole checkpoint under {out}"
        return Error("E-CKPT-002", message, init.span, notes=[f"train it first: --run {init.source}"])
    message = f"init: {init.source} is no file, no whole checkpoint and no run that has one"
    notes = [f"looked for {(init.base / init.source).absolute()}, and for runs under {out}"]
    return Error("E-CKPT-002", message, init.span, notes=notes)


# What stands there


def stored_tensors(path: Path, raw: bool) -> Mapping[str, StoredArray]:
    """The tensors of a checkpoint, verified, or of a `.safetensors` file."""
    if path.is_dir():
        values = checkpoint.load(path).trained(raw)
        made = {n: StoredArray(path, v.dtype.name, v.shape, partial(np.asarray, v)) for n, v in values.items()}
    else:
        made = dict(tensors_of_file(path))
    return dict(sorted(made.items()))


def tensors_of_file(path: Path, span: Span | None = None) -> Mapping[str, StoredArray]:
    if path.suffix.lower() != SUFFIX:
        raise Error("E-CKPT-003", f"{path}: tensors are read from {SUFFIX} files and checkpoints", span)
    if not path.is_file():
        raise Error("E-CKPT-002", f"there is no file {path}", span, notes=[f"looked for {path.absolute()}"])
    try:
        return safetensors_arrays(path)
    except (OSError, ValueError) as problem:
        raise Error("E-CKPT-001", f"{path}: not a whole {SUFFIX} file: {problem}", span) from problem


def renamed(names: Mapping[str, Any], init: Init, path: Path) -> dict[str, str]:
    """{name here: name there}. The first pair that matches a name renames it; the others stay."""
    rules = [(glob(old), new) for old, new in init.rename]
    made: dict[str, str] = {}
    used = set()
    for name in names:
        new = name
        for number, (pattern, template) in enumerate(rules):
            match = pattern.match(name)
            if match is not None:
                parts = template.split("*")
                new = "".join(map("".join, zip(parts, [*match.groups(), ""], strict=True)))
                used.add(number)
                break
        if new in made:
            raise Error("E-CKPT-003", f"{path}: {made[new]} and {name} would both be {new}", init.span)
        made[new] = name
    for number, (old, _) in enumerate(init.rename):
        if number not in used:
            close = nearest_glob(old, list(names))
            notes = [f"did you mean {close}?"] if close else [f"it has {listed(list(names))}"]
            raise Error("E-NAME-001", f":rename: no tensor of {path} matches {old}", init.span, notes=notes)
    return made


def fitted(stored: StoredArray, parameter: Parameter, what: str, span: Span | None) -> Reading:
    """How the tensor is read as the parameter's value: rounded to f32 where it is f64. E-SHAPE-001 for another shape."""
    if tuple(stored.shape) != tuple(parameter.shape):
        message = f"{what} has shape {list(stored.shape)}, the parameter {parameter.name} has {list(parameter.shape)}"
        raise Error("E-SHAPE-001", message, span)
    if stored.stored_dtype not in FLOATS:
        raise Error("E-CKPT-003", f"{what} is {stored.stored_dtype}, a parameter begins with floats", span)
    return lambda: np.asarray(stored.read(), np.float32, order="C")


# `(from-file PATH KEY)`


def from_files(experiment: Experiment) -> Iterator[tuple[str, Reading]]:
    """The parameters that begin with a tensor of a file, and how it is read. Raises Diagnostics with every misfit."""
    problems: list[Error] = []
    for parameter in experiment.parameters:
        if parameter.initializer.stored is not None:
            try:
                yield parameter.name, _of_file(parameter, *parameter.initializer.stored)
            except Error as problem:
                problems.append(problem)
    if problems:
        raise Diagnostics(problems)


def _of_file(parameter: Parameter, path: str, key: str) -> Reading:
    span = parameter.origin.span
    stored = tensors_of_file(Path(path), span)
    if key not in stored:
        close = nearest(key, list(stored))
        notes = [f"did you mean {close}?"] if close else [f"it has {listed(list(stored))}"]
        raise Error("E-CKPT-003", f"{path} has no tensor {key}", span, notes=notes)
    return fitted(stored[key], parameter, f"{key} of {path}", span)
