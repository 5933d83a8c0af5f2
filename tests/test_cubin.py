"""What kernels take, read from machine code, against what their sources say and what the assembler itself prints."""

from __future__ import annotations

import re

import pytest

from sexpgpu.cuda.cubin import Resources, arch_of, resources
from sexpgpu.cuda.library import NVRTC, find
from sexpgpu.cuda.nvrtc import OPTIONS, compile_source

if find(NVRTC) is None:
    pytest.skip("needs nvidia-cuda-nvrtc, of the extra [test]", allow_module_level=True)

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
# k_spill keeps 96 floats where its launch bounds leave a thread 64 registers.
SOURCE = """
struct Pair { float a[5]; double b; };
__constant__ float table[4];

extern "C" __global__ void __launch_bounds__(256) k_shared(const float *x, float *y, int n, short s) {
  __shared__ float t[300];
  t[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = t[(threadIdx.x + n + s) % 256];
}

extern "C" __global__ void __launch_bounds__(1024) k_spill(const float *x, float *y, int n) {
  float a[96];
  #pragma unroll
  for (int i = 0; i < 96; i++) a[i] = x[i * n + threadIdx.x];
  for (int k = 0; k < n; k++) {
    #pragma unroll
    for (int i = 0; i < 96; i++) a[i] = a[i] * a[(i + 7) % 96] + x[k];
  }
  #pragma unroll
  for (int i = 0; i < 96; i++) y[i * n + threadIdx.x] = a[i];
}

extern "C" __global__ void k_stack(const int *x, float *y, int n) {
  float a[64];
  for (int i = 0; i < 64; i++) a[i] = y[i];
  for (int i = 0; i < n; i++) a[x[i] & 63] += 1;
  for (int i = 0; i < 64; i++) y[i] = a[i];
}

extern "C" __global__ void k_parameters(char c, Pair p, float *y) { y[0] = p.a[2] + c + p.b + table[c]; }

extern "C" __global__ void k_nothing() {}
"""


def read(arch: str) -> dict[str, Resources]:
    made = compile_source(SOURCE, arch)
    assert arch_of(made.cubin) == int(arch.removeprefix("sm_"))
    return resources(made.cubin, made.log)


@pytest.mark.parametrize("arch", ARCHS)
def test_registers_stack_spills_and_shared_memory_are_what_the_assembler_prints(arch: str) -> None:
    made = compile_source(SOURCE, arch, (*OPTIONS, "--ptxas-options=-v"))
    printed = re.findall(
        r"properties for (\w+)\n.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads\n"
        r".*?Used (\d+) registers(?:.*?(\d+) bytes smem)?",
        made.log,
    )
    found = {
        name: [
            kernel.stack_bytes,
            kernel.spill_store_bytes,
            kernel.spill_load_bytes,
            kernel.registers,
            kernel.shared_bytes,
        ]
        for name, kernel in read(arch).items()
    }
    assert found == {name: [int(number or 0) for number in numbers] for name, *numbers in printed}
    assert len(found) == 5


@pytest.mark.parametrize("arch", ARCHS)
def test_the_source_says_the_rest(arch: str) -> None:
    found = read(arch)
    assert found["k_shared"].shared_bytes == 300 * 4
    assert found["k_stack"].stack_bytes == 64 * 4
    assert found["k_stack"].spill_store_bytes == 0, "an array that is indexed is no spill"
    assert found["k_spill"].registers <= 65536 // 1024
    assert found["k_spill"].spill_store_bytes > 0
    assert found["k_spill"].spill_load_bytes > 0
    assert {name: kernel.max_threads for name, kernel in found.items()} == {
        "k_shared": 256, "k_spill": 1024, "k_stack": None, "k_parameters": None, "k_nothing": None,
    }  # fmt: skip


def test_parameters_have_the_places_and_sizes_of_their_c_types() -> None:
    found = read("sm_90")
    assert found["k_shared"].parameters == ((0, 8), (8, 8), (16, 4), (20, 2))
    assert found["k_shared"].parameter_bytes == 22
    # The struct is aligned as its double: 20 bytes of floats, 4 of padding, 8.
    assert found["k_parameters"].parameters == ((0, 1), (8, 32), (40, 8))
    assert found["k_parameters"].parameter_bytes == 48
    assert (found["k_nothing"].parameters, found["k_nothing"].parameter_bytes) == ((), 0)


def test_what_is_no_cubin_is_refused() -> None:
    with pytest.raises(AssertionError, match="no cubin"):
        arch_of(b"\x7fELF" + bytes(60))
