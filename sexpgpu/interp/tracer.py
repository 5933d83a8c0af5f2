"""Scalar formulas as LLVM instructions: the tracer of `ops/arithmetic.py` that builds with llvmlite, strictly IEEE.

It works on scalars, and on vectors where no plain number is lifted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from sexpgpu.ops.arithmetic import Traced

TYPES: dict[str, Any] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
    "u8": ir.IntType(8),
    "u32": ir.IntType(32),
    "u64": ir.IntType(64),
    "bool": ir.IntType(1),
}
FLOATS = frozenset(("f32", "f64"))
SIGNED = frozenset(("i32", "i64"))
BITS = {"f32": 32, "f64": 64, "i32": 32, "i64": 64, "u8": 8, "u32": 32, "u64": 64, "bool": 1}
_FLOAT_BINARY = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INTEGER_BINARY = {"add": "add", "sub": "sub", "mul": "mul", "and": "and_", "or": "or_", "xor": "xor", "shl": "shl"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_ROUNDINGS = {"sqrt": "llvm.sqrt", "rint": "llvm.rint", "floor": "llvm.floor", "ceil": "llvm.ceil"}


class Emitted(Traced):
    """A value of the function that `builder` builds."""

    __slots__ = ("builder", "value")

    def __init__(self, builder: Any, value: Any, dtype: str) -> None:
        super().__init__(dtype)
        self.builder = builder
        self.value = value

    def constant(self, number: float, dtype: str) -> Emitted:
        if dtype in FLOATS:
            exact = float(np.float32(number)) if dtype == "f32" else float(number)
            return Emitted(self.builder, ir.Constant(TYPES[dtype], exact), dtype)
        wrapped = int(number) & ((1 << BITS[dtype]) - 1)
        if dtype in SIGNED and wrapped >> (BITS[dtype] - 1):
            wrapped -= 1 << BITS[dtype]
        return Emitted(self.builder, ir.Constant(TYPES[dtype], wrapped), dtype)

    def apply(self, operation: str, operands: tuple[Traced, ...], dtype: str) -> Emitted:
        values = [operand.value for operand in operands if isinstance(operand, Emitted)]
        source = operands[-1].dtype
        return Emitted(self.builder, self._instruction(operation, values, source, dtype), dtype)

    def _instruction(self, operation: str, values: list[Any], source: str, dtype: str) -> Any:
        builder = self.builder
        if operation in _COMPARISONS:
            return self._compare(_COMPARISONS[operation], values, source)
        if operation == "select":
            return builder.select(*values)
        if operation in _ROUNDINGS or operation == "fma":
            return self._call(_ROUNDINGS.get(operation, "llvm.fma"), values)
        if source in FLOATS and operation in _FLOAT_BINARY:
            return getattr(builder, _FLOAT_BINARY[operation])(*values)
        if operation in _INTEGER_BINARY:
            return getattr(builder, _INTEGER_BINARY[operation])(*values)
        match operation:
            case "neg":
                return builder.fneg(*values) if source in FLOATS else builder.neg(*values)
            case "not":
                return builder.not_(*values)
            case "shr":
                return (builder.ashr if source in SIGNED else builder.lshr)(*values)
            case "quotient":
                return (builder.sdiv if source in SIGNED else builder.udiv)(*values)
            case "bits":
                return builder.bitcast(values[0], TYPES[dtype])
            case "half":
                return builder.fpext(builder.fptrunc(values[0], ir.HalfType()), TYPES["f32"])
            case "convert":
                return self._convert(values[0], source, dtype)
            case "saturate":
                return self._saturate(values[0], source, dtype)
        raise AssertionError(operation)

    def _compare(self, sign: str, values: list[Any], source: str) -> Any:
        if source in FLOATS:
            # NaN is different from everything, itself included.
            return (self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered)(sign, *values)
        return (self.builder.icmp_signed if source in SIGNED else self.builder.icmp_unsigned)(sign, *values)

    def _call(self, name: str, values: list[Any]) -> Any:
        type_ = values[0].type
        function = self.builder.module.declare_intrinsic(name, [type_], ir.FunctionType(type_, [type_] * len(values)))
        return self.builder.call(function, values)

    def _convert(self, value: Any, source: str, dtype: str) -> Any:
        builder, target = self.builder, TYPES[dtype]
        if dtype == "bool":
            return builder.icmp_unsigned("!=", value, ir.Constant(TYPES[source], 0))
        if source in FLOATS and dtype in FLOATS:
            return (builder.fpext if dtype == "f64" else builder.fptrunc)(value, target)
        assert source not in FLOATS, (source, dtype)
        if dtype in FLOATS:
            return (builder.sitofp if source in SIGNED else builder.uitofp)(value, target)
        if BITS[dtype] > BITS[source]:
            return (builder.sext if source in SIGNED else builder.zext)(value, target)
        return builder.trunc(value, target) if BITS[dtype] < BITS[source] else value

    def _saturate(self, value: Any, source: str, dtype: str) -> Any:
        name = f"llvm.fpto{'s' if dtype in SIGNED else 'u'}i.sat"
        type_ = ir.FunctionType(TYPES[dtype], [TYPES[source]])
        return self.builder.call(
            self.builder.module.declare_intrinsic(name, [TYPES[dtype], TYPES[source]], type_), [value]
        )
