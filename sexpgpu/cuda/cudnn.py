"""cuDNN's backend API: its functions, and the numbers of cudnn_graph_v9.h that we use, each once.

Everything there is a descriptor: made, given attributes, finalized, used by others. `Descriptors` makes them and gives all
of them back. None of this needs a card: a plan can be made for a card that is only described.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import Enum, IntEnum
from functools import cache
from typing import Any

from sexpgpu.cuda.binding import CallFailed, Function, FunctionMissing, Table, bind
from sexpgpu.cuda.library import CUDNN, load
from sexpgpu.errors import Error

INT, INT64, SIZE = ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
HANDLE, HANDLE_OUT, INT64_OUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
_WORDS_BYTES = 1 << 16
# Older ones refuse some of our graphs, or were never tried.
LEAST = (9, 13, 0)


class CudnnFailed(CallFailed):
    """A call of cuDNN that gave an error, with what it says of the last one."""


FUNCTIONS = (
    Function("cudnnGetVersion", (), SIZE),
    Function("cudnnGetErrorString", (INT,), ctypes.c_char_p),
    # It returns nothing; what is read in place of that is not a status.
    Function("cudnnGetLastErrorString", (ctypes.c_void_p, SIZE), INT),
    Function("cudnnCreate", (HANDLE_OUT,)),
    Function("cudnnDestroy", (HANDLE,)),
    Function("cudnnSetStream", (HANDLE, HANDLE)),
    Function("cudnnBackendCreateDescriptor", (INT, HANDLE_OUT)),
    Function("cudnnBackendDestroyDescriptor", (HANDLE,)),
    Function("cudnnBackendFinalize", (HANDLE,)),
    # The descriptor, an attribute, the type of its elements, how many, where they are.
    Function("cudnnBackendSetAttribute", (HANDLE, INT, INT, INT64, ctypes.c_void_p)),
    # The same with room for so many, how many there are, where they go (null: only their count is wanted).
    Function("cudnnBackendGetAttribute", (HANDLE, INT, INT, INT64, INT64_OUT, ctypes.c_void_p)),
    # A handle, a plan, a variant pack.
    Function("cudnnBackendExecute", (HANDLE, HANDLE, HANDLE)),
)


def last_words(calls: Any) -> str:
    """What cuDNN has said since it was last asked: of every engine that it tried, why it does not do."""
    buffer = ctypes.create_string_buffer(_WORDS_BYTES)
    calls.cudnnGetLastErrorString(buffer, _WORDS_BYTES)
    return buffer.value.decode(errors="replace")


def _meaning(calls: Any, number: int) -> str:
    name = (calls.cudnnGetErrorString(number) or b"").decode(errors="replace")
    return f"{name}: {last_words(calls).strip()}"


TABLE = Table(FUNCTIONS, _meaning, CudnnFailed)


@cache
def cudnn() -> Any:
    """The functions of the installed cuDNN. Raises E-DEV-003 or E-DEV-004 where it cannot be had."""
    return bind(load(CUDNN), TABLE)


def version(calls: Any = None) -> tuple[int, int, int]:
    """cuDNN's version, (9, 13, 0)."""
    number = (calls or cudnn()).cudnnGetVersion()
    return number // 10_000, number // 100 % 100, number % 100


def unusable(calls: Any = None) -> str:
    """Why cuDNN is not used, '' where it can be. `calls` None: the installed one, if there is one."""
    try:
        calls = calls or cudnn()
    except (Error, FunctionMissing) as problem:
        return str(problem)
    found = version(calls)
    if found < LEAST:
        return f"cuDNN {_dotted(found)} is here, {_dotted(LEAST)} or newer is needed"
    return ""


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


# -- numbers: their names are the header's without what they share


class Type(Enum):
    """CUDNN_TYPE_…: the number of a type of attributes, and its element in C."""

    HANDLE = 0, ctypes.c_void_p
    DATA_TYPE = 1, ctypes.c_int
    BOOLEAN = 2, ctypes.c_bool
    INT64 = 3, ctypes.c_int64
    VOID_PTR = 6, ctypes.c_void_p
    HEUR_MODE = 8, ctypes.c_int
    NUMERICAL_NOTE = 11, ctypes.c_int
    POINTWISE_MODE = 14, ctypes.c_int
    BACKEND_DESCRIPTOR = 15, ctypes.c_void_p
    REDUCTION_OPERATOR_TYPE = 18, ctypes.c_int
    CHAR = 24, ctypes.c_char


class Kind(IntEnum):
    """CUDNN_BACKEND_…_DESCRIPTOR"""

    POINTWISE = 0
    ENGINE = 2
    ENGINECFG = 3
    ENGINEHEUR = 4
    EXECUTION_PLAN = 5
    OPERATION_POINTWISE = 13
    OPERATIONGRAPH = 15
    VARIANT_PACK = 16
    TENSOR = 17
    MATMUL = 18
    OPERATION_MATMUL = 19
    REDUCTION = 21
    OPERATION_REDUCTION = 22
    OPERATION_RESHAPE = 31
    DEVICEPROP = 38


class Attribute(Enum):
    """CUDNN_ATTR_…: its number, and the type of its elements."""

    POINTWISE_MODE = 0, Type.POINTWISE_MODE
    POINTWISE_MATH_PREC = 1, Type.DATA_TYPE
    POINTWISE_AXIS = 9, Type.INT64
    ENGINEHEUR_MODE = 200, Type.HEUR_MODE
    ENGINEHEUR_OPERATION_GRAPH = 201, Type.BACKEND_DESCRIPTOR
    ENGINEHEUR_RESULTS = 202, Type.BACKEND_DESCRIPTOR
    ENGINEHEUR_DEVICEPROP = 204, Type.BACKEND_DESCRIPTOR
    ENGINECFG_ENGINE = 300, Type.BACKEND_DESCRIPTOR
    EXECUTION_PLAN_HANDLE = 400, Type.HANDLE
    EXECUTION_PLAN_ENGINE_CONFIG = 401, Type.BACKEND_DESCRIPTOR
    EXECUTION_PLAN_WORKSPACE_SIZE = 402, Type.INT64
    EXECUTION_PLAN_JSON_REPRESENTATION = 405, Type.CHAR
    EXECUTION_PLAN_DEVICEPROP = 407, Type.BACKEND_DESCRIPTOR
    OPERATION_POINTWISE_PW_DESCRIPTOR = 750, Type.BACKEND_DESCRIPTOR
    OPERATION_POINTWISE_XDESC = 751, Type.BACKEND_DESCRIPTOR
    OPERATION_POINTWISE_BDESC = 752, Type.BACKEND_DESCRIPTOR
    OPERATION_POINTWISE_YDESC = 753, Type.BACKEND_DESCRIPTOR
    OPERATION_POINTWISE_TDESC = 758, Type.BACKEND_DESCRIPTOR
    OPERATIONGRAPH_HANDLE = 800, Type.HANDLE
    OPERATIONGRAPH_OPS = 801, Type.BACKEND_DESCRIPTOR
    TENSOR_BYTE_ALIGNMENT = 900, Type.INT64
    TENSOR_DATA_TYPE = 901, Type.DATA_TYPE
    TENSOR_DIMENSIONS = 902, Type.INT64
    TENSOR_STRIDES = 903, Type.INT64
    TENSOR_UNIQUE_ID = 906, Type.INT64
    TENSOR_IS_VIRTUAL = 907, Type.BOOLEAN
    TENSOR_IS_BY_VALUE = 908, Type.BOOLEAN
    VARIANT_PACK_UNIQUE_IDS = 1000, Type.INT64
    VARIANT_PACK_DATA_POINTERS = 1001, Type.VOID_PTR
    VARIANT_PACK_WORKSPACE = 1003, Type.VOID_PTR
    ENGINE_GLOBAL_INDEX = 1301, Type.INT64
    ENGINE_NUMERICAL_NOTE = 1303, Type.NUMERICAL_NOTE
    MATMUL_COMP_TYPE = 1500, Type.DATA_TYPE
    OPERATION_MATMUL_ADESC = 1520, Type.BACKEND_DESCRIPTOR
    OPERATION_MATMUL_BDESC = 1521, Type.BACKEND_DESCRIPTOR
    OPERATION_MATMUL_CDESC = 1522, Type.BACKEND_DESCRIPTOR
    OPERATION_MATMUL_DESC = 1523, Type.BACKEND_DESCRIPTOR
    REDUCTION_OPERATOR = 1600, Type.REDUCTION_OPERATOR_TYPE
    REDUCTION_COMP_TYPE = 1601, Type.DATA_TYPE
    OPERATION_REDUCTION_XDESC = 1610, Type.BACKEND_DESCRIPTOR
    OPERATION_REDUCTION_YDESC = 1611, Type.BACKEND_DESCRIPTOR
    OPERATION_REDUCTION_DESC = 1612, Type.BACKEND_DESCRIPTOR
    OPERATION_RESHAPE_XDESC = 2200, Type.BACKEND_DESCRIPTOR
    OPERATION_RESHAPE_YDESC = 2201, Type.BACKEND_DESCRIPTOR
    DEVICEPROP_JSON_REPRESENTATION = 2702, Type.CHAR


class DataType(IntEnum):
    """CUDNN_DATA_…"""

    FLOAT = 0
    HALF = 2
    INT32 = 4
    BFLOAT16 = 9
    BOOLEAN = 11


class PointwiseMode(IntEnum):
    """CUDNN_POINTWISE_…"""

    ADD = 0
    MUL = 1
    DIV = 6
    SUB = 9
    EXP = 13
    LOG = 15
    GELU_FWD = 104
    GELU_APPROX_TANH_FWD = 107
    CMP_GE = 303
    GEN_INDEX = 501
    BINARY_SELECT = 601


class Reducing(IntEnum):
    """CUDNN_REDUCE_TENSOR_…"""

    ADD = 0
    MAX = 3


class Heuristic(IntEnum):
    """CUDNN_HEUR_MODE_…"""

    FALLBACK = 2
    A = 3


class NumericalNote(IntEnum):
    """CUDNN_NUMERICAL_NOTE_…: what an engine says of its results."""

    NONDETERMINISTIC = 4


# Our names of types.
DTYPES = {
    "f32": DataType.FLOAT,
    "f16": DataType.HALF,
    "bf16": DataType.BFLOAT16,
    "i32": DataType.INT32,
    "bool": DataType.BOOLEAN,
}

# -- descriptors


class Descriptors:
    """Descriptors of one purpose, which live and end together: what one is made of must outlive it."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls
        self._made: list[int] = []

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._made:
            self.calls.cudnnBackendDestroyDescriptor(self._made.pop())

    def empty(self, kind: Kind) -> int:
        """A descriptor that cuDNN itself is to fill."""
        pointer = HANDLE()
        self.calls.cudnnBackendCreateDescriptor(kind, ctypes.byref(pointer))
        assert pointer.value
        self._made.append(pointer.value)
        return pointer.value

    def make(self, kind: Kind, attributes: Sequence[tuple[Attribute, Any]]) -> int:
        """A finalized one. An attribute's value is its element or a sequence of them; text is bytes."""
        made = self.empty(kind)
        for attribute, value in attributes:
            number, of = attribute.value
            many = value if isinstance(value, bytes | list | tuple) else (value,)
            element = of.value[1]
            elements = (
                (element * len(many)).from_buffer_copy(many)
                if isinstance(many, bytes)
                else (element * len(many))(*many)
            )
            self.calls.cudnnBackendSetAttribute(made, number, of.value[0], len(many), elements)
        self.calls.cudnnBackendFinalize(made)
        return made

    def count(self, descriptor: int, attribute: Attribute) -> int:
        """How many elements an attribute has."""
        number, of = attribute.value
        count = INT64()
        self.calls.cudnnBackendGetAttribute(descriptor, number, of.value[0], 0, ctypes.byref(count), None)
        return count.value

    def get(self, descriptor: int, attribute: Attribute, room: int = 1) -> list[Any]:
        """The elements of an attribute, no more than there is room for."""
        number, of = attribute.value
        count, elements = INT64(), (of.value[1] * room)()
        self.calls.cudnnBackendGetAttribute(descriptor, number, of.value[0], room, ctypes.byref(count), elements)
        return list(elements[: min(count.value, room)])

    def text(self, descriptor: int, attribute: Attribute) -> str:
        # A slice of letters is bytes, a list of them numbers.
        return bytes(self.get(descriptor, attribute, self.count(descriptor, attribute))).rstrip(b"\0").decode()

    def fill(self, descriptor: int, attribute: Attribute, kind: Kind, room: int = 1) -> list[int]:
        """The descriptors that an attribute is made of."""
        number, of = attribute.value
        made = [self.empty(kind) for _ in range(room)]
        count, elements = INT64(), (HANDLE * room)(*made)
        self.calls.cudnnBackendGetAttribute(descriptor, number, of.value[0], room, ctypes.byref(count), elements)
        return made[: count.value]
