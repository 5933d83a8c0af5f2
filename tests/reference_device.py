"""A device that runs graphs by their NumPy meaning, node by node: slow, plain, and independent of both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.device import Counter, DeviceKind, Lowering, OutOfRange
from sexpgpu.ir.evaluate import evaluate_graph
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.train.suspect import uniform_draw


@dataclass(frozen=True)
class ReferenceMemory:
    type: TensorType
    array: NDArray[Any]


def external_name(kind: str, name: str) -> str:
    return f"{kind}:{name}"


@dataclass
class ReferenceExecutable:
    """Outputs that name a bound buffer (`gradient:w`, `parameter:w`) are written there, all after the whole graph ran."""

    graph: Graph
    seed: int
    bound: dict[str, ReferenceMemory] = field(default_factory=dict)
    made: dict[str, NDArray[Any]] = field(default_factory=dict)
    problems: list[OutOfRange] = field(default_factory=list)
    calls: list[tuple[dict[str, float], Counter]] = field(default_factory=list)

    @property
    def lowering(self) -> Lowering:
        return Lowering(nodes=len(self.graph.nodes), kernels=len(self.graph.nodes), fused=0, products=0, arena_bytes=0)

    @property
    def externals(self) -> Mapping[str, TensorType]:
        found = {external_name(n.attributes["kind"], n.attributes["name"]): n.tensor for n in self.graph.inputs}
        found |= {
            name: node.tensor for name, node in self.graph.outputs.items() if ":" in name and name.startswith("grad")
        }
        return found

    def bind(self, name: str, memory: Any) -> None:
        assert self.externals[name].shape == memory.type.shape, name
        self.bound[name] = memory

    def run(self, hosts: Mapping[str, float], counter: Counter) -> None:
        self.calls.append((dict(hosts), counter))
        # The same name may stand for a parameter and its gradient: evaluated by position, as the graph declares them.
        renamed, inputs = Graph(self.graph.name), {}
        replace: dict[Any, Any] = {}
        for node in self.graph.nodes:
            if node.op == "input":
                name = external_name(node.attributes["kind"], node.attributes["name"])
                replace[node] = renamed.add("input", (), {**node.attributes, "name": name})
                inputs[name] = self.bound[name].array
            else:
                replace[node] = renamed.clone(node, [replace[i] for i in node.inputs])
        renamed.outputs = {name: replace[node] for name, node in self.graph.outputs.items()}
        self.made = evaluate_graph(
            renamed, inputs, hosts, wide=False, draw=lambda node, scan: uniform_draw(node, scan, self.seed, counter)
        )
        for name, value in self.made.items():
            if name in self.bound:
                self.bound[name].array[...] = value

    def output(self, name: str) -> NDArray[Any]:
        return self.made[name]

    def out_of_range(self) -> Sequence[OutOfRange]:
        return self.problems


class ReferenceDevice:
    kind: DeviceKind = "cpu"
    description = "reference"

    def __init__(self) -> None:
        self.executables: list[ReferenceExecutable] = []
        self.held = 0

    def allocate(self, type: TensorType) -> ReferenceMemory:
        self.held += type.size_bytes
        return ReferenceMemory(type, np.zeros(type.shape, numpy_dtype(type.dtype)))

    def part(self, memory: ReferenceMemory, offset_elements: int, type: TensorType) -> ReferenceMemory:
        flat = memory.array.reshape(-1)[offset_elements : offset_elements + type.elements]
        return ReferenceMemory(type, flat.reshape(type.shape))

    def adopt(self, array: Any) -> ReferenceMemory:
        return ReferenceMemory(TensorType("f32", array.shape), array)

    def write(self, memory: ReferenceMemory, array: NDArray[Any]) -> None:
        assert array.shape == memory.type.shape
        memory.array[...] = array

    def read(self, memory: ReferenceMemory) -> NDArray[Any]:
        return memory.array.copy()

    def look(self, memory: ReferenceMemory) -> NDArray[Any]:
        return memory.array

    def report(self) -> Sequence[str]:
        return ()

    def close(self) -> None:
        pass

    def landing(self, type: TensorType) -> ReferenceMemory:
        return self.allocate(type)

    def prepare(self, graph: Graph, seed: int, lands: Any = None, keeps: Any = None) -> ReferenceExecutable:
        made = ReferenceExecutable(graph, seed)
        for name, memory in (lands or {}).items():
            made.bind(name, memory)
        self.executables.append(made)
        return made

    def add(self, target: ReferenceMemory, source: ReferenceMemory) -> None:
        target.array[...] += source.array

    def copy(self, target: ReferenceMemory, source: ReferenceMemory) -> None:
        target.array[...] = source.array

    def square_sum(self, memory: ReferenceMemory) -> float:
        return float(np.sum(memory.array.astype(np.float64) ** 2))

    @property
    def normals(self) -> None:
        return None

    def peak_bytes(self) -> int:
        return self.held

    def free_bytes(self) -> int:
        return 1 << 34
