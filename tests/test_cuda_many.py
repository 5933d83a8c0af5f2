"""Updates of all parameters in one launch: the same bits as one after the other, and only where their order allows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from sexpgpu.codegen.cuda_emit import plan_launches
from sexpgpu.codegen.cuda_many import groups_of
from sexpgpu.ir.types import TensorType
from sexpgpu.plan.kernel import Access, Buffer, Generated, Place, Plan, Program
from tests.on_simulator import Simulated
from tests.programs import Builder

SIZES = (1, 3, 4, 768, 1023, 1024, 1025, 4096, 4100, 9001)


def momentum() -> Program:
    """m = 0.9·m + g; p = p − rate·m, in place."""
    b = Builder("map", 1)
    p, g, m, rate = b.load(), b.load(), b.load(), b.load("zero")
    new = b.do("add", b.do("mul", m, b.number(0.9)), g)
    b.store(new, alias=m)
    b.store(b.do("sub", p, b.do("mul", rate, new)), alias=p)
    return b.program()


def plan_of(launches: list[Generated], sizes: list[int]) -> Plan:
    buffers = [Buffer(f"buffer:{n}", 4 * size, "external") for n, size in enumerate(sizes)]
    externals = {b.name: TensorType("f32", (size,)) for b, size in zip(buffers, sizes, strict=True)}
    return Plan(tuple(launches), tuple(buffers), 0, externals, {})


def update(program: Program, size: int, p: int, g: int, m: int, rate: int) -> Generated:
    one = [Access(Place(n), (1,)) for n in (p, g, m)]
    return Generated(program, (size,), (*one, Access(Place(rate), (0,))), (one[2], one[0]))


def updates() -> tuple[Plan, list[int]]:
    """One update a size; buffer 0 holds the rate."""
    sizes, launches = [1], []
    for size in SIZES:
        launches.append(update(momentum(), size, len(sizes), len(sizes) + 1, len(sizes) + 2, 0))
        sizes += [size] * 3
    return plan_of(launches, sizes), sizes


def test_all_parameters_are_updated_by_one_launch_with_numpys_bits() -> None:
    plan, sizes = updates()
    numbers = np.random.default_rng(0)
    given = [numbers.normal(size=size).astype(np.float32) for size in sizes]
    made = Simulated(plan)
    for number, array in enumerate(given):
        made.bind(f"buffer:{number}", array)
    made.run()
    assert made.findings == []
    assert len(made.outcomes) == 1
    for number, size in enumerate(SIZES):
        p, g, m = given[1 + 3 * number : 4 + 3 * number]
        new = m * np.float32(0.9) + g
        expected = {0: p - given[0] * new, 2: new}
        for offset, values in expected.items():
            got: Any = made.read(Place(1 + 3 * number + offset), (size,), "f32")
            assert got.tobytes() == values.tobytes()


def test_each_byte_is_moved_once() -> None:
    plan, sizes = updates()
    made = Simulated(plan)
    for number, size in enumerate(sizes):
        made.bind(f"buffer:{number}", np.ones(size, np.float32))
    made.run()
    (outcome,) = [outcome for _, outcome in made.outcomes]
    traffic = outcome.traffic
    moved = sum(traffic[made.addresses[n]].loaded_bytes + traffic[made.addresses[n]].stored_bytes for n in range(1, len(sizes)))
    least = sum(5 * 4 * size for size in SIZES)
    assert least <= moved <= 1.05 * least


def test_a_map_that_reads_what_a_member_wrote_waits_for_its_own_turn() -> None:
    program = momentum()
    first, second = update(program, 8, 1, 2, 3, 0), update(program, 8, 4, 1, 5, 0)
    assert groups_of(plan_of([first, second], [1, *[8] * 5])) == []


def test_a_map_that_writes_what_stands_between_read_waits_for_its_own_turn() -> None:
    program = momentum()
    b = Builder("map", 1)
    b.store(b.load())
    between = Generated(b.program(), (8,), (Access(Place(4), (1,)),), (Access(Place(7), (1,)),))
    first, second = update(program, 8, 1, 2, 3, 0), update(program, 8, 4, 5, 6, 0)
    assert groups_of(plan_of([first, between, second], [1, *[8] * 7])) == []
    assert groups_of(plan_of([first, second, between], [1, *[8] * 7])) == [[0, 1]]


def test_two_programs_that_alternate_make_two_groups() -> None:
    b = Builder("map", 1)
    b.store(b.load())
    copies = [Generated(b.program(), (8,), (Access(Place(n), (1,)),), (Access(Place(n + 1), (1,)),)) for n in (7, 9)]
    updates = [update(momentum(), 8, 1, 2, 3, 0), update(momentum(), 8, 4, 5, 6, 0)]
    launches = [updates[0], copies[0], updates[1], copies[1]]
    plan = plan_of(launches, [1, *[8] * 10])
    assert groups_of(plan) == [[0, 2], [1, 3]]
    assert [len(made) for made in plan_launches(plan)] == [1, 1, 0, 0]
