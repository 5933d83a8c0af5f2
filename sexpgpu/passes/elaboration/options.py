"""A run's options: its keys with what variants and --set replace, each read and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from sexpgpu.errors import Error, nearest
from sexpgpu.ir.host import Expression, evaluate
from sexpgpu.ir.host import known as is_known
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Symbol, Text
from sexpgpu.lang.grammar import RUN_KEYS, split_keywords
from sexpgpu.lang.program import Definition, Program, unknown_run_key
from sexpgpu.passes.elaboration.loaders import Loaders
from sexpgpu.passes.elaboration.machine import Wrong
from sexpgpu.passes.elaboration.values import (
    Problem,
    Scalar,
    Value,
    boolean,
    describe,
    integer,
    is_number,
    number,
    plain,
)
from sexpgpu.passes.experiment import Checkpoint, Evaluation, Metric, Stop
from sexpgpu.source import Span, command_line_span

PRECISIONS = ("off", "bfloat16", "float16")
NEEDED_KEYS = "a run needs :data, :loss, :optimizer, and :steps or :epochs"
REDUCERS = ("mean", "sum", "max", "min")
_Made = TypeVar("_Made")


def chosen_run(program: Program) -> Definition:
    """The run that `--run` names, or the file's only one."""
    runs = program.of_kind("run")
    names = ", ".join([r.name for r in runs])
    if program.run is not None:
        found = [r for r in runs if r.name == program.run]
        if not found:
            close = nearest(program.run, [r.name for r in runs])
            notes = [f"did you mean {close}?"] if close else [f"runs: {names or 'none'}"]
            raise Error("E-RUN-005", f"no run {program.run}", command_line_span(program.run), notes=notes)
        return found[0]
    if not runs and program.problems:
        # The run may be what could not be read.
        raise Wrong
    if len(runs) != 1:
        message = f"the file has several runs: {names}" if runs else "the file has no defrun"
        note = "choose one with --run" if runs else "add (defrun NAME :data … :loss … :optimizer … :steps …)"
        raise Error("E-RUN-005", message, runs[1].form.span if runs else None, notes=[note])
    return runs[0]


class Options:
    """The forms of a run's keys; the methods read one key each. A wrong one is reported and raises `Wrong`."""

    def __init__(self, program: Program, run: Definition, loaders: Loaders) -> None:
        self.program = program
        self.run = run
        self.loaders = loaders
        self.machine = loaders.machine
        self.keys: dict[str, Form] = {}
        forms = run.matched.parts[":KEY VALUE"]
        positional, keywords = split_keywords(run.form, forms, "defrun")
        for form in positional:
            self.machine.report(Error("E-SYN-001", "defrun: a keyword must stand here", form.span))
        for item in forms:
            if isinstance(item, Keyword) and item.name not in RUN_KEYS:
                self.machine.report(unknown_run_key(item.name, item))
        self.keys = {key: form for key, form in keywords.items() if key in RUN_KEYS}
        self._replace(program)
        expanded = loaders.compiler.expanded
        self.keys = {key: self.guarded(lambda f=form: expanded(f), form) for key, form in self.keys.items()}  # type: ignore[misc]

    def _replace(self, program: Program) -> None:
        for key, override in program.run_overrides.items():
            self.keys[key] = override.value
            # The other key of a pair gives way to one that the command line sets.
            for pair in (("steps", "epochs"), ("microbatches", "global-batch")):
                if key in pair:
                    self.keys.pop(pair[1 - pair.index(key)], None)

    def need(self, key: str) -> Form:
        """A key that every run has."""
        if key not in self.keys:
            message = f"the run {self.run.name} has no :{key}"
            self.machine.report(Error("E-RUN-001", message, self.run.form.span, notes=[NEEDED_KEYS]))
            raise Wrong
        return self.keys[key]

    def read(self, key: str, take: Callable[[Form], _Made], default: _Made) -> _Made:
        """The key's value, its default without one (and where it is wrong, which is reported)."""
        form = self.keys.get(key)
        if form is None or (isinstance(form, Constant) and form.value is None):
            return default
        return self.guarded(lambda: take(form), default)

    def guarded(self, take: Callable[[], _Made], default: _Made) -> _Made:
        return self.machine.guarded(take, default)

    # Values of one form

    def value(self, form: Form) -> Value:
        return self.loaders.value(form)

    def count(self, key: str, least: int) -> Callable[[Form], int]:
        def take(form: Form) -> int:
            made = self.integer(form, f":{key}")
            if made < least:
                raise Error("E-RUN-007", f":{key} is at least {least}, not {made}", form.span)
            return made

        return take

    def integer(self, form: Form, what: str) -> int:
        try:
            return int(integer(self.value(form), what))
        except Problem as problem:
            raise Error("E-RUN-004", problem.message, form.span) from None

    def fraction(self, key: str) -> Callable[[Form], float]:
        def take(form: Form) -> float:
            try:
                made = float(number(self.value(form), f":{key}"))
            except Problem as problem:
                raise Error("E-RUN-004", problem.message, form.span) from None
            if not 0 <= made < 1:
                raise Error("E-RUN-007", f":{key} is from 0 to below 1, not {made:g}", form.span)
            return made

        return take

    def expression(self, form: Form) -> Expression | None:
        """A number, perhaps of the step."""
        value = self.value(form)
        if isinstance(value, Scalar):
            return value.expression
        if is_number(value):
            return ("number", plain(value))
        raise Error("E-RUN-004", f"a number must stand here, not {describe(value)}", form.span)

    def limit(self, form: Form) -> Expression | None:
        """A number above 0, as far as it is known before the first step."""
        made = self.expression(form)
        if made is not None and is_known(made) and not evaluate(made, {}) > 0:
            raise Error("E-RUN-007", f"a number above 0 must stand here, not {evaluate(made, {})}", form.span)
        return made

    def word(self, form: Form, known: Sequence[str], what: str) -> Any:
        made = form.name if isinstance(form, Symbol) else form.value if isinstance(form, Text) else None
        if made not in known:
            close = nearest(made, known) if made else None
            notes = [f"did you mean {close}?"] if close else []
            shown = made or form.span.written[:20]
            raise Error("E-RUN-007", f"{what} is one of {', '.join(known)}, not {shown}", form.span, notes=notes)
        return made

    def names(self, form: Form, what: str) -> tuple[tuple[str, Span], ...]:
        """`[a b]`."""
        if not isinstance(form, Listing) or not all(isinstance(item, (Symbol, Text)) for item in form.items):
            raise Error("E-SYN-001", f"{what} is a list of names, as in [a b]", form.span)
        return tuple([(_word(item), item.span) for item in form.items])

    def boolean(self, form: Form, what: str) -> bool:
        try:
            return boolean(self.value(form), what)
        except Problem as problem:
            raise Error("E-RUN-004", problem.message, form.span) from None

    # Keys with forms of their own

    def evaluations(self) -> tuple[Evaluation, ...]:
        form = self.keys.get("eval")
        if form is None or (isinstance(form, Constant) and form.value is None):
            return ()
        forms = form.items if isinstance(form, Listing) and form.square else (form,)
        made = [self.guarded(lambda f=f: self._evaluation(f), None) for f in forms]  # type: ignore[misc]
        return tuple([e for e in made if e is not None])

    def parts(self, form: Form, head: str, usage: str, count: int) -> tuple[list[Form], Mapping[str, Form]]:
        """What stands in `(head …)`: so many forms, then keywords."""
        if not isinstance(form, Listing) or form.head != head:
            raise Error("E-SYN-001", f"({head} …) must stand here", form.span, notes=[f"the form is {usage}"])
        positional, keywords = split_keywords(form, form.items[1:], head)
        if len(positional) != count:
            message = f"{head} takes {count} value{'s' if count != 1 else ''} before its keywords, not {len(positional)}"
            raise Error("E-SYN-001", message, form.span, notes=[f"the form is {usage}"])
        return positional, keywords

    def known(self, form: Form, keywords: Mapping[str, Form], known: Sequence[str], what: str) -> None:
        """Refuses other keywords than the known ones."""
        assert isinstance(form, Listing)
        for key in keywords:
            if key not in known:
                at = next(i for i in form.items if isinstance(i, Keyword) and i.name == key)
                close = nearest(key, known)
                notes = [f"did you mean :{close}?"] if close else [f"its keys: {' '.join(':' + k for k in known)}"]
                raise Error("E-RUN-002", f"{what} has no key :{key}", at.span, notes=notes)

    def _evaluation(self, form: Form) -> Evaluation:
        usage = "(every N LOADER :batches B :metrics [METRIC…])"
        (every, loader), keywords = self.parts(form, "every", usage, 2)
        self.known(form, keywords, ("batches", "metrics"), ":eval")
        name = self.loaders.named(loader, ":eval")
        metrics: list[Metric] = []
        if "metrics" in keywords:
            for metric, span in self.names(keywords["metrics"], ":metrics"):
                metrics.append(self._metric(metric, span))
        batches = self.count("batches", 1)(keywords["batches"]) if "batches" in keywords else None
        return Evaluation(self.count("eval", 1)(every), name, batches, tuple(metrics), form.span)

    def _metric(self, name: str, span: Span) -> Metric:
        known = [d.name for d in self.program.of_kind("metric")]
        if name not in known:
            close = nearest(name, known)
            notes = [f"did you mean {close}?"] if close else [f"metrics: {', '.join(known) or 'none'}"]
            raise Error("E-NAME-001", f"no metric {name}", span, notes=notes)
        matched = self.program.definitions[name].matched
        reduce = matched.keywords.get("reduce")
        made: Any = "mean" if reduce is None else self.word(reduce, REDUCERS, f"{name}: :reduce")
        return Metric(name, made, matched.form.span)

    def checkpoint(self) -> Checkpoint | None:
        return self.read("checkpoint", self._checkpoint, None)

    def _checkpoint(self, form: Form) -> Checkpoint:
        usage = "(every N :keep K :best RECORD min|max :minutes M :to URL)"
        best = None
        if isinstance(form, Listing):
            # `:best` alone takes two words.
            items = list(form.items)
            at = next((i for i, item in enumerate(items) if isinstance(item, Keyword) and item.name == "best"), None)
            if at is not None:
                best = self._best(form, items[at + 1 : at + 3])
                form = Listing((*items[:at], *items[at + 3 :]), form.span)
        (every,), keywords = self.parts(form, "every", usage, 1)
        self.known(form, keywords, ("keep", "minutes", "to"), ":checkpoint")
        keep = self.count("keep", 1)(keywords["keep"]) if "keep" in keywords else None
        minutes = self._positive(keywords["minutes"]) if "minutes" in keywords else None
        to = self.value(keywords["to"]) if "to" in keywords else None
        if to is not None and not isinstance(to, str):
            raise Error("E-RUN-004", f":to is a text, not {describe(to)}", keywords["to"].span)
        return Checkpoint(self.count("checkpoint", 1)(every), keep, best, minutes, to)

    def _positive(self, form: Form) -> float:
        value = self.expression(form)
        if value is None or value[0] != "number" or not value[1] > 0:
            raise Error("E-RUN-007", "a number above 0 must stand here", form.span)
        return float(value[1])

    def _best(self, form: Form, words: Sequence[Form]) -> tuple[str, str]:
        if len(words) != 2 or not isinstance(words[0], (Symbol, Text)):
            raise Error("E-SYN-001", ":best is a record and min or max, as in :best held-out/loss min", form.span)
        record = words[0].name if isinstance(words[0], Symbol) else words[0].value
        return record, self.word(words[1], ("min", "max"), ":best")

    def stop(self) -> Stop | None:
        def take(form: Form) -> Stop:
            (patience, record), keywords = self.parts(form, "patience", "(patience N RECORD)", 2)
            self.known(form, keywords, (), ":stop")
            if not isinstance(record, (Symbol, Text)):
                raise Error("E-SYN-001", ":stop names a record, as in held-out/loss", record.span)
            name = record.name if isinstance(record, Symbol) else record.value
            return Stop(self.count("stop", 1)(patience), name)

        return self.read("stop", take, None)

    def frozen(self) -> tuple[tuple[str, Span], ...]:
        def take(form: Form) -> tuple[tuple[str, Span], ...]:
            return self.names(form, ":freeze")

        return self.read("freeze", take, ())

    def diagnostics(self) -> tuple[str, ...]:
        def take(form: Form) -> tuple[str, ...]:
            known = [d.name for d in self.program.of_kind("diagnostic")]
            for name, span in self.names(form, ":diagnostics"):
                if name not in known:
                    close = nearest(name, known)
                    notes = [f"did you mean {close}?"] if close else []
                    raise Error("E-NAME-001", f"no diagnostic {name}", span, notes=notes)
            return tuple([name for name, _ in self.names(form, ":diagnostics")])

        return self.read("diagnostics", take, ())


def _word(form: Form) -> str:
    return form.name if isinstance(form, Symbol) else form.value if isinstance(form, Text) else ""
