"""Programs written by hand, and what they mean in NumPy: the tests of generated kernels compare with this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.kernel import Access, Buffer, Generated, Instruction, Load, Place, Plan, Program, Store


class Builder:
    """Writes a program value by value."""

    def __init__(self, kind: Any, rank: int) -> None:
        self.kind, self.rank = kind, rank
        self.loads: list[Load] = []
        self.body: list[Instruction] = []
        self.stores: list[Store] = []

    def load(self, inner: Any = "one", dtype: str = "f32", kind: Any = "memory") -> int:
        assert not self.body
        self.loads.append(Load(kind, dtype, inner))
        return len(self.loads) - 1

    def do(self, op: str, *arguments: int, dtype: str = "f32", **attributes: Any) -> int:
        self.body.append(Instruction(op, arguments, dtype, tuple(attributes.items())))
        return len(self.loads) + len(self.body) - 1

    def number(self, value: float, dtype: str = "f32") -> int:
        return self.do("constant", dtype=dtype, value=value)

    def store(self, value: int, inner: Any = "one", dtype: str = "f32", alias: int | None = None) -> None:
        self.stores.append(Store(value, dtype, inner, alias))

    def program(self) -> Program:
        return Program(self.kind, self.rank, tuple(self.loads), tuple(self.body), tuple(self.stores))


def launch_plan(program: Program, operands: Sequence[Any], outputs: Sequence[Any]) -> Plan:
    """A plan of one launch. Operands and outputs are arrays of the loops' shape (broadcast or strided views are fine),
    or (start, strides) for index loads; each array is an external buffer of its base's bytes."""
    loads: list[Access] = []
    buffers: list[Buffer] = []
    externals: dict[str, TensorType] = {}

    def access(array: Any, dtype: str) -> Access:
        number = len(buffers)
        base = base_of(array)
        name = f"buffer:{number}"
        buffers.append(Buffer(name, base.nbytes, "external"))
        externals[name] = TensorType(dtype, base.shape)  # type: ignore[arg-type]
        offset = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        return Access(Place(number, offset), tuple(s // SIZES[dtype] for s in array.strides))

    sizes = np.broadcast_shapes(*(a.shape for a in [*operands, *outputs] if isinstance(a, np.ndarray)))
    for load, operand in zip(program.loads, operands, strict=True):
        loads.append(access(operand, load.dtype) if load.kind == "memory" else Access(None, operand[1], operand[0]))
    stores: list[Access] = []
    for store, output in zip(program.stores, outputs, strict=True):
        stores.append(loads[store.alias] if store.alias is not None else access(output, store.dtype))
    launch = Generated(program, sizes, tuple(loads), tuple(stores))
    return Plan((launch,), tuple(buffers), 0, externals, {})


def base_of(array: Any) -> Any:
    """The array that owns the memory."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def run_program(engine: Any, program: Program, operands: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Runs one launch on the arrays' own memory."""
    plan = launch_plan(program, operands, outputs)
    executable = engine.load(plan)
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    arrays += [a for a, s in zip(outputs, program.stores, strict=True) if s.alias is None]
    for number, array in enumerate(arrays):
        executable.bind(f"buffer:{number}", base_of(array))
    executable.run({})


def gelu(alias: bool = False) -> Program:
    """x · ½ · (1 + tanh(√(2/π)·(x + 0.044715·x³))), optionally in place."""
    b = Builder("map", 1)
    x = b.load()
    cube = b.do("mul", b.do("mul", x, x), x)
    inner = b.do("add", x, b.do("mul", cube, b.number(0.044715)))
    t = b.do("tanh", b.do("mul", inner, b.number(0.7978845608028654)))
    b.store(b.do("mul", b.do("mul", x, b.do("add", t, b.number(1.0))), b.number(0.5)), alias=x if alias else None)
    return b.program()


def softmax(alias: bool = False) -> Program:
    b = Builder("row", 2)
    x = b.load()
    e = b.do("exp", b.do("sub", x, b.do("reduce_max", x)))
    b.store(b.do("div", e, b.do("reduce_sum", e)), alias=x if alias else None)
    return b.program()


def layernorm() -> Program:
    """Loads x, gain, bias and the row's length; stores the result, the mean and 1/deviation."""
    b = Builder("row", 2)
    x, gain, bias, length = b.load(), b.load(), b.load(), b.load("zero")
    mean = b.do("div", b.do("reduce_sum", x), length)
    centred = b.do("sub", x, mean)
    variance = b.do("div", b.do("reduce_sum", b.do("mul", centred, centred)), length)
    scale = b.do("rsqrt", b.do("add", variance, b.number(1e-5)))
    b.store(b.do("add", b.do("mul", b.do("mul", centred, scale), gain), bias))
    b.store(mean, "zero")
    b.store(scale, "zero")
    return b.program()


def reduction(kind: Any, op: str, dtype: str = "f32") -> Program:
    """One reduction of one operand, its result alone."""
    b = Builder(kind, 2)
    x = b.load(dtype=dtype)
    result = "i32" if op.startswith("arg") else dtype
    b.store(b.do(f"reduce_{op}", x, dtype=result), "zero" if kind == "row" else "one", result)
    return b.program()


def empty(shape: Sequence[int], dtype: str = "f32") -> Any:
    """An output full of what it must not keep."""
    made = np.empty(shape, numpy_dtype(dtype))
    made.reshape(-1).view(np.uint8)[...] = 0x7F
    return made
