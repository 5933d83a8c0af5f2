"""CUDA C compiled by the installed NVRTC: what comes out, and what is said where nothing does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sexpgpu.cuda.arch import Arch, choose_arch
from sexpgpu.cuda.library import NVRTC, find
from sexpgpu.cuda.nvrtc import OPTIONS, SourceRejected, compile_source, supported_archs, version

if find(NVRTC) is None:
    pytest.skip("needs nvidia-cuda-nvrtc, of the extra [test]", allow_module_level=True)

TWICE = """extern "C" __global__ void k_twice(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = x[i] * 2.0f + 1.0f;
}
"""
ELF = b"\x7fELF"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_kernel_becomes_machine_code_and_ptx_of_its_arch(arch: str) -> None:
    made = compile_source(TWICE, arch)
    assert made.cubin[:4] == ELF
    assert f".target {arch}" in made.ptx
    assert ".entry k_twice(" in made.ptx
    assert made.log == ""


def test_a_virtual_arch_gives_ptx_only() -> None:
    made = compile_source(TWICE, "compute_90")
    assert made.cubin == b""
    assert ".target sm_90" in made.ptx


def test_products_and_sums_are_rounded_one_by_one() -> None:
    assert "fma." not in compile_source(TWICE, "sm_80").ptx
    assert "fma.rn.f32" in compile_source(TWICE, "sm_80", (*OPTIONS, "--fmad=true")).ptx


def test_an_error_shows_the_log_and_the_numbered_lines_around_it() -> None:
    source = TWICE.replace("x[i] * 2.0f", "y[i] * 2.0f")
    with pytest.raises(SourceRejected) as caught:
        compile_source(source, "sm_80")
    words = str(caught.value)
    assert 'kernels.cu(3): error: identifier "y" is undefined' in words
    assert ">     3 |   if (i < n) x[i] = y[i] * 2.0f + 1.0f;" in words
    assert "      2 |   int i" in words
    assert caught.value.source == source


def test_an_option_that_nvrtc_does_not_know_is_named() -> None:
    with pytest.raises(SourceRejected, match="--no-such-option"):
        compile_source(TWICE, "sm_80", ("--no-such-option",))


def test_the_version_is_one_of_13_and_serves_the_cards_of_the_floor() -> None:
    assert version() >= (13, 0)
    assert version()[0] == 13
    assert {80, 90, 100} <= set(supported_archs())


def test_the_same_source_gives_the_same_machine_code_in_another_process() -> None:
    program = (
        "import hashlib, sys\nfrom sexpgpu.cuda.nvrtc import compile_source\n"
        "print(hashlib.sha256(compile_source(sys.stdin.read(), 'sm_90').cubin).hexdigest())"
    )
    digests = {
        subprocess.run([sys.executable, "-c", program], input=TWICE, capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(digests) == 1


KNOWN = (75, 80, 86, 89, 90, 100, 103, 120)


@pytest.mark.parametrize(
    ("capability", "arch", "said"),
    [
        ((8, 0), "sm_80", ""),
        ((9, 0), "sm_90", ""),
        ((10, 3), "sm_103", ""),
        # Machine code runs on newer cards of its major number.
        ((8, 7), "sm_86", "compute capability 8.7; they are compiled for sm_86"),
        ((12, 1), "sm_120", "compute capability 12.1; they are compiled for sm_120"),
        # Of another major number only PTX does, and only of an older arch.
        ((11, 0), "compute_103", "compute capability 11.0; they are PTX for compute_103, which the driver translates"),
        ((13, 0), "compute_120", "compute capability 13.0; they are PTX for compute_120, which the driver translates"),
    ],
)
def test_a_card_gets_its_own_arch_or_the_nearest_that_runs_on_it(
    capability: tuple[int, int], arch: str, said: str
) -> None:
    chosen = choose_arch(capability, KNOWN)
    assert chosen == Arch(arch, f"kernels: this NVRTC does not know {said}" if said else "")


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (12, 9), (14, 0)])
def test_the_chosen_arch_is_one_that_nvrtc_compiles_for(capability: tuple[int, int]) -> None:
    arch = choose_arch(capability, supported_archs()).name
    made = compile_source(TWICE, arch)
    assert (made.cubin[:4] == ELF) == arch.startswith("sm_")
    assert ".entry k_twice(" in made.ptx
