"""The data that the reader makes: atoms and lists, each with its place.

`Symbol`, `Keyword`, `Number`, `Text`, `Constant` are atoms; `Listing` is `( … )` or `[ … ]`.
Equality is by content: places take no part in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sexpgpu.source import Span


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    span: Span = field(compare=False, repr=False)
    # Hygiene: the number of the macro expansion that brought the symbol in, 0 for the user's own text.
    mark: int = 0

    @property
    def variable(self) -> str:
        """What tells its variable from others of the name: no name has a space."""
        return self.name if self.mark == 0 else f"{self.name} {self.mark}"


@dataclass(frozen=True, slots=True)
class Keyword:
    """`:lr`; `name` is without the colon."""

    name: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Number:
    """An integer (Python int within 64 bits) or a float; `text` keeps what was written."""

    value: int | float
    span: Span = field(compare=False, repr=False)
    text: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Text:
    value: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Constant:
    """`true`, `false` (value is a bool) or `nil` (value is None)."""

    value: bool | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """`(…)` or, where `square`, `[…]`."""

    items: tuple[Form, ...]
    span: Span = field(compare=False, repr=False)
    square: bool = False

    @property
    def head(self) -> str | None:
        """The symbol's name at the front of a round list, or None."""
        if self.square or not self.items or not isinstance(self.items[0], Symbol):
            return None
        return self.items[0].name


Form = Symbol | Keyword | Number | Text | Constant | Listing
