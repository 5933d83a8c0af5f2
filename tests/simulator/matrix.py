"""Tensor cores and the loads that feed them: whole warps only."""

# W warps, m n k the product's sizes, g and t a lane's group (of four lanes) and its place in it.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.simulator.dtypes import Array
from tests.simulator.form import Action, Form
from tests.simulator.formats import halves, pair, shorten, widen
from tests.simulator.machine import Machine
from tests.simulator.threads import WARP, Threads

LANE = np.arange(WARP)
G, T = LANE >> 2, LANE & 3


def whole(machine: Machine, threads: Threads, what: str) -> None:
    if not threads.whole_warps:
        machine.fault("partial-warp", f"{what} is reached by a part of a warp")


def by_warp(machine: Machine, threads: Threads, value: Any) -> Array:
    return machine.spread(value, threads).reshape(-1, WARP)


@dataclass(frozen=True)
class Shape:
    """How a fragment's registers cover a matrix: for each element its row and column for every lane."""

    rows: tuple[Array, ...]
    columns: tuple[Array, ...]


def shapes(k: int, width: int) -> tuple[Shape, Shape, Shape]:
    """A (16×k), B (k×8) and C (16×8) of mma.m16n8k*, with `width` elements of A and B side by side in a register."""
    block = 4 * width
    a_rows, a_columns, b_rows, b_columns = [], [], [], []
    for column in range(0, k, block):
        for row in (0, 8):
            for element in range(width):
                a_rows.append(G + row)
                a_columns.append(T * width + element + column)
        for element in range(width):
            b_rows.append(T * width + element + column)
            b_columns.append(G)
    c_rows = tuple(G + 8 * (number >> 1) for number in range(4))
    c_columns = tuple(2 * T + (number & 1) for number in range(4))
    return Shape(tuple(a_rows), tuple(a_columns)), Shape(tuple(b_rows), tuple(b_columns)), Shape(c_rows, c_columns)


def filled(shape: Shape, size: tuple[int, int], elements: list[Array]) -> Array:
    """[W, rows, columns] float64 from each element's [W, 32]."""
    made = np.zeros((len(elements[0]), *size))
    for rows, columns, value in zip(shape.rows, shape.columns, elements, strict=True):
        made[:, rows, columns] = value
    return made


def unpacked(word: Array, kind: str) -> list[Array]:
    """The elements in a register, low ones first."""
    if kind in ("f16", "bf16"):
        return [widen(half, kind) for half in halves(word)]
    if kind == "tf32":
        return [(word & np.uint32(0xFFFFE000)).view(np.float32)]
    signed = kind == "s8"
    return [(word >> np.uint32(8 * byte)).astype(np.uint8).view("i1" if signed else "u1") for byte in range(4)]


def multiply_add(form: Form) -> Action:
    """mma.sync m16n8k*: products and their sum are exact in float64, then rounded once; the device rounds as it likes."""
    shape = next((word for word in form.modifiers if word.startswith("m16n8k")), "")
    kinds = [word for word in form.modifiers if word in ("f16", "bf16", "tf32", "f32", "s8", "u8", "s32")]
    if not shape or len(kinds) != 4 or kinds[1] not in ("f16", "bf16", "tf32", "s8", "u8") or form.has("sp"):
        raise form.unsupported()
    k = int(shape.removeprefix("m16n8k"))
    result, a_kind, b_kind, c_kind = kinds
    width = {"tf32": 1, "f16": 2, "bf16": 2}.get(a_kind, 4)
    a_shape, b_shape, c_shape = shapes(k, width)
    a_reads, b_reads, c_reads = (form.sources(place, "b32") for place in (1, 2, 3))
    puts = form.targets()
    if len(a_reads) * width != len(a_shape.rows) or len(b_reads) * width != len(b_shape.rows):
        raise form.unsupported()

    def run(machine: Machine, threads: Threads) -> None:
        whole(machine, threads, "mma.sync")

        def words(reads: list[Any]) -> list[Array]:
            return [by_warp(machine, threads, read(machine, threads)) for read in reads]

        a = filled(a_shape, (16, k), [one for word in words(a_reads) for one in unpacked(word, a_kind)])
        b = filled(b_shape, (k, 8), [one for word in words(b_reads) for one in unpacked(word, b_kind)])
        c = filled(c_shape, (16, 8), accumulators(words(c_reads), c_kind))
        total = np.matmul(a, b) + c
        found = [total[:, rows, columns].reshape(-1) for rows, columns in zip(c_shape.rows, c_shape.columns)]
        for put, value in zip(puts, rounded(found, result), strict=True):
            put(machine, threads, value)

    return run


def accumulators(words: list[Array], kind: str) -> list[Array]:
    if kind == "f16":
        return [one for word in words for one in unpacked(word, kind)]
    return [word.view(np.int32 if kind == "s32" else np.float32) for word in words]


def rounded(found: list[Array], kind: str) -> list[Array]:
    """Each register's value; integers wrap."""
    if kind == "f32":
        return [value.astype(np.float32) for value in found]
    if kind == "s32":
        return [value.astype(np.int64).astype(np.int32) for value in found]
    return [pair(shorten(low, kind), shorten(high, kind)) for low, high in zip(found[::2], found[1::2])]


def load_matrix(form: Form) -> Action:
    """ldmatrix: each lane's address is one row of eight halves; .trans hands out columns."""
    count = int(form.one_of("x1", "x2", "x4", default="x0")[1:])
    if not count or "b16" not in form.modifiers or form.count != 2:
        raise form.unsupported()
    address, puts, turned = form.address(1), form.targets(), form.has("trans")

    def run(machine: Machine, threads: Threads) -> None:
        whole(machine, threads, "ldmatrix")
        rows, readers = matrix_rows(threads, address(machine, threads), count)
        words = machine.shared.load(machine, readers, rows, 4, 4)
        held = np.stack(words, axis=1).view(np.uint16).reshape(-1, count, 8, 8)
        for number, put in enumerate(puts):
            matrix = held[:, number].transpose(0, 2, 1) if turned else held[:, number]
            put(machine, threads, pair(matrix[:, G, 2 * T], matrix[:, G, 2 * T + 1]).reshape(-1))

    return run


def matrix_rows(threads: Threads, address: Array, count: int) -> tuple[Array, Threads]:
    """The addresses that are looked at: those of the first 8 × count lanes of each warp."""
    lanes = threads.indices.reshape(-1, WARP)[:, : 8 * count].reshape(-1)
    return address.reshape(-1, WARP)[:, : 8 * count].reshape(-1), Threads.at(lanes)


def store_matrix(form: Form) -> Action:
    count = int(form.one_of("x1", "x2", "x4", default="x0")[1:])
    if not count or "b16" not in form.modifiers:
        raise form.unsupported()
    address, reads, turned = form.address(0), form.sources(1, "b32"), form.has("trans")

    def run(machine: Machine, threads: Threads) -> None:
        whole(machine, threads, "stmatrix")
        rows, writers = matrix_rows(threads, address(machine, threads), count)
        held = np.zeros((threads.count // WARP, count, 8, 8), np.uint16)
        for number, read in enumerate(reads):
            low, high = halves(by_warp(machine, threads, read(machine, threads)))
            matrix = held[:, number].transpose(0, 2, 1) if turned else held[:, number]
            matrix[:, G, 2 * T], matrix[:, G, 2 * T + 1] = low, high
        words = held.reshape(-1, 8).view(np.uint32)
        machine.shared.store(machine, writers, rows, 4, [words[:, place] for place in range(4)])

    return run


def move_matrix(form: Form) -> Action:
    """movmatrix.trans: an 8×8 matrix of halves, spread over a warp, turned over."""
    read, put = form.source(1, "b32"), form.target()

    def run(machine: Machine, threads: Threads) -> None:
        whole(machine, threads, "movmatrix")
        low, high = halves(by_warp(machine, threads, read(machine, threads)))
        matrix = np.zeros((len(low), 8, 8), np.uint16)
        matrix[:, G, 2 * T], matrix[:, G, 2 * T + 1] = low, high
        put(machine, threads, pair(matrix[:, 2 * T, G], matrix[:, 2 * T + 1, G]).reshape(-1))

    return run


BUILDERS: dict[str, Callable[[Form], Action]] = {
    "mma": multiply_add,
    "ldmatrix": load_matrix,
    "stmatrix": store_matrix,
    "movmatrix": move_matrix,
}
