"""What the lanes of a warp do together in the PTX simulator: shuffles, votes, barriers that count, matrices, copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ptx_operation import evaluate, kernel, launch
from tests.simulator import Fault, Memory

RNG = np.random.default_rng(4)
X = RNG.integers(0, 2**32, 64, dtype=np.uint32)
LANE = np.arange(64) % 32
FIRST = np.arange(64) - LANE


def shuffled(text: str, result: str = "u32") -> Any:
    return evaluate(text, result, x=("u32", X))


@pytest.mark.parametrize("by", [1, 5, 16])
def test_shfl_reads_another_lane_or_its_own_at_the_warps_end(by: int) -> None:
    up = shuffled(f"shfl.sync.up.b32 %d, %x, {by}, 0, -1;")
    assert up.tolist() == X[FIRST + np.where(by <= LANE, LANE - by, LANE)].tolist()
    down = shuffled(f"shfl.sync.down.b32 %d, %x, {by}, 31, -1;")
    assert down.tolist() == X[FIRST + np.where(LANE + by < 32, LANE + by, LANE)].tolist()
    across = shuffled(f"shfl.sync.bfly.b32 %d, %x, {by}, 31, -1;")
    assert across.tolist() == X[FIRST + (LANE ^ by)].tolist()
    one = shuffled(f"shfl.sync.idx.b32 %d, %x, {by}, 31, -1;")
    assert one.tolist() == X[FIRST + by].tolist()


@pytest.mark.parametrize("width", [4, 8, 16])
def test_shfl_keeps_to_segments(width: int) -> None:
    """`__shfl_*_sync(mask, x, 3, width)`: the control word is ((32 − width) << 8) | 31, without 31 for up."""
    begin, place = LANE - LANE % width, LANE % width
    control = (32 - width) << 8
    up = shuffled(f"shfl.sync.up.b32 %d, %x, 3, {control}, -1;")
    assert up.tolist() == X[FIRST + begin + np.where(place >= 3, place - 3, place)].tolist()
    down = shuffled(f"shfl.sync.down.b32 %d, %x, 3, {control | 31}, -1;")
    assert down.tolist() == X[FIRST + begin + np.where(place + 3 < width, place + 3, place)].tolist()
    one = shuffled(f"shfl.sync.idx.b32 %d, %x, 3, {control | 31}, -1;")
    assert one.tolist() == X[FIRST + begin + 3].tolist()


def test_shfl_tells_which_lanes_had_a_source() -> None:
    body = ".reg .b32 %v; shfl.sync.down.b32 %v|%d, %x, 3, 31, -1;"
    assert shuffled(body, "pred").tolist() == (LANE < 29).tolist()


def test_votes_see_every_lane_of_the_warp() -> None:
    odd = X & 1 == 1
    ballots = [sum(int(odd[w * 32 + n]) << n for n in range(32)) for w in (0, 1)]
    ask = ".reg .pred %p; .reg .b32 %v; and.b32 %v, %x, 1; setp.eq.u32 %p, %v, 1; "
    assert shuffled(ask + "vote.sync.ballot.b32 %d, %p, -1;").tolist() == [ballots[0]] * 32 + [ballots[1]] * 32
    assert not shuffled(ask + "vote.sync.all.pred %d, %p, -1;", "pred").any()
    assert shuffled(ask + "vote.sync.any.pred %d, %p, -1;", "pred").all()
    first = ".reg .pred %p; setp.lt.u32 %p, %n, 1; vote.sync.all.pred %d, %p, -1;"
    assert shuffled(first, "pred").tolist() == [True] * 32 + [False] * 32
    assert shuffled(first.replace("all", "uni"), "pred").all()
    assert shuffled(first.replace("%p, -1", "!%p, -1"), "pred").tolist() == [False] * 32 + [True] * 32


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add.s32", lambda x: x.sum()),
        ("min.s32", np.min),
        ("max.u32", lambda x: x.view("u4").max()),
        ("min.u32", lambda x: x.view("u4").min()),
        ("and.b32", np.bitwise_and.reduce),
        ("or.b32", np.bitwise_or.reduce),
        ("xor.b32", np.bitwise_xor.reduce),
    ],
)
def test_redux_reduces_a_warp(name: str, function: Any) -> None:
    found = shuffled(f"redux.sync.{name} %d, %x, -1;")
    rows = X.view(np.int32).reshape(2, 32)
    wanted = [int(function(row)) % 2**32 for row in rows]
    assert found.tolist() == [wanted[0]] * 32 + [wanted[1]] * 32


def test_match_names_the_lanes_with_the_same_value() -> None:
    found = shuffled(".reg .b32 %v; and.b32 %v, %x, 3; match.any.sync.b32 %d, %v, -1;")
    values = (X & 3).reshape(2, 32)
    wanted = [sum(1 << n for n in range(32) if row[n] == one) for row in values for one in row]
    assert found.tolist() == wanted
    every = ".reg .b32 %v; .reg .pred %p; shr.u32 %v, %i, 5; match.all.sync.b32 %d|%p, %v, -1;"
    assert set(shuffled(every).tolist()) == {2**32 - 1}
    assert not shuffled(every.replace("%v, %i, 5", "%v, %i, 4").replace("%d|%p", "%v|%d"), "pred").any()


def test_activemask_and_elect_see_who_is_here() -> None:
    body = ".reg .pred %p; mov.u32 %d, 0; setp.lt.u32 %p, %i, 5; @%p activemask.b32 %d;"
    assert shuffled(body).tolist() == [31] * 5 + [0] * 59
    assert shuffled(".reg .b32 %v; elect.sync %v|%d, -1;", "pred").tolist() == (LANE == 0).tolist()


def test_bar_red_counts_the_whole_block() -> None:
    text = kernel(
        """mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 37; bar.red.popc.u32 %r2, 0, %p1; bar.red.or.pred %p2, 0, %p1;
        bar.red.and.pred %p3, 0, !%p1; selp.u32 %r3, 100, 0, %p2; selp.u32 %r4, 1000, 0, %p3; add.u32 %r2, %r2, %r3;
        add.u32 %r2, %r2, %r4; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %out_at; st.global.u32 [%rd1], %r2;""",
        ".reg .pred %p<4>; .reg .b32 %r<5>; .reg .b64 %rd<2>;",
        ["out"],
    )
    memory = Memory(1 << 16)
    out = memory.allocate(4 * 96)
    assert launch(text, memory, out, block=96).findings == []
    assert memory.read(out, 96, np.uint32).tolist() == [137] * 96


def test_named_barriers_hold_as_many_threads_as_they_count() -> None:
    """Warp 0 writes, waits with warp 1 at barrier 1; warp 2 goes by."""
    text = kernel(
        """mov.u32 %r1, %tid.x; setp.gt.u32 %p1, %r1, 63; @%p1 bra DONE; setp.gt.u32 %p2, %r1, 31;
        shl.b32 %r2, %r1, 2; @!%p2 st.shared.u32 [%r2], %r1; bar.sync 1, 64; @!%p2 bra DONE;
        ld.shared.u32 %r3, [%r2+-128]; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %rd1, %out_at;
        st.global.u32 [%rd1+-128], %r3; DONE:""",
        ".reg .pred %p<3>; .reg .b32 %r<5>; .reg .b64 %rd<2>; .shared .align 4 .b8 s[128];",
        ["out"],
    )
    memory = Memory(1 << 16)
    out = memory.allocate(128)
    assert launch(text, memory, out, block=96).findings == []
    assert memory.read(out, 32, np.uint32).tolist() == list(range(32))


def fragments(a: Any, b: Any, c: Any, width: int) -> list[Any]:
    """The registers of mma.m16n8k*, one row a register, by the manual's figures; `width` elements lie in a register."""
    k = a.shape[1]
    g, t = np.arange(32) >> 2, np.arange(32) & 3
    registers = []
    for left in range(0, k, 4 * width):
        for row in (0, 8):
            registers.append(np.stack([a[g + row, left + t * width + e] for e in range(width)], 1))
    for top in range(0, k, 4 * width):
        registers.append(np.stack([b[top + t * width + e, g] for e in range(width)], 1))
    for row in (0, 8):
        registers += [c[g + row, 2 * t], c[g + row, 2 * t + 1]]
    return registers


def results(d: Any) -> Any:
    """The 16 × 8 matrix from the four registers of each lane."""
    g, t = np.arange(32) >> 2, np.arange(32) & 3
    found = np.zeros((16, 8), d.dtype)
    for number in range(4):
        found[g + 8 * (number >> 1), 2 * t + (number & 1)] = d[number]
    return found


@pytest.mark.parametrize(
    ("shape", "kind", "k"),
    [
        ("m16n8k16", "bf16", 16),
        ("m16n8k8", "bf16", 8),
        ("m16n8k16", "f16", 16),
        ("m16n8k8", "f16", 8),
        ("m16n8k8", "tf32", 8),
        ("m16n8k4", "tf32", 4),
        ("m16n8k32", "s8", 32),
        ("m16n8k16", "s8", 16),
    ],
)
def test_mma_multiplies_and_adds(shape: str, kind: str, k: int) -> None:
    a, b, c = (RNG.integers(-8, 8, size) for size in ((16, k), (k, 8), (16, 8)))
    width = {"tf32": 1, "s8": 4}.get(kind, 2)
    dtype: Any = {"bf16": "bf16", "f16": "f2", "tf32": "f4", "s8": "i1"}[kind]

    def packed(values: Any) -> Any:
        if dtype == "bf16":
            half = (values.astype("f4").view("u4") >> 16).astype("u2")
            return np.ascontiguousarray(half).view("u4")[:, 0]
        return np.ascontiguousarray(values.astype(dtype)).view("u4")[:, 0]

    accumulate = "s32" if kind == "s8" else "f32"
    registers = fragments(a, b, c, width)
    many = len(registers)
    words = [packed(one) for one in registers[:-4]]
    words += [one.astype("i4" if kind == "s8" else "f4").view("u4") for one in registers[-4:]]
    loads = "".join(f"ld.global.b32 %r{n}, [%rd1+{128 * n}];" for n in range(many))
    names = [f"%r{n}" for n in range(many)]
    a_count = 2 * k // (4 * width)
    groups = [names[:a_count], names[a_count:-4], names[-4:]]
    operands = ", ".join("{" + ", ".join(group) + "}" for group in groups)
    stores = "".join(f"st.global.b32 [%rd2+{128 * n}], %d{n};" for n in range(4))
    text = kernel(
        f"""mov.u32 %i, %tid.x; mul.wide.u32 %rd1, %i, 4; add.u64 %rd2, %rd1, %out_at; add.u64 %rd1, %rd1, %in_at; {loads}
        mma.sync.aligned.{shape}.row.col.{accumulate}.{kind}.{kind}.{accumulate} {{%d0, %d1, %d2, %d3}}, {operands}; {stores}""",
        f".reg .b32 %r<{many}>; .reg .b32 %d<4>; .reg .b64 %rd<3>; .reg .b32 %i;",
        ["in", "out"],
    )
    memory = Memory(1 << 16)
    at, out = memory.put(np.stack(words)), memory.allocate(512)
    assert launch(text, memory, at, out).findings == []
    found = memory.read(out, 128, "i4" if kind == "s8" else "f4").reshape(4, 32)
    assert results(found).tolist() == (a @ b + c).tolist()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_gives_each_lane_two_neighbours_of_its_row(count: int, turned: bool) -> None:
    halves = RNG.integers(0, 2**16, (count * 8, 8), dtype=np.uint16)
    names = ", ".join(f"%d{n}" for n in range(count))
    text = kernel(
        f"""mov.u32 %i, %tid.x; mul.wide.u32 %rd1, %i, 16; add.u64 %rd1, %rd1, %in_at; shl.b32 %a, %i, 4;
        setp.lt.u32 %p, %i, {8 * count}; @%p ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%rd1];
        @%p st.shared.v4.b32 [%a], {{%r0, %r1, %r2, %r3}}; bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x{count}{".trans" if turned else ""}.shared.b16 {{{names}}}, [%a];
        mul.wide.u32 %rd2, %i, 4; add.u64 %rd2, %rd2, %out_at;"""
        + "".join(f"st.global.b32 [%rd2+{128 * n}], %d{n};" for n in range(count)),
        f".reg .b32 %r<4>, %i, %a; .reg .b32 %d<{count}>; .reg .b64 %rd<3>; .reg .pred %p; .shared .align 16 .b8 s[512];",
        ["in", "out"],
    )
    memory = Memory(1 << 16)
    at, out = memory.put(halves), memory.allocate(128 * count)
    assert launch(text, memory, at, out).findings == []
    found = memory.read(out, 64 * count, np.uint16).reshape(count, 32, 2)
    for number in range(count):
        matrix = halves[8 * number : 8 * number + 8]
        matrix = matrix.T if turned else matrix
        assert found[number].tolist() == [matrix[n // 4, n % 4 * 2 : n % 4 * 2 + 2].tolist() for n in range(32)]


@pytest.mark.parametrize(
    "text",
    [
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%r0,%r0,%r0,%r0}, {%r0,%r0,%r0,%r0}, "
        "{%r0,%r0}, {%r0,%r0,%r0,%r0};",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r0}, [%r0];",
    ],
)
def test_a_part_of_a_warp_faults_at_a_matrix_instruction(text: str) -> None:
    body = f"mov.u32 %r0, %tid.x; setp.lt.u32 %p, %r0, 7; @%p bra DONE; {text} DONE:"
    with pytest.raises(Fault) as caught:
        launch(kernel(body, ".reg .b32 %r<1>; .reg .pred %p; .shared .align 16 .b8 s[512];"), Memory(1 << 16))
    assert caught.value.kind == "partial-warp"


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix_writes_what_ldmatrix_reads(count: int, turned: bool) -> None:
    words = RNG.integers(0, 2**32, (count, 32), dtype=np.uint32)
    names = ", ".join(f"%r{n}" for n in range(count))
    text = kernel(
        "mov.u32 %i, %tid.x; mul.wide.u32 %rd1, %i, 4; add.u64 %rd2, %rd1, %out_at; add.u64 %rd1, %rd1, %in_at;"
        + "".join(f"ld.global.b32 %r{n}, [%rd1+{128 * n}];" for n in range(count))
        + f"""shl.b32 %a, %i, 4; stmatrix.sync.aligned.m8n8.x{count}{".trans" if turned else ""}.shared.b16 [%a], {{{names}}};
        bar.sync 0; shl.b32 %a, %i, 2;"""
        + "".join(f"ld.shared.b32 %w, [%a+{128 * n}]; st.global.b32 [%rd2+{128 * n}], %w;" for n in range(count)),
        f".reg .b32 %r<{count}>, %i, %a, %w; .reg .b64 %rd<3>; .shared .align 16 .b8 s[{128 * count}];",
        ["in", "out"],
    )
    memory = Memory(1 << 16)
    at, out = memory.put(words), memory.allocate(128 * count)
    assert launch(text, memory, at, out).findings == []
    found = memory.read(out, 64 * count, np.uint16).reshape(count, 8, 8)
    for number, matrix in enumerate(found):
        rows = np.zeros((8, 8), np.uint16)
        for lane in range(32):
            rows[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2] = words[number, lane : lane + 1].view(np.uint16)
        assert matrix.tolist() == (rows.T if turned else rows).tolist()


def test_movmatrix_turns_a_matrix_over() -> None:
    found = shuffled("movmatrix.sync.aligned.m8n8.trans.b16 %d, %x;").view(np.uint16).reshape(2, 8, 8)
    assert found.tolist() == X.view(np.uint16).reshape(2, 8, 8).transpose(0, 2, 1).tolist()


@pytest.mark.parametrize(("wait", "kinds"), [(0, set()), (1, {"asynchronous-copy"})])
def test_wait_group_leaves_the_newest_groups_in_flight(wait: int, kinds: set[str]) -> None:
    text = kernel(
        f"""mov.u32 %i, %tid.x; shl.b32 %a, %i, 2; mul.wide.u32 %rd1, %i, 4; add.u64 %rd2, %rd1, %out_at;
        add.u64 %rd1, %rd1, %in_at; cp.async.ca.shared.global [%a], [%rd1], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%a+128], [%rd1+128], 4; cp.async.commit_group; cp.async.wait_group {wait};
        ld.shared.u32 %r0, [%a]; ld.shared.u32 %r1, [%a+128]; st.global.u32 [%rd2], %r0; st.global.u32 [%rd2+128], %r1;""",
        ".reg .b32 %r<2>, %i, %a; .reg .b64 %rd<3>; .shared .align 16 .b8 s[256];",
        ["in", "out"],
    )
    memory = Memory(1 << 16)
    at, out = memory.put(X), memory.allocate(256)
    outcome = launch(text, memory, at, out)
    assert {finding.kind for finding in outcome.findings} == kinds
    assert memory.read(out, 64, np.uint32).tolist()[:32] == X[:32].tolist()


def test_cp_async_with_a_source_size_of_zero_fills_with_zeros() -> None:
    text = kernel(
        """mov.u32 %i, %tid.x; shl.b32 %a, %i, 2; mul.wide.u32 %rd1, %i, 4; add.u64 %rd2, %rd1, %out_at;
        add.u64 %rd1, %rd1, %in_at; setp.lt.u32 %p, %i, 9; selp.u32 %r0, 4, 0, %p;
        cp.async.ca.shared.global [%a], [%rd1], 4, %r0; cp.async.wait_all; ld.shared.u32 %r1, [%a]; st.global.u32 [%rd2], %r1;""",
        ".reg .b32 %r<2>, %i, %a; .reg .b64 %rd<3>; .reg .pred %p; .shared .align 16 .b8 s[128];",
        ["in", "out"],
    )
    memory = Memory(1 << 16)
    at, out = memory.put(X[:9]), memory.allocate(128)
    assert launch(text, memory, at, out).findings == []
    assert memory.read(out, 32, np.uint32).tolist() == [*X[:9].tolist(), *[0] * 23]
