"""What a case of the language's operations is, and seeded operands for it: all exact in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """An expression over `inputs` (f32, i32, bool by their kind) that may open `parameters`, named from the root.

    `reference` takes the values of both, in order. Values are float64 but exact in float32.
    """

    name: str
    expression: str
    inputs: Mapping[str, Array]
    reference: Callable[..., Any]
    differentiable: tuple[str, ...] = ()
    parameters: Mapping[str, Array] = field(default_factory=dict)
    # Largest error allowed, relative to the largest value of the result; gradients get ten times as much.
    tolerance: float = 2e-6

    @property
    def operands(self) -> tuple[Array, ...]:
        return (*self.inputs.values(), *self.parameters.values())

    def expected(self) -> Array:
        return np.asarray(self.reference(*self.operands))


@dataclass(frozen=True)
class Kink:
    """Σ of an expression of x where it has no derivative, and the gradient that is taken there."""

    expression: str
    x: tuple[float, ...]
    gradient: tuple[float, ...]


@dataclass(frozen=True)
class OptimizerCase:
    """An optimizer's expression; `reference` gives the parameter after each of the steps whose gradients are given."""

    expression: str
    parameter: Array
    gradients: tuple[Array, ...]
    reference: Callable[[Array, Sequence[Array]], list[Array]]

    def expected(self) -> list[Array]:
        return self.reference(self.parameter, self.gradients)


@dataclass(frozen=True)
class Schedule:
    """An expression of `step` and `total-steps`, and what it is at some steps of a run of `total` steps."""

    expression: str
    total: int
    values: Mapping[int, float]


# Operands


def exact(values: Any) -> Array:
    """The nearest numbers of float32, as float64."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


def normal(seed: int, *shape: int) -> Array:
    return exact(np.random.default_rng(seed).normal(size=shape))


def positive(seed: int, *shape: int) -> Array:
    return exact(np.abs(normal(seed, *shape)) + 0.25)


def apart(seed: int, *shape: int) -> Array:
    """Distinct odd multiples of 1/16: no difference crosses a tie, a whole number or 0."""
    count = int(np.prod(shape))
    return (np.random.default_rng(seed).permutation(count).reshape(shape) - count // 2) / 8.0 + 0.0625


def whole(seed: int, low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(low, high, size=shape).astype(np.int32)


def flags(seed: int, *shape: int) -> Array:
    return normal(seed, *shape) > 0


def smooth(name: str, expression: str, reference: Callable[..., Any], **inputs: Array) -> Case:
    """A case that is differentiated by all its float operands."""
    return Case(name, expression, inputs, reference, tuple(k for k, v in inputs.items() if v.dtype.kind == "f"))


def fixed(name: str, expression: str, reference: Callable[..., Any], **inputs: Array) -> Case:
    return Case(name, expression, inputs, reference)
