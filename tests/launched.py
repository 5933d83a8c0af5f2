"""Plans run by their CUDA kernels in some memory: what the simulator (on_simulator.py) and a card (on_card.py) do alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sexpgpu.codegen.cuda_emit import plan_launches
from sexpgpu.codegen.cuda_source import CudaLaunch, module_source
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.host import evaluate
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.build import plan as plan_graph
from sexpgpu.plan.kernel import Kernel, Launch, Loop, Place, Plan, Program, flattened
from sexpgpu.randomness import key_of
from tests.programs import base_of, launch_plan


class Launched:
    """A plan with memory for each of its buffers. `findings`: what was seen that must not be; `outcomes`: of each CUDA
    launch. What is below `Memory` in a subclass says where the memory is and how a kernel runs."""

    def __init__(self, plan: Plan, seed: int, rewrite: Callable[[str], str] | None) -> None:
        self.plan, self.seed = plan, seed
        self.findings: list[Any] = []
        self.outcomes: list[tuple[CudaLaunch, Any]] = []
        self.made = plan_launches(plan)
        every = [launch for launches in self.made for launch in launches]
        source = module_source(launch.kernel for launch in every) if every else ""
        workspace = max((launch.workspace_bytes for launch in every), default=0)
        size = sum(b.size_bytes + 1024 for b in plan.buffers) + workspace + (1 << 20)
        self.prepare(rewrite(source) if rewrite else source, size // 256 * 256)
        self.workspace = self.allocate(workspace) if workspace else 0
        # Every value has memory of its own, so that nothing is read that this call did not write.
        self.addresses = {
            n: self.allocate(max(b.size_bytes, 16)) for n, b in enumerate(plan.buffers) if b.kind != "window"
        }
        self.numbers = {b.name: n for n, b in enumerate(plan.buffers)}

    # Memory.

    def prepare(self, source: str, most_bytes: int) -> None:
        """Compiles the kernels' source, '' where there are none. No more than `most_bytes` will be allocated."""
        raise NotImplementedError

    def allocate(self, size_bytes: int) -> int:
        raise NotImplementedError

    def write(self, address: int, array: Any) -> None:
        raise NotImplementedError

    def read_bytes(self, address: int, size_bytes: int, initialised: bool = True) -> np.ndarray:
        raise NotImplementedError

    def launch(self, made: CudaLaunch, kernel: Kernel, number: int) -> None:
        """Runs what was made of the plan's launch of that number."""
        raise NotImplementedError

    # Calls.

    def address(self, place: Place) -> int:
        return self.addresses[place.buffer] + place.offset

    def bind(self, name: str, array: Any) -> None:
        if array.nbytes:
            self.write(self.addresses[self.numbers[name]], np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def run(self, hosts: Mapping[str, float] | None = None, microbatch: int = 0, step: int = 0) -> None:
        """One call, as an executable makes it: host scalars, keys, counters and flags, then the launches."""
        for expression, place in self.plan.hosts:
            self.write(self.address(place), np.array([evaluate(expression, hosts or {})], np.float32))
        for path, ordinal, place in self.plan.randoms:
            self.write(self.address(place), np.array(key_of(self.seed, path, ordinal), np.uint32))
        for number, buffer in enumerate(self.plan.buffers):
            if buffer.name == "runtime:counter":
                self.write(self.addresses[number], np.array([0, microbatch, step, 0], np.uint32))
            if buffer.name == "runtime:positions" and buffer.size_bytes:
                self.write(self.addresses[number], np.arange(buffer.size_bytes // 4, dtype=np.uint32))
        for place, _ in self.plan.flags:
            self.write(self.address(place), np.zeros(2, np.int64))
        self._launch_all(self.plan.launches, 0)

    def _launch_all(self, launches: Sequence[Launch], number: int) -> None:
        for launch in launches:
            if not isinstance(launch, Loop):
                for made in self.made[number]:
                    self.launch(made, launch, number)
                number += 1
                continue
            for position in launch.positions:
                for window in launch.windows:
                    self.addresses[window.buffer] = self.address(window.base) + window.offset(position)
                self._launch_all(launch.launches, number)
            number += sum(1 for _ in flattened(launch.launches))

    # Results.

    def read(self, place: Place, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        made = numpy_dtype(dtype)
        if count == 0:
            return np.zeros(shape, made)
        words = self.read_bytes(self.address(place), count * made.itemsize)
        return np.asarray(words.view(made).reshape(shape))

    def contents(self, name: str) -> np.ndarray:
        """All bytes of an external buffer, written or not."""
        number = self.numbers[name]
        return self.read_bytes(self.addresses[number], self.plan.buffers[number].size_bytes, initialised=False)

    def output(self, name: str) -> np.ndarray:
        place, type_ = self.plan.outputs[name]
        return self.read(place, type_.shape, type_.dtype)


def run_graph(
    maker: Any, graph: Graph, values: Mapping[str, Any], hosts: Mapping[str, float] | None = None, **options: Any
) -> tuple[dict[str, np.ndarray], Any]:
    """The outputs in their dtypes, as `on_cpu.run_graph` gives them, and what ran; `values` by input name."""
    made = maker(plan_graph(graph, native=False, **options))
    for node in graph.inputs:
        array = np.array(values[node.attributes["name"]], numpy_dtype(node.dtype))
        made.bind(f"{node.attributes['kind']}:{node.attributes['name']}", array)
    made.run(hosts)
    return {name: made.output(name) for name in graph.outputs}, made


def run_program(maker: Any, program: Program, operands: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """Runs one launch of a program written by hand on copies, and copies what was written back into the arrays' own
    memory, as `programs.run_program` leaves it."""
    made = maker(launch_plan(program, operands, outputs))
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    arrays += [o for o, s in zip(outputs, program.stores, strict=True) if s.alias is None]
    bases = [base_of(array) for array in arrays]
    for number, base in enumerate(bases):
        made.write(made.addresses[number], _bytes(base))
    made.run()
    for number, base in enumerate(bases):
        _bytes(base)[...] = made.read_bytes(made.addresses[number], base.nbytes)
    return made


def _bytes(base: Any) -> Any:
    return base.reshape(-1).view(np.uint8)
