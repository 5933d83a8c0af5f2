"""What the threads of a row keep between passes: enough to read memory once, in as few registers as that takes."""

from __future__ import annotations

from sexpgpu.codegen.row_values import passes_keeping_nothing, passes_reading_once
from sexpgpu.codegen.stages import analyse
from tests import programs
from tests.programs import Builder


def test_softmax_keeps_its_elements_and_then_their_exponentials() -> None:
    program = programs.softmax()
    made = passes_reading_once(program, analyse(program))
    x, exponential, quotient = 0, 3, 5
    assert made.made == ((x,), (2, exponential), (quotient,))
    assert made.read == ((), (x,), (exponential,))
    assert made.registers == 1


def test_the_sum_of_two_loads_is_kept_in_place_of_both() -> None:
    b = Builder("row", 2)
    x, y = b.load(), b.load()
    total = b.do("add", x, y)
    b.store(b.do("sub", total, b.do("reduce_max", total)))
    made = passes_reading_once(b.program(), analyse(b.program()))
    assert made.kept == {total}
    assert made.registers == 1


def test_a_load_that_several_values_are_made_of_is_kept_in_place_of_them() -> None:
    b = Builder("row", 2)
    x = b.load()
    parts = [b.do(op, x) for op in ("neg", "abs", "sign")]
    greatest = b.do("reduce_max", x)
    for part in parts:
        b.store(b.do("mul", part, greatest))
    made = passes_reading_once(b.program(), analyse(b.program()))
    assert made.kept == {x}


def test_a_pass_that_keeps_nothing_makes_all_that_it_needs() -> None:
    program = programs.softmax()
    made = passes_keeping_nothing(program, analyse(program))
    assert made.made == ((0,), (0, 2, 3), (0, 2, 3, 5))
    assert not made.kept
