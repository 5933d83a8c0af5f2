"""The rules of a pattern macro, taken apart once: what its patterns match and what its templates are made of."""

from __future__ import annotations

from dataclasses import dataclass

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Form, Listing, Symbol
from sexpgpu.lang.grammar import DEFINITIONS, Matched

ELLIPSIS = "..."
MAXIMUM_ELLIPSES = 10  # inside each other


@dataclass(frozen=True, slots=True)
class ListPattern:
    """`before… repeated ... after…`; `names` are the variables of what is repeated. A square one matches square lists alone."""

    square: bool
    before: tuple[Pattern, ...]
    repeated: Pattern | None = None
    names: tuple[str, ...] = ()
    after: tuple[Pattern, ...] = ()


# A symbol is a variable, or `_`; any other atom matches itself.
Pattern = Form | ListPattern


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the pattern, standing in the template."""

    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """One item of a list in a template. `levels` are the variables that each `...` after it goes through, the outermost
    first; `needed` all variables in it."""

    item: TemplateForm
    levels: tuple[tuple[str, ...], ...] = ()
    needed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListTemplate:
    form: Listing
    parts: tuple[Part, ...]


# A symbol, or any other atom, is brought in by the template.
TemplateForm = Form | Variable | ListTemplate


@dataclass(frozen=True)
class Rule:
    written: Listing
    pattern: ListPattern
    template: TemplateForm


@dataclass(frozen=True)
class Macro:
    name: str
    rules: tuple[Rule, ...]


def macro_of(matched: Matched) -> Macro:
    """The macro of a `defmacro`; a rule that cannot be is E-MACRO-002."""
    items = (*matched.parts["(PATTERN…)"], *matched.parts["TEMPLATE"])
    rules = [item.items for item in items if isinstance(item, Listing) and _is_rule(item)]
    if len(rules) == len(items):
        try:
            return Macro(matched.name(), tuple([_rule(pattern, template) for pattern, template in rules]))
        except Error:
            # Perhaps one rule, whose pattern and template look like two.
            if len(items) != 2:
                raise
    if len(items) != 2:
        what = "a template is missing" if len(items) == 1 else "nothing may follow the template"
        usage = f"the form is {DEFINITIONS['defmacro'].usage}"
        raise Error("E-SYN-001", f"defmacro: {what}", matched.form.span, notes=[usage])
    return Macro(matched.name(), (_rule(*items),))


def _is_rule(item: Listing) -> bool:
    return not item.square and len(item.items) == 2 and isinstance(item.items[0], Listing)


def _rule(pattern: Form, template: Form) -> Rule:
    assert isinstance(pattern, Listing)
    depths: dict[str, int] = {}
    made = _list_pattern(pattern, 0, depths, [])
    return Rule(pattern, made, _template(template, 0, depths, []))


def _wrong(message: str, at: Form) -> Error:
    return Error("E-MACRO-002", f"defmacro: {message}", at.span)


def _is_ellipsis(form: Form) -> bool:
    return isinstance(form, Symbol) and form.name == ELLIPSIS


def _pattern(form: Form, depth: int, depths: dict[str, int], order: list[str]) -> Pattern:
    """`depths` gets under how many ellipses each variable stands, `order` the variables as they come."""
    if isinstance(form, Listing):
        return _list_pattern(form, depth, depths, order)
    if isinstance(form, Symbol) and form.name != "_":
        if form.variable in depths:
            raise _wrong(f"{form.name} stands twice in the pattern", form)
        depths[form.variable] = depth
        order.append(form.variable)
    return form


def _list_pattern(form: Listing, depth: int, depths: dict[str, int], order: list[str]) -> ListPattern:
    dots = [k for k, item in enumerate(form.items) if _is_ellipsis(item)]
    if not dots:
        return ListPattern(form.square, tuple([_pattern(item, depth, depths, order) for item in form.items]))
    at = dots[0]
    if at == 0:
        raise _wrong("`...` repeats what stands before it", form.items[0])
    if len(dots) > 1:
        raise _wrong("a list of a pattern has one `...`", form.items[dots[1]])
    if depth == MAXIMUM_ELLIPSES:
        raise _wrong(f"more than {MAXIMUM_ELLIPSES} `...` inside each other", form.items[at])
    before = tuple([_pattern(item, depth, depths, order) for item in form.items[: at - 1]])
    start = len(order)
    repeated = _pattern(form.items[at - 1], depth + 1, depths, order)
    names = tuple(order[start:])
    after = tuple([_pattern(item, depth, depths, order) for item in form.items[at + 1 :]])
    return ListPattern(form.square, before, repeated, names, after)


def _template(form: Form, depth: int, depths: dict[str, int], used: list[str]) -> TemplateForm:
    """`used` gets the variables of the pattern as they come."""
    if isinstance(form, Symbol) and form.variable in depths:
        if depths[form.variable] > depth:
            raise _wrong(f"{form.name} is repeated in the pattern: `...` must follow it here, too", form)
        used.append(form.variable)
        return Variable(form.variable)
    if _is_ellipsis(form):
        raise _wrong("`...` repeats what stands before it", form)
    if not isinstance(form, Listing):
        return form
    parts: list[Part] = []
    at = 0
    while at < len(form.items):
        item, dots = form.items[at], 0
        while at + dots + 1 < len(form.items) and _is_ellipsis(form.items[at + dots + 1]):
            dots += 1
        start = len(used)
        made = _template(item, depth + dots, depths, used)
        if dots:
            needed = tuple(dict.fromkeys(used[start:]))
            # No variable is repeated more than the most: a level beyond that is empty.
            most = range(depth, depth + min(dots, MAXIMUM_ELLIPSES + 1))
            levels = [tuple([name for name in needed if depths[name] > k]) for k in most]
            if not all(levels):
                raise _wrong("`...` follows nothing that the pattern repeats so often", form.items[at + 1])
            parts.append(Part(made, tuple(levels), needed))
        else:
            parts.append(Part(made))
        at += dots + 1
    return ListTemplate(form, tuple(parts))
