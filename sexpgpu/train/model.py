"""What is trained: parameters, buffers, optimizer states and averages on a device, their first values, and read back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.device import Device, Executable
from sexpgpu.initial import Normals, initial_value
from sexpgpu.ir.types import TensorType
from sexpgpu.passes.experiment import Experiment, Parameter, averaged

Array32 = NDArray[np.float32]


def initial_parameters(
    experiment: Experiment,
    seed: int,
    threads: int = 1,
    without: Collection[str] = (),
    normals: Normals | None = None,
) -> Iterator[tuple[str, Array32]]:
    """Name and initial value of every parameter and buffer not in `without`: a function of the seed and the names alone.
    Each is drawn when it is asked for, so that whoever writes them one by one holds one. `normals`: a device's way."""
    for p in experiment.parameters:
        if p.name not in without:
            yield p.name, initial_value(p.initializer, p.shape, seed, p.name, threads, normals)


def state_name(parameter: str, state: str) -> str:
    return f"{parameter}:{state}"


class Model:
    """Device memory of an experiment's parameters (buffers among them), states (by PARAMETER:STATE), and averages of
    parameters where the run keeps them."""

    def __init__(self, device: Device, experiment: Experiment) -> None:
        self.device = device
        self.experiment = experiment
        self.parameters: dict[str, Any] = {p.name: device.allocate(type_of(p)) for p in experiment.parameters}
        self.states: dict[str, Any] = {
            state_name(s.parameter, s.name): device.allocate(TensorType("f32", s.shape)) for s in experiment.states
        }
        self.averages: dict[str, Any] = {p.name: device.allocate(type_of(p)) for p in averaged(experiment)}

    def start(self, values: Iterable[tuple[str, Array32]]) -> None:
        """Parameters as given, averages the same, states as their optimizer starts them. Memory that was not used yet
        holds zeros, and most states begin so: they are not touched."""
        for name, value in values:
            self.device.write(self.parameters[name], value)
            if name in self.averages:
                self.device.write(self.averages[name], value)
        for state in self.experiment.states:
            if not state.fill:
                continue
            memory = self.states[state_name(state.parameter, state.name)]
            self.device.write(memory, np.broadcast_to(np.float32(state.fill), state.shape))

    def resume(
        self, parameters: Mapping[str, Array32], states: Mapping[str, Array32], averages: Mapping[str, Array32]
    ) -> None:
        """Parameters, states and averages as a checkpoint has them."""
        for memories, values in ((self.parameters, parameters), (self.states, states), (self.averages, averages)):
            for name, memory in memories.items():
                self.device.write(memory, values[name])

    def bind(self, executable: Executable, average: bool = False) -> None:
        """Give an executable the parameters, states and averages it names; with `average`, averages in place of the
        parameters that have one."""
        parameters = self.parameters | self.averages if average else self.parameters
        held = {"parameter": parameters, "buffer": parameters, "state": self.states, "average": self.averages}
        for external in executable.externals:
            kind, _, name = external.partition(":")
            if kind in held:
                executable.bind(external, held[kind][name])

    def read_parameters(self) -> dict[str, Array32]:
        return {name: self.device.read(memory) for name, memory in self.parameters.items()}

    def read_averages(self) -> dict[str, Array32]:
        return {name: self.device.read(memory) for name, memory in self.averages.items()}

    def read_states(self) -> dict[str, Array32]:
        return {name: self.device.read(memory) for name, memory in self.states.items()}


def type_of(parameter: Parameter) -> TensorType:
    return TensorType("f32", parameter.shape, parameter.labels)


def parameter_count(experiment: Experiment) -> int:
    """Numbers in all parameters, buffers aside."""
    return sum(type_of(p).elements for p in experiment.parameters if not p.buffer)
