"""Functions whose last bits PTX leaves open: rounded correctly, or off by up to their documented error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array

HALF_ULP = 2.0**-24


@dataclass(frozen=True)
class Function:
    """`relative`, `absolute` and `ulps` bound the error as the PTX manual states it for float32."""

    exact: Callable[..., Any]
    relative: float = 0.0
    absolute: float = 0.0
    ulps: float = 0.0


FUNCTIONS = {
    "ex2": Function(np.exp2, relative=2.0**-22),
    "lg2": Function(np.log2, absolute=2.0**-22, relative=2.0**-22),
    "rcp": Function(np.reciprocal, ulps=1),
    "sqrt": Function(np.sqrt, relative=2.0**-23),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), relative=2.0**-22.9),
    "sin": Function(np.sin, absolute=2.0**-20.9),
    "cos": Function(np.cos, absolute=2.0**-20.9),
    "tanh": Function(np.tanh, relative=2.0**-11),
    "div": Function(np.divide, ulps=2),
}
# Arguments whose results the manual states exactly.
EXACT_AT_ZERO = ("ex2", "sin", "tanh", "cos")


@dataclass(frozen=True)
class Perturbation:
    """Errors that depend on the seed, the function and its arguments only: the device's functions are functions, too."""

    seed: int

    def noise(self, name: str, *arguments: Array) -> Array:
        """A number of [-1, 1] for each argument, by splitmix64 of its bits."""
        key = np.uint64((self.seed * 0x9E3779B97F4A7C15 + sum(name.encode())) % 2**64)
        mixed = np.full(arguments[0].shape, key)
        for one in arguments:
            mixed = (mixed ^ one.view(np.uint32)) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            mixed ^= mixed >> np.uint64(31)
        return np.asarray(mixed.view(np.int64) / 2.0**63)


def approximate(name: str, perturbation: Perturbation | None, *arguments: Any) -> Any:
    """float32 in, float32 out."""
    function = FUNCTIONS[name]
    given = [np.atleast_1d(one) for one in np.broadcast_arrays(*arguments)]
    exact = function.exact(*(one.astype(np.float64) for one in given))
    nearest = exact.astype(np.float32)
    if perturbation is None:
        return nearest
    return perturbed(name, function, perturbation.noise(name, *map(np.ascontiguousarray, given)), given, exact, nearest)


def perturbed(name: str, function: Function, noise: Array, given: list[Array], exact: Array, nearest: Array) -> Array:
    """The exact value moved by noise times what its error may be beyond the last rounding."""
    size = np.abs(exact)
    ulp = np.spacing(np.abs(nearest)).astype(np.float64)
    if name == "lg2":
        inside = (given[0] > 0.5) & (given[0] < 2)
        room = np.where(inside, function.absolute, function.relative * size)
    else:
        room = function.relative * size + function.absolute + function.ulps * ulp
    room = np.maximum(room - np.maximum(ulp / 2, HALF_ULP * size), 0)
    fixed = ~np.isfinite(exact) | (np.isfinite(exact) & ~np.isfinite(nearest)) | (exact == 0)
    if name in EXACT_AT_ZERO:
        fixed |= given[0] == 0
    moved = np.clip(exact + noise * room, -1, 1) if name in ("sin", "cos", "tanh") else exact + noise * room
    return np.where(fixed, nearest, moved.astype(np.float32))


def gross_reciprocal(x: Array) -> Array:
    """rcp.approx.ftz.f64: the low 32 bits of the result are zero, the argument's are not looked at."""
    high = (np.atleast_1d(x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return cut(1 / high)


def gross_reciprocal_root(x: Array) -> Array:
    """rsqrt.approx.ftz.f64, likewise."""
    high = (np.atleast_1d(x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return cut(1 / np.sqrt(high))


def cut(value: Array) -> Array:
    return (np.atleast_1d(value).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
