"""An experiment's file as one value: all definitions by name, the prelude's, and what variants and --set replace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from sexpgpu.errors import MAXIMUM_PROBLEMS, MAXIMUM_SUGGESTIONS, Diagnostics, Error, nearest
from sexpgpu.ir.building import uncollected
from sexpgpu.lang.expand import Expansion, expand
from sexpgpu.lang.expansion import Expander
from sexpgpu.lang.foreign import suggestions
from sexpgpu.lang.forms import Form, Keyword, Listing, Symbol, Text
from sexpgpu.lang.grammar import (
    DEFINITIONS,
    RUN_KEYS,
    SPECIAL_FORMS,
    TOP_FORMS,
    Matched,
    malformed,
    split_keywords,
    take_apart,
)
from sexpgpu.lang.macros import Macro, macro_of
from sexpgpu.lang.nesting import deep_recursion
from sexpgpu.lang.reader import load_source, read
from sexpgpu.settings import SETTINGS
from sexpgpu.source import Source, command_line_span

PRELUDE_FOLDER = Path(__file__).parent / "prelude"
# Where and how a program runs is no part of the experiment.
RUNTIME_SETTINGS = frozenset([setting.name for setting in SETTINGS]) - frozenset(RUN_KEYS)
# Kinds of definitions that can be called, in the words of messages.
FUNCTION_KINDS = {"un": "function", "layer": "layer", "region": "region", "optimizer": "optimizer"}


@dataclass(frozen=True)
class Definition:
    """One top-level definition. `kind` is its form's head without `def`: hyper, def, un, layer, region, loader …"""

    name: str
    kind: str
    matched: Matched
    prelude: bool

    @property
    def form(self) -> Listing:
        return self.matched.form


@dataclass(frozen=True)
class Override:
    """A value that replaces another: its form, and who says so (`variant smoke`, `--set`)."""

    value: Form
    origin: str


@dataclass(frozen=True)
class Program:
    """`overrides` hold per hyper what replaces its default, later ones first in force; `run_overrides` the options of
    the chosen run; `problems` what is wrong so far (elaboration reports it with its own); `broken` the names whose
    definitions could not be read: using one is no further problem."""

    source: Source
    sources: tuple[Source, ...]
    definitions: Mapping[str, Definition]
    prelude: Mapping[str, Definition]
    asserts: tuple[Matched, ...]
    overrides: Mapping[str, tuple[Override, ...]]
    run_overrides: Mapping[str, Override]
    run: str | None
    variants: tuple[str, ...]
    problems: tuple[Error, ...]
    broken: frozenset[str] = frozenset()
    macros: Mapping[str, Macro] = field(default_factory=dict)

    def find(self, name: str, prelude: bool) -> Definition | None:
        """What a name means: in the prelude its own definition, in the user's files the user's comes first."""
        found = None if prelude else self.definitions.get(name)
        return found or self.prelude.get(name)

    def of_kind(self, kind: str) -> list[Definition]:
        return [d for d in self.definitions.values() if d.kind == kind]


def load_program(
    path: Path,
    variants: Sequence[str] = (),
    sets: Sequence[str] = (),
    run: str | None = None,
    *,
    allow_outside: bool = False,
    further: Sequence[Form] = (),
) -> Program:
    """The program of a file, with `further` definitions. `sets` are texts KEY=VALUE. Raises Diagnostics where it cannot
    be read."""
    try:
        source = load_source(path)
    except Error as error:
        raise Diagnostics([error]) from None
    return program_of(source, variants, sets, run, allow_outside=allow_outside, further=further)


def program_of(
    source: Source,
    variants: Sequence[str] = (),
    sets: Sequence[str] = (),
    run: str | None = None,
    *,
    allow_outside: bool = False,
    further: Sequence[Form] = (),
) -> Program:
    """The program of a text that is already there, with `further` definitions."""
    expansion = expand(source, allow_outside)
    expansion.forms += further
    if any(error.code.startswith("E-READ") for error in expansion.errors):
        raise Diagnostics(expansion.errors)
    with deep_recursion(), uncollected():
        collected = _Collected(expansion)
    if collected.expander.exhausted:
        raise Diagnostics(collected.errors)
    overrides = _Overrides(collected, variants, sets)
    return Program(
        source=source,
        sources=tuple(expansion.sources),
        definitions=collected.definitions,
        prelude=load_prelude(),
        asserts=tuple(collected.asserts),
        overrides={name: tuple(made) for name, made in overrides.hypers.items()},
        run_overrides=overrides.run,
        run=run,
        variants=tuple(variants),
        problems=(*expansion.errors, *collected.errors, *overrides.errors),
        broken=frozenset(collected.broken),
        macros=collected.macros,
    )


@cache
def load_prelude() -> Mapping[str, Definition]:
    """The prelude's definitions by name."""
    made: dict[str, Definition] = {}
    for path in sorted(PRELUDE_FOLDER.glob("*.sexp")):
        source = Source(f"prelude/{path.name}", path.read_text(encoding="utf-8"), None, prelude=True)
        for form in read(source):
            assert isinstance(form, Listing)
            definition = _definition(form, prelude=True)
            assert definition.name not in made, definition.name
            made[definition.name] = definition
    return made


def _definition(form: Listing, prelude: bool) -> Definition:
    head = form.head or ""
    matched = take_apart(form, DEFINITIONS[head])
    return Definition(matched.name(), head.removeprefix("def") or "def", matched, prelude)


class _Collected:
    """The top-level definitions of all files, in any order, with those that macros expand to."""

    def __init__(self, expansion: Expansion) -> None:
        self.definitions: dict[str, Definition] = {}
        self.macros: dict[str, Macro] = {}
        self.asserts: list[Matched] = []
        self.errors: list[Error] = []
        self.broken: set[str] = set()
        self.expander = Expander()
        # The forms still to be taken, the next one last; forms whose head may be a macro that comes later.
        self._left = expansion.forms[::-1]
        self._waiting: dict[str, list[Listing]] = {}
        while self._left:
            self._guarded(self._take, self._left.pop())
        for form in [form for forms in self._waiting.values() for form in forms]:
            self._guarded(self._not_a_definition, form)
        self.broken -= set(self.definitions)

    def _guarded(self, take: Callable[[Form], None], form: Form) -> None:
        if self.expander.exhausted or len(self.errors) == MAXIMUM_PROBLEMS:
            return
        try:
            take(form)
        except Error as error:
            self.errors.append(error)
            if isinstance(form, Listing) and len(form.items) > 1 and isinstance(form.items[1], Symbol):
                self.broken.add(form.items[1].name)

    def _take(self, form: Form) -> None:
        head = form.head if isinstance(form, Listing) else None
        if not isinstance(form, Listing) or head is None:
            self._not_a_definition(form)
        elif head == "begin":
            self._left += reversed(take_apart(form, TOP_FORMS["begin"]).parts["DEFINITION"])
        elif head == "assert":
            self.asserts.append(take_apart(form, TOP_FORMS["assert"]))
        elif head in self.macros:
            self._left.append(self.expander.expand(self.macros[head], form))
        elif head not in DEFINITIONS or head == "defregion":
            self._waiting.setdefault(head, []).append(form)
        else:
            self._define(form)

    def _not_a_definition(self, form: Form) -> None:
        head = form.head if isinstance(form, Listing) else None
        if head == "include":
            raise Error("E-SYN-004", "an include stands in a file, no macro makes one", form.span)
        known = [name for name in DEFINITIONS if name != "defregion"]
        few = len(self.errors) < MAXIMUM_SUGGESTIONS
        notes = suggestions(head, [*known, *TOP_FORMS, *self.macros]) if head and few else []
        notes = notes or [f"definitions are {', '.join(known)}"]
        if head not in self.broken:
            raise Error("E-SYN-004", f"{head or 'this'} is no definition", form.span, notes=notes)

    def _define(self, form: Listing) -> None:
        definition = _definition(form, prelude=False)
        name = definition.name
        place = definition.matched.symbol().span
        before = self.definitions.get(name)
        if before is not None:
            notes = [f"first defined at {before.form.span.place}"]
            raise Error("E-NAME-002", f"{name} is defined twice", place, notes=notes)
        if name in SPECIAL_FORMS or name in DEFINITIONS:
            raise Error("E-NAME-002", f"{name} is a form of the language", place, notes=["take another name"])
        if definition.kind == "macro":
            self.macros[name] = macro_of(definition.matched)
            self._left += reversed(self._waiting.pop(name, []))
        self.definitions[name] = definition


class _Overrides:
    """What variants (in their order), then --set replace."""

    def __init__(self, collected: _Collected, variants: Iterable[str], sets: Iterable[str]) -> None:
        self.definitions = collected.definitions
        self.broken = collected.broken
        self.hypers: dict[str, list[Override]] = {}
        self.run: dict[str, Override] = {}
        self.errors: list[Error] = []
        chosen = list(variants)
        # Variants that are not chosen are checked all the same.
        for definition in self.definitions.values():
            if definition.kind == "variant":
                self._guard(self._variant, definition, False)
            elif definition.kind == "sweep":
                for item in definition.matched.parts["(HYPER [V1 V2 …])"]:
                    self._guard(self._sweep_axis, item)
        for name in chosen:
            self._guard(self._chosen, name)
        for text in sets:
            self._guard(self._set, text)

    def _guard(self, take: object, *arguments: object) -> None:
        assert callable(take)
        if len(self.errors) == MAXIMUM_PROBLEMS:
            return
        try:
            take(*arguments)
        except Error as error:
            if all((error.code, error.span) != (e.code, e.span) for e in self.errors):
                self.errors.append(error)

    def _chosen(self, name: str) -> None:
        definition = self.definitions.get(name)
        if definition is None or definition.kind != "variant":
            known = [d.name for d in self.definitions.values() if d.kind == "variant"]
            close = nearest(name, known)
            notes = [f"did you mean {close}?"] if close else [f"variants: {', '.join(known) or 'none'}"]
            raise Error("E-NAME-006", f"no variant {name}", command_line_span(name), notes=notes)
        self._variant(definition, True)

    def _variant(self, definition: Definition, apply: bool) -> None:
        for item in definition.matched.parts["(HYPER VALUE)"]:
            assert isinstance(item, Listing)
            if item.head == "run":
                self._run_options(item, definition.name, apply)
                continue
            if len(item.items) != 2 or not isinstance(item.items[0], Symbol):
                raise malformed(item, "defvariant: a replacement is (HYPER VALUE)", DEFINITIONS["defvariant"].usage)
            name = item.items[0].name
            if self._hyper(name) is None:
                self._guard(self._no_hyper, name, item.items[0])
            elif apply:
                self.hypers.setdefault(name, []).append(Override(item.items[1], f"variant {definition.name}"))

    def _sweep_axis(self, item: Form) -> None:
        """`(HYPER [V1 V2 …])` or `(run.KEY [V1 V2 …])`, checked."""
        usage = DEFINITIONS["defsweep"].usage
        assert isinstance(item, Listing)
        if len(item.items) != 2 or not isinstance(item.items[0], Symbol):
            raise malformed(item, "defsweep: an axis is (HYPER [V1 V2 …])", usage)
        at, values = item.items
        assert isinstance(at, Symbol)
        if not isinstance(values, Listing) or not values.items:
            raise malformed(values, "defsweep: the values are a list, as in [1 2]", usage)
        key = at.name.removeprefix("run.")
        if key in RUNTIME_SETTINGS and self._hyper(at.name) is None:
            notes = ["give it on the command line: a sweep is of hyperparameters and options of the run"]
            raise Error("E-RUN-007", f"{key} is a setting of the runtime, which is not swept", at.span, notes=notes)
        if at.name.startswith("run."):
            if key not in RUN_KEYS:
                raise unknown_run_key(key, at)
        elif self._hyper(at.name) is None:
            self._no_hyper(at.name, at)

    def _run_options(self, item: Listing, variant: str, apply: bool) -> None:
        positional, keywords = split_keywords(item, item.items[1:], "run")
        if positional:
            raise Error("E-SYN-001", "a variant's (run …) holds :KEY VALUE pairs", positional[0].span)
        keys = {i.name: i for i in item.items if isinstance(i, Keyword)}
        for key, value in keywords.items():
            if key not in RUN_KEYS:
                raise unknown_run_key(key, keys[key])
            if apply:
                self.run[key] = Override(value, f"variant {variant}")

    def _hyper(self, name: str) -> Definition | None:
        definition = self.definitions.get(name)
        return definition if definition is not None and definition.kind == "hyper" else None

    def _no_hyper(self, name: str, at: Form) -> None:
        if name in self.broken:
            return
        known = [d.name for d in self.definitions.values() if d.kind == "hyper"]
        close = nearest(name, known)
        notes = [f"did you mean {close}?"] if close else [f"hyperparameters: {', '.join(known) or 'none'}"]
        raise Error("E-NAME-006", f"no hyperparameter {name}", at.span, notes=notes)

    def _set(self, text: str) -> None:
        key, equals, value = text.partition("=")
        span = command_line_span(text)
        if not equals or not key:
            raise Error("E-RUN-004", f"--set {text} is not KEY=VALUE", span)
        if key.startswith("run."):
            name = key.removeprefix("run.")
            if name not in RUN_KEYS:
                raise unknown_run_key(name, Symbol(text, span))
            self.run[name] = Override(_value(value, text, wants_text=False), "--set")
            return
        definition = self._hyper(key)
        if definition is None:
            self._no_hyper(key, Symbol(text, span))
            return
        made = _value(value, text, isinstance(definition.matched.one("VALUE"), Text))
        self.hypers.setdefault(key, []).append(Override(made, "--set"))


def unknown_run_key(key: str, at: Form) -> Error:
    """E-RUN-002 with the nearest key of a run."""
    close = nearest(key, RUN_KEYS)
    notes = [f"did you mean :{close}?"] if close else [f"keys of a run: {' '.join(':' + k for k in RUN_KEYS)}"]
    return Error("E-RUN-002", f"a run has no key :{key}", at.span, notes=notes)


def _value(value: str, text: str, wants_text: bool) -> Form:
    """The form of a value typed on the command line; where the default is a text, quotes may be left out."""
    if wants_text and not value.startswith('"'):
        return Text(value, command_line_span(text))
    try:
        forms = read(Source("<command line>", value))
    except Diagnostics as problems:
        raise problems.errors[0] from None
    if len(forms) != 1:
        raise Error("E-RUN-004", f"--set {text}: one value is needed", command_line_span(text))
    return forms[0]
