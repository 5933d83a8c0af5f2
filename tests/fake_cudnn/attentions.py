"""Launches of attention as plans have them, each operand in a buffer of its own."""

from __future__ import annotations

import msgspec

from sexpgpu.cuda.cudnn_graphs import BACKWARD, FORWARD
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Access, Attention, Place
from tests.attending import Case


def launches(case: Case) -> list[Attention]:
    """Forward and backward as they are planned, but for where the operands are: rows of all heads are neighbours, as in
    [batch rows heads width], and every operand has a buffer of its own."""
    planned = [launch for launch in plan(case.graph()).launches if isinstance(launch, Attention)]
    return [neighbours(launch) for launch in planned]


def neighbours(launch: Attention) -> Attention:
    names, results = BACKWARD if launch.backward else FORWARD
    accesses = [Access(Place(number), strides_of(launch, name)) for number, name in enumerate((*names, *results))]
    return msgspec.structs.replace(launch, loads=tuple(accesses[: len(names)]), stores=tuple(accesses[len(names) :]))


def strides_of(launch: Attention, name: str) -> tuple[int, ...]:
    _, heads, rows, width = shape_of(launch, name)
    return (heads * rows, rows, 1) if name == "lse" else (rows * heads * width, width, heads * width)


def shape_of(launch: Attention, name: str) -> tuple[int, int, int, int]:
    of_k = name in ("k", "v", "dk", "dv")
    heads, rows = (launch.heads // launch.group, launch.columns) if of_k else (launch.heads, launch.rows)
    width = launch.width if name in ("q", "k", "dq", "dk") else 1 if name == "lse" else launch.value_width
    return launch.batch, heads, rows, width
