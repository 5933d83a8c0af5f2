"""The PTX simulator runs instructions as PTX defines them."""

from __future__ import annotations

import numpy as np

from tests.simulator import Memory, load

SCALE = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 scale_0, .param .u64 scale_1, .param .f32 scale_2)
{
    .reg .f32 %f<4>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [scale_0];
    ld.param.u64 %rd2, [scale_1];
    ld.param.f32 %f1, [scale_2];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.f32 %f2, [%rd4];
    mul.f32 %f3, %f2, %f1;
    st.global.f32 [%rd5], %f3;
    ret;
}
"""


def test_a_kernel_reads_its_parameters_and_writes_its_output() -> None:
    memory = Memory(1 << 20)
    x = memory.put(np.arange(32, dtype=np.float32))
    y = memory.allocate(128)
    parameters = [np.uint64(x), np.uint64(y), np.float32(2.5)]
    outcome = load(SCALE).launch("scale", (1, 1, 1), (32, 1, 1), parameters, memory)
    assert outcome.findings == []
    assert outcome.instructions == 32 * 11
    assert memory.read(y, 32, np.float32).tolist() == [2.5 * i for i in range(32)]


def test_the_words_that_a_launch_touched_are_told() -> None:
    memory = Memory(1 << 20)
    x = memory.put(np.arange(40, dtype=np.float32))
    y = memory.allocate(160)
    parameters = [np.uint64(x + 8), np.uint64(y), np.float32(2.5)]
    load(SCALE).launch("scale", (1, 1, 1), (32, 1, 1), parameters, memory)
    assert memory.touched(x, 160, written=False).tolist() == list(range(2, 34))
    assert memory.touched(x, 160, written=True).size == 0
    assert memory.touched(y, 160, written=True).tolist() == list(range(32))
    assert memory.touched(y, 160, written=False).size == 0
