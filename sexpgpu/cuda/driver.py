"""The CUDA driver's functions that we call, under the exact names of CUDA 13, and what its errors say.

The table is the one place that knows their argument types: the driver's library is bound to it, and so is a simulated one.
Handles are opaque pointers; an address of device memory is a 64-bit number (CUdeviceptr).
"""

from __future__ import annotations

import ctypes
from enum import IntEnum
from typing import Any

from sexpgpu.cuda.binding import CallFailed, Function, Table

INT, UINT, BYTE, SIZE = ctypes.c_int, ctypes.c_uint, ctypes.c_ubyte, ctypes.c_size_t
ADDRESS, FLAGS, HANDLE, HOST, TEXT = (
    ctypes.c_uint64,
    ctypes.c_ulonglong,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_char_p,
)
INT_OUT, SIZE_OUT, FLOAT_OUT = ctypes.POINTER(INT), ctypes.POINTER(SIZE), ctypes.POINTER(ctypes.c_float)
HANDLE_OUT, ADDRESS_OUT, TEXT_OUT = ctypes.POINTER(HANDLE), ctypes.POINTER(ADDRESS), ctypes.POINTER(TEXT)
# Arrays: options of a module's loading and their values, a launch's pointers to its parameters.
INTS, POINTERS = INT_OUT, HANDLE_OUT


class Uuid(ctypes.Structure):
    """CUuuid: a card's own number, the same in every process and under every ordinal."""

    _fields_ = (("bytes", ctypes.c_ubyte * 16),)


# What any driver since CUDA 4 has: enough to say what is here, and why it is not enough.
QUERIES = (
    Function("cuInit", (UINT,)),
    Function("cuDriverGetVersion", (INT_OUT,)),
    Function("cuGetErrorName", (INT, TEXT_OUT)),
    Function("cuGetErrorString", (INT, TEXT_OUT)),
    Function("cuDeviceGetCount", (INT_OUT,)),
    Function("cuDeviceGet", (INT_OUT, INT)),
    Function("cuDeviceGetName", (HOST, INT, INT)),
    Function("cuDeviceGetAttribute", (INT_OUT, INT, INT)),
    Function("cuDeviceTotalMem_v2", (SIZE_OUT, INT)),
)

FUNCTIONS = (
    *QUERIES,
    Function("cuDeviceGetUuid_v2", (ctypes.POINTER(Uuid), INT)),
    Function("cuDevicePrimaryCtxRetain", (HANDLE_OUT, INT)),
    Function("cuDevicePrimaryCtxRelease_v2", (INT,)),
    Function("cuCtxSetCurrent", (HANDLE,)),
    Function("cuCtxSynchronize", ()),
    # Memory.
    Function("cuMemGetInfo_v2", (SIZE_OUT, SIZE_OUT)),
    Function("cuMemAlloc_v2", (ADDRESS_OUT, SIZE)),
    Function("cuMemFree_v2", (ADDRESS,)),
    Function("cuMemHostAlloc", (HANDLE_OUT, SIZE, UINT)),
    Function("cuMemFreeHost", (HOST,)),
    Function("cuMemcpyHtoDAsync_v2", (ADDRESS, HOST, SIZE, HANDLE)),
    Function("cuMemcpyDtoHAsync_v2", (HOST, ADDRESS, SIZE, HANDLE)),
    Function("cuMemcpyDtoDAsync_v2", (ADDRESS, ADDRESS, SIZE, HANDLE)),
    Function("cuMemsetD8Async", (ADDRESS, BYTE, SIZE, HANDLE)),
    Function("cuMemsetD32Async", (ADDRESS, UINT, SIZE, HANDLE)),
    # Order.
    Function("cuStreamCreate", (HANDLE_OUT, UINT)),
    Function("cuStreamDestroy_v2", (HANDLE,)),
    Function("cuStreamSynchronize", (HANDLE,)),
    Function("cuStreamWaitEvent", (HANDLE, HANDLE, UINT)),
    Function("cuEventCreate", (HANDLE_OUT, UINT)),
    Function("cuEventDestroy_v2", (HANDLE,)),
    Function("cuEventRecord", (HANDLE, HANDLE)),
    Function("cuEventSynchronize", (HANDLE,)),
    Function("cuEventQuery", (HANDLE,)),
    Function("cuEventElapsedTime_v2", (FLOAT_OUT, HANDLE, HANDLE)),
    # Code.
    Function("cuModuleLoadDataEx", (HANDLE_OUT, HOST, UINT, INTS, POINTERS)),
    Function("cuModuleUnload", (HANDLE,)),
    Function("cuModuleGetFunction", (HANDLE_OUT, HANDLE, TEXT)),
    Function("cuFuncGetAttribute", (INT_OUT, INT, HANDLE)),
    Function("cuFuncSetAttribute", (HANDLE, INT, INT)),
    Function("cuLaunchKernel", (HANDLE, UINT, UINT, UINT, UINT, UINT, UINT, UINT, HANDLE, POINTERS, POINTERS)),
    # Graphs.
    Function("cuStreamBeginCapture_v2", (HANDLE, INT)),
    Function("cuStreamEndCapture", (HANDLE, HANDLE_OUT)),
    Function("cuGraphInstantiateWithFlags", (HANDLE_OUT, HANDLE, FLAGS)),
    Function("cuGraphLaunch", (HANDLE, HANDLE)),
    Function("cuGraphExecDestroy", (HANDLE,)),
    Function("cuGraphDestroy", (HANDLE,)),
)


class DeviceAttribute(IntEnum):
    """What cuDeviceGetAttribute tells."""

    MULTIPROCESSORS = 16
    L2_BYTES = 38
    CAPABILITY_MAJOR = 75
    CAPABILITY_MINOR = 76
    SHARED_BYTES_OPT_IN = 97


class FunctionAttribute(IntEnum):
    """What cuFuncGetAttribute tells of a kernel, and cuFuncSetAttribute sets."""

    SHARED_BYTES = 1
    LOCAL_BYTES = 3
    REGISTERS = 4
    MOST_DYNAMIC_SHARED_BYTES = 8


class Status(IntEnum):
    """Numbers of errors on which something depends; all others are only told."""

    INVALID_VALUE = 1
    OUT_OF_MEMORY = 2
    NOT_INITIALIZED = 3
    STUB_LIBRARY = 34
    NO_DEVICE = 100
    NOT_READY = 600


# After one of these nothing works on the device any more in this process.
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})
STREAM_NON_BLOCKING = 1
EVENT_WITHOUT_TIME = 2
CAPTURE_THREAD_LOCAL = 1


class DriverError(CallFailed):
    """A call of the driver that failed: `call`, `number`, its `name` (CUDA_ERROR_…) and the driver's own `words`."""

    @property
    def name(self) -> str:
        return self.meaning.partition(": ")[0]

    @property
    def words(self) -> str:
        return self.meaning.partition(": ")[2]

    @property
    def sticky(self) -> bool:
        return self.number in STICKY


def meaning(calls: Any, number: int) -> str:
    """An error's name and words, by the driver itself: `CUDA_ERROR_OUT_OF_MEMORY: out of memory`."""
    return f"{_said(calls.cuGetErrorName, number)}: {_said(calls.cuGetErrorString, number)}"


def _said(ask: Any, number: int) -> str:
    text = TEXT()
    try:
        ask(number, ctypes.byref(text))
    except CallFailed:
        return "an error that the driver does not know"
    return (text.value or b"").decode(errors="replace")


QUERY_TABLE = Table(QUERIES, meaning, DriverError)
TABLE = Table(FUNCTIONS, meaning, DriverError)
