"""Which bytes, tokens or examples are a loader's: its part of a split, its limit."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate

import numpy as np

from sexpgpu.errors import Error, nearest
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.order import Positions, order

# How far from one the sum of fractions may end and still mean the whole: (/ 1 3) three times does.
ROUNDED_FRACTION = 1e-9


def cut(total: int, spec: LoaderSpec) -> tuple[int, int]:
    """The loader's part [low, high) of `total` bytes, tokens or examples. 0.9 of n ends at floor(0.9 n), as in nanoGPT."""
    if spec.split is None:
        if spec.part is not None:
            raise Error("E-DATA-003", f":part {spec.part} without :split", spec.span)
        return 0, total
    names = [name for name, _ in spec.split]
    for name, fraction in spec.split:
        if not 0 < fraction <= 1:
            raise Error("E-DATA-003", f"the fraction of {name} is {fraction:g}, not above 0 and at most 1", spec.span)
    # Fractions are decimal as written: 0.7 + 0.2 of a hundred is 90, whatever float64 makes of the sum.
    ends = list(accumulate(Fraction(repr(float(fraction))) for _, fraction in spec.split))
    if ends[-1] > 1 + ROUNDED_FRACTION:
        message = f"the fractions of :split sum to {float(ends[-1]):g}, more than 1"
        raise Error("E-DATA-003", message, spec.span)
    if spec.part not in names:
        raise no_such_part(spec, names)
    bounds = [0] + [total if abs(end - 1) <= ROUNDED_FRACTION else int(total * end) for end in ends]
    index = names.index(spec.part)
    return bounds[index], bounds[index + 1]


def no_such_part(spec: LoaderSpec, names: list[str]) -> Error:
    if spec.part is None:
        return Error("E-DATA-003", f":split needs :part, one of {', '.join(names)}", spec.span)
    close = nearest(spec.part, names)
    notes = [f"did you mean {close}?"] if close else [f"the parts are {', '.join(names)}"]
    return Error("E-DATA-003", f"no part {spec.part} in :split", spec.span, notes=notes)


def needed(value: int | None, keyword: str, spec: LoaderSpec) -> int:
    """An option that the source cannot do without."""
    if value is None:
        raise Error("E-DATA-007", f"{spec.kind} needs {keyword}", spec.span)
    if value < 1:
        raise Error("E-DATA-007", f"{keyword} is {value}, not at least 1", spec.span)
    return value


def limited(count: int, spec: LoaderSpec) -> int:
    """`count`, or `:limit` where that is less."""
    return count if spec.limit is None else min(count, int(needed(spec.limit, ":limit", spec)))


class Share:
    """The examples of a loader's part, at least a batch of them."""

    def __init__(self, spec: LoaderSpec, total: int) -> None:
        batch = needed(spec.batch, ":batch", spec)
        low, high = cut(total, spec)
        self.count = limited(high - low, spec)
        if batch > self.count:
            which = f"part {spec.part}" if spec.part else "the data"
            raise Error("E-DATA-002", f":batch {batch} needs {batch} examples, {which} has {self.count}", spec.span)
        self.part = None if spec.split is None else (low, high, total)
        self.rows: Positions | None = None

    def examples(self, rows: Positions) -> Positions:
        """The examples of the file that the part's rows are: a keyed choice, in the order of the file.

        The key is no run's seed: a split belongs to the data, so that a run with another seed, or an analysis of the
        model years later, holds out the same examples.
        """
        if self.part is None:
            return rows
        if self.rows is None:
            low, high, total = self.part
            self.rows = np.sort(order(0, 0, np.arange(low, high), total, "split"))
        return self.rows[rows]
