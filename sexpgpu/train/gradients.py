"""The gradients of a step: every microbatch's call of the training graph, summed by the canonical tree."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from sexpgpu.device import Device, Executable
from sexpgpu.ir.types import TensorType
from sexpgpu.passes.experiment import Parameter
from sexpgpu.train.reduction import MOST_LANES, SumPlan, lanes_of, plan_sum

# Parts of a flat buffer begin at whole cache lines (64 bytes), so that kernels may use aligned vectors.
ALIGNMENT_ELEMENTS = 16


class GradientSum:
    """Flat buffers that hold all trainable parameters' gradients end to end; buffer 0 holds the sum of a step."""

    def __init__(self, device: Device, parameters: tuple[Parameter, ...], calls: int, lanes: int | None) -> None:
        self.device = device
        self.most_lanes = lanes or MOST_LANES
        self.offsets: dict[str, tuple[int, TensorType]] = {}
        elements = 0
        for parameter in parameters:
            self.offsets[parameter.name] = (elements, TensorType("f32", parameter.shape))
            elements += -(-max(prod(parameter.shape), 1) // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
        self.type = TensorType("f32", (max(elements, 1),))
        plan = self.plan(calls)
        self.buffers: list[Any] = [device.allocate(self.type) for _ in range(plan.buffers)]
        # A call that adds to a lane leaves its gradients here first.
        adds = any(operation.kind == "accumulate" for operation in plan.operations)
        self._scratch = device.allocate(self.type) if adds else None

    def plan(self, calls: int) -> SumPlan:
        return plan_sum(calls, lanes_of(calls, self.most_lanes))

    @property
    def size_bytes(self) -> int:
        return self.type.size_bytes * (len(self.buffers) + (self._scratch is not None))

    def bind(self, executable: Executable, buffer: Any) -> None:
        """Let an executable's `gradient:…` stand in a flat buffer."""
        for name, (offset, type_) in self.offsets.items():
            if f"gradient:{name}" in executable.externals:
                executable.bind(f"gradient:{name}", self.device.part(buffer, offset, type_))

    def sum(self, executable: Executable, calls: int, call: Callable[[int], None]) -> None:
        """`call(i)` runs the executable for microbatch i; afterwards buffer 0 holds the sum over all of them."""
        plan = self.plan(calls)
        while len(self.buffers) < plan.buffers:
            self.buffers.append(self.device.allocate(self.type))
        for operation in plan.operations:
            if operation.kind == "add":
                self.device.add(self.buffers[operation.target], self.buffers[operation.source])
                continue
            into = self.buffers[operation.target]
            if operation.kind == "accumulate":
                self._scratch = self._scratch or self.device.allocate(self.type)
                self.bind(executable, self._scratch)
                call(operation.source)
                self.device.add(into, self._scratch)
            else:
                self.bind(executable, into)
                call(operation.source)

    def square_sum(self) -> float:
        """Σ g² over every gradient, in float64: parts between the gradients hold zeros."""
        return self.device.square_sum(self.buffers[0])
