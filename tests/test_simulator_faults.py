"""Faults planted in CUDA kernels, each of which the simulator must find by its kind; and the kernels without them, clean."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from sexpgpu.cuda.library import NVRTC, find
from sexpgpu.cuda.nvrtc import compile_source
from tests.simulator import Fault, Memory, Module, Outcome, load

if find(NVRTC) is None:
    pytest.skip("needs nvidia-cuda-nvrtc, of the extra [test]", allow_module_level=True)

ARCHS = ["sm_80", "sm_100"]
N = 256


@lru_cache
def module(source: str, arch: str) -> Module:
    return load(compile_source(source, arch).ptx)


def run(body: str, arch: str = "sm_80", blocks: int = 1, n_out: int = N, shared_bytes: int = 0) -> Outcome:
    """A body over x (256 numbers), y (uninitialised) and n = 256, in blocks of 256 threads."""
    source = f'extern "C" __global__ void k(const float *x, float *y, int n) {{ int t = threadIdx.x; {body} }}'
    memory = Memory(1 << 20)
    x, y = memory.put(np.arange(N, dtype=np.float32)), memory.allocate(4 * n_out)
    parameters = [np.uint64(x), np.uint64(y), np.int32(N)]
    return module(source, arch).launch("k", (blocks,), (N,), parameters, memory, shared_bytes)


def kinds(outcome: Outcome) -> set[str]:
    return {finding.kind for finding in outcome.findings}


INDEX = "int i = blockIdx.x * blockDim.x + t; "
COPY_TO_SHARED = "__shared__ float s[256]; s[t] = x[t]; "
ASYNC = (
    "__shared__ __align__(16) float s[1024]; unsigned a = (unsigned)__cvta_generic_to_shared(&s[t * 4]);"
    'asm volatile("cp.async.cg.shared.global [%0], [%1], 16; cp.async.commit_group;"'
    ' :: "r"(a), "l"(x + (t % 64) * 4) : "memory"); WAIT __syncthreads(); y[t] = s[t];'
)

FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "reads one past the end": (INDEX + "if (i < n) y[i] = x[i + 1];", {}, "out-of-bounds"),
    "writes where i <= n": (INDEX + "if (i <= n) y[i] = 1.f;", {"blocks": 2}, "out-of-bounds"),
    "reads 16 bytes from a place of 4": (
        "float4 v = *(const float4 *)(x + t + 1); y[t] = v.x + v.w;",
        {},
        "misaligned",
    ),
    "indexes shared memory beyond the block's": (
        "extern __shared__ float d[]; d[t] = x[t]; __syncthreads(); y[t] = d[t];",
        {"shared_bytes": 1020},
        "out-of-bounds",
    ),
    "follows an integer as a pointer": ("y[t] = *(float *)(long long)(n * 4);", {}, "wild-address"),
    "stops itself": ("if (t == 7) __trap(); y[t] = x[t];", {}, "trap"),
    "waits where the others wait elsewhere with another count": (
        'if (t < 32) asm volatile("bar.sync 1, 64;"); else if (t < 64) asm volatile("bar.sync 2, 64;"); y[t] = 0;',
        {},
        "deadlock",
    ),
}

FINDINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "reads shared memory that was not written": (
        "__shared__ float s[256]; if (t < 200) s[t] = x[t]; __syncthreads(); y[t] = s[255 - t];",
        {},
        "uninitialised-read",
    ),
    "reads global memory that was not written": ("y[t] += x[t];", {}, "uninitialised-read"),
    "reads local memory that was not written": (
        "float a[8]; for (int j = 0; j < (t & 3); j++) a[(t + j) & 7] = x[j]; y[t] = a[t >> 5 & 7];",
        {},
        "uninitialised-read",
    ),
    "has a barrier in a divergent branch": (
        COPY_TO_SHARED + "if (t < 100) { __syncthreads(); y[t] = s[t + 1]; }",
        {},
        "barrier-after-exit",
    ),
    "has a barrier that the others never reach": (
        "volatile __shared__ int f; if (t == 0) f = 0; __syncthreads(); if (t < 100) __syncthreads();"
        ' else { asm volatile("bar.sync 0;"); asm volatile("bar.sync 0;"); } y[t] = x[t];',
        {},
        "divergent-barrier",
    ),
    "misses __syncthreads": (COPY_TO_SHARED + "y[t] = s[t ^ 32];", {}, "shared-race"),
    "trusts a warp without __syncwarp": (
        "volatile __shared__ float s[256]; s[t] = x[t]; y[t] = s[t ^ 1];",
        {},
        "shared-race",
    ),
    "writes shared memory that another still reads": (
        COPY_TO_SHARED + "__syncthreads(); float v = s[t ^ 32]; s[t] = v; __syncthreads(); y[t] = s[t];",
        {},
        "shared-race",
    ),
    "writes shared memory that its own warp still reads": (
        COPY_TO_SHARED + "__syncthreads(); float v = s[t ^ 1]; s[t] = v; __syncthreads(); y[t] = s[t];",
        {},
        "shared-race",
    ),
    "writes one shared word from many threads": (
        "__shared__ float s[8]; s[t & 7] = x[t]; __syncthreads(); y[t] = s[t & 7];",
        {},
        "shared-race",
    ),
    "stores one word from two blocks": ("y[t] = x[t] + blockIdx.x;", {"blocks": 4}, "global-race"),
    "reads what another block wrote": (
        INDEX + "y[i] = x[i % n]; __threadfence(); volatile float *v = y; if (blockIdx.x == 3) y[i] = v[t];",
        {"blocks": 4, "n_out": 4 * N},
        "global-race",
    ),
    "writes what another block reads": (
        "float v = x[t]; if (blockIdx.x == 0) ((float *)x)[t] = v + 1; y[blockIdx.x * 256 + t] = v;",
        {"blocks": 2, "n_out": 2 * N},
        "global-race",
    ),
    "reads what its neighbour wrote to global memory": (
        "volatile float *v = y; v[t] = x[t]; y[t] = v[t ^ 64];",
        {},
        "global-race",
    ),
    "shuffles in a divergent branch": (
        "float v = x[t]; if (t & 1) v += __shfl_xor_sync(0xffffffffu, v, 1); y[t] = v;",
        {},
        "inactive-lane",
    ),
    "votes by lanes that the mask does not name": (
        "if (t < 32) y[t] = __ballot_sync(0xffffu, x[t] > 3);",
        {},
        "inactive-lane",
    ),
    "uses a cp.async before it is waited for": (ASYNC.replace("WAIT", ""), {}, "asynchronous-copy"),
    "divides an integer by zero": ("y[t] = t / (n - 256);", {}, "division-by-zero"),
    "copies over shared memory that is still read": (
        COPY_TO_SHARED
        + "__syncthreads(); float v = s[255 - t]; unsigned a = (unsigned)__cvta_generic_to_shared(s + t);"
        ' asm volatile("cp.async.ca.shared.global [%0], [%1], 4; cp.async.wait_all;" :: "r"(a), "l"(x + t) : "memory");'
        " __syncthreads(); y[t] = s[t] + v;",
        {},
        "shared-race",
    ),
}

CLEAN: dict[str, tuple[str, dict[str, Any]]] = {
    "a guarded copy": (INDEX + "if (i < n) y[i] = x[i];", {"blocks": 2}),
    "a warp with __syncwarp": ("volatile __shared__ float s[256]; s[t] = x[t]; __syncwarp(); y[t] = s[t ^ 1];", {}),
    "a block with __syncthreads": (COPY_TO_SHARED + "__syncthreads(); y[t] = s[255 - t];", {}),
    "shared memory used again after a barrier": (
        COPY_TO_SHARED
        + "__syncthreads(); float v = s[t ^ 1]; __syncthreads(); s[t] = v; __syncthreads(); y[t] = s[t ^ 1];",
        {},
    ),
    "halves of one word from two threads": (
        "__shared__ unsigned short h[256]; h[t] = t; __syncthreads();"
        " unsigned short *o = (unsigned short *)y; o[t] = h[255 - t]; o[t] = o[t] + 1;",
        {},
    ),
    "global memory exchanged across a barrier": (
        "y[t] = x[t]; __syncthreads(); float v = y[255 - t]; __syncthreads(); y[t] = v;",
        {},
    ),
    "a cp.async that is waited for": (
        ASYNC.replace("WAIT", 'asm volatile("cp.async.wait_group 0;" ::: "memory");'),
        {},
    ),
    "a shuffle of half a warp by its own mask": (
        "float v = x[t]; if (t % 32 < 16) v += __shfl_xor_sync(0xffffu, v, 1); y[t] = v;",
        {},
    ),
    "many threads adding atomically": (
        "__shared__ int s; if (t == 0) s = 0; __syncthreads(); atomicAdd(&s, t); __syncthreads(); y[t] = s;",
        {},
    ),
}


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FAULTS)
def test_a_kernel_faults_that(name: str, arch: str) -> None:
    body, options, kind = FAULTS[name]
    with pytest.raises(Fault) as caught:
        run(body, arch, **options)
    assert caught.value.kind == kind


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FINDINGS)
def test_a_kernel_is_found_out_that(name: str, arch: str) -> None:
    body, options, kind = FINDINGS[name]
    assert kind in kinds(run(body, arch, **options))


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CLEAN)
def test_nothing_is_found_in(name: str, arch: str) -> None:
    body, options = CLEAN[name]
    assert run(body, arch, **options).findings == []


def test_a_finding_says_where() -> None:
    (finding,) = run(FINDINGS["misses __syncthreads"][0]).findings
    assert finding.kernel == "k"
    assert finding.where.startswith("line ")
    assert "ld.shared.f32" in finding.where


def test_a_fault_names_the_thread_the_block_and_the_byte() -> None:
    with pytest.raises(Fault, match=r"byte 1024 of an allocation of 1024 bytes; thread 255 of block 0"):
        run(FAULTS["reads one past the end"][0])


# Launches that are wrong in themselves.


def launch_copy(parameters: list[Any], memory: Memory, block: int = N, bounds: str = "") -> Outcome:
    source = (
        f'extern "C" __global__ void {bounds} k(const float *x, float *y, int n) {{ y[threadIdx.x] = x[threadIdx.x]; }}'
    )
    return module(source, "sm_80").launch("k", (1,), (block,), parameters, memory)


def test_a_parameter_that_is_missing_faults() -> None:
    with pytest.raises(Fault, match="takes 3 parameters, not 2") as caught:
        launch_copy([np.uint64(0), np.uint64(0)], Memory(1 << 16))
    assert caught.value.kind == "parameters"


def test_a_parameter_of_the_wrong_size_faults() -> None:
    with pytest.raises(Fault, match="4 bytes, not 8") as caught:
        launch_copy([np.uint64(0), np.uint64(0), np.int64(0)], Memory(1 << 16))
    assert caught.value.kind == "parameters"


def test_memory_that_was_freed_faults() -> None:
    memory = Memory(1 << 16)
    x, y = memory.put(np.zeros(N, np.float32)), memory.allocate(4 * N)
    memory.free(x)
    with pytest.raises(Fault) as caught:
        launch_copy([np.uint64(x), np.uint64(y), np.int32(N)], memory)
    assert caught.value.kind == "use-after-free"


def test_a_block_beyond_the_launch_bounds_faults() -> None:
    memory = Memory(1 << 16)
    x, y = memory.put(np.zeros(N, np.float32)), memory.allocate(4 * N)
    with pytest.raises(Fault) as caught:
        launch_copy([np.uint64(x), np.uint64(y), np.int32(N)], memory, bounds="__launch_bounds__(128)")
    assert caught.value.kind == "launch-bounds"


# Two kernels as they are used, with a barrier that can be left out.

SOFTMAX = """
extern "C" __global__ void k(const float *x, float *y, int n) {
  __shared__ float sm[32];
  const float *row = x + (long long)blockIdx.x * n;
  int t = threadIdx.x, lane = t & 31, w = t >> 5;
  float m = -1e30f;
  for (int c = t; c < n; c += 256) m = fmaxf(m, row[c]);
  for (int round = 0; round < 2; round++) {
    for (int o = 16; o; o >>= 1) {
      float other = __shfl_xor_sync(~0u, m, o);
      m = round ? m + other : fmaxf(m, other);
    }
    if (lane == 0) sm[w] = m;
    __syncthreads();
    float v = lane < 8 ? sm[lane] : (round ? 0.f : -1e30f);
    for (int o = 16; o; o >>= 1) {
      float other = __shfl_xor_sync(~0u, v, o);
      v = round ? v + other : fmaxf(v, other);
    }
    BARRIER
    if (round) { for (int c = t; c < n; c += 256) y[(long long)blockIdx.x * n + c] /= v; break; }
    m = 0.f;
    for (int c = t; c < n; c += 256) {
      float e = exp2f(row[c] - v);
      y[(long long)blockIdx.x * n + c] = e;
      m += e;
    }
  }
}
"""
# 16 × 8 results of a warp, four steps of 16, the operands staged through shared memory by cp.async.
PRODUCT = """
extern "C" __global__ void k(const unsigned *a, const unsigned *b, float *c) {
  __shared__ __align__(16) unsigned s[(16 + 8) * 8];
  int t = threadIdx.x, g = t >> 2, q = t & 3;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  for (int step = 0; step < 4; step++) {
    for (int i = t; i < 24 * 2; i += 32) {
      int row = i >> 1, part = (i & 1) * 4;
      const unsigned *from = (row < 16 ? a + row * 32 : b + (row - 16) * 32) + step * 8 + part;
      unsigned to = (unsigned)__cvta_generic_to_shared(s + row * 8 + part);
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    unsigned a0 = s[g * 8 + q], a1 = s[(g + 8) * 8 + q], a2 = s[g * 8 + q + 4], a3 = s[(g + 8) * 8 + q + 4];
    unsigned b0 = s[(16 + g) * 8 + q], b1 = s[(16 + g) * 8 + q + 4];
    BARRIER
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
  c[g * 8 + 2 * q] = d0; c[g * 8 + 2 * q + 1] = d1; c[(g + 8) * 8 + 2 * q] = d2; c[(g + 8) * 8 + 2 * q + 1] = d3;
}
"""


def softmax(barrier: str) -> tuple[Outcome, np.ndarray, np.ndarray]:
    memory, x = Memory(1 << 20), np.random.default_rng(0).normal(size=(8, 1000)).astype(np.float32)
    at, out = memory.put(x), memory.allocate(x.nbytes)
    parameters = [np.uint64(at), np.uint64(out), np.int32(1000)]
    outcome = module(SOFTMAX.replace("BARRIER", barrier), "sm_80").launch("k", (8,), (256,), parameters, memory)
    e = np.exp2(x.astype(np.float64))
    return outcome, memory.read(out, x.size, np.float32).reshape(x.shape), e / e.sum(1, keepdims=True)


def product(barrier: str) -> tuple[Outcome, np.ndarray, np.ndarray]:
    memory, rng = Memory(1 << 20), np.random.default_rng(0)
    a, b = rng.integers(-8, 8, (16, 64)), rng.integers(-8, 8, (8, 64))
    words = [(one.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16) for one in (a, b)]
    addresses = [memory.put(words[0]), memory.put(words[1]), memory.allocate(4 * 128)]
    source = PRODUCT.replace("BARRIER", barrier)
    outcome = module(source, "sm_80").launch("k", (1,), (32,), list(map(np.uint64, addresses)), memory)
    return outcome, memory.read(addresses[2], 128, np.float32).reshape(16, 8), (a @ b.T).astype(np.float64)


@pytest.mark.parametrize("kernel", [softmax, product])
def test_a_kernel_with_all_its_barriers_is_right_and_clean(kernel: Any) -> None:
    outcome, found, wanted = kernel("__syncthreads();")
    assert outcome.findings == []
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("kernel", [softmax, product])
def test_a_kernel_without_one_of_its_barriers_races(kernel: Any) -> None:
    outcome, _, _ = kernel("")
    assert kinds(outcome) == {"shared-race"}
