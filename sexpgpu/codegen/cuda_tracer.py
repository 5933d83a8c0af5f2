"""Scalar formulas as CUDA C: the tracer of `ops/arithmetic.py` that writes a device function, a line a step.

Compiled with `--fmad=false` the result has the bits of the NumPy and LLVM twins: every step is IEEE and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from math import copysign, isfinite, isnan
from struct import pack, unpack

from sexpgpu.ops import formulas
from sexpgpu.ops.arithmetic import Traced, Value

# What a value of a dtype is while it is computed with; bf16 and f16 are kept as f32.
C_TYPES = {
    "f32": "float",
    "bf16": "float",
    "f16": "float",
    "f64": "double",
    "i32": "int",
    "i64": "long long",
    "u8": "unsigned char",
    "u32": "unsigned",
    "u64": "unsigned long long",
    "bool": "bool",
}
FLOATS = frozenset(("f32", "f64"))
_UNSIGNED = {"i32": "unsigned", "i64": "unsigned long long"}
_BITS = {"i32": 32, "i64": 64, "u8": 8, "u32": 32, "u64": 64}
_SUFFIX = {"i32": "", "i64": "ll", "u8": "", "u32": "u", "u64": "ull"}

_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "quotient": "/", "and": "&", "or": "|", "xor": "^"}
_SIGNS |= {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "shl": "<<", "shr": ">>"}
_WRAPPING = frozenset(("add", "sub", "mul", "shl"))
_CALLS = {
    ("fma", "f32"): "__fmaf_rn",
    ("sqrt", "f32"): "__fsqrt_rn",
    ("sqrt", "f64"): "__dsqrt_rn",
    ("rint", "f32"): "rintf",
    ("rint", "f64"): "rint",
    ("floor", "f32"): "floorf",
    ("floor", "f64"): "floor",
    ("ceil", "f32"): "ceilf",
    ("ceil", "f64"): "ceil",
}
_PATTERNS = {
    "f32": "__float_as_int",
    "f64": "__double_as_longlong",
    "i32": "__int_as_float",
    "i64": "__longlong_as_double",
}
_SATURATED = {"i32": "__float2int_rz({})", "i64": "__float2ll_rz({})", "u32": "__float2uint_rz({})"}
_SATURATED |= {"u8": "(unsigned char)min(__float2uint_rz({}), 255u)"}


def literal(number: float, dtype: str) -> str:
    """A constant's exact text."""
    if dtype == "bool":
        return "true" if number else "false"
    if dtype in _BITS:
        return _integer(int(number), dtype)
    if dtype == "f64":
        return _double(float(number))
    (rounded,) = unpack("<f", _float_bytes(number))
    if isfinite(rounded) and (rounded != 0 or copysign(1, rounded) > 0):
        return f"({rounded!r}f)" if rounded < 0 else f"{rounded!r}f"
    if isnan(rounded):
        return "__int_as_float(0x7fc00000)"
    return f"__int_as_float(0x{unpack('<I', pack('<f', rounded))[0]:08x})"


def _double(number: float) -> str:
    if isfinite(number):
        return f"({number!r})"
    words = 0x7FF8 << 48 if isnan(number) else unpack("<Q", pack("<d", number))[0]
    return f"__longlong_as_double(0x{words:016x})"


def _float_bytes(number: float) -> bytes:
    try:
        return pack("<f", number)
    except OverflowError:
        return pack("<f", copysign(float("inf"), number))


def _integer(number: int, dtype: str) -> str:
    wrapped = number & ((1 << _BITS[dtype]) - 1)
    if dtype in _UNSIGNED and wrapped >> (_BITS[dtype] - 1):
        wrapped -= 1 << _BITS[dtype]
    if wrapped == -(1 << (_BITS[dtype] - 1)) and dtype in _UNSIGNED:
        # The least integer has no literal of its own.
        return f"({wrapped + 1}{_SUFFIX[dtype]} - 1)"
    if dtype == "u8":
        # A plain literal is an int, which would choose another overload.
        return f"((unsigned char){wrapped})"
    return f"({wrapped}{_SUFFIX[dtype]})" if wrapped < 0 else f"{wrapped}{_SUFFIX[dtype]}"


class Written(Traced):
    """A value of the function that is being written: its name or literal."""

    __slots__ = ("lines", "name")

    def __init__(self, lines: list[str], name: str, dtype: str) -> None:
        super().__init__(dtype)
        self.lines = lines
        self.name = name

    def constant(self, number: float, dtype: str) -> Written:
        return Written(self.lines, literal(number, dtype), dtype)

    def apply(self, operation: str, operands: tuple[Traced, ...], dtype: str) -> Written:
        names = [operand.name for operand in operands if isinstance(operand, Written)]
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {C_TYPES[dtype]} {name} = {_text(operation, names, operands[-1].dtype, dtype)};")
        return Written(self.lines, name, dtype)


def _text(operation: str, names: list[str], source: str, dtype: str) -> str:
    """An operation's expression; `source` is the dtype of its (last) operand."""
    if operation in _WRAPPING and source in _UNSIGNED:
        # Overflow of signed integers is undefined in C; unsigned ones wrap.
        wide = _UNSIGNED[source]
        return f"({C_TYPES[dtype]})(({wide}){names[0]} {_SIGNS[operation]} ({wide}){names[1]})"
    if operation in _SIGNS:
        text = f"{names[0]} {_SIGNS[operation]} {names[1]}"
        return f"(unsigned char)({text})" if dtype == "u8" else text
    if (operation, source) in _CALLS:
        return f"{_CALLS[operation, source]}({', '.join(names)})"
    match operation:
        case "select":
            return f"{names[0]} ? {names[1]} : {names[2]}"
        case "neg" if source in FLOATS:
            return f"-{names[0]}"
        case "neg":
            wide = _UNSIGNED.get(source, C_TYPES[source])
            return f"({C_TYPES[dtype]})(({wide})0 - ({wide}){names[0]})"
        case "not":
            return f"!{names[0]}"
        case "bits":
            return f"{_PATTERNS[source]}({names[0]})"
        case "half":
            return f"from_f16(to_f16({names[0]}))"
        case "convert":
            return f"{names[0]} != 0" if dtype == "bool" else f"({C_TYPES[dtype]}){names[0]}"
        case "saturate":
            return f"{names[0]} != {names[0]} ? 0 : {_SATURATED[dtype].format(names[0])}"
    raise AssertionError(operation)


def _function(name: str, formula: Callable[..., Value], dtypes: tuple[str, ...]) -> str:
    letters = "abcdef"[: len(dtypes)]
    lines: list[str] = []
    made = formula(*(Written(lines, letter, dtype) for letter, dtype in zip(letters, dtypes, strict=True)))
    assert isinstance(made, Written), name
    parameters = ", ".join(f"{C_TYPES[dtype]} {letter}" for letter, dtype in zip(letters, dtypes, strict=True))
    body = "".join(f"    {line}\n" for line in [*lines, f"return {made.name};"])
    return f"__device__ __forceinline__ {C_TYPES[made.dtype]} {name}({parameters})\n{{\n{body}}}\n"


@lru_cache(maxsize=512)
def formula_function(name: str, dtypes: tuple[str, ...]) -> str:
    """The device function of a formula of `ops/formulas.py` for operands of these dtypes (overloads share the name)."""
    return _function(name, formulas.FORMULAS[name], dtypes)


@lru_cache(maxsize=128)
def cast_function(source: str, target: str) -> str:
    """The device function `cast_SOURCE_TARGET`, the language's cast."""
    register = "f32" if source in ("bf16", "f16") else source
    cast = partial(formulas.cast, source=source, target=target)
    return _function(f"cast_{source}_{target}", cast, (register,))
