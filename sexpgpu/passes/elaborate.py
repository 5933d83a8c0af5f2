"""Elaboration: a program becomes an experiment, its graphs typed and every compile-time value folded.

Nothing of a data file but its header is read. Every problem of the file is found in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.ir.building import uncollected
from sexpgpu.lang.grammar import Matched
from sexpgpu.lang.nesting import deep_recursion
from sexpgpu.lang.program import Program
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.passes.elaboration.choices import Choice, chosen, learning_rate, optimizer_choices
from sexpgpu.passes.elaboration.compile import Compiler, Layout
from sexpgpu.passes.elaboration.graphs import Graphs
from sexpgpu.passes.elaboration.loaders import HeaderReader, Loaders
from sexpgpu.passes.elaboration.machine import Context, Machine
from sexpgpu.passes.elaboration.operations import BUILTINS, CONSTANTS, DYNAMIC
from sexpgpu.passes.elaboration.options import Options, chosen_run
from sexpgpu.passes.elaboration.run import run_options
from sexpgpu.passes.elaboration.special import assertion
from sexpgpu.passes.elaboration.updates import freeze, update_graph
from sexpgpu.passes.experiment import Experiment


def elaborate(
    program: Program, read_header: HeaderReader, *, steps: int | None = None, ranks: int = 1
) -> Experiment:
    """The experiment of a program's chosen run. Raises Diagnostics with every problem found.

    `read_header` says what a loader's files hold; `steps` wins over the run's :steps or :epochs. `ranks`
    share out a :global-batch where a loader has no :batch.
    """
    elaboration = _Elaboration(program, read_header)
    with deep_recursion(), uncollected():
        made = elaboration.run(steps, ranks)
    errors = elaboration.machine.errors
    if errors or made is None:
        assert errors, "no experiment and no problem"
        raise Diagnostics(in_order(program, errors))
    return made


def loaders_of(program: Program, read_header: HeaderReader) -> dict[str, LoaderSpec]:
    """Every loader of a program, whether a run uses it or not; a batch of one where it has none. Raises Diagnostics."""
    elaboration = _Elaboration(program, read_header)
    with deep_recursion(), uncollected():
        found = elaboration.all_loaders()
    errors = elaboration.machine.errors
    if errors:
        raise Diagnostics(in_order(program, errors))
    return found


def in_order(program: Program, errors: Sequence[Error]) -> list[Error]:
    """Errors in the order of the files' text; those without a place first."""
    places = {id(source): k for k, source in enumerate(program.sources)}
    return sorted(errors, key=lambda e: (-1, 0) if e.span is None else (places.get(id(e.span.source), -1), e.span.start))


class _Elaboration:
    def __init__(self, program: Program, read_header: HeaderReader) -> None:
        self.program = program
        self.machine = Machine()
        self.compiler = Compiler(program, self.machine, BUILTINS, CONSTANTS, DYNAMIC)
        self.loaders = Loaders(program, self.compiler, read_header)
        for error in program.problems:
            self.machine.report(error)

    def run(self, steps: int | None, ranks: int) -> Experiment | None:
        self._definitions()
        made = self.machine.guarded(lambda: self._experiment(steps, ranks), None)
        for definition in self.program.of_kind("loader"):
            self.loaders.spec(definition.name)
        return made

    def all_loaders(self) -> dict[str, LoaderSpec]:
        self._definitions()
        self.loaders.default_batch = 1
        names = [definition.name for definition in self.program.of_kind("loader")]
        specs = {name: self.loaders.spec(name) for name in names if self.loaders.header(name) is not None}
        return {name: spec for name, spec in specs.items() if spec is not None}

    def _definitions(self) -> None:
        """What stands at the top of the files: every function compiled, every value made."""
        guarded = self.machine.guarded
        guarded(self.compiler.check_all, None)
        for definition in self.program.definitions.values():
            if definition.kind == "hyper":
                guarded(lambda d=definition: self.compiler.hyper(d), None)  # type: ignore[misc]
            elif definition.kind == "def":
                guarded(lambda d=definition: self.compiler.definition(d, d.form.span), None)  # type: ignore[misc]
        for matched in self.program.asserts:
            guarded(lambda m=matched: self._assertion(m), None)  # type: ignore[misc]

    def _assertion(self, matched: Matched) -> None:
        layout = Layout(False)
        code = assertion(self.compiler, matched.form, layout)
        code([None] * layout.size[0])

    def _experiment(self, steps: int | None, ranks: int) -> Experiment | None:
        machine = self.machine
        machine.context = Context(training=None, steps=True)
        run = chosen_run(self.program)
        reader = Options(self.program, run, self.loaders)
        options = run_options(reader, self.loaders, steps, ranks)
        graphs = Graphs(self.compiler, self.loaders, reader, options) if options is not None else None
        none: Sequence[Choice] = ()
        choices = machine.guarded(lambda: optimizer_choices(self.compiler, reader.need("optimizer")), none)
        if graphs is None or options is None or not graphs.whole or not choices:
            return None
        parameters = machine.guarded(lambda: freeze(machine.parameters.model, reader.frozen()), None)
        if parameters is None:
            return None
        updated = [p for p in parameters if p.name in machine.parameters.updates]
        form, trained = reader.need("optimizer"), [p for p in parameters if p.trainable]
        optimizers, warnings = chosen(choices, trained, form.span)
        update, states = update_graph(machine, optimizers, updated, options.ema)
        names = {options.data, *(e.loader for e in options.evaluations)}
        specs = {name: self.loaders.spec(name) for name in names}
        headers = {name: self.loaders.header(name) for name in names}
        return Experiment(
            name=run.name,
            options=options,
            parameters=tuple(parameters),
            states=tuple(states),
            loaders={name: spec for name, spec in specs.items() if spec is not None},
            headers={name: header for name, header in headers.items() if header is not None},
            training=graphs.training,
            evaluations=graphs.evaluations,
            predict=graphs.predict,
            update=update,
            learning_rate=learning_rate(choices),
            warnings=tuple(warnings),
        )
