"""The shape of every form that is not a call, as data: what the reference shows is what is checked (E-SYN-001)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sexpgpu.errors import Error, nearest
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text

Kind = Literal["form", "name", "text", "list", "square"]
Count = Literal["one", "optional", "some", "any"]


@dataclass(frozen=True)
class Part:
    """One place of a form: the word that the usage has for it, what may stand there and how often."""

    word: str
    kind: Kind = "form"
    count: Count = "one"


@dataclass(frozen=True)
class Shape:
    """A form's usage and its parts in order. `keywords` None: keywords are not taken apart."""

    usage: str
    parts: tuple[Part, ...]
    keywords: tuple[str, ...] | None = None


NAME = Part("NAME", "name")
EXPR = Part("EXPR")
BODY = Part("BODY", "form", "some")
ARGUMENTS = Part("(ARG…)", "list")
BINDINGS = Part("((N E)…)", "list")
RUN_KEYS = (
    "data", "loss", "predict", "optimizer", "steps", "epochs", "microbatches", "global-batch", "clip-grad-norm",
    "precision", "ema", "init", "freeze", "eval", "stop", "checkpoint", "diagnostics", "log-every", "sum-lanes", "seed",
)  # fmt: skip

DEFINITIONS: Mapping[str, Shape] = {
    "defhyper": Shape("(defhyper NAME VALUE)", (NAME, Part("VALUE"))),
    "def": Shape("(def NAME EXPR)", (NAME, EXPR)),
    "defun": Shape("(defun NAME (ARG… &key (K DEFAULT)…) BODY…)", (NAME, ARGUMENTS, BODY)),
    "deflayer": Shape("(deflayer NAME (ARG… &key (K DEFAULT)…) BODY…)", (NAME, ARGUMENTS, BODY)),
    "defmacro": Shape(
        "(defmacro NAME (PATTERN…) TEMPLATE) or (defmacro NAME ((PATTERN…) TEMPLATE)…)",
        (NAME, Part("(PATTERN…)", "list"), Part("TEMPLATE", "form", "any")),
    ),
    "defregion": Shape("(defregion NAME (ARG… &key (K DEFAULT)…) BODY…)", (NAME, ARGUMENTS, BODY)),
    "defoptimizer": Shape("(defoptimizer NAME (P G &key (K DEFAULT)…) BODY…)", (NAME, ARGUMENTS, BODY)),
    "defloader": Shape("(defloader NAME (SOURCE …))", (NAME, Part("(SOURCE …)", "list"))),
    "defmetric": Shape("(defmetric NAME [:reduce mean|sum|max|min] EXPR)", (NAME, EXPR), ("reduce",)),
    "defdiagnostic": Shape(
        "(defdiagnostic NAME :every N [:reduce mean|sum|max|min|l2] EXPR)", (NAME, EXPR), ("every", "reduce")
    ),
    "defanalysis": Shape(
        "(defanalysis NAME :data LOADER [:reduce …] [:collect true] EXPR)", (NAME, EXPR), ("data", "reduce", "collect")
    ),
    # The keys of a run are checked with its values, under codes of their own.
    "defrun": Shape("(defrun NAME :KEY VALUE…)", (NAME, Part(":KEY VALUE", "form", "any"))),
    "defvariant": Shape("(defvariant NAME (HYPER VALUE)…)", (NAME, Part("(HYPER VALUE)", "list", "any"))),
    "defsweep": Shape("(defsweep NAME (HYPER [V1 V2 …])…)", (NAME, Part("(HYPER [V1 V2 …])", "list", "any"))),
}
TOP_FORMS: Mapping[str, Shape] = {
    "begin": Shape("(begin DEFINITION…)", (Part("DEFINITION", "form", "any"),)),
    "include": Shape('(include "other.sexp")', (Part('"other.sexp"', "text"),)),
    "assert": Shape(
        '(assert COND "message" VALUE…)', (Part("COND"), Part('"message"', "text"), Part("VALUE", "form", "any"))
    ),
}
SPECIAL_FORMS: Mapping[str, Shape] = {
    "begin": Shape("(begin BODY…)", (BODY,)),
    "fn": Shape("(fn (ARG…) BODY…)", (ARGUMENTS, BODY)),
    "let": Shape("(let ((N E)…) BODY…)", (BINDINGS, BODY)),
    "let*": Shape("(let* ((N E)…) BODY…)", (BINDINGS, BODY)),
    "if": Shape("(if COND THEN ELSE)", (Part("COND"), Part("THEN"), Part("ELSE", "form", "optional"))),
    "cond": Shape("(cond (COND BODY…)… (else BODY…))", (Part("(COND BODY…)", "list", "some"),)),
    "and": Shape("(and E…)", (Part("E", "form", "any"),)),
    "or": Shape("(or E…)", (Part("E", "form", "any"),)),
    "repeat": Shape(
        "(repeat (I N) (X INIT) BODY) or (repeat (I N) ((X INIT) (Y INIT)…) BODY)",
        (Part("(I N)", "list"), Part("(X INIT)", "list"), BODY),
    ),
    "assert": TOP_FORMS["assert"],
    "state": Shape("(state NAME INIT)", (NAME, Part("INIT"))),
    "update": Shape("(update NAME VALUE)", (NAME, Part("VALUE"))),
}


@dataclass(frozen=True)
class Matched:
    """A form taken apart: `parts[word]` are the forms at that place, `keywords` what followed each keyword."""

    form: Listing
    parts: Mapping[str, tuple[Form, ...]]
    keywords: Mapping[str, Form]

    def one(self, word: str) -> Form:
        return self.parts[word][0]

    def symbol(self) -> Symbol:
        form = self.parts["NAME"][0]
        assert isinstance(form, Symbol)
        return form

    def name(self) -> str:
        return self.symbol().name


def describe(form: Form) -> str:
    """What a form is, in the words of messages."""
    match form:
        case Symbol():
            return f"the name {form.name}"
        case Keyword():
            return f"the keyword :{form.name}"
        case Number():
            return f"the number {form.span.written}"
        case Text():
            return "a text"
        case Constant():
            return {True: "true", False: "false", None: "nil"}[form.value]
        case Listing():
            return "a list"


_EXPECTED: Mapping[Kind, tuple[str, type | tuple[type, ...]]] = {
    "form": ("a form", (Symbol, Number, Text, Constant, Listing)),
    "name": ("a name", Symbol),
    "text": ("a text in quotes", Text),
    "list": ("a list", Listing),
    "square": ("a list", Listing),
}


def malformed(form: Form, message: str, usage: str) -> Error:
    return Error("E-SYN-001", message, form.span, notes=[f"the form is {usage}"])


def take_apart(form: Listing, shape: Shape) -> Matched:
    """The parts of a form, or E-SYN-001 with the usage."""
    head = form.head or ""
    items: list[Form] = list(form.items[1:])
    keywords: dict[str, Form] = {}
    if shape.keywords is not None:
        items, keywords = split_keywords(form, form.items[1:], head)
        for key, value in keywords.items():
            if key not in shape.keywords:
                raise unknown_keyword(head, key, value, shape.keywords)
    parts: dict[str, tuple[Form, ...]] = {}
    for part in shape.parts:
        take = len(items) if part.count in ("some", "any") else min(1, len(items))
        if take == 0 and part.count in ("one", "some"):
            raise malformed(form, f"{head}: {part.word} is missing", shape.usage)
        taken, items = items[:take], items[take:]
        for item in taken:
            _check(item, part, head, shape)
        parts[part.word] = tuple(taken)
    if items:
        raise malformed(items[0], f"{head}: nothing may follow {shape.parts[-1].word}", shape.usage)
    return Matched(form, parts, keywords)


def _check(item: Form, part: Part, head: str, shape: Shape) -> None:
    expected, types = _EXPECTED[part.kind]
    if isinstance(item, Keyword) and part.word == ":KEY VALUE":
        return
    if not isinstance(item, types):
        raise malformed(item, f"{head}: {part.word} must be {expected}, not {describe(item)}", shape.usage)


def split_keywords(form: Listing, items: Sequence[Form], head: str) -> tuple[list[Form], dict[str, Form]]:
    """Positional forms and keyword arguments. A keyword without a value, or given twice, is E-SYN-001."""
    positional: list[Form] = []
    keywords: dict[str, Form] = {}
    at = 0
    while at < len(items):
        item = items[at]
        if not isinstance(item, Keyword):
            positional.append(item)
            at += 1
            continue
        if at + 1 == len(items) or isinstance(items[at + 1], Keyword):
            raise Error("E-SYN-001", f"{head}: no value after :{item.name}", item.span)
        if item.name in keywords:
            raise Error("E-SYN-001", f"{head}: :{item.name} is given twice", item.span)
        keywords[item.name] = items[at + 1]
        at += 2
    return positional, keywords


def unknown_keyword(head: str, key: str, at: Form, known: Sequence[str]) -> Error:
    """E-NAME-005 with the nearest known keyword."""
    close = nearest(key, known)
    known_text = ", ".join(f":{k}" for k in known) or "none"
    notes = [f"did you mean :{close}?"] if close else [f"its keywords: {known_text}"]
    return Error("E-NAME-005", f"{head} has no keyword :{key}", at.span, notes=notes)


@dataclass(frozen=True)
class Parameters:
    """`(ARG… &key (K DEFAULT)…)`; a key without a default has nil."""

    names: tuple[Symbol, ...]
    keys: tuple[tuple[Symbol, Form | None], ...]


def parameters_of(form: Form, head: str) -> Parameters:
    """A function's parameters."""
    assert isinstance(form, Listing)
    usage = f"({head} … (ARG… &key (K DEFAULT)…) BODY…)"
    names: list[Symbol] = []
    keys: list[tuple[Symbol, Form | None]] = []
    in_keys = False
    for item in form.items:
        if isinstance(item, Symbol) and item.name == "&key":
            in_keys = True
        elif isinstance(item, Symbol):
            _fresh(item, names, keys, head, usage)
            (keys.append((item, None)) if in_keys else names.append(item))
        elif in_keys and isinstance(item, Listing) and len(item.items) == 2 and isinstance(item.items[0], Symbol):
            _fresh(item.items[0], names, keys, head, usage)
            keys.append((item.items[0], item.items[1]))
        else:
            wanted = "(K DEFAULT)" if in_keys else "an argument's name"
            raise malformed(item, f"{head}: {wanted} must stand here, not {describe(item)}", usage)
    return Parameters(tuple(names), tuple(keys))


def _fresh(
    item: Symbol, names: Sequence[Symbol], keys: Sequence[tuple[Symbol, Form | None]], head: str, usage: str
) -> None:
    # Keys are told apart by their names alone: a keyword has no mark.
    if item in names or any(item.name == key.name for key, _ in keys):
        raise malformed(item, f"{head}: the argument {item.name} stands twice", usage)


# What a binding binds: a name, or a list of patterns for a list or several values.
Pattern = Symbol | tuple["Pattern", ...]


def pattern_of(form: Form, head: str, usage: str) -> Pattern:
    if isinstance(form, Symbol):
        return form
    if isinstance(form, Listing) and form.items:
        return tuple([pattern_of(item, head, usage) for item in form.items])
    raise malformed(form, f"{head}: a name or a list of names must stand here, not {describe(form)}", usage)


def bindings_of(form: Form, head: str) -> list[tuple[Pattern, Form]]:
    """`((N E) ((a b) E)…)`."""
    assert isinstance(form, Listing)
    usage = SPECIAL_FORMS[head].usage
    made: list[tuple[Pattern, Form]] = []
    for item in form.items:
        if not isinstance(item, Listing) or len(item.items) != 2:
            raise malformed(item, f"{head}: a binding is (NAME EXPR), not {describe(item)}", usage)
        made.append((pattern_of(item.items[0], head, usage), item.items[1]))
    return made
