"""Sums over whole flat buffers, between graphs: their order is that of every device."""

from __future__ import annotations

from sexpgpu.plan.kernel import Instruction, Load, Program, Store

# Elements of a block, whose squares are summed in one order: in so many lanes, added by halving at its end, then what is
# left one by one. The sums of blocks are added by NumPy. A GPU has a thread a lane: lanes are short, blocks many.
BLOCK, LANES = 1 << 13, 8

# target += source
ADD = Program(
    "map",
    1,
    (Load("memory", "f32", "one"), Load("memory", "f32", "one")),
    (Instruction("add", (0, 1), "f32"),),
    (Store(2, "f32", "one", alias=0),),
)
