"""CUDA C compiled by NVRTC and run on the PTX simulator, against NumPy, Python or float64: the code that compilers write."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from sexpgpu.cuda.library import NVRTC, find
from sexpgpu.cuda.nvrtc import compile_source
from tests.simulator import Memory, Module, load

if find(NVRTC) is None:
    pytest.skip("needs nvidia-cuda-nvrtc, of the extra [test]", allow_module_level=True)

ARCHS = ["sm_80", "sm_90", "sm_100"]
N = 1000
INDEX = np.arange(N)


@lru_cache
def module(source: str, arch: str, fused: bool = False) -> Module:
    return load(compile_source(source, arch, ("--std=c++17", f"--fmad={str(fused).lower()}")).ptx)


def run(body: str, arch: str = "sm_80", before: str = "", result: str = "float", fused: bool = False) -> Any:
    """What a body stores to o[i], for i below 1000, in blocks of 256 threads."""
    source = (
        f'{before}\nextern "C" __global__ void k({result} *o, int n) '
        f"{{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}"
    )
    memory = Memory(1 << 20)
    dtype = {"float": "f4", "double": "f8", "int": "i4", "unsigned": "u4", "long long": "i8"}[result]
    out = memory.allocate(8 * 1024)
    outcome = module(source, arch, fused).launch("k", (4,), (256,), [np.uint64(out), np.int32(N)], memory)
    assert outcome.findings == []
    return memory.read(out, N, dtype)


GUARD = "if (i >= n) return; "
PHILOX = """
unsigned c0 = i, c1 = 0, c2 = 1, c3 = 2, k0 = 42, k1 = 7;
for (int r = 0; r < 10; r++) {
  unsigned h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0, h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
  c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0; k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
}
o[i] = c0;"""


def philox(i: int) -> int:
    c, k = [i, 0, 1, 2], [42, 7]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q % 2**32, p >> 32 ^ c[3] ^ k[1], p % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c[0]


@pytest.mark.parametrize("arch", ARCHS)
def test_philox_gives_the_generators_words(arch: str) -> None:
    assert run(GUARD + PHILOX, arch, result="unsigned").tolist() == [philox(i) for i in range(N)]


X = ((INDEX - 500) * np.float32(0.01)).astype("f4").astype("f8")
SINGLE: dict[str, tuple[str, Callable[[Any], Any], float]] = {
    # the expression of x, its meaning, and how many ulps CUDA's manual leaves it
    "expf": ("expf(x)", np.exp, 2),
    "logf": ("logf(fabsf(x) + 1.f)", lambda x: np.log((np.abs(x) + 1).astype("f4").astype("f8")), 2),
    "erff": ("erff(x)", np.vectorize(math.erf), 2),
    "erfcf": ("erfcf(x)", np.vectorize(math.erfc), 4),
    "tanhf": ("tanhf(x)", np.tanh, 2),
    "log1pf": ("log1pf(fabsf(x))", lambda x: np.log1p(np.abs(x)), 2),
    "expm1f": ("expm1f(x)", np.expm1, 2),
    "cbrtf": ("cbrtf(x)", np.cbrt, 2),
    "sinf": ("sinf(x)", np.sin, 2),
    "cosf": ("cosf(x)", np.cos, 2),
    "atan2f": ("atan2f(x, 2.f)", lambda x: np.arctan2(x, 2.0), 3),
    "hypotf": ("hypotf(x, 2.f)", lambda x: np.hypot(x, 2.0), 3),
    "lgammaf": ("lgammaf(fabsf(x) + 3.f)", lambda x: np.vectorize(math.lgamma)((np.abs(x) + 3).astype("f4")), 7),
    "fmodf": ("fmodf(x, .3f)", lambda x: np.fmod(x, np.float64(np.float32(0.3))), 0),
    "roundf": ("roundf(x)", lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5), 0),
    "rintf": ("rintf(x)", np.rint, 0),
}


def ulps(found: Any, exact: Any) -> float:
    return float(np.max(np.abs(found.astype("f8") - exact) / np.spacing(np.abs(exact).astype("f4")).clip(2.0**-149)))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
@pytest.mark.parametrize("name", SINGLE)
def test_a_library_function_keeps_to_the_manuals_error(name: str, arch: str) -> None:
    expression, meaning, allowed = SINGLE[name]
    found = run(f"{GUARD} float x = (i - 500) * 0.01f; o[i] = {expression};", arch, fused=True)
    assert ulps(found, meaning(X)) <= allowed + 0.5


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_large_arguments_of_sin_take_the_slow_path_exactly(arch: str) -> None:
    x = ((INDEX - 500).astype("f4") * np.float32(100000.37)).astype("f4")
    found = run(f"{GUARD} float x = (i - 500) * 100000.37f; o[i] = sinf(x);", arch, fused=True)
    assert np.abs(found - np.sin(x.astype("f8"))).max() < 2.0**-22


DOUBLE: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "exp": ("exp(x)", np.exp),
    "log": ("log(fabs(x) + 1e-3)", lambda x: np.log(np.abs(x) + 1e-3)),
    "pow": ("pow(fabs(x) + .1, 1.7)", lambda x: (np.abs(x) + 0.1) ** 1.7),
    "quotient": ("x / (3 + x * x)", lambda x: x / (3 + x * x)),
    "root": ("sqrt(fabs(x))", lambda x: np.sqrt(np.abs(x))),
    "sin": ("sin(x)", np.sin),
    "tanh": ("tanh(x)", np.tanh),
}


@pytest.mark.parametrize("name", DOUBLE)
def test_double_functions_have_doubles_precision(name: str) -> None:
    expression, meaning = DOUBLE[name]
    x = (INDEX - 500) * 0.01
    found = run(f"{GUARD} double x = (i - 500) * 0.01; o[i] = {expression};", result="double", fused=True)
    np.testing.assert_allclose(found, meaning(x), rtol=1e-15, atol=1e-17)


@pytest.mark.parametrize("arch", ARCHS)
def test_integer_division_of_every_width(arch: str) -> None:
    text = "long long q = (long long)i * 123456789LL / ((i % 7) + 1) % 10007; unsigned u = (i * 77777u) / (i % 13 + 1);"
    found = run(f"{GUARD} {text} o[i] = q - (long long)u * (i & 1 ? 1 : -1);", arch, result="long long")
    wanted = []
    for i in range(N):
        quotient, unsigned = i * 123456789 // (i % 7 + 1) % 10007, i * 77777 % 2**32 // (i % 13 + 1)
        wanted.append(quotient - unsigned * (1 if i & 1 else -1))
    assert found.tolist() == wanted


@pytest.mark.parametrize("arch", ARCHS)
def test_a_switch_with_many_cases_and_a_local_array(arch: str) -> None:
    cases = " ".join(f"case {n}: r = s[(i + {n}) & 7] * {n * n + 1}; break;" for n in range(20))
    body = f"int s[8]; for (int j = 0; j < 8; j++) s[j] = j * i; int r = -1; switch (i % 23) {{ {cases} }} o[i] = r;"
    found = run(GUARD + body, arch, result="int")
    wanted = [(i + i % 23) % 8 * i * ((i % 23) ** 2 + 1) if i % 23 < 20 else -1 for i in range(N)]
    assert found.tolist() == wanted


@pytest.mark.parametrize("arch", ARCHS)
def test_functions_that_are_not_inlined_are_called(arch: str) -> None:
    before = """
    struct Pair { double a; int b[5]; };
    __device__ __noinline__ float sum(float x, int n) { float s = 0; for (int i = 0; i < n; i++) s += x * i; return s; }
    __device__ __noinline__ int pick(Pair p, int n) { if (n > 3) return 7; return p.b[n] + (int)p.a; }
    __device__ __noinline__ void put(float *o, float v) { *o = v; }"""
    body = (
        "Pair p; p.a = i; for (int j = 0; j < 5; j++) p.b[j] = i * j; put(o + i, sum(i * .5f, i & 7) + pick(p, i % 5));"
    )
    found = run(GUARD + body, arch, before)
    picked = np.where(INDEX % 5 > 3, 7, INDEX * (INDEX % 5) + INDEX)
    assert found.tolist() == [sum(i * 0.5 * j for j in range(i & 7)) + int(picked[i]) for i in range(N)]


@pytest.mark.parametrize("arch", ARCHS)
def test_constants_and_variables_of_the_module_are_placed(arch: str) -> None:
    before = (
        "__constant__ float table[4] = {1.5f, 2.5f, 3.5f, 4.5f}; __device__ int count = 7; __device__ short zeros[8];"
    )
    found = run(f"{GUARD} o[i] = table[i & 3] + count + zeros[i & 7];", arch, before)
    assert found.tolist() == [1.5 + (i & 3) + 7 for i in range(N)]


def test_a_variable_of_the_module_keeps_its_value_between_launches() -> None:
    source = '__device__ int count; extern "C" __global__ void k(int *o) { o[0] = ++count; }'
    memory = Memory(1 << 16)
    out = memory.allocate(4)
    for wanted in (1, 2, 3):
        module(source, "sm_80").launch("k", (1,), (1,), [np.uint64(out)], memory)
        assert memory.read(out, 1, np.int32).tolist() == [wanted]


@pytest.mark.parametrize("arch", ARCHS)
def test_a_struct_parameter_is_read_by_name_and_by_index(arch: str) -> None:
    source = """struct S { float *p; int n; float a[6]; short h[3]; };
    extern "C" __global__ void k(const __grid_constant__ S s, int m) {
      int i = threadIdx.x; if (i < s.n) s.p[i] = s.a[i % 6] + s.h[i % 3] + m; }"""
    memory = Memory(1 << 16)
    out = memory.allocate(4 * 32)
    held = np.zeros(1, [("p", "u8"), ("n", "i4"), ("a", "f4", 6), ("h", "i2", 3), ("pad", "u2", 3)])
    held["p"], held["n"], held["a"], held["h"] = out, 32, [1, 2, 3, 4, 5, 6], [10, 20, 30]
    outcome = module(source, arch).launch("k", (1,), (64,), [held.tobytes()[:48], np.int32(100)], memory)
    assert outcome.findings == []
    assert memory.read(out, 32, np.float32).tolist() == [101 + i % 6 + 10 * (i % 3 + 1) for i in range(32)]


@pytest.mark.parametrize("arch", ARCHS)
def test_bytes_and_shorts_go_through_shared_memory(arch: str) -> None:
    body = """__shared__ unsigned char b[256]; __shared__ short h[256]; int t = threadIdx.x; b[t] = t * 3; h[t] = -t;
    __syncthreads(); uchar4 v = *(uchar4 *)&b[t & ~3]; if (i < n) o[i] = v.x + v.y * 2 + h[255 - t] + (signed char)b[t];"""
    found = run(body, arch, result="int")
    t = INDEX % 256
    b = (t * 3) % 256
    first, second = (t & ~3) * 3 % 256, ((t & ~3) + 1) * 3 % 256
    assert found.tolist() == (first + second * 2 - (255 - t) + np.where(b > 127, b - 256, b)).tolist()


@pytest.mark.parametrize("arch", ARCHS)
def test_atomics_return_what_they_found(arch: str) -> None:
    body = """__shared__ int h[32]; __shared__ unsigned w; int t = threadIdx.x; if (t < 32) h[t] = 0; if (t == 0) w = 5;
    __syncthreads(); atomicAdd(&h[t & 31], t); atomicMax(&h[t & 31], 900); atomicInc(&w, 9); __syncthreads();
    int old = -1; if (t == 3) { old = atomicExch(&h[0], 77); old += atomicCAS(&h[0], 77, 78); old += atomicSub(&h[0], 8); }
    __syncthreads(); if (i < n) o[i] = (t & 31 ? h[t & 31] : (int)w) + old + h[0];"""
    found = run(body, arch, result="int")
    t = INDEX % 256
    sums = np.array([sum(range(lane, 256, 32)) for lane in range(32)])
    counted = (5 + 256) % 10
    value = np.where(t & 31, np.maximum(sums, 900)[t & 31], counted)
    old = np.where(t == 3, max(sums[0], 900) + 77 + 78, -1)
    assert found.tolist() == (value + old + 70).tolist()


def test_a_float_atomic_adds_in_the_order_of_the_threads() -> None:
    found = run("if (i == 0) o[0] = 0; if (i < n && i) o[i] = i;", result="float")
    assert found.tolist() == list(range(N))
    source = 'extern "C" __global__ void k(float *o) { atomicAdd(o, 1.0f / (threadIdx.x + 1)); }'
    memory = Memory(1 << 16)
    out = memory.put(np.zeros(1, np.float32))
    assert module(source, "sm_80").launch("k", (1,), (256,), [np.uint64(out)], memory).findings == []
    total = np.float32(0)
    for t in range(256):
        total += np.float32(1) / np.float32(t + 1)
    assert memory.read(out, 1, np.float32)[0] == total


def test_printf_and_clocks_do_no_harm() -> None:
    found = run(
        f'{GUARD} if (i == 3) printf("x %d\\n", i); long long t = clock64(); __nanosleep(10); __threadfence();'
        " o[i] = clock64() - t >= 0 ? i : -1;"
    )
    assert found.tolist() == INDEX.tolist()


# Agreement with the CPU, bit by bit.

ADAMW = """
float G = g[i], M = b1 * m[i] + (1.0f - b1) * G, V = b2 * v[i] + (1.0f - b2) * G * G;
p[i] = p[i] - lr * ((M / c1) / (sqrtf(V / c2) + eps) + wd * p[i]); m[i] = M; v[i] = V;"""


def test_an_optimizer_without_fused_products_has_numpys_bits() -> None:
    rng = np.random.default_rng(0)
    p, m, v, g = (rng.normal(size=4096).astype("f4") for _ in range(4))
    v = v * v
    lr, b1, b2, eps, wd, c1, c2 = (np.float32(x) for x in (3e-4, 0.9, 0.95, 1e-8, 0.1, 0.3439, 0.185))
    names = "lr b1 b2 eps wd c1 c2".split()
    source = (
        'extern "C" __global__ void k(float *p, float *m, float *v, const float *g, '
        + ", ".join(f"float {name}" for name in names)
        + f") {{ int i = blockIdx.x * blockDim.x + threadIdx.x; {ADAMW} }}"
    )
    memory = Memory(1 << 20)
    addresses = [memory.put(one) for one in (p, m, v, g)]
    parameters = [*map(np.uint64, addresses), lr, b1, b2, eps, wd, c1, c2]
    outcome = module(source, "sm_80").launch("k", (16,), (256,), parameters, memory)
    one = np.float32(1)
    new_m, new_v = b1 * m + (one - b1) * g, b2 * v + (one - b2) * g * g
    new_p = p - lr * ((new_m / c1) / (np.sqrt(new_v / c2) + eps) + wd * p)
    assert outcome.findings == []
    for address, wanted in zip(addresses, (new_p, new_m, new_v)):
        assert memory.read(address, 4096, np.float32).tobytes() == wanted.tobytes()


def test_a_block_sum_has_the_bits_of_its_tree() -> None:
    source = """extern "C" __global__ void k(const float *x, float *y, int n) {
      __shared__ float s[8]; float a = 0; int t = threadIdx.x;
      for (int c = t; c < n; c += 256) a += x[(long long)blockIdx.x * n + c];
      for (int o = 16; o; o >>= 1) a += __shfl_xor_sync(~0u, a, o);
      if ((t & 31) == 0) s[t >> 5] = a;
      __syncthreads();
      if (t < 32) { a = t < 8 ? s[t] : 0.f; for (int o = 16; o; o >>= 1) a += __shfl_xor_sync(~0u, a, o);
        if (t == 0) y[blockIdx.x] = a; } }"""
    x = np.random.default_rng(0).normal(size=(64, 1000)).astype("f4")
    memory = Memory(1 << 20)
    at, out = memory.put(x), memory.allocate(256)
    outcome = module(source, "sm_80").launch(
        "k", (64,), (256,), [np.uint64(at), np.uint64(out), np.int32(1000)], memory
    )
    assert outcome.findings == []
    lanes = np.zeros((64, 256), "f4")
    for begin in range(0, 1000, 256):
        part = x[:, begin : begin + 256]
        lanes[:, : part.shape[1]] += part
    warps = butterfly(lanes.reshape(64, 8, 32))[:, :, 0]
    wanted = butterfly(np.pad(warps, ((0, 0), (0, 24))))[:, 0]
    assert memory.read(out, 64, np.float32).tobytes() == wanted.tobytes()


def butterfly(values: Any) -> Any:
    for step in (16, 8, 4, 2, 1):
        values = values + values[..., np.arange(32) ^ step]
    return values
