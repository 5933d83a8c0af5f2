"""Loaders of a program: their forms as `LoaderSpec`s, and what their headers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from sexpgpu.errors import Error, nearest
from sexpgpu.ir.types import DTYPES, MAXIMUM_ELEMENTS
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Symbol, Text
from sexpgpu.lang.grammar import split_keywords
from sexpgpu.lang.program import Definition, Program
from sexpgpu.loaderspec import Field, Header, LoaderSpec
from sexpgpu.passes.elaboration.compile import Compiler
from sexpgpu.passes.elaboration.hypers import folder_of
from sexpgpu.passes.elaboration.machine import Wrong
from sexpgpu.passes.elaboration.values import POISON, Problem, Value, describe, integer, number

HeaderReader = Callable[[LoaderSpec], Header]

_COMMON = ("batch", "split", "part", "limit", "order")
# Options that only one kind of source has, each a text.
_OWN = ("field", "boundary", "delimiter")
# The keywords of each source.
KEYWORDS: Mapping[str, tuple[str, ...]] = {
    "text": ("tokenizer", "seq", *_COMMON),
    "token-file": ("dtype", "tokenizer", "seq", *_COMMON),
    "lines": ("tokenizer", "boundary", "seq", *_COMMON),
    "jsonl": ("field", "tokenizer", "boundary", "seq", *_COMMON),
    "arrays": _COMMON,
    "csv": ("fields", "delimiter", *_COMMON),
    "parquet": ("fields", *_COMMON),
    "mix": ("batch", "limit", "order"),
    # Every other keyword is a field.
    "synthetic": ("split", "part", "limit", "order"),
    "builtin": ("tokenizer", "seq", *_COMMON),
}


def with_batch(spec: LoaderSpec, batch: int) -> LoaderSpec:
    """The loader with another batch, which a mix has of its loaders and synthetic data of their shapes."""
    parts = tuple([(with_batch(part, batch), weight) for part, weight in spec.parts])
    declared = tuple([(name, Field(f.dtype, (batch, *f.shape[1:])), limit) for name, f, limit in spec.declared])
    return replace(spec, batch=batch, parts=parts, declared=declared)


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
        # Those whose forms are being read.
        self._open: set[str] = set()
        self._headers: dict[str, Header | None] = {}
        self.machine.header = self.header

    def spec(self, name: str) -> LoaderSpec | None:
        if name not in self._specs:
            definition = self.program.definitions[name]
            self._open.add(name)
            try:
                self._specs[name] = _SpecForm(self, definition).spec()
            except Wrong:
                self._specs[name] = None
            except Error as error:
                self.machine.report(error)
                self._specs[name] = None
            self._open.discard(name)
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

    def part(self, name: str, form: Form) -> LoaderSpec:
        """A loader that another one draws from."""
        if name in self._open:
            raise Error("E-DATA-007", f"mix: {name} draws from itself", form.span)
        spec = self.spec(name)
        if spec is None:
            raise Wrong
        return spec

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
        declared = {} if kind != "synthetic" else {k: v for k, v in keywords.items() if k not in KEYWORDS[kind]}
        keywords = {key: value for key, value in keywords.items() if key not in declared}
        for key in keywords:
            if key not in KEYWORDS[kind]:
                raise self._unknown_key(kind, key)
        options: dict[str, Any] = {key: getattr(self, f"_{key}")(value) for key, value in keywords.items() if key not in _OWN}
        options["options"] = tuple([(key, self._text(value, f":{key}")) for key, value in keywords.items() if key in _OWN])
        if kind == "synthetic":
            options |= self._synthetic(positional, declared)
        elif kind == "mix":
            options |= self._mix(positional, options.get("batch"))
        else:
            options |= self._from_files(kind, positional)
        if options.get("batch") is None:
            self.loaders.without_batch.add(name)
            options["batch"] = self.loaders.default_batch
        if "fields" in options:
            options["columns"] = options.pop("fields")
        return LoaderSpec(kind=cast(Any, kind), name=name, span=form.span, **options)

    def _unknown_key(self, kind: str, key: str) -> Error:
        at = next(i for i in self.form.items if isinstance(i, Keyword) and i.name == key)
        close = nearest(key, KEYWORDS[kind])
        notes = [f"did you mean :{close}?"] if close else [f"its keys: {' '.join(':' + k for k in KEYWORDS[kind])}"]
        return Error("E-RUN-002", f"{kind} has no key :{key}", at.span, notes=notes)

    def _from_files(self, kind: str, positional: Sequence[Form]) -> dict[str, Any]:
        if len(positional) != 1:
            what = "the name of a source" if kind == "builtin" else "a path"
            raise Error("E-SYN-001", f"{kind} takes {what}, then keys", self.form.span)
        paths, base = self._paths(positional[0])
        return {"paths": paths, "base": base}

    def _synthetic(self, positional: Sequence[Form], declared: Mapping[str, Form]) -> dict[str, Any]:
        """`:field (DTYPE [batch…] LIMIT)`, the limit of integers."""
        if positional:
            raise Error("E-SYN-001", "synthetic takes fields, as in :x (f32 [batch 8])", positional[0].span)
        made = tuple([(name, *self._declared(name, form)) for name, form in declared.items()])
        return {"paths": (), "declared": made, "batch": made[0][1].shape[0] if made else 1}

    def _declared(self, name: str, form: Form) -> tuple[Field, int]:
        usage = f":{name} is (DTYPE [batch …]), of integers (DTYPE [batch …] LIMIT)"
        if not isinstance(form, Listing) or len(form.items) not in (2, 3) or form.head not in DTYPES:
            raise Error("E-SYN-001", usage, form.span, notes=[f"dtypes: {' '.join(DTYPES)}"])
        value = self.loaders.value(form.items[1])
        sizes = value if isinstance(value, tuple) else (value,)
        try:
            shape = tuple([integer(size, "a size") for size in sizes])
        except Problem as problem:
            raise Error(problem.code, problem.message, form.items[1].span) from None
        if not shape or min(shape) < 1:
            raise Error("E-SHAPE-003", f":{name}: every size is at least 1, and the first is the batch", form.items[1].span)
        if prod(shape) >= MAXIMUM_ELEMENTS:
            raise Error("E-SHAPE-005", f":{name}: a tensor of {prod(shape):,} elements: 2^48 or more", form.items[1].span)
        limit = self.loaders.integer(form.items[2], f":{name}") if len(form.items) == 3 else 256
        if not 1 <= limit <= 1 << (8 if form.head == "u8" else 31):
            raise Error("E-DATA-007", f":{name}: integers below {limit} cannot be", form.span)
        return Field(form.head, shape), limit

    def _mix(self, positional: Sequence[Form], batch: int | None) -> dict[str, Any]:
        """`(LOADER WEIGHT)…`; their batch is the mix's, where it says one."""
        parts = []
        for form in positional:
            if not isinstance(form, Listing) or len(form.items) != 2:
                raise Error("E-SYN-001", "mix takes (LOADER WEIGHT)…, as in (mix (a 0.7) (b 0.3))", form.span)
            name = self.loaders.named(form.items[0], "mix")
            weight = self._number(form.items[1], "a weight of mix")
            if not 0 < weight < float("inf"):
                raise Error("E-DATA-007", f"the weight of {name} is {weight:g}, not above 0", form.items[1].span)
            part = self.loaders.part(name, form.items[0])
            parts.append((part if batch is None else with_batch(part, batch), weight))
        if not parts:
            raise Error("E-SYN-001", "mix takes (LOADER WEIGHT)…, as in (mix (a 0.7) (b 0.3))", self.form.span)
        without = batch is None and any([part.name in self.loaders.without_batch for part, _ in parts])
        first = parts[0][0]
        return {"paths": (), "parts": tuple(parts), "batch": None if without else batch or first.batch, "seq": first.seq}

    def _fields(self, form: Form) -> tuple[tuple[str, str | tuple[str, ...]], ...]:
        """`(x ["a" "b"] y "label")`: each field's column or columns."""
        usage = ':fields is (FIELD COLUMNS…), as in (x ["width" "height"] y "label")'
        items = form.items if isinstance(form, Listing) else ()
        if not items or len(items) % 2:
            raise Error("E-SYN-001", usage, form.span)
        made: dict[str, str | tuple[str, ...]] = {}
        for name, columns in zip(items[::2], items[1::2]):
            value = self.loaders.value(columns)
            several = value if isinstance(value, tuple) else (value,)
            if not several or not all([isinstance(column, str) for column in several]):
                raise Error("E-SYN-001", usage, columns.span)
            names = tuple([str(column) for column in several])
            field = self._word(name, "fields")
            if field in made:
                raise Error("E-NAME-002", f":fields has {field} twice", name.span)
            made[field] = names if isinstance(value, tuple) else names[0]
        return tuple(made.items())

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
            made.append((self._word(name, "split"), self._number(fraction, ":split")))
        return tuple(made)

    def _number(self, form: Form, what: str) -> float:
        try:
            return float(number(self.loaders.value(form), what))
        except Problem as problem:
            raise Error(problem.code, problem.message, form.span) from None
