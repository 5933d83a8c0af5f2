"""Forms to closures, each form once: names are resolved, shapes of forms and calls checked, before anything runs.

A closure takes the frame of its function's activation (one list, a slot a variable) and gives the form's value.
Bindings never change, so `fn` captures by copying the frame.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sexpgpu.errors import MAXIMUM_SUGGESTIONS, Error
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.lang.expansion import Expander
from sexpgpu.lang.foreign import suggestions
from sexpgpu.lang.forms import Constant, Form, Keyword, Listing, Number, Symbol, Text
from sexpgpu.lang.grammar import DEFINITIONS, SPECIAL_FORMS, parameters_of
from sexpgpu.lang.program import FUNCTION_KINDS, Definition, Program
from sexpgpu.ops.record import TypeMismatch
from sexpgpu.passes.elaboration.calls import dynamic_call, named_call
from sexpgpu.passes.elaboration.hypers import hyper_value
from sexpgpu.passes.elaboration.machine import Machine, Wrong
from sexpgpu.passes.elaboration.values import (
    POISON,
    Builtin,
    Closure,
    Code,
    Frame,
    Function,
    LoaderName,
    Problem,
    Signature,
    Value,
    listed,
)
from sexpgpu.source import Span

# Lists inside lists: the reader allows 1,000, macros may nest them further.
MAXIMUM_NESTING = 2_000


class Layout:
    """The variables visible at a place of one function, and how many slots its frame needs."""

    def __init__(self, prelude: bool) -> None:
        self.names: dict[str, int] = {}
        self.prelude = prelude
        self.size = [0]
        # Inside an optimizer: `state` and `update` are forms there.
        self.optimizer = False
        # A loader's fields, in scope in the expressions of runs; an input is made when one is read.
        self.fields: Mapping[str, Callable[[], Value]] = {}

    def child(self) -> Layout:
        """The same frame, further names."""
        made = Layout(self.prelude)
        made.names, made.size, made.optimizer = dict(self.names), self.size, self.optimizer
        made.fields = self.fields
        return made

    def inner(self) -> Layout:
        """The frame of a function made here: it begins with all slots of this one."""
        made = self.child()
        made.size = [self.size[0]]
        return made

    def slot(self) -> int:
        self.size[0] += 1
        return self.size[0] - 1

    def bind(self, variable: str) -> int:
        self.names[variable] = self.slot()
        return self.names[variable]


def constant(value: Value) -> Code:
    return lambda frame: value


class Compiler:
    """Compiles forms for one machine; top-level names come from the program, the rest from the operation tables."""

    def __init__(
        self,
        program: Program,
        machine: Machine,
        builtins: Mapping[str, Builtin],
        constants: Mapping[str, Value],
        dynamic: Mapping[str, Any],
    ) -> None:
        from sexpgpu.passes.elaboration.special import SPECIAL

        self.program = program
        self.machine = machine
        self.builtins = builtins
        self.constants = constants
        # Names whose value depends on the place: name → function of the machine (`training`, `step`).
        self.dynamic = dynamic
        self.special = SPECIAL
        self._closures: dict[tuple[str, bool], Closure] = {}
        self._definitions: dict[tuple[str, bool], Code] = {}
        self._values: dict[tuple[str, bool], tuple[Graph | None, Value]] = {}
        self._open: list[str] = []
        self._pending: dict[Function, tuple[Definition, Layout]] = {}
        self._expander = Expander()
        self._nesting = 0
        machine.compiler = self

    # Forms

    def code(self, form: Form, layout: Layout) -> Code:
        """The code of a form; a malformed one is reported and gives poison."""
        try:
            if isinstance(form, Listing):
                self._nesting += 1
                try:
                    return self._listing(form, layout)
                finally:
                    self._nesting -= 1
            if isinstance(form, Symbol):
                return self.symbol(form, layout)
            if isinstance(form, (Number, Text, Constant)):
                return constant(form.value)
            assert isinstance(form, Keyword)
            raise Error("E-SYN-001", f"the keyword :{form.name} stands where a value is needed", form.span)
        except Error as error:
            self.machine.report(error)
            return constant(POISON)

    def body(self, forms: Sequence[Form], layout: Layout) -> Code:
        """Several forms in order; the value is the last one's."""
        codes = [self.code(form, layout) for form in forms]
        if len(codes) == 1:
            return codes[0]
        first, last = codes[:-1], codes[-1]

        def run(frame: Frame) -> Value:
            for code in first:
                code(frame)
            return last(frame)

        return run

    def expansion(self, name: str, call: Listing) -> Form:
        """What a call of a macro stands for. Past the limits nothing more is expanded."""
        macro = self.program.macros.get(name)
        if macro is None or self._expander.exhausted:
            raise Wrong
        try:
            if self._nesting > MAXIMUM_NESTING:
                self._expander.exhaust()
                message = f"{name}: expansions nest lists deeper than {MAXIMUM_NESTING:,}"
                raise Error("E-MACRO-003", message, call.span)
            return self._expander.expand(macro, call)
        except Error as error:
            if not self._expander.exhausted:
                raise
            self.machine.report(error)
            raise Wrong from None

    def expanded(self, form: Form) -> Form:
        """A form that is read as data: what it stands for, where its head is a macro."""
        while isinstance(form, Listing) and form.head is not None and form.head in self.program.macros:
            form = self.expansion(form.head, form)
        return form

    def _listing(self, form: Listing, layout: Layout) -> Code:
        if form.square:
            codes = [self.code(item, layout) for item in form.items]

            def make_list(frame: Frame) -> Value:
                values = [code(frame) for code in codes]
                if any([v is POISON for v in values]):
                    return POISON
                try:
                    return listed(values)
                except Problem as problem:
                    return self.machine.problem(problem, form.span)

            return make_list
        if not form.items:
            raise Error("E-SYN-001", "() is no call: a function is missing", form.span, notes=["the empty list is []"])
        head = form.items[0]
        if isinstance(head, Symbol) and head.variable not in layout.names:
            special = self.special.get(head.name)
            if special is not None and (layout.optimizer or head.name not in ("state", "update")):
                made: Code = special(self, form, layout)
                return made
            return named_call(self, form, head, layout)
        return dynamic_call(self, form, self.code(head, layout), layout)

    # Names

    def symbol(self, form: Symbol, layout: Layout) -> Code:
        name = form.name
        slot = layout.names.get(form.variable)
        if slot is not None:
            found = slot
            return lambda frame: frame[found]
        if name in layout.fields and form.mark == 0:
            return self._guarded_read(layout.fields[name], form.span)
        definition = self.program.find(name, layout.prelude)
        if definition is not None:
            return self._global(definition, form.span)
        if name in self.program.broken and not layout.prelude:
            return constant(POISON)
        if name in self.dynamic:
            read, machine = self.dynamic[name], self.machine
            return self._guarded_read(lambda: read(machine), form.span)
        if name in self.constants:
            return constant(self.constants[name])
        if name in self.builtins:
            return constant(self.builtins[name])
        raise self._unknown(form, layout)

    def _guarded_read(self, read: Callable[[], Value], span: Span) -> Code:
        """What is read where it stands; a problem of it has its place."""

        def code(frame: Frame) -> Value:
            try:
                return read()
            except TypeMismatch as problem:
                return self.machine.problem(problem, span)

        return code

    def _unknown(self, form: Symbol, layout: Layout) -> Error:
        name = form.name
        if name in SPECIAL_FORMS or name in DEFINITIONS:
            usage = (SPECIAL_FORMS.get(name) or DEFINITIONS[name]).usage
            return Error("E-SYN-001", f"{name} is a form, not a value", form.span, notes=[f"the form is {usage}"])
        around = {*layout.fields, *layout.names}
        if form.mark and name in around:
            notes = [f"a template sees no variables around the macro's call: give it {name} as an argument"]
            return Error("E-NAME-001", f"unknown name {name}", form.span, notes=notes)
        if len(self.machine.errors) >= MAXIMUM_SUGGESTIONS:
            return Error("E-NAME-001", f"unknown name {name}", form.span)
        notes = suggestions(name, self.visible(layout if form.mark == 0 else Layout(layout.prelude)))
        return Error("E-NAME-001", f"unknown name {name}", form.span, notes=notes)

    def visible(self, layout: Layout) -> list[str]:
        """Every name that may stand at a place."""
        own = [] if layout.prelude else list(self.program.definitions)
        special = [s for s in self.special if layout.optimizer or s not in ("state", "update")]
        tables = [*self.dynamic, *self.constants, *self.builtins]
        local = [*(n for n in layout.names if n[0] != ":" and " " not in n), *layout.fields]
        return [*local, *own, *self.program.prelude, *special, *tables]

    def _global(self, definition: Definition, span: Span) -> Code:
        if definition.kind in FUNCTION_KINDS:
            return lambda frame: self.closure(definition)
        if definition.kind == "loader":
            return constant(LoaderName(definition.name))
        if definition.kind == "hyper":
            return lambda frame: self.hyper(definition)
        if definition.kind == "def":
            return lambda frame: self.definition(definition, span)
        kind = {"sis": "analysis"}.get(definition.kind, definition.kind)
        raise Error("E-TYPE-001", f"{definition.name} is a {kind}, not a value", span)

    def definition(self, definition: Definition, span: Span) -> Value:
        """The value of a `def`: made once, or once for each graph where it holds tensors."""
        key = (definition.name, definition.prelude)
        machine = self.machine
        if key in self._values:
            graph, value = self._values[key]
            if graph is None or graph is machine.graph:
                return value
        if definition.name in self._open:
            return self._circle(definition, span)
        if key not in self._definitions:
            layout = Layout(definition.prelude)
            code = self.code(definition.matched.one("EXPR"), layout)
            self._definitions[key] = lambda frame: code([None] * layout.size[0])
        self._open.append(definition.name)
        scope, machine.scope, count = machine.scope, None, len(machine.graph.nodes)
        try:
            value = self._definitions[key]([])
        finally:
            self._open.pop()
            machine.scope = scope
        made_nodes = len(machine.graph.nodes) != count
        self._values[key] = (machine.graph if made_nodes or _holds_node(value) else None, value)
        return value

    def _circle(self, definition: Definition, span: Span) -> Value:
        circle = " → ".join([*self._open[self._open.index(definition.name) :], definition.name])
        return self.machine.report(Error("E-NAME-001", f"{definition.name} is defined by itself", span, notes=[circle]))

    def hyper(self, definition: Definition) -> Value:
        """A hyperparameter's value: its default, or what replaces it, of the same kind."""
        key = (definition.name, definition.prelude)
        if key not in self._values:
            if definition.name in self._open:
                return self._circle(definition, definition.form.span)
            self._open.append(definition.name)
            try:
                self._values[key] = (None, hyper_value(self, definition))
            finally:
                self._open.pop()
        return self._values[key][1]

    def evaluate(self, form: Form, layout: Layout | None = None) -> Value:
        """The value of a form that stands by itself."""
        layout = layout or Layout(False)
        code = self.code(form, layout)
        return code([None] * layout.size[0])

    # Functions

    def closure(self, definition: Definition) -> Closure:
        """The function of a top-level definition; its body is compiled when it is first called."""
        key = (definition.name, definition.prelude)
        if key not in self._closures:
            layout = Layout(definition.prelude)
            layout.optimizer = definition.kind == "optimizer"
            kind = FUNCTION_KINDS[definition.kind]
            arguments = definition.matched.one("(ARG…)")
            made = self.function(definition.name, kind, arguments, definition.form, layout)
            self._pending[made] = (definition, layout)
            self._closures[key] = Closure(made)
        return self._closures[key]

    def function(self, name: str, kind: str, arguments: Form, form: Listing, layout: Layout) -> Function:
        """A function whose body is still to be compiled; its parameters are bound in `layout`."""
        parameters = parameters_of(arguments, form.head or "fn")
        first = layout.size[0]
        for argument in parameters.names:
            layout.bind(argument.variable)
        slots = {key.name: layout.bind(key.variable) for key, _ in parameters.keys}
        names = tuple([argument.name for argument in parameters.names])
        made = Function(name, kind, Signature(names), first, form.span, layout.prelude)
        if kind == "layer":
            for key in ("name", "share"):
                if key not in slots:
                    slots[key] = layout.bind(f":{key}")
            made.name_slot, made.share_slot = slots["name"], slots["share"]
        made.signature = Signature(names, tuple([(key, None) for key in slots]))
        return made

    def finish(self, function: Function) -> None:
        """Compiles the body of a top-level function."""
        definition, layout = self._pending.pop(function)
        self.finish_body(function, definition.matched.one("(ARG…)"), definition.matched.parts["BODY"], layout)

    def finish_body(self, function: Function, arguments: Form, body: Sequence[Form], layout: Layout) -> None:
        parameters = parameters_of(arguments, "")
        # A default sees the arguments and the keys before it.
        visible = layout.child()
        for key, _ in parameters.keys:
            visible.names.pop(key.variable, None)
        defaults = []
        for key, form in parameters.keys:
            slot = layout.names[key.variable]
            defaults.append((slot, constant(None) if form is None else self.code(form, visible)))
            visible.names[key.variable] = slot
        if function.kind == "layer":
            own = [key.name for key, _ in parameters.keys]
            if "name" not in own:
                defaults.append((function.name_slot, constant(None)))
            if "share" not in own:
                defaults.append((function.share_slot, constant(False)))
        function.defaults = tuple(defaults)
        code = self.body(body, layout)
        function.size = layout.size[0]
        function.body = code

    def check_all(self) -> None:
        """Compiles every function of the user's files, called or not, so that all their problems are found."""
        for definition in self.program.definitions.values():
            if definition.kind in FUNCTION_KINDS:
                try:
                    function = self.closure(definition).function
                    if function.body is None and function in self._pending:
                        self.finish(function)
                except Error as error:
                    self.machine.report(error)
                except Wrong:
                    pass


def _holds_node(value: Value) -> bool:
    return isinstance(value, Node) or (isinstance(value, tuple) and any([_holds_node(v) for v in value]))
