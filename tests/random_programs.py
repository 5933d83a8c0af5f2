"""Random programs of loads, instructions and stores, and what each means: NumPy's twins of the formulas, the law of sums."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from sexpgpu.ops.formulas import FORMULAS
from tests.programs import Builder

NEUTRAL: dict[str, float] = {"sum": -0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}
JOIN: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": FORMULAS["k_maximum"], "min": FORMULAS["k_minimum"]}
BINARY: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": FORMULAS["k_maximum"],
}
UNARY = ("abs", "exp", "tanh", "sqrt", "erf", "sign", "floor", "log1p", "sigmoid")


def reduced(x: Any, kind: str, op: str) -> Any:
    """A reduction by the law: a column in parts of 32 or 128 rows, each in order and then the parts in order; a row in 32
    or 256 lanes that are then joined by halves."""
    join, neutral = JOIN[op], np.float32(NEUTRAL[op])
    if kind == "column":
        part = 32 if x.shape[-2] <= 4096 else 128
        total = np.full((*x.shape[:-2], 1, x.shape[-1]), neutral, np.float32)
        for first in range(0, x.shape[-2], part):
            of_part = np.full_like(total, neutral)
            for row in range(first, min(first + part, x.shape[-2])):
                of_part = join(of_part, x[..., row : row + 1, :])
            total = join(total, of_part)
        return total
    lanes = 32 if x.shape[-1] <= 1024 else 256
    total = np.full((*x.shape[:-1], lanes), neutral, np.float32)
    for start in range(0, x.shape[-1], lanes):
        part = x[..., start : start + lanes]
        total[..., : part.shape[-1]] = join(total[..., : part.shape[-1]], part)
    while lanes > 1:
        lanes //= 2
        total = join(total[..., :lanes], total[..., lanes : 2 * lanes])
    return total


class RandomProgram:
    """A program of random loads, instructions and stores, with the value that each must have."""

    def __init__(self, seed: int, kinds: Sequence[str] = ("map", "row", "row", "column")) -> None:
        self.pick, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.kind = self.pick.choice(kinds)
        rank = self.pick.randint(2 if self.kind == "column" else 1, 4)
        last = self.pick.choice((1, 3, 31, 32, 33, 100, 513, 1030))
        self.sizes = (*(self.pick.choice((1, 2, 3, 5)) for _ in range(rank - 1)), last)
        if self.kind == "column":
            self.sizes = (*self.sizes[:-2], self.pick.choice((1, 5, 31, 32, 33, 70)), last)
        self.builder = Builder(self.kind, rank)
        self.values: list[Any] = []
        self.varies: list[bool] = []  # along the reduced loop
        self.loads = [self.load() for _ in range(self.pick.randint(1, 4))]
        for _ in range(self.pick.randint(2, 12)):
            self.instruction()
        self.outputs, self.expected = self.stores()

    def load(self) -> Any:
        inner = self.pick.choice(("one", "one", "any", "zero"))
        self.builder.load(inner)
        shape = [1 if self.pick.random() < 0.25 else size for size in self.sizes[:-1]]
        last = 1 if inner == "zero" else self.sizes[-1]
        if inner != "any":
            array = self.numbers.normal(size=(*shape, last)).astype(np.float32)
        elif shape and self.pick.random() < 0.5:
            array = self.numbers.normal(size=(*shape[:-1], last, shape[-1])).astype(np.float32).swapaxes(-1, -2)
        else:
            array = self.numbers.normal(size=(*shape, 3 * last)).astype(np.float32)[..., ::-3]
        self.values.append(np.broadcast_to(array, self.sizes))
        self.varies.append(True)
        return self.values[-1]

    def instruction(self) -> None:
        choice = self.pick.random()
        a, b = (self.pick.randrange(len(self.values)) for _ in range(2))
        x, y = (np.ascontiguousarray(self.values[k]) for k in (a, b))
        varies = self.varies[a]
        if self.kind != "map" and choice < 0.25 and varies:
            op = self.pick.choice(("sum", "sum", "prod", "max", "min"))
            self.builder.do(f"reduce_{op}", a)
            made, varies = reduced(x, self.kind, op), False
        elif choice < 0.35:
            made, varies = np.float32(self.pick.uniform(-2, 2)), False
            self.builder.number(float(made))
        elif choice < 0.65:
            op = self.pick.choice(UNARY)
            self.builder.do(op, a)
            made = FORMULAS[f"k_{op}"](x)
        else:
            op = self.pick.choice(tuple(BINARY))
            self.builder.do(op, a, b)
            made, varies = BINARY[op](x, y), varies or self.varies[b]
        self.values.append(np.broadcast_to(made, self.sizes))
        self.varies.append(varies)

    def stores(self) -> tuple[list[Any], list[Any]]:
        outputs, expected, taken = [], [], set()
        candidates = [
            k for k in range(len(self.loads), len(self.values)) if self.kind != "column" or not self.varies[k]
        ]
        for value in [self.pick.choice(candidates) for _ in range(self.pick.randint(1, 3)) if candidates]:
            whole = self.kind == "row" and not self.varies[value] and self.pick.random() < 0.7
            shape = list(self.sizes)
            if whole or self.kind == "column":
                shape[-1 if whole else -2] = 1
            output, alias = np.broadcast_to(np.empty(shape, np.float32), self.sizes), None
            full = [k for k, x in enumerate(self.loads) if x.flags.c_contiguous and prod(x.base.shape) == x.size]
            free = [k for k in full if k not in taken and self.builder.loads[k].inner == "one"]
            if free and not whole and self.kind != "column" and self.pick.random() < 0.5:
                alias = free[0]
                taken.add(alias)
                output = self.loads[alias]
            self.builder.store(value, "zero" if whole else "one", alias=alias)
            outputs.append(output)
            expected.append(np.array(self.values[value]))
        return outputs, expected
