"""What a run knows before it plans, kept between starts: elaboration and passes would be a third of a warm one.

All of it follows from the file's text, the request, our own files and the headers of the data. An entry's name is the
hash of all but the headers, which stand in the entry and are read anew. Of graphs it holds facts: one is made again,
from the text that was read, when a message or a table of times asks for its nodes. A file with includes is elaborated
at every start.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

import sexpgpu
from sexpgpu import private
from sexpgpu.errors import Error
from sexpgpu.initial import Initializer
from sexpgpu.installed import version_of
from sexpgpu.ir.facts import Facts, LateGraph, facts_of
from sexpgpu.ir.graph import Graph, Origin
from sexpgpu.loaderspec import Field, Header, LoaderSpec
from sexpgpu.passes import experiment as records
from sexpgpu.passes.experiment import Experiment, in_precision
from sexpgpu.records import Codec
from sexpgpu.settings import Settings
from sexpgpu.source import Source, Span, command_line_span
from sexpgpu.train.identity import EVALUATION, graphs_by_name
from sexpgpu.train.loader import header
from sexpgpu.train.request import Request, elaborated, hypers_of, program_again, read_program, steps_flag, variants_of
from sexpgpu.train.session import graphs_of
from sexpgpu.train.step import Graphs

RECORDS: tuple[type, ...] = (
    Facts, Field, Header, Initializer, LoaderSpec, Origin, records.Checkpoint, records.Evaluation, records.Init, records.Metric,
    records.Parameter, records.RunOptions, records.State, records.Stop,
)  # fmt: skip
# So many starts are kept, those that were made last.
MOST_STARTS = 256
SUFFIX = ".start"
MOST_BYTES = 1 << 24
# Of an experiment, what is no graph.
PLAIN_FIELDS = ("name", "options", "parameters", "states", "loaders", "headers", "learning_rate", "warnings")
# Names of graphs after the passes, beside those of the graphs that elaboration gave.
PASSED = "passed "


class Start(msgspec.Struct, frozen=True):
    """`text`: the file with all that it includes; `hypers`: the values in force; `asked`: what the data's headers said;
    `graphs`: after the passes, None where they are still to be made; `source`: the file, None where it has includes."""

    text: str
    hypers: Mapping[str, str]
    variants: tuple[str, ...]
    experiment: Experiment
    asked: Mapping[LoaderSpec, Header]
    graphs: Graphs | None = None
    source: Source | None = None


def fresh(request: Request, early: Settings, ranks: int = 1) -> Start:
    """From the file. Raises Error and Diagnostics."""
    from sexpgpu.train.flatten import flatten

    program = read_program(request)
    asked: dict[LoaderSpec, Header] = {}

    def read(spec: LoaderSpec) -> Header:
        asked[spec] = header(spec, early.cache)
        return asked[spec]

    experiment = elaborated(program, early, read, ranks)
    source = program.source if len(program.sources) == 1 else None
    return Start(flatten(program), hypers_of(program), variants_of(program), experiment, asked, None, source)


class Starts:
    """The folder of starts, as one request sees it. `say` gets a line about what could not be had."""

    def __init__(self, request: Request, early: Settings, say: Callable[[str], None], ranks: int = 1) -> None:
        self.request, self.early, self.say, self.ranks = request, early, say, ranks
        self.folder = early.cache / "starts"

    @cached_property
    def _usable(self) -> bool:
        reason = private.refusal(self.folder)
        if reason:
            self.say(f"starts are not kept: {self.folder} is not used ({reason})")
        return not reason

    def find(self) -> Start | None:
        """The start that was kept; None where there is none that is whole and would be made the same now."""
        file = self.request.file
        try:
            # A pipe can be read only once.
            if not file.is_file() or file.stat().st_size > MOST_BYTES or not self._usable:
                return None
            source = Source(str(file), file.read_bytes().decode("utf-8-sig"), file)
            path = self._path(source)
            content = path.read_bytes()
        except (OSError, ValueError):
            return None
        try:
            kept: dict[str, Any] = codec(source).read(content)
        except ValueError:
            self.say(f"starts: {path.name} was damaged and is made again")
            return None
        return self._late(kept, source) if self._same_data(kept["asked"]) else None

    def keep(self, start: Start, precision: str, graphs: Graphs) -> None:
        """Write what was made, for the next start. `graphs` are in this precision."""
        if start.source is None or not self._usable:
            return
        path = self._path(start.source)
        content = codec(start.source).written(plain(start, precision, graphs))
        try:
            private.replace(path, content)
            private.prune(self.folder, SUFFIX, MOST_STARTS)
        except OSError as problem:
            self.say(f"starts are not kept: {path} cannot be written ({problem.strerror})")

    def _path(self, source: Source) -> Path:
        request, early = self.request, self.early
        asked = (
            str(request.file), request.variants, request.sets, request.run, request.allow_outside, steps_flag(early),
            early.precision, early.origins["precision"], self.ranks,
        )  # fmt: skip
        text = repr((asked, sys.version, version_of("numpy"), list(own_files()), source.text))
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}{SUFFIX}"

    def _same_data(self, asked: Mapping[LoaderSpec, Header]) -> bool:
        try:
            return all(header(spec, self.early.cache) == known for spec, known in asked.items())
        except Error:
            return False

    def _late(self, kept: dict[str, Any], source: Source) -> Start:
        """The start of an entry, its graphs late ones."""
        again = _Again(self.request, self.early, source, kept["asked"], kept["precision"], self.ranks)
        graphs = {name: LateGraph(facts, partial(again.graph, name)) for name, facts in kept["graphs"].items()}
        passed = {n.removeprefix(PASSED): graphs.pop(n) for n in list(graphs) if n.startswith(PASSED)}
        experiment = Experiment(
            **kept["experiment"], training=graphs.pop("training"), update=graphs.pop("update"),
            predict=graphs.pop("predict", None), evaluations=_by_loader(graphs),
        )  # fmt: skip
        made = Graphs(passed.pop("training"), passed.pop("update"), _by_loader(passed))
        return Start(source.text, kept["hypers"], kept["variants"], experiment, kept["asked"], made, source)


class _Again(msgspec.Struct, frozen=True, dict=True):
    """What elaboration and passes make of the text that was read and of what the headers said, when it is asked for."""

    request: Request
    early: Settings
    source: Source
    asked: Mapping[LoaderSpec, Header]
    precision: str
    ranks: int

    @cached_property
    def graphs(self) -> dict[str, Graph]:
        program = program_again(self.request, self.source)
        experiment = elaborated(program, self.early, self.asked.__getitem__, self.ranks)
        return _named(experiment, graphs_of(in_precision(experiment, self.precision)))

    def graph(self, name: str) -> Graph:
        return self.graphs[name]


def _by_loader(graphs: Mapping[str, Graph]) -> dict[str, Graph]:
    return {name.removeprefix(EVALUATION): graph for name, graph in graphs.items()}


def _named(experiment: Experiment, graphs: Graphs) -> dict[str, Graph]:
    """Every graph of a start: those of the experiment, then those after the passes."""
    evaluations = {f"{PASSED}{EVALUATION}{name}": graph for name, graph in graphs.evaluations.items()}
    passed = {f"{PASSED}training": graphs.training, f"{PASSED}update": graphs.update, **evaluations}
    return graphs_by_name(experiment) | passed


def plain(start: Start, precision: str, graphs: Graphs) -> dict[str, Any]:
    """A start as its entry has it. Where a parameter was made is left out where only elaboration asks."""
    experiment = {name: getattr(start.experiment, name) for name in PLAIN_FIELDS}
    experiment["parameters"] = tuple(_without_place(p) for p in start.experiment.parameters)
    facts = {
        name: facts_of(graph, with_text=not name.startswith(PASSED))
        for name, graph in _named(start.experiment, graphs).items()
    }
    return {
        "hypers": start.hypers, "variants": start.variants, "asked": start.asked, "experiment": experiment,
        "graphs": facts, "precision": precision,
    }  # fmt: skip


def _without_place(parameter: records.Parameter) -> records.Parameter:
    """What is read from a file may be found wrong at a later start."""
    return parameter if parameter.initializer.stored else replace(parameter, origin=Origin(None))


def codec(source: Source) -> Codec:
    """Of entries of this file. Places are those in its text."""

    def place(span: Span) -> tuple[int, int] | None:
        return (span.start, span.length) if span.source == source else None

    def span(found: tuple[int, int] | None) -> Span:
        return command_line_span("") if found is None else Span(source, *found)

    return Codec(RECORDS, {Span: (place, span), type(Path()): (str, Path)})


def own_files() -> Iterator[tuple[str, int, int, int]]:
    """Our files as they are now: name, size, time of the content and, which nobody can set back, of the last change."""
    root = os.path.dirname(sexpgpu.__file__)
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name != "__pycache__")
        for name in sorted(name for name in names if name.endswith((".py", ".sexp"))):
            facts = os.stat(os.path.join(folder, name))
            yield os.path.join(folder, name), facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
