"""The installed cuBLASLt has our numbers, and is told what a matmul says: its descriptors need no card."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import pytest

from sexpgpu.cuda import cublas
from sexpgpu.cuda.binding import Function, Table, bind
from sexpgpu.cuda.cublas import CublasFailed
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.cuda.library import CUBLAS_LT, find, load
from sexpgpu.cuda.matmul import IEEE, Rules
from sexpgpu.cuda.matmul_calls import MatmulDescriptors
from sexpgpu.plan.kernel import Place
from tests.fake_cublas.products import described, product

if find(CUBLAS_LT) is None:
    pytest.skip("needs nvidia-cublas, of the extra [test]", allow_module_level=True)


@dataclass(frozen=True)
class Numbers:
    of: type[Enum]
    prefix: str
    file: str = "cublasLt.h"


NUMBERS = (
    Numbers(cublas.Compute, "CUBLAS_COMPUTE_", "cublas_api.h"),
    Numbers(cublas.MatmulAttribute, "CUBLASLT_MATMUL_DESC_"),
    Numbers(cublas.LayoutAttribute, "CUBLASLT_MATRIX_LAYOUT_"),
    Numbers(cublas.PreferenceAttribute, "CUBLASLT_MATMUL_PREF_"),
    Numbers(cublas.AlgorithmAttribute, "CUBLASLT_ALGO_CONFIG_"),
    Numbers(cublas.EpilogueFlag, "CUBLASLT_EPILOGUE_"),
    Numbers(cublas.Implementation, "CUBLASLT_NUMERICAL_IMPL_FLAGS_"),
)


@cache
def header(name: str) -> str:
    place = find(CUBLAS_LT)
    assert place is not None
    return (place.path.parents[1] / "include" / name).read_text()


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda n: n.of.__name__)
def test_numbers_are_those_of_the_headers(numbers: Numbers) -> None:
    for member in numbers.of:
        name = numbers.prefix + member.name.removeprefix("C_")
        found = re.search(rf"\b{name}(?: =)? \(?(\w+)(?: << (\d+))?\)?", header(numbers.file))
        assert found is not None, name
        assert int(found[1].rstrip("ul"), 0) << int(found[2] or 0) == member.value, name


# The functions that read a descriptor, which we need in tests alone.
_get = (ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
READERS = (
    Function("cublasLtMatmulDescGetAttribute", _get),
    Function("cublasLtMatrixLayoutGetAttribute", _get),
    Function("cublasLtMatmulPreferenceGetAttribute", _get),
)


def read(function: Any, descriptor: int, attribute: int, of: Any) -> int:
    value, written = of(), ctypes.c_size_t()
    function(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written))
    assert written.value == ctypes.sizeof(value)
    number: int = value.value
    return number


def test_the_real_library_has_what_a_matmul_says() -> None:
    calls, readers = cublas.cublas(), bind(load(CUBLAS_LT), Table((*cublas.FUNCTIONS, *READERS), cublas.TABLE.decode))
    matmul = described(
        product(4, 6, 8, b_turned=True, batch=3, dtype="bf16", result="f32"),
        Epilogue(Place(3), "gelu-tanh"),
        Rules(allow_split=False),
    )
    made = MatmulDescriptors(calls, matmul, 0x7000)
    of_matmul, of_layout, of_preference = (getattr(readers, function.name) for function in READERS)
    # In what it computes and scales; A is turned, B not; bias and GELU; the bias and its type, the result's.
    expected = {0: 68, 1: 0, 3: 1, 4: 0, 7: 4 | 32, 26: 0}
    assert {number: read(of_matmul, made.operation, number, ctypes.c_int32) for number in expected} == expected
    assert read(of_matmul, made.operation, 8, ctypes.c_uint64) == 0x7000
    # Type, order, rows, columns, leading dimension, count, step.
    types = (
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_uint64,
        ctypes.c_uint64,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_int64,
    )
    for layout, values in (
        (made.left, (14, 0, 8, 6, 8, 3, 48)),
        (made.right, (14, 0, 8, 4, 8, 3, 32)),
        (made.result, (0, 0, 6, 4, 6, 3, 24)),
    ):
        assert tuple(read(of_layout, layout, number, of) for number, of in enumerate(types)) == values
    assert read(of_preference, made.preference, 1, ctypes.c_uint64) == 32 << 20
    wanted = {3: 0, 5: 32, 6: 64, 7: 32, 8: 32}
    assert {n: read(of_preference, made.preference, n, ctypes.c_uint32) for n in wanted} == wanted
    made.close()


def test_f32_is_kept_from_narrower_operands_in_the_real_library_too() -> None:
    readers = bind(load(CUBLAS_LT), Table((*cublas.FUNCTIONS, *READERS), cublas.TABLE.decode))
    masks = []
    for rules in (IEEE, Rules(allow_tf32=True)):
        made = MatmulDescriptors(cublas.cublas(), described(product(4, 6, 8), rules=rules), 0)
        masks.append(read(readers.cublasLtMatmulPreferenceGetAttribute, made.preference, 12, ctypes.c_uint64))
        made.close()
    # All bits but those of operands in f16, bf16 and tf32.
    assert masks == [0xFFFFFFFFFFF8FFFF, 0xFFFFFFFFFFFFFFFF]


def test_a_call_that_fails_gives_the_librarys_words() -> None:
    assert cublas.version() >= (13, 1, 0)
    with pytest.raises(
        CublasFailed, match="cublasLtMatrixLayoutSetAttribute gives error 7, CUBLAS_STATUS_INVALID_VALUE: an"
    ):
        cublas.cublas().cublasLtMatrixLayoutSetAttribute(None, 5, None, 4)
