"""The PTX simulator as a device: memory, launches, control flow, traffic, what it says of what it does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx_operation import evaluate, kernel, launch
from tests.simulator import Fault, Memory, Traffic, load

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


# Memory.


def test_bytes_that_were_never_written_are_not_read_by_the_host() -> None:
    memory = Memory(1 << 16)
    at = memory.allocate(16)
    memory.write(at + 4, np.ones(2, np.float32))
    with pytest.raises(Fault, match="8 of 16 bytes") as caught:
        memory.read(at, 4, np.float32)
    assert caught.value.kind == "uninitialised-read"
    assert memory.read(at + 4, 2, np.float32).tolist() == [1.0, 1.0]
    assert memory.read(at, 4, np.float32, initialised=False)[1:3].tolist() == [1.0, 1.0]


def test_a_copy_on_the_device_keeps_what_was_not_written() -> None:
    memory = Memory(1 << 16)
    source, target = memory.allocate(8), memory.put(np.zeros(8, np.uint8))
    memory.fill(source, 7, 4)
    memory.copy(target, source, 8)
    assert memory.read(target, 4, np.uint8).tolist() == [7] * 4
    with pytest.raises(Fault):
        memory.read(target, 5, np.uint8)


@pytest.mark.parametrize("beyond", [-4, 16, 14])
def test_the_host_stays_inside_an_allocation(beyond: int) -> None:
    memory = Memory(1 << 16)
    memory.put(np.zeros(4, np.float32))
    at = memory.put(np.zeros(4, np.float32))
    with pytest.raises(Fault) as caught:
        memory.write(at + beyond, np.ones(1, np.float32))
    assert caught.value.kind == "out-of-bounds"


def test_freed_memory_is_gone_and_given_out_again_only_when_nothing_else_is_left() -> None:
    memory = Memory(8 << 10)
    first = memory.put(np.zeros(1024, np.uint8))
    memory.free(first)
    with pytest.raises(Fault) as caught:
        memory.read(first, 1, np.uint8)
    assert caught.value.kind == "use-after-free"
    others = [memory.allocate(1024) for _ in range(3)]
    assert first not in others
    assert memory.allocate(1000) == first
    with pytest.raises(Fault):
        memory.read(first, 1, np.uint8)
    with pytest.raises(MemoryError):
        memory.allocate(2048)


def test_memory_is_freed_once_and_by_its_start() -> None:
    memory = Memory(1 << 16)
    at = memory.allocate(64)
    for wrong in (at + 4, at - 4096):
        with pytest.raises(Fault):
            memory.free(wrong)
    memory.free(at)
    with pytest.raises(Fault):
        memory.free(at)


# Launches.

COORDINATES = """
mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;
mov.u32 %r5, %ctaid.x; mov.u32 %r6, %ctaid.y; mov.u32 %r7, %ctaid.z; mov.u32 %r8, %nctaid.x; mov.u32 %r9, %nctaid.y;
mad.lo.u32 %r10, %r2, %r4, %r1; mad.lo.u32 %r10, %r10, %r3, %r0; mad.lo.u32 %r11, %r7, %r9, %r6;
mad.lo.u32 %r11, %r11, %r8, %r5; mov.u32 %r12, %ntid.z; mul.lo.u32 %r12, %r12, %r3; mul.lo.u32 %r12, %r12, %r4;
mad.lo.u32 %r12, %r11, %r12, %r10; mul.wide.u32 %rd1, %r12, 4; add.u64 %rd1, %rd1, %out_at;
shl.b32 %r13, %r0, 20; shl.b32 %r14, %r1, 16; or.b32 %r13, %r13, %r14; shl.b32 %r14, %r2, 12; or.b32 %r13, %r13, %r14;
shl.b32 %r14, %r5, 8; or.b32 %r13, %r13, %r14; shl.b32 %r14, %r6, 4; or.b32 %r13, %r13, %r14; or.b32 %r13, %r13, %r7;
st.global.u32 [%rd1], %r13;"""


@pytest.mark.parametrize("perturb", [None, 5])
def test_every_thread_of_every_block_runs_once_in_three_dimensions(perturb: int | None) -> None:
    grid, block = (3, 2, 2), (5, 3, 2)
    text = kernel(COORDINATES, ".reg .b32 %r<15>; .reg .b64 %rd<2>;", ["out"])
    memory = Memory(1 << 16)
    out = memory.allocate(4 * 360)
    outcome = load(text).launch("k", grid, block, [np.uint64(out)], memory, perturb=perturb)
    assert outcome.findings == []
    wanted = [
        x << 20 | y << 16 | z << 12 | bx << 8 | by << 4 | bz
        for bz in range(2)
        for by in range(2)
        for bx in range(3)
        for z in range(2)
        for y in range(3)
        for x in range(5)
    ]
    assert memory.read(out, 360, np.uint32).tolist() == wanted


def test_more_blocks_than_run_in_lockstep_all_run() -> None:
    text = kernel(COORDINATES, ".reg .b32 %r<15>; .reg .b64 %rd<2>;", ["out"])
    memory = Memory(1 << 20)
    out = memory.allocate(4 * 100_000)
    outcome = load(text).launch("k", (1000,), (100,), [np.uint64(out)], memory)
    assert outcome.findings == []
    assert (memory.read(out, 100_000, np.uint32) >> 20).tolist() == [*range(100)] * 1000


@pytest.mark.parametrize(
    ("grid", "block", "options"),
    [((1,), (1025,), {}), ((0,), (32,), {}), ((1, 65536), (32,), {}), ((1,), (32,), {"shared_bytes": 300_000})],
)
def test_a_launch_beyond_a_devices_limits_faults(grid: Any, block: Any, options: Any) -> None:
    with pytest.raises(Fault) as caught:
        load(kernel("")).launch("k", grid, block, [], Memory(1 << 16), **options)
    assert caught.value.kind == "launch"


def test_a_kernel_that_is_not_there_is_named() -> None:
    with pytest.raises(Fault, match="no kernel other; it has k"):
        load(kernel("")).launch("other", (1,), (32,), [], Memory(1 << 16))


@pytest.mark.parametrize(
    "text", ["mbarrier.init.shared.b64 [%rd1], 1;", "add.f128 %rd1, %rd1, %rd1;", "frob.u32 %r1, 3;"]
)
def test_an_instruction_that_is_not_known_faults_by_its_name_when_it_is_reached(text: str) -> None:
    declared = ".reg .b32 %r<2>; .reg .b64 %rd<2>; .reg .pred %p;"
    skipped = kernel(f"setp.ne.u32 %p, 0, 0; @!%p bra DONE; {text} DONE:", declared)
    assert launch(skipped, Memory(1 << 16)).findings == []
    with pytest.raises(Fault, match=text.split()[0]) as caught:
        launch(kernel(text, declared), Memory(1 << 16))
    assert caught.value.kind == "unsupported"


def test_a_special_register_that_is_not_known_faults_by_its_name() -> None:
    with pytest.raises(Fault, match="%pm0"):
        launch(kernel("mov.u32 %r1, %pm0;", ".reg .b32 %r<2>;"), Memory(1 << 16))


# Control flow.


def test_threads_that_branch_apart_meet_again() -> None:
    """The sum of i's odd divisors by a loop whose length differs by thread, with a branch inside."""
    body = """.reg .pred %p, %q; .reg .b32 %k, %v; mov.u32 %d, 0; mov.u32 %k, 1;
    LOOP: rem.u32 %v, %x, %k; setp.ne.u32 %p, %v, 0; @%p bra NEXT; and.b32 %v, %k, 1; setp.eq.u32 %q, %v, 0;
    @%q bra NEXT; add.u32 %d, %d, %k; NEXT: add.u32 %k, %k, 1; setp.le.u32 %p, %k, %x; @%p bra LOOP;"""
    x = list(range(1, 97))
    found = evaluate(body, "u32", x=("u32", x))
    assert found.tolist() == [sum(k for k in range(1, a + 1, 2) if a % k == 0) for a in x]


def test_a_predicate_guards_any_instruction() -> None:
    body = ".reg .pred %p; setp.gt.u32 %p, %x, 9; mov.u32 %d, 5; @%p add.u32 %d, %d, %x; @!%p mul.lo.u32 %d, %x, 7;"
    assert evaluate(body, "u32", x=("u32", range(32))).tolist() == [i + 5 if i > 9 else i * 7 for i in range(32)]


def test_a_table_of_branches_sends_each_thread_its_way() -> None:
    body = """.reg .b32 %k; rem.u32 %k, %x, 3; brx.idx %k, TABLE; TABLE: .branchtargets A, B, C;
    A: mov.u32 %d, 10; bra.uni END; B: mov.u32 %d, 20; bra.uni END; C: mov.u32 %d, 30; END:"""
    assert evaluate(body, "u32", x=("u32", range(32))).tolist() == [(10, 20, 30)[i % 3] for i in range(32)]


def test_names_of_inline_assembly_are_its_blocks_own() -> None:
    body = """mov.u32 %d, 0; { .reg .b32 t; .reg .pred p; mov.u32 t, 3; setp.lt.u32 p, %x, t; @p bra SKIP;
    add.u32 %d, %d, t; SKIP: } { .reg .b32 t; mov.u32 t, 100; { .reg .b32 t; mov.u32 t, 1000; add.u32 %d, %d, t; }
    add.u32 %d, %d, t; SKIP: }"""
    assert evaluate(body, "u32", x=("u32", range(32))).tolist() == [1100 + 3 * (i >= 3) for i in range(32)]


def test_a_register_that_is_read_before_it_is_written_is_found() -> None:
    text = kernel(
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p, %r1, 5; @%p mov.u32 %r2, 1; add.u32 %r3, %r2, 1;",
        ".reg .b32 %r<4>; .reg .pred %p;",
    )
    (finding,) = launch(text, Memory(1 << 16)).findings
    assert (finding.kind, finding.detail) == ("undefined-register", "%r2 is read before it is written")
    assert "add.u32 %r3, %r2, 1" in finding.where


def test_a_register_that_is_never_written_is_found() -> None:
    text = kernel("add.u32 %r3, %r2, 1;", ".reg .b32 %r<4>;")
    (finding,) = launch(text, Memory(1 << 16)).findings
    assert finding.detail == "%r2 is read before it is written"


@pytest.mark.parametrize("space", ["shared", "local"])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ld.SPACE.u32 %r1, [%r0+2];", "misaligned"),
        ("st.SPACE.u16 [%r0+1], %h;", "misaligned"),
        ("st.SPACE.v2.u32 [%r0+4], {%r0, %r0};", "misaligned"),
        ("st.SPACE.u32 [%r0+16], %r0;", "out-of-bounds"),
        ("st.SPACE.u32 [%r0+-4], %r0;", "out-of-bounds"),
    ],
)
def test_shared_and_local_accesses_are_aligned_and_inside(space: str, text: str, kind: str) -> None:
    declared = f".reg .b32 %r<2>; .reg .b16 %h; .{space} .align 16 .b8 s[16];"
    with pytest.raises(Fault) as caught:
        launch(
            kernel(f"mov.u32 %r0, s; mov.u16 %h, 1; {text.replace('SPACE', space)}", declared), Memory(1 << 16), block=1
        )
    assert caught.value.kind == kind


@pytest.mark.parametrize("address", ["%x_at", "%s", "%l"])
def test_isspacep_tells_the_space_of_a_generic_address(address: str) -> None:
    for space, own in {"global": "%x_at", "shared": "%s", "local": "%l"}.items():
        body = f""".shared .align 4 .b8 v[8]; .local .align 4 .b8 w[8]; .reg .b64 %s, %l;
        mov.u64 %s, v; cvta.shared.u64 %s, %s; mov.u64 %l, w; cvta.local.u64 %l, %l; isspacep.{space} %d, {address};"""
        assert evaluate(body, "pred", x=("u32", range(32))).tolist() == [address == own] * 32


def test_words_are_packed_and_unpacked_low_part_first() -> None:
    body = ".reg .b16 %h<4>; mov.b64 {%h0, %h1, %h2, %h3}, %x; mov.b64 %d, {%h3, %h2, %h1, %h0};"
    x = [0x0123456789ABCDEF, 1, 2**63, 0] * 8
    assert evaluate(body, "u64", x=("u64", x)).tolist()[:3] == [0xCDEF89AB45670123, 1 << 48, 0x8000]


def test_generic_addresses_reach_every_space() -> None:
    body = """.shared .align 4 .b8 s[128]; .local .align 4 .b8 l[8]; .reg .b64 %q, %v; .reg .b32 %s, %u; .reg .pred %p;
    mov.u32 %s, s; shl.b32 %u, %i, 2; and.b32 %u, %u, 127; add.u32 %s, %s, %u; cvt.u64.u32 %q, %s;
    cvta.shared.u64 %q, %q; st.u32 [%q], %x; ld.shared.u32 %u, [%s]; mov.u64 %v, l; cvta.local.u64 %v, %v;
    st.u32 [%v+4], 1000; and.b32 %s, %i, 1; setp.eq.u32 %p, %s, 0; selp.b64 %q, %q, %v, %p; @!%p add.u64 %q, %q, 4;
    ld.u32 %d, [%q]; add.u32 %d, %d, %u;"""
    assert evaluate(body, "u32", x=("u32", range(50, 82))).tolist() == [
        (50 + i if i % 2 == 0 else 1000) + 50 + i for i in range(32)
    ]


# Traffic.


def test_traffic_counts_distinct_bytes_of_a_warps_instruction_and_of_the_launch() -> None:
    """Each lane reads its own word and a common one; both halves of the warps write one array of shorts."""
    text = kernel(
        """mov.u32 %r1, %tid.x; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %x_at; ld.global.u32 %r2, [%rd1];
        ld.global.u32 %r3, [%c_at]; add.u32 %r2, %r2, %r3; mul.wide.u32 %rd1, %r1, 2; add.u64 %rd1, %rd1, %y_at;
        cvt.u16.u32 %rs1, %r2; st.global.u16 [%rd1], %rs1; setp.lt.u32 %p, %r1, 8; @%p ld.global.u16 %rs1, [%rd1];
        @%p atom.global.add.u32 %r3, [%z_at], 1;""",
        ".reg .b32 %r<4>; .reg .b16 %rs<2>; .reg .b64 %rd<2>; .reg .pred %p;",
        ["x", "c", "y", "z"],
    )
    memory = Memory(1 << 16)
    x, c = memory.put(np.arange(64, dtype=np.uint32)), memory.put(np.arange(64, dtype=np.uint32))
    y, z = memory.allocate(256), memory.put(np.zeros(4, np.uint32))
    outcome = launch(text, memory, x, c, y, z, block=64)
    assert outcome.findings == []
    assert outcome.traffic == {
        x: Traffic(256, 0, 256, 0),
        c: Traffic(8, 0, 4, 0),
        y: Traffic(16, 128, 16, 128),
        z: Traffic(4, 4, 4, 4),
    }


def test_vector_loads_count_all_their_bytes_in_any_order_of_lanes() -> None:
    text = kernel(
        """mov.u32 %r1, %tid.x; xor.b32 %r1, %r1, 5; shr.u32 %r1, %r1, 1; mul.wide.u32 %rd1, %r1, 16;
        add.u64 %rd1, %rd1, %x_at; ld.global.v4.u32 {%r1, %r2, %r3, _}, [%rd1];""",
        ".reg .b32 %r<4>; .reg .b64 %rd<2>;",
        ["x"],
    )
    memory = Memory(1 << 16)
    x = memory.put(np.zeros(128, np.uint32))
    assert launch(text, memory, x, grid=3).traffic == {x: Traffic(3 * 256, 0, 256, 0)}
