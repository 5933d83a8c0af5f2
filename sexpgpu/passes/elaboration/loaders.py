"""Loaders of a program: their forms as `LoaderSpec`s, and what their headers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from sexpgpu.errors import Error, nearest
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Symbol, Text
from sexpgpu.lang.grammar import split_keywords
from sexpgpu.lang.program import Definition, Program
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.passes.elaboration.compile import Compiler
from sexpgpu.passes.elaboration.hypers import folder_of
from sexpgpu.passes.elaboration.machine import Wrong
from sexpgpu.passes.elaboration.values import POISON, Problem, Value, describe, integer, number

HeaderReader = Callable[[LoaderSpec], Header]

_COMMON = ("batch", "split", "part", "limit", "order")
# Options that only one kind of source has, each a text.
_OWN = ("field", "boundary")
# The keywords of each source.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "text": ("tokenizer", "seq", *_COMMON),
    "token-file": ("dtype", "seq", *_COMMON),
    "lines": ("tokenizer", "boundary", "seq", *_COMMON),
    "jsonl": ("field", "tokenizer", "boundary", "seq", *_COMMON),
    "arrays": _COMMON,
    "builtin": ("tokenizer", "seq", *_COMMON),
}


class Loaders:
    """Specs and headers by name, each made once; problems go to the machine."""

    def __init__(self, program: Program, compiler: Compiler, read_header: HeaderReader) -> None:
        self.program = program
        self.compiler = compiler
        self.machine = compiler.machine
        self.read_header = read_header
        # The rows of a batch where a loader does not say: a rank's share of the run's :global-batch; and who did not.
        self.default_batch: int | None = None
        self.without_batch: set[str] = set()
        self._specs: dict[str, LoaderSpec | None] = {}
        self._headers: dict[str, Header | None] = {}
        self.machine.header = self.header

    def spec(self, name: str) -> LoaderSpec | None:
        if name not in self._specs:
            definition = self.program.definitions[name]
            try:
                self._specs[name] = _SpecForm(self, definition).spec()
            except Wrong:
                self._specs[name] = None
            except Error as error:
                self.machine.report(error)
                self._specs[name] = None
        return self._specs[name]

    def header(self, name: str) -> Header | None:
        if name not in self._headers:
            spec = self.spec(name)
            self._headers[name] = None
            if spec is not None:
                try:
                    self._headers[name] = self.read_header(spec)
                except Error as error:
                    self.machine.report(error)
        return self._headers[name]

    def named(self, form: Form, what: str) -> str:
        """The loader that a form names."""
        known = [d.name for d in self.program.of_kind("loader")]
        if isinstance(form, Symbol) and form.name in known:
            return form.name
        if not isinstance(form, Symbol):
            message = f"{what}: a loader's name must stand here"
            raise Error("E-SYN-001", message, form.span, notes=[f"loaders: {', '.join(known) or 'none'}"])
        close = nearest(form.name, known)
        notes = [f"did you mean {close}?"] if close else [f"loaders: {', '.join(known) or 'none'}"]
        raise Error("E-NAME-001", f"{what}: no loader {form.name}", form.span, notes=notes)

    def value(self, form: Form) -> Value:
        made = self.compiler.evaluate(form)
        if made is POISON:
            raise Wrong
        return made

    def integer(self, form: Form, what: str) -> int:
        try:
            return integer(self.value(form), what)
        except Problem as problem:
            raise Error(problem.code, problem.message, form.span) from None


class _SpecForm:
    """One `(SOURCE PATH :KEY VALUE…)`."""

    def __init__(self, loaders: Loaders, definition: Definition) -> None:
        self.loaders = loaders
        self.definition = definition
        form = definition.matched.one("(SOURCE …)")
        expanded = loaders.compiler.expanded(form)
        if not isinstance(expanded, Listing):
            raise Error("E-SYN-001", f"defloader {definition.name}: (SOURCE …) must stand here", form.span)
        self.form = expanded

    def spec(self) -> LoaderSpec:
        form, name = self.form, self.definition.name
        kind = form.head or ""
        if kind not in KEYWORDS:
            close = nearest(kind, list(KEYWORDS))
            notes = [f"did you mean {close}?"] if close else [f"sources: {', '.join(KEYWORDS)}"]
            raise Error("E-NAME-001", f"defloader {name}: no source {kind or form.span.written[:20]}", form.span, notes=notes)
        positional, keywords = split_keywords(form, form.items[1:], kind)
        for key in keywords:
            if key not in KEYWORDS[kind]:
                at = next(i for i in form.items if isinstance(i, Keyword) and i.name == key)
                close = nearest(key, KEYWORDS[kind])
                notes = [f"did you mean :{close}?"] if close else [f"its keys: {' '.join(':' + k for k in KEYWORDS[kind])}"]
                raise Error("E-RUN-002", f"{kind} has no key :{key}", at.span, notes=notes)
        if len(positional) != 1:
            what = "the name of a source" if kind == "builtin" else "a path"
            raise Error("E-SYN-001", f"{kind} takes {what}, then keys", form.span)
        paths, base = self._paths(positional[0])
        options: dict[str, Any] = {key: getattr(self, f"_{key}")(value) for key, value in keywords.items() if key not in _OWN}
        options["options"] = tuple([(key, self._text(value, f":{key}")) for key, value in keywords.items() if key in _OWN])
        if "batch" not in options:
            self.loaders.without_batch.add(name)
            options["batch"] = self.loaders.default_batch
        return LoaderSpec(kind=cast(Any, kind), paths=paths, name=name, base=base, span=form.span, **options)

    def _paths(self, form: Form) -> tuple[tuple[str, ...], Path]:
        value = self.loaders.value(form)
        items = value if isinstance(value, tuple) else (value,)
        if not items or not all([isinstance(item, str) for item in items]):
            raise Error("E-TYPE-001", f"a path is a text, not {describe(value)}", form.span)
        return tuple([str(item) for item in items]), folder_of(self.form.span, *items)

    def _tokenizer(self, form: Form) -> tuple[str, ...]:
        if not isinstance(form, Listing) or form.head is None:
            raise Error("E-SYN-001", ':tokenizer is (bytes) or (bpe "tokenizer.json")', form.span)
        texts = [self._text(item, form.head) for item in form.items[1:]]
        return (form.head, *[str(folder_of(form.span, text) / text) for text in texts])

    def _text(self, form: Form, what: str) -> str:
        value = self.loaders.value(form)
        if not isinstance(value, str):
            raise Error("E-TYPE-001", f"{what} takes a text, not {describe(value)}", form.span)
        return value

    def _seq(self, form: Form) -> int:
        return self.loaders.integer(form, ":seq")

    def _batch(self, form: Form) -> int:
        return self.loaders.integer(form, ":batch")

    def _limit(self, form: Form) -> int | None:
        if isinstance(form, Constant) and form.value is None:
            return None
        return self.loaders.integer(form, ":limit")

    def _word(self, form: Form, key: str) -> str:
        if isinstance(form, Symbol):
            return form.name
        if isinstance(form, Text):
            return form.value
        raise Error("E-SYN-001", f":{key} is a name", form.span)

    def _part(self, form: Form) -> str:
        return self._word(form, "part")

    def _dtype(self, form: Form) -> str:
        return self._word(form, "dtype")

    def _order(self, form: Form) -> str:
        word = self._word(form, "order")
        if word not in ("shuffled", "file"):
            raise Error("E-RUN-007", f":order is shuffled or file, not {word}", form.span)
        return word

    def _split(self, form: Form) -> tuple[tuple[str, float], ...]:
        items = form.items if isinstance(form, Listing) else ()
        if not items or len(items) % 2:
            raise Error("E-SYN-001", ":split is (NAME FRACTION…), as in (train 0.9 val 0.1)", form.span)
        made = []
        for name, fraction in zip(items[::2], items[1::2]):
            try:
                made.append((self._word(name, "split"), float(number(self.loaders.value(fraction), ":split"))))
            except Problem as problem:
                raise Error(problem.code, problem.message, fraction.span) from None
        return tuple(made)
