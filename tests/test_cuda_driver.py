"""The driver's table against CUDA's own header, what opening a card refuses, and that nothing stays behind."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.cuda import driver
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context
from sexpgpu.cuda.driver import FUNCTIONS, QUERIES, STICKY, TABLE, DriverError, Status
from sexpgpu.cuda.probe import probe_driver, require
from sexpgpu.errors import Error
from tests.fake_cuda import A100, H100, T4, FakeCuda
from tests.fake_cuda.errors import ERRORS

HEADER = (Path(__file__).parent / "data" / "cuda_prototypes.txt").read_text()
PROTOTYPES = dict(re.findall(r"^(cu\w+)\((.*)\)$", HEADER, re.M))
NUMBERS = {name: int(number) for name, number in re.findall(r"^(CUDA_\w+) = (\d+)$", HEADER, re.M)}
# How C's types are passed. Every other type of one star or none that begins with CU is an opaque pointer.
TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "CUdevice": ctypes.c_int,
    "CUdeviceptr": ctypes.c_uint64,
    "CUresult": ctypes.c_int,
    "CUuuid": driver.Uuid,
    "CUjit_option": ctypes.c_int,
    "CUdevice_attribute": ctypes.c_int,
    "CUfunction_attribute": ctypes.c_int,
    "CUstreamCaptureMode": ctypes.c_int,
    "const char *": ctypes.c_char_p,
}


def c_type(parameter: str) -> Any:
    words = re.sub(r"\w+$", "", parameter).strip()
    if words in TYPES:
        return TYPES[words]
    if words in ("void *", "const void *", "char *"):
        return ctypes.c_void_p
    if words.endswith("*"):
        return ctypes.POINTER(c_type(words.removesuffix("*").strip() + " x"))
    assert words.startswith("CU"), words
    return ctypes.c_void_p


def test_every_function_has_the_prototype_of_cudas_header() -> None:
    assert {function.name for function in FUNCTIONS} == set(PROTOTYPES)
    for function in FUNCTIONS:
        parameters = [] if PROTOTYPES[function.name] == "void" else PROTOTYPES[function.name].split(", ")
        assert list(function.arguments) == [c_type(parameter) for parameter in parameters], function.name
        assert function.returns is None


def test_errors_have_the_numbers_of_cudas_header() -> None:
    assert {f"CUDA_ERROR_{status.name}": int(status) for status in Status}.items() <= NUMBERS.items()
    assert {name: number for number, (name, _) in ERRORS.items()}.items() <= NUMBERS.items()
    assert set(NUMBERS.values()) >= STICKY


def refusal(simulated: FakeCuda, ordinal: int = 0) -> str:
    with pytest.raises(Error) as caught:
        require(probe_driver(simulated.load), ordinal)
    assert caught.value.code == "E-DEV-001"
    return "\n".join([caught.value.message, *caught.value.notes])


def test_a_card_that_can_run_our_code_is_taken() -> None:
    for ordinal, figures in enumerate((A100, H100)):
        card = require(probe_driver(FakeCuda(A100, H100).load), ordinal)
        assert (card.name, card.capability, card.ordinal) == (figures.name, figures.capability, ordinal)


def test_no_driver_is_refused_with_what_is_needed() -> None:
    class Nothing(FakeCuda):
        def load(self, name: str) -> Any:
            raise OSError(name)

    assert refusal(Nothing()) == (
        "no NVIDIA driver is found (libcuda.so.1)\na driver of the 580 series (CUDA 13.0) or newer is needed"
    )


def test_an_older_driver_is_refused_with_what_is_found_and_needed() -> None:
    newer = [function.name for function in FUNCTIONS if function not in QUERIES]
    assert refusal(FakeCuda(version=12080, missing=newer)) == (
        "the NVIDIA driver serves CUDA 12.8\na driver of the 580 series (CUDA 13.0) or newer is needed"
    )


def test_an_older_card_is_refused_with_what_is_found_and_needed() -> None:
    assert refusal(FakeCuda(A100, T4), 1) == (
        "Tesla T4 has compute capability 7.5\n8.0 or newer is needed: A100, L4, H100"
    )


def test_a_driver_without_a_card_is_refused() -> None:
    assert refusal(FakeCuda(start=100)) == "there is no device cuda:0: no GPU is visible\nsee nvidia-smi"


def test_an_ordinal_that_is_not_there_is_refused() -> None:
    found = refusal(FakeCuda(A100, A100), 2)
    assert found == "there is no device cuda:2: 2 visible, counted from 0\nsee nvidia-smi"


def test_a_library_that_is_no_driver_is_refused() -> None:
    assert "libcuda.so.1 is no NVIDIA driver: " in refusal(FakeCuda(missing=["cuDeviceGetCount"]))


def test_a_driver_that_fails_says_so_in_its_own_words() -> None:
    simulated = FakeCuda()
    simulated.fail("cuDeviceTotalMem_v2", 999)
    assert refusal(simulated) == (
        "the NVIDIA driver does not answer: cuDeviceTotalMem_v2 gives error 999, CUDA_ERROR_UNKNOWN: unknown error\n"
        "see nvidia-smi"
    )


def opened(simulated: FakeCuda) -> Context:
    calls = bind(simulated.load("libcuda.so.1"), TABLE)
    calls.cuInit(0)
    return Context(calls, 0)


def test_an_error_has_its_call_number_name_and_words() -> None:
    simulated = FakeCuda()
    context = opened(simulated)
    simulated.fail("cuMemAlloc_v2", 2)
    with pytest.raises(DriverError) as caught:
        context.allocate(16)
    error = caught.value
    assert (error.call, error.number) == ("cuMemAlloc_v2", Status.OUT_OF_MEMORY)
    assert (error.name, error.words) == ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
    assert not error.sticky


def test_an_error_that_the_driver_does_not_know_is_told_by_its_number() -> None:
    simulated = FakeCuda()
    context = opened(simulated)
    simulated.fail("cuCtxSynchronize", 12345)
    with pytest.raises(DriverError, match="cuCtxSynchronize gives error 12345, an error that the driver does not know"):
        context.synchronize()


@pytest.mark.parametrize("call", [f.name for f in FUNCTIONS if f not in QUERIES and "Uuid" not in f.name])
def test_whichever_call_fails_the_error_is_told_and_nothing_leaks(call: str) -> None:
    simulated = FakeCuda()
    simulated.fail(call, 999, times=1)
    try:
        _use_everything(simulated)
    except DriverError as error:
        assert (error.call, error.number) == (call, 999)
    else:
        assert call in ("cuFuncSetAttribute",), f"{call} is not called"
    gives_back = ("Free", "Destroy", "Unload", "Release")
    if not any(word in call for word in gives_back):
        assert simulated.held() == []
    assert simulated.findings == []


def _use_everything(simulated: FakeCuda) -> None:
    """Every call once, and an end."""
    from tests.test_fake_cuda import Rig, X, captured

    rig = Rig.__new__(Rig)
    try:
        Rig.__init__(rig, simulated)
        rig.give(X)
        first, last = rig.context.event(timed=True), rig.context.event(timed=True)
        rig.computing.record(first)
        rig.computing.fill(rig.sum.address, 0, 16)
        rig.context.calls.cuMemsetD32Async(rig.sum.address, 0, 4, rig.computing.handle)
        rig.computing.copy(rig.sum.address, rig.sum.address, 4)
        captured(rig).launch(rig.computing)
        rig.computing.record(last)
        last.synchronize()
        assert last.done and last.milliseconds_since(first) > 0
        assert rig.context.memory_bytes() and rig.module.kernel("add").attribute(driver.FunctionAttribute.REGISTERS) > 0
        rig.taken()
        rig.context.synchronize()
    finally:
        if hasattr(rig, "context"):
            rig.context.close()
