"""Initial values of parameters: functions of the run's seed and the parameter's name alone, the same bits everywhere.

Element e of a parameter is made from one 32-bit word w of Philox (word e mod 4 of counter e ÷ 4, key of the name), as
p = (w + 1/2) / 2^32, exact in float64 and never 0 or 1. A distribution is its inverse CDF at p, in float64, rounded
once to float32. Only + − × ÷, sqrt and bit operations are used, one NumPy call each: IEEE 754 fixes their results, and
no compiler gets to contract, reorder or replace them. Transcendental functions of NumPy and libm differ between
machines and versions, and so does the order of the sums inside `np.sum` and `np.dot`; none stands here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.quantile import SPAN_OF_TWO_DEVIATIONS, normal_quantile
from sexpgpu.randomness import Key, key_of, scramble

Array32 = NDArray[np.float32]
Array64 = NDArray[np.float64]

# Words made at a time: large enough to hide the cost of a NumPy call, small enough that all buffers stay in the cache.
BLOCK = 1 << 16


class Initializer(msgspec.Struct, frozen=True):
    """`(normal 0.02)` is Initializer("normal", (0.02,)); `convolution` says that the first axis is the output's; `stored`
    is (path, key) of `from-file`, which is read where files are read, not drawn here."""

    kind: str
    arguments: tuple[float, ...] = ()
    convolution: bool = False
    stored: tuple[str, str] | None = None

    def text(self) -> str:
        """As the language writes it."""
        words = [f"{a:g}" for a in self.arguments] or [f'"{part}"' for part in self.stored or ()]
        return f"({' '.join([self.kind, *words])})" if words else self.kind


class Fans(msgspec.Struct, frozen=True):
    """How many inputs one output of a weight reads, and how many outputs one input feeds."""

    fan_in: int
    fan_out: int


def fans(shape: tuple[int, ...], convolution: bool) -> Fans:
    """Dense weights are [in… out]; convolutions [out in/groups k…], where both fans count the window, as in PyTorch."""
    if not shape:
        return Fans(1, 1)
    if convolution:
        window = math.prod(shape[2:])
        return Fans(math.prod(shape[1:]), shape[0] * window)
    return Fans(math.prod(shape[:-1]), shape[-1])


# From so many elements on a device's own code is faster than NumPy's calls.
LEAST_NATIVE = 1 << 12


class Normals(Protocol):
    """A device's code for the two laws that the others are made of, faster than NumPy's and with the same bits."""

    def normal(self, key: Key, count: int, scale: float, deviation: float) -> Array32:
        """`deviation` · normal quantile of `scale` · q."""
        ...

    def uniform(self, key: Key, count: int, width: float, middle: float) -> Array32:
        """q · `width` + `middle`."""
        ...


def initial_value(
    initializer: Initializer,
    shape: tuple[int, ...],
    seed: int,
    name: str,
    threads: int = 1,
    normals: Normals | None = None,
) -> Array32:
    """The initial value of parameter `name`, float32[shape]; threads and `normals` change the time, never a bit."""
    if not math.prod(shape):
        return np.empty(shape, np.float32)
    key = key_of(seed, name, purpose="initial")
    make, _ = INITIALIZERS[initializer.kind]
    return make(Draw(key, tuple(shape), fans(tuple(shape), initializer.convolution), initializer, threads, normals))


class Draw(msgspec.Struct, frozen=True):
    """What an initializer works from."""

    key: Key
    shape: tuple[int, ...]
    fans: Fans
    initializer: Initializer
    threads: int
    normals: Normals | None

    def normal(self, scale: float, deviation: float) -> Array32:
        """`deviation` · normal quantile of `scale` · q, element by element."""
        count = math.prod(self.shape)
        if self.normals is not None and count >= LEAST_NATIVE:
            return self.normals.normal(self.key, count, scale, deviation).reshape(self.shape)
        return self.each(lambda q: np.multiply(normal_quantile(np.multiply(q, scale, out=q)), deviation))

    def uniform(self, width: float, middle: float) -> Array32:
        """q · `width` + `middle`, element by element."""
        count = math.prod(self.shape)
        if self.normals is not None and count >= LEAST_NATIVE:
            return self.normals.uniform(self.key, count, width, middle).reshape(self.shape)
        return self.each(lambda q: np.add(np.multiply(q, width, out=q), middle, out=q))

    def each(self, law: Callable[[Array64], Array64]) -> Array32:
        """`law` of q = p − 1/2, element by element; it may overwrite its argument."""
        values = np.empty(math.prod(self.shape), np.float32)

        def fill(start: int) -> None:
            part = values[start : start + BLOCK]
            part[...] = law(centred(self.key, start // 4, part.size))

        starts = range(0, values.size, BLOCK)
        if self.threads > 1 and len(starts) > 1:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(fill, starts))
        else:
            for start in starts:
                fill(start)
        return values.reshape(self.shape)


def centred(key: Key, first: int, count: int) -> Array64:
    """q = p − 1/2 of the `count` elements from counter `first` on: exact, in (−1/2, 1/2), symmetric about 0."""
    blocks = (count + 3) // 4
    assert first + blocks < 1 << 32, "the counter of an element has 32 bits"
    even, odd = np.zeros((2, blocks), np.uint64), np.zeros((2, blocks), np.uint64)
    even[0] = np.arange(first, first + blocks, dtype=np.uint64)
    even, odd = scramble(key, even, odd, np.empty_like(even))
    q = np.empty((blocks, 4))
    for word, lane in enumerate((even[0], odd[0], even[1], odd[1])):
        q[:, word] = lane.view(np.int64)
    np.subtract(q, 2.0**31 - 0.5, out=q)
    np.multiply(q, 2.0**-32, out=q)
    return q.ravel()[:count]


def constant(draw: Draw, value: float) -> Array32:
    return np.full(draw.shape, value, np.float32)


def normal(draw: Draw, deviation: float) -> Array32:
    return draw.normal(1.0, deviation)


def truncated_normal(draw: Draw, deviation: float) -> Array32:
    """A normal law cut at ± 2 deviations; the deviation is that of the uncut law, as in JAX and TensorFlow."""
    return draw.normal(SPAN_OF_TWO_DEVIATIONS, deviation)


def uniform(draw: Draw, low: float, high: float) -> Array32:
    return draw.uniform(high - low, (low + high) / 2)


def kaiming(draw: Draw) -> Array32:
    """He et al. 2015: normal, deviation √(2 / fan-in)."""
    return normal(draw, math.sqrt(2.0 / draw.fans.fan_in))


def xavier(draw: Draw) -> Array32:
    """Glorot and Bengio 2010: uniform, ± √(6 / (fan-in + fan-out))."""
    bound = math.sqrt(6.0 / (draw.fans.fan_in + draw.fans.fan_out))
    return uniform(draw, -bound, bound)


def orthogonal(draw: Draw) -> Array32:
    """Saxe et al. 2013: the weight as a matrix of its fan-in and its outputs, rows or columns (the fewer) orthonormal.

    Uniform over all such matrices: Gram-Schmidt of normal draws leaves R with a positive diagonal, as the law asks.
    """
    outputs = 1 if not draw.shape else draw.shape[0 if draw.initializer.convolution else -1]
    gaussian = normal(draw, 1.0).astype(np.float64)
    rows = gaussian.reshape((outputs, -1) if draw.initializer.convolution else (-1, outputs))
    flipped = rows.shape[0] > rows.shape[1]
    basis = orthonormal(np.ascontiguousarray(rows.T if flipped else rows))
    return (basis.T if flipped else basis).astype(np.float32).reshape(draw.shape)


def orthonormal(rows: Array64) -> Array64:
    """The rows made orthonormal in place, by modified Gram-Schmidt; at most as many rows as columns.

    Its loss of orthogonality is the condition number times 2^-53, far below a float32 for normal draws.
    """
    for index, row in enumerate(rows):
        row /= np.sqrt(fixed_sum(np.multiply(row, row)[None]))
        later = rows[index + 1 :]
        for part in row_blocks(later):
            part -= np.multiply(fixed_sum(np.multiply(part, row))[:, None], row)
    return rows


def row_blocks(rows: Array64) -> Iterator[Array64]:
    """The rows in pieces that stay in the cache."""
    height = max(1, BLOCK // max(1, rows.shape[1]))
    for start in range(0, rows.shape[0], height):
        yield rows[start : start + height]


def fixed_sum(terms: Array64) -> Array64:
    """The sum of each row in one fixed order, by folding the upper half onto the lower; overwrites `terms`."""
    width = terms.shape[1]
    while width > 1:
        half = width // 2
        terms[:, :half] += terms[:, width - half : width]
        width -= half
    return terms[:, 0]


# kind: (its function, the number of its arguments)
INITIALIZERS: dict[str, tuple[Callable[[Draw], Array32], int]] = {
    "normal": (lambda draw: normal(draw, *draw.initializer.arguments), 1),
    "trunc-normal": (lambda draw: truncated_normal(draw, *draw.initializer.arguments), 1),
    "uniform": (lambda draw: uniform(draw, *draw.initializer.arguments), 2),
    "zeros": (lambda draw: constant(draw, 0.0), 0),
    "ones": (lambda draw: constant(draw, 1.0), 0),
    "constant": (lambda draw: constant(draw, *draw.initializer.arguments), 1),
    "kaiming": (kaiming, 0),
    "xavier": (xavier, 0),
    "orthogonal": (orthogonal, 0),
}
