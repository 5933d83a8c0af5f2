"""Sums over whole flat buffers, by all workers: what the training loop does with gradients between graphs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sexpgpu.codegen import layout
from sexpgpu.codegen.numba_kernel import emit
from sexpgpu.codegen.sums import ADD, BLOCK
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.kernels import Wanted, load_kernels
from sexpgpu.interp.tape import Record, Workers, record_tape
from sexpgpu.plan.kernel import Access, Generated, Place

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

# Blocks that a worker takes at once.
BLOCKS_TOGETHER = 4

# Words: address of the elements, address of one float64 a block, elements.
SQUARES = f"""; squares of f32 summed in f64
define void @kernel(i64 %args, i64 %lo, i64 %hi, i64 %scratch) {{
entry:
  %words = inttoptr i64 %args to ptr
  %x_address = load i64, ptr %words
  %x = inttoptr i64 %x_address to ptr
  %sums_at = getelementptr i64, ptr %words, i64 1
  %sums_address = load i64, ptr %sums_at
  %sums = inttoptr i64 %sums_address to ptr
  %count_at = getelementptr i64, ptr %words, i64 2
  %count = load i64, ptr %count_at
  %any = icmp slt i64 %lo, %hi
  br i1 %any, label %block, label %done
block:
  %unit = phi i64 [ %lo, %entry ], [ %next_unit, %finish ]
  %begin = mul i64 %unit, {BLOCK}
  %left = sub i64 %count, %begin
  %short = icmp slt i64 %left, {BLOCK}
  %size = select i1 %short, i64 %left, i64 {BLOCK}
  %whole = and i64 %size, -8
  %here = getelementptr float, ptr %x, i64 %begin
  %some = icmp sgt i64 %whole, 0
  br i1 %some, label %vector, label %lanes
vector:
  %i = phi i64 [ 0, %block ], [ %i2, %vector ]
  %sum = phi <8 x double> [ zeroinitializer, %block ], [ %sum2, %vector ]
  %at = getelementptr float, ptr %here, i64 %i
  %narrow = load <8 x float>, ptr %at, align 4
  %wide = fpext <8 x float> %narrow to <8 x double>
  %square = fmul <8 x double> %wide, %wide
  %sum2 = fadd <8 x double> %sum, %square
  %i2 = add i64 %i, 8
  %more = icmp slt i64 %i2, %whole
  br i1 %more, label %vector, label %lanes
lanes:
  %eight = phi <8 x double> [ zeroinitializer, %block ], [ %sum2, %vector ]
  %e0 = shufflevector <8 x double> %eight, <8 x double> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %e1 = shufflevector <8 x double> %eight, <8 x double> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %four = fadd <4 x double> %e0, %e1
  %f0 = shufflevector <4 x double> %four, <4 x double> poison, <2 x i32> <i32 0, i32 1>
  %f1 = shufflevector <4 x double> %four, <4 x double> poison, <2 x i32> <i32 2, i32 3>
  %two = fadd <2 x double> %f0, %f1
  %t0 = extractelement <2 x double> %two, i32 0
  %t1 = extractelement <2 x double> %two, i32 1
  %one = fadd double %t0, %t1
  br label %rest
rest:
  %j = phi i64 [ %whole, %lanes ], [ %j2, %step ]
  %total = phi double [ %one, %lanes ], [ %total2, %step ]
  %inside = icmp slt i64 %j, %size
  br i1 %inside, label %step, label %finish
step:
  %jt = getelementptr float, ptr %here, i64 %j
  %jn = load float, ptr %jt, align 4
  %jw = fpext float %jn to double
  %js = fmul double %jw, %jw
  %total2 = fadd double %total, %js
  %j2 = add i64 %j, 1
  br label %rest
finish:
  %out = getelementptr double, ptr %sums, i64 %unit
  store double %total, ptr %out, align 8
  %next_unit = add i64 %unit, 1
  %again = icmp slt i64 %next_unit, %hi
  br i1 %again, label %block, label %done
done:
  ret void
}}
"""


KERNELS: Wanted = {repr(ADD): partial(emit, ADD), SQUARES: lambda: SQUARES}


class Sums:
    """The two kernels, loaded when first asked for."""

    def __init__(self, workers: Workers, cache: Cache) -> None:
        self._workers = workers
        self._kernels = load_kernels(KERNELS, cache)
        self._add, self._squares = (self._kernels.addresses[text] for text in KERNELS)

    def add(self, target: Array, source: Array) -> None:
        """target += source, element by element; contiguous arrays of one shape."""
        addresses = {0: target.ctypes.data, 1: source.ctypes.data}
        operands = Access(Place(0), (1,)), Access(Place(1), (1,))
        launch = Generated(ADD, (target.size,), operands, operands[:1])
        words = layout.arguments(launch, lambda place: addresses[place.buffer])
        units, per_block = layout.units(launch)
        self._run(self._add, words, units, per_block)

    def square_sum(self, array: Array) -> float:
        """Σ x² in float64: blocks in an order of their own, then all blocks in NumPy's pairwise order."""
        blocks = -(-array.size // BLOCK)
        sums = np.zeros(blocks, np.float64)
        self._run(self._squares, [array.ctypes.data, sums.ctypes.data, array.size], blocks, BLOCKS_TOGETHER)
        return float(sums.sum())

    def _run(self, function: int, words: list[int], units: int, per_block: int) -> None:
        record = Record(function, np.array(words, np.int64), units, per_block)
        self._workers.run(record_tape([record], 0))
