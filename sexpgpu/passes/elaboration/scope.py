"""Scopes of parameter names, numbered as the language page says, and the table of all parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from sexpgpu.initial import Initializer
from sexpgpu.ir.graph import Node, Origin
from sexpgpu.passes.elaboration.values import Labels, Problem
from sexpgpu.passes.experiment import Parameter
from sexpgpu.source import Span


@dataclass
class Scope:
    """One open scope. `suffix` is `.I` (nested: `.I.J`) inside `repeat`; it goes to what BODY opens directly.

    counts     how many scopes of each automatic name were opened here
    draws      how many random forms were evaluated here
    """

    path: str = ""
    share: bool = False
    suffix: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    draws: int = 0

    def inner_path(self, name: str) -> str:
        name += self.suffix
        return f"{self.path}.{name}" if self.path else name

    def open(self, automatic: str, explicit: str | None, share: bool) -> Scope:
        """The scope of a layer called here."""
        name = explicit
        if name is None and share:
            name = automatic
        elif name is None:
            count = self.counts[automatic] = self.counts.get(automatic, 0) + 1
            name = automatic if count == 1 else f"{automatic}_{count}"
        return Scope(self.inner_path(name), self.share or share)

    def draw(self) -> tuple[str, int]:
        """The path and ordinal of the next random form."""
        ordinal = self.draws
        self.draws += 1
        return self.path, ordinal


@dataclass
class Parameters:
    """All parameters of the model, those of `:loss`, and the paths of the expression at hand with their places."""

    model: dict[str, Parameter] = field(default_factory=dict)
    seen: dict[str, Span | None] = field(default_factory=dict)
    in_loss: bool = True
    # What `:loss` sets its buffers to, and where.
    updates: dict[str, tuple[Node, Span | None]] = field(default_factory=dict)

    def begin(self, in_loss: bool) -> None:
        """Another expression starts at the root."""
        self.seen = {}
        self.in_loss = in_loss

    def declare(self, made: Parameter, share: bool) -> Parameter:
        """The parameter of this path, made or found."""
        name, place = made.name, made.origin.span
        if name in self.seen and not share:
            first = self.seen[name]
            notes = [f"first at {first.place}"] if first is not None else []
            notes.append("give one a :name, or :share true to use the same parameter")
            raise Problem("E-NAME-003", f"the {kind_of(made)} {name} stands twice", notes=notes)
        before = self.model.get(name)
        if before is None and not self.in_loss:
            note = "the model's parameters are those of :loss"
            raise Problem("E-NAME-007", f"the {kind_of(made)} {name} is not reached by :loss", notes=[note])
        self.seen.setdefault(name, place)
        if before is None:
            self.model[name] = made
            return made
        different = _difference(before, made)
        if different is not None:
            notes = [f"first at {before.origin.span.place}"] if before.origin.span is not None else []
            raise Problem("E-NAME-004", f"the {kind_of(before)} {name} was declared with another {different}", notes=notes)
        return before

    def update(self, name: str, value: Node, place: Span | None) -> None:
        """The value that a buffer has after the step; two of one buffer are E-NAME-003."""
        if name in self.updates:
            first = self.updates[name][1]
            notes = [f"first at {first.place}"] if first is not None else []
            raise Problem("E-NAME-003", f"the buffer {name} is updated twice", notes=notes)
        self.updates[name] = value, place


def kind_of(made: Parameter) -> str:
    return "buffer" if made.buffer else "parameter"


def _difference(a: Parameter, b: Parameter) -> str | None:
    if a.buffer != b.buffer:
        return f"kind: it is a {kind_of(a)}, here a {kind_of(b)}"
    if a.shape != b.shape:
        return f"shape: {list(a.shape)}, here {list(b.shape)}"
    if a.initializer != b.initializer:
        return f"initializer: {a.initializer.text()}, here {b.initializer.text()}"
    if a.decay != b.decay:
        return ":decay"
    return ":trainable" if a.trainable != b.trainable else None


def parameter(
    name: str, size: tuple[int, ...], labels: Labels, initializer: Initializer, decay: bool, trainable: bool, origin: Origin
) -> Parameter:
    return Parameter(name, size, initializer, decay, trainable, origin, labels)
