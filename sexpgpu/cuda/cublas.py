"""cuBLASLt's functions, and the numbers of its headers that we use, each once.

It takes nonsense without a word: descriptors are filled from a `Matmul` alone (cuda/matmul.py), which is checked.
"""

from __future__ import annotations

import ctypes
from enum import IntEnum, IntFlag
from functools import cache
from typing import Any

from sexpgpu.cuda.binding import CallFailed, Function, Table, bind
from sexpgpu.cuda.library import CUBLAS_LT, load

INT, INT64, UINT64, SIZE = ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t
HANDLE, HANDLE_OUT, HOST = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
ADDRESS = ctypes.c_uint64


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque."""

    _fields_ = (("data", UINT64 * 8),)


class Proposal(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", SIZE),
        ("state", INT),
        ("waves", ctypes.c_float),
        ("reserved", INT * 4),
    )


class CublasFailed(CallFailed):
    """A call of cuBLASLt that gave an error."""


_set = (HANDLE, INT, HOST, SIZE)  # a descriptor, its attribute, the value and its size
FUNCTIONS = (
    Function("cublasLtGetVersion", (), SIZE),
    Function("cublasLtGetStatusName", (INT,), ctypes.c_char_p),
    Function("cublasLtGetStatusString", (INT,), ctypes.c_char_p),
    Function("cublasLtCreate", (HANDLE_OUT,)),
    Function("cublasLtDestroy", (HANDLE,)),
    Function("cublasLtMatmulDescCreate", (HANDLE_OUT, INT, INT)),  # in what it computes, the type of alpha and beta
    Function("cublasLtMatmulDescDestroy", (HANDLE,)),
    Function("cublasLtMatmulDescSetAttribute", _set),
    Function("cublasLtMatrixLayoutCreate", (HANDLE_OUT, INT, UINT64, UINT64, INT64)),  # type, rows, columns, leading
    Function("cublasLtMatrixLayoutDestroy", (HANDLE,)),
    Function("cublasLtMatrixLayoutSetAttribute", _set),
    Function("cublasLtMatmulPreferenceCreate", (HANDLE_OUT,)),
    Function("cublasLtMatmulPreferenceDestroy", (HANDLE,)),
    Function("cublasLtMatmulPreferenceSetAttribute", _set),
    Function(
        "cublasLtMatmulAlgoGetHeuristic",  # the matmul, layouts of A, B, C and D, preference, how many wanted and found
        (HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, HANDLE, INT, ctypes.POINTER(Proposal), ctypes.POINTER(INT)),
    ),
    # An algorithm, its attribute, where the value goes, its size, the size written.
    Function("cublasLtMatmulAlgoConfigGetAttribute", (ctypes.POINTER(Algorithm), INT, HOST, SIZE, ctypes.POINTER(SIZE))),
    Function(
        "cublasLtMatmul",  # D = alpha A B + beta C: handle, the matmul, alpha, A, B, beta, C, D with their layouts, and
        (
            HANDLE, HANDLE, HOST, ADDRESS, HANDLE, ADDRESS, HANDLE, HOST, ADDRESS, HANDLE, ADDRESS, HANDLE,
            ctypes.POINTER(Algorithm), ADDRESS, SIZE, HANDLE,  # algorithm, workspace and its size, stream
        ),
    ),
)  # fmt: skip


def _meaning(calls: Any, number: int) -> str:
    name, words = (ask(number) or b"" for ask in (calls.cublasLtGetStatusName, calls.cublasLtGetStatusString))
    return f"{name.decode(errors='replace')}: {words.decode(errors='replace')}"


TABLE = Table(FUNCTIONS, _meaning, CublasFailed)


@cache
def cublas() -> Any:
    """The functions of the installed cuBLASLt. Raises E-DEV-003 or E-DEV-004 where it cannot be had."""
    return bind(load(CUBLAS_LT), TABLE)


def version(calls: Any = None) -> tuple[int, int, int]:
    """cuBLASLt's version, (13, 1, 0)."""
    number = (calls or cublas()).cublasLtGetVersion()
    return number // 10_000, number // 100 % 100, number % 100


# -- numbers: their names are the headers' without what they share


class DataType(IntEnum):
    """CUDA_…"""

    R_32F = 0
    R_16F = 2
    R_16BF = 14


class Compute(IntEnum):
    """CUBLAS_COMPUTE_…: in what products are summed, and what operands may be rounded to."""

    C_32F = 68
    C_32F_FAST_TF32 = 77


class MatmulAttribute(IntEnum):
    """CUBLASLT_MATMUL_DESC_…"""

    TRANSA = 3
    TRANSB = 4
    EPILOGUE = 7
    BIAS_POINTER = 8
    BIAS_DATA_TYPE = 26


class LayoutAttribute(IntEnum):
    """CUBLASLT_MATRIX_LAYOUT_…"""

    BATCH_COUNT = 5
    STRIDED_BATCH_OFFSET = 6


class PreferenceAttribute(IntEnum):
    """CUBLASLT_MATMUL_PREF_…"""

    MAX_WORKSPACE_BYTES = 1
    REDUCTION_SCHEME_MASK = 3
    MIN_ALIGNMENT_A_BYTES = 5
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8
    IMPL_MASK = 12


class AlgorithmAttribute(IntEnum):
    """CUBLASLT_ALGO_CONFIG_…"""

    ID = 0
    TILE_ID = 1
    SPLITK_NUM = 2
    REDUCTION_SCHEME = 3
    STAGES_ID = 6


class EpilogueFlag(IntFlag):
    """CUBLASLT_EPILOGUE_…; GELU is its tanh form; BGRADA sums the rows of the left operand, over k."""

    DEFAULT = 1
    BIAS = 4
    GELU = 32
    BGRADA = 256


class Implementation(IntFlag):
    """CUBLASLT_NUMERICAL_IMPL_FLAGS_…: what an algorithm does to operands."""

    INPUT_16F = 1 << 16
    INPUT_16BF = 2 << 16
    INPUT_TF32 = 4 << 16


TRANSPOSED = 1  # CUBLAS_OP_T
REDUCTION_NONE = 0  # CUBLASLT_REDUCTION_SCHEME_NONE: sums are not split
ALL_IMPLEMENTATIONS = (1 << 64) - 1

# Our names of types.
DTYPES = {"f32": DataType.R_32F, "f16": DataType.R_16F, "bf16": DataType.R_16BF}
