"""What a call of a macro stands for, within limits.

A symbol that a template brings in gets the mark of its expansion: it is another variable than any that the user wrote,
and where nothing in the expansion binds it, it means what it means at the top of the files, where macros are defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Form, Listing, Symbol
from sexpgpu.lang.macros import ListPattern, ListTemplate, Macro, Part, Pattern, Rule, TemplateForm, Variable
from sexpgpu.source import MacroCall, Span

# A hostile file ends within a second: an expansion and the compilation of what it made take about 20 µs.
MAXIMUM_STEPS = 30_000
# Expansions of what expansions made.
MAXIMUM_DEPTH = 1_000
# Of what is matched and made, what a variable stands for counted each time that it is placed.
MAXIMUM_NODES = 1_000_000
# What a variable stands for: a form; under `...` one of these for each time.
Found = Form | list["Found"]


class Expander:
    """Expands the calls of one program; counts what that takes, over all calls together."""

    def __init__(self) -> None:
        self.steps = 0
        self.nodes = 0
        self.mark = 0
        # By identity, with the form that has it: the same argument is placed again and again.
        self._sizes: dict[int, tuple[Form, int]] = {}

    @property
    def exhausted(self) -> bool:
        """Whether a limit is passed: every further call is so, too."""
        return self.steps > MAXIMUM_STEPS or self.nodes > MAXIMUM_NODES

    def exhaust(self) -> None:
        """Nothing more is expanded."""
        self.steps = MAXIMUM_STEPS + 1

    def expand(self, macro: Macro, call: Listing) -> Form:
        """The form that stands for the call. No rule is E-MACRO-001, a limit E-MACRO-003."""
        self.steps += 1
        if self.steps > MAXIMUM_STEPS:
            raise _endless(macro, call, f"more than {MAXIMUM_STEPS:,} expansions")
        if _depth(call) == MAXIMUM_DEPTH:
            self.exhaust()
            raise _endless(macro, call, f"expansions are nested deeper than {MAXIMUM_DEPTH:,}")
        try:
            for rule in macro.rules:
                found: dict[str, Found] = {}
                if self._match_items(rule.pattern, call.items[1:], found):
                    return _Making(self, macro, call).form(rule.template, found)
        except _TooMuch:
            raise _endless(macro, call, f"more than {MAXIMUM_NODES:,} data in expansions") from None
        raise Error("E-MACRO-001", f"{macro.name} has no rule for this call", call.span, notes=_usages(macro))

    def spend(self, nodes: int) -> None:
        self.nodes += nodes
        if self.nodes > MAXIMUM_NODES:
            raise _TooMuch

    def spend_form(self, form: Form) -> None:
        """Counts all that is in a form."""
        if not isinstance(form, Listing):
            return
        if id(form) not in self._sizes:
            before, left = self.nodes, [form]
            for part in left:  # grows while it is walked
                self.spend(len(part.items))
                left += [item for item in part.items if isinstance(item, Listing)]
            self._sizes[id(form)] = form, self.nodes - before
        else:
            self.spend(self._sizes[id(form)][1])

    def _match(self, pattern: Pattern, form: Form, found: dict[str, Found]) -> bool:
        if isinstance(pattern, ListPattern):
            if not isinstance(form, Listing) or (pattern.square and not form.square):
                return False
            return self._match_items(pattern, form.items, found)
        if isinstance(pattern, Symbol):
            found[pattern.variable] = form
            return True
        return type(pattern) is type(form) and pattern == form

    def _match_items(self, pattern: ListPattern, forms: Sequence[Form], found: dict[str, Found]) -> bool:
        self.spend(len(pattern.names) + 1)
        first, last = len(pattern.before), len(forms) - len(pattern.after)
        if last < first or (pattern.repeated is None and last != first):
            return False
        rounds: list[dict[str, Found]] = []
        for form in forms[first:last]:
            rounds.append({})
            assert pattern.repeated is not None
            self.spend(1)
            if not self._match(pattern.repeated, form, rounds[-1]):
                return False
        for name in pattern.names:
            found[name] = [one[name] for one in rounds]
        fixed = [*zip(pattern.before, forms), *zip(pattern.after, forms[last:])]
        self.spend(len(fixed))
        return all(self._match(part, form, found) for part, form in fixed)


class _TooMuch(Exception):
    """The limit of nodes."""


class _Making:
    """One expansion: what its template brings in has marks of its own and stands at the call."""

    def __init__(self, expander: Expander, macro: Macro, call: Listing) -> None:
        self.expander = expander
        self.macro = macro
        self.call = call
        self.place = call.span[:3]
        self.made_by = MacroCall(macro.name, call.span, _depth(call) + 1)
        # The mark that a symbol gets, by the one that it has in the template (where a macro made the macro).
        self.marks: dict[int, int] = {}

    def form(self, template: TemplateForm, found: dict[str, Found]) -> Form:
        if isinstance(template, ListTemplate):
            self.expander.spend(len(template.parts) + 1)
            items: list[Form] = []
            for part in template.parts:
                if part.levels:
                    self._repeat(part, 0, found, items)
                else:
                    items.append(self.form(part.item, found))
            return Listing(tuple(items), self._span(template.form.span), template.form.square)
        if isinstance(template, Variable):
            form = found[template.name]
            assert not isinstance(form, list), template.name
            self.expander.spend_form(form)
            return form
        if isinstance(template, Symbol):
            return Symbol(template.name, self._span(template.span), self._mark(template.mark))
        return replace(template, span=self._span(template.span))

    def _repeat(self, part: Part, level: int, found: dict[str, Found], items: list[Form]) -> None:
        if level == len(part.levels):
            self.expander.spend(1)
            items.append(self.form(part.item, found))
            return
        lists = {name: made for name in part.levels[level] if isinstance(made := found[name], list)}
        counts = {len(made) for made in lists.values()}
        if len(counts) != 1:
            shown = ", ".join(f"{name.split()[0]} {len(made)} times" for name, made in lists.items())
            message = f"{self.macro.name}: what is repeated together has different lengths: {shown}"
            raise Error("E-MACRO-001", message, self.call.span)
        for k in range(counts.pop()):
            inner = {name: lists[name][k] if name in lists else found[name] for name in part.needed}
            self._repeat(part, level + 1, inner, items)

    def _span(self, part: Span) -> Span:
        """The place of the call, and this part of the template."""
        return Span(*self.place, part.template or part, self.made_by)

    def _mark(self, mark: int) -> int:
        if mark not in self.marks:
            self.expander.mark += 1
            self.marks[mark] = self.expander.mark
        return self.marks[mark]


def _depth(call: Listing) -> int:
    return 0 if call.span.made_by is None else call.span.made_by.depth


def _endless(macro: Macro, call: Listing, what: str) -> Error:
    notes = ["does the macro expand to a call of itself without end?"]
    return Error("E-MACRO-003", f"{macro.name}: {what}", call.span, notes=notes)


def _usages(macro: Macro) -> list[str]:
    def usage(rule: Rule) -> str:
        items = rule.written.span.written[1:-1].strip()
        return f"({macro.name}{' ' if items else ''}{items})"

    shown = [usage(rule) for rule in macro.rules[:5]]
    return [f"its rules: {' '.join(shown)}{' …' if len(macro.rules) > len(shown) else ''}"]
