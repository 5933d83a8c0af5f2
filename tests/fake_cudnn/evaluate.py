"""What an operation graph means, in NumPy: every tensor is read and written through its sizes and strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import as_strided

from sexpgpu.cuda.cudnn_graph import MatMul, Operation, OperationGraph, Pointwise, Reduction, Reshape, Tensor

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i32": np.int32,
    "bool": np.bool_,
}


def gelu(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.vectorize(erf)(x / np.sqrt(2.0))))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


TWO: dict[str, Callable[[Array, Array], Array]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide, "CMP_GE": np.greater_equal,
}  # fmt: skip
ONE: dict[str, Callable[[Array], Array]] = {
    "EXP": np.exp, "LOG": np.log, "GELU_FWD": gelu, "GELU_APPROX_TANH_FWD": gelu_tanh,
}  # fmt: skip


class Evaluation:
    """`memory` has, for every tensor with a place, the flat elements from its first one on. `exact`: in float64, nothing
    rounded; else in float32, each tensor rounded to its dtype."""

    def __init__(self, graph: OperationGraph, memory: Mapping[int, Array], exact: bool = False) -> None:
        self.graph, self.memory, self.exact = graph, memory, exact
        self.wide: Any = np.float64 if exact else np.float32
        self.known: dict[int, Array] = {}
        for tensor in graph.tensors.values():
            if tensor.number not in graph.written:
                self.known[tensor.number] = self._read(tensor)

    def run(self) -> None:
        for operation in self.graph.operations:
            y = operation.y
            made = np.broadcast_to(self._computed(operation), y.sizes)
            if y.dtype in ("f32", "f16", "bf16"):
                made = made.astype(self.wide) if self.exact else made.astype(DTYPES[y.dtype]).astype(self.wide)
            self.known[y.number] = made
            if y.place is not None:
                through(self.memory[y.number], y)[...] = made

    def _read(self, tensor: Tensor) -> Array:
        if tensor.value is not None:
            return np.full(tensor.sizes, tensor.value, self.wide)
        assert tensor.place is not None, f"nothing writes tensor {tensor.number} of {self.graph.name}"
        return through(self.memory[tensor.number], tensor).astype(self.wide)

    def _computed(self, operation: Operation) -> Array:
        known, y = self.known, operation.y
        if isinstance(operation, MatMul):
            a, b = known[operation.a.number], known[operation.b.number]
            return np.asarray(np.matmul(a, b if b.ndim < 4 else np.repeat(b, a.shape[1] // b.shape[1], 1)))
        if isinstance(operation, Reduction):
            x = known[operation.x.number]
            reduce: Any = {"ADD": np.sum, "MAX": np.max}[operation.operator]
            if 1 != y.sizes[1] != x.shape[1] and y.sizes[2:] == x.shape[2:]:
                groups = x.reshape(x.shape[0], y.sizes[1], -1, *x.shape[2:])
                return np.asarray(reduce(groups, axis=2))
            return np.asarray(reduce(x, axis=tuple(k for k, n in enumerate(y.sizes) if n != x.shape[k]), keepdims=True))
        if isinstance(operation, Reshape):
            return reshaped(known[operation.x.number], operation.x, y)
        return self._pointwise(operation)

    def _pointwise(self, operation: Pointwise) -> Array:
        known, x = self.known, self.known[operation.x.number]
        if operation.mode == "GEN_INDEX":
            assert operation.axis is not None
            return np.asarray(np.indices(x.shape)[operation.axis])
        if operation.mode == "BINARY_SELECT":
            assert operation.chosen is not None and operation.b is not None
            return np.where(known[operation.chosen.number], x, known[operation.b.number])
        if operation.b is None:
            return ONE[operation.mode](x).astype(self.wide)
        return TWO[operation.mode](x, known[operation.b.number])


def through(flat: Array, tensor: Tensor) -> Array:
    """Memory as a tensor's sizes and strides see it; more than there is of it is an error."""
    last = sum((size - 1) * step for size, step in zip(tensor.sizes, tensor.strides, strict=True))
    assert 0 <= last < flat.size, f"tensor {tensor.number} reaches element {last} of {flat.size}"
    return as_strided(flat, tensor.sizes, [step * flat.itemsize for step in tensor.strides])


def reshaped(value: Array, x: Tensor, y: Tensor) -> Array:
    """A value laid out by x's strides, seen by y's."""
    flat = np.zeros(1 + sum((n - 1) * s for n, s in zip(x.sizes, x.strides, strict=True)), value.dtype)
    through(flat, x)[...] = value
    assert prod(x.sizes) == prod(y.sizes)
    return through(flat, y).copy()


def evaluate(graph: OperationGraph, memory: Mapping[int, Array], exact: bool = False) -> None:
    """Writes the results of a graph to memory."""
    Evaluation(graph, memory, exact).run()
