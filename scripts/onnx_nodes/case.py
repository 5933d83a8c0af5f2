"""One case of ONNX's backend node tests as plain arrays, and what a row of the translation tables says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NAMES = "x y z w v u s r q p".split()


class Left(Exception):
    """A case that is not run, with the reason that the page gives."""


@dataclass
class Case:
    """A model of one node. `inputs` are by the node's places, None where one is left out."""

    name: str
    operator: str
    attributes: Mapping[str, Any]
    inputs: list[Array | None]
    expected: list[Array]
    # Which of the node's outputs are wanted.
    outputs: list[int]
    opset: int
    # Weights that a layer of ours owns, by the parameter's path.
    parameters: dict[str, Array] = field(default_factory=dict)

    def get(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def has(self, place: int) -> bool:
        return place < len(self.inputs) and self.inputs[place] is not None

    def array(self, place: int) -> Array:
        """An input's value, which our language wants at compile time: axes, sizes, bounds of a slice."""
        made = self.inputs[place]
        assert made is not None
        return made

    def numbers(self, place: int) -> list[int]:
        return [int(n) for n in np.ravel(self.array(place))]

    def shape(self, place: int = 0) -> tuple[int, ...]:
        return self.array(place).shape

    def rank(self, place: int = 0) -> int:
        return self.array(place).ndim

    @property
    def operands(self) -> dict[str, Array]:
        return {name: a for name, a in zip(NAMES, self.inputs, strict=False) if a is not None}


def written(value: Any) -> str:
    """A number or list of Python as our language writes it."""
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{' '.join(map(written, value))}]"
    return str(value.item() if isinstance(value, np.generic) else value)


Form = Callable[[Case], str]


@dataclass(frozen=True)
class Row:
    """One operator: our form as a user writes it, its tensors named x y z w … by place.

    form    the text, or a function of the case that gives it or raises Left
    exact   the elements are moved, chosen or counted: floats are equal, too
    """

    operator: str
    form: str | Form
    exact: bool = False
