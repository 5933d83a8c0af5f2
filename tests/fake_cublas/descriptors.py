"""Descriptors as a simulated cuBLASLt holds them: unlike the real one it refuses values that mean nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

INVALID_VALUE, NOT_SUPPORTED = 7, 15
FLOAT, HALF, BFLOAT16 = 0, 2, 14
COMPUTE_FLOAT, COMPUTE_TF32 = 68, 77
# Of A and B, and of C and D.
TYPES = {(FLOAT, FLOAT), (HALF, HALF), (BFLOAT16, BFLOAT16), (HALF, FLOAT), (BFLOAT16, FLOAT)}
BIAS, GELU, BGRADA = 4, 32, 256
EPILOGUES = (1, BIAS, GELU, BIAS | GELU, BGRADA)


class Invalid(Exception):
    """A call gives this status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def require(holds: bool, why: str, status: int = INVALID_VALUE) -> None:
    if not holds:
        raise Invalid(status, why)


@dataclass
class Held:
    """Attributes by their numbers; `known` says of each what type it has."""

    known: Mapping[int, Any]
    values: dict[int, int] = field(default_factory=dict)

    def set(self, attribute: int, value: int, size: int) -> None:
        require(attribute in self.known, f"attribute {attribute}")
        of = self.known[attribute]
        require(size == ctypes.sizeof(of), f"{size} bytes of attribute {attribute}")
        self.values[attribute] = of.from_address(value).value


@dataclass
class Operation(Held):
    """transposition of A and B (3, 4), epilogue (7), the bias and its type (8, 26)"""

    compute: int = COMPUTE_FLOAT
    scale: int = FLOAT

    def check(self) -> None:
        require(self.compute in (COMPUTE_FLOAT, COMPUTE_TF32) and self.scale == FLOAT, f"compute type {self.compute}")
        require(all(self.values.get(k, 0) in (0, 1) for k in (3, 4)), "transposition")
        require(self.epilogue in EPILOGUES, f"epilogue {self.epilogue}")
        require(not self.epilogue & (BIAS | BGRADA) or self.values.get(8, 0) != 0, "an epilogue without its bias")

    @property
    def epilogue(self) -> int:
        return self.values.get(7, 1)


@dataclass
class Layout(Held):
    """the count of a batch and the step between its matrices (5, 6)"""

    dtype: int = FLOAT
    rows: int = 0
    columns: int = 0
    leading: int = 0

    @property
    def batch(self) -> int:
        return self.values.get(5, 1)

    @property
    def step(self) -> int:
        return self.values.get(6, 0)

    def check(self) -> None:
        require(self.dtype in (FLOAT, HALF, BFLOAT16), f"data type {self.dtype}")
        require(min(self.rows, self.columns, self.batch) > 0 and self.leading >= self.rows, f"layout {self}")


@dataclass
class Preference(Held):
    """the most workspace (1), a mask of reduction schemes (3), alignments of A, B, C and D (5 – 8), of implementations (12)"""

    @property
    def most_workspace_bytes(self) -> int:
        return self.values.get(1, 0)


OPERATION = {3: ctypes.c_int32, 4: ctypes.c_int32, 7: ctypes.c_uint32, 8: ctypes.c_uint64, 26: ctypes.c_int32}
LAYOUT = {5: ctypes.c_int32, 6: ctypes.c_int64}
PREFERENCE = {1: ctypes.c_uint64, 3: ctypes.c_uint32, 12: ctypes.c_uint64} | dict.fromkeys(range(5, 9), ctypes.c_uint32)


def check_together(operation: Operation, a: Layout, b: Layout, c: Layout, d: Layout) -> None:
    """What a product needs of all its descriptors."""
    for each in (operation, a, b, c, d):
        each.check()
    m, k = (a.columns, a.rows) if operation.values.get(3) else (a.rows, a.columns)
    inner, n = (b.columns, b.rows) if operation.values.get(4) else (b.rows, b.columns)
    require(k == inner and (d.rows, d.columns) == (m, n) == (c.rows, c.columns), f"{m} × {k} by {inner} × {n}")
    require(a.batch == b.batch == c.batch == d.batch, "batches of several sizes")
    require(a.dtype == b.dtype and c.dtype == d.dtype, "types that differ", NOT_SUPPORTED)
    require((a.dtype, d.dtype) in TYPES, f"types {a.dtype} and {d.dtype}", NOT_SUPPORTED)
    require(operation.compute == COMPUTE_FLOAT or a.dtype == FLOAT, "tf32 of other types", NOT_SUPPORTED)
    require(
        not operation.epilogue & (BIAS | BGRADA) or operation.values.get(26, d.dtype) == d.dtype,
        "a bias of another type",
        NOT_SUPPORTED,
    )
    require(not operation.epilogue & BGRADA or a.batch == 1, "a bias gradient of a batch", NOT_SUPPORTED)
