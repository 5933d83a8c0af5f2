"""A loaded module and its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.simulator.approximate import Perturbation
from tests.simulator.decode import decode
from tests.simulator.global_space import GlobalSpace
from tests.simulator.machine import Launch, Machine
from tests.simulator.memory import Memory
from tests.simulator.parse import parse
from tests.simulator.program import Kernel
from tests.simulator.report import Fault, Outcome
from tests.simulator.schedule import Scheduler, Step

# As many threads run in lockstep as keep NumPy busy and the registers in the processor's caches.
LOCKSTEP_THREADS = 1 << 15
LOCKSTEP_SHARED_BYTES = 1 << 24
LOCKSTEP_LOCAL_BYTES = 1 << 26
MOST_THREADS = 1024
MOST_SHARED_BYTES = 227 << 10

Extent = tuple[int, int, int]


class Module:
    """PTX text ready to launch; its variables are placed in a memory at the first launch there."""

    def __init__(self, text: str | bytes) -> None:
        read = parse(text)
        self.kernels: Mapping[str, Kernel] = read.kernels
        self.variables = read.variables
        self.decoded: dict[str, list[Step]] = {}

    def launch(
        self,
        name: str,
        grid: Sequence[int],
        block: Sequence[int],
        parameters: Sequence[Any],
        memory: Memory,
        shared_bytes: int = 0,
        perturb: int | None = None,
    ) -> Outcome:
        """Runs a kernel to its end. With `perturb`, approximate functions err as far as the manual allows."""
        if name not in self.kernels:
            raise Fault("parameters", f"the module has no kernel {name}; it has {', '.join(self.kernels) or 'none'}")
        kernel = self.kernels[name]
        blocks, threads = extent(grid), extent(block)
        check_limits(kernel, blocks, threads, shared_bytes)
        launch = Launch(
            kernel,
            blocks,
            threads,
            shared_bytes,
            packed(kernel, parameters),
            self.place(memory),
            GlobalSpace(memory, kernel.narrowest["global"]),
            None if perturb is None else Perturbation(perturb),
        )
        instructions = self._run(launch, block_order(blocks, perturb))
        return Outcome([*launch.findings.values()], instructions, launch.memory.traffic())

    def _run(self, launch: Launch, order: Sequence[int]) -> int:
        name = launch.kernel.name
        if name not in self.decoded:
            self.decoded[name] = decode(launch.kernel)
        together = min(lockstep_blocks(launch), len(order))
        machine = Machine(launch, together)
        for first in range(0, len(order), together):
            blocks = order[first : first + together]
            if len(blocks) < together:
                instructions = machine.instructions
                machine = Machine(launch, len(blocks))
                machine.instructions = instructions
            machine.start(blocks)
            Scheduler(machine, self.decoded[name]).run()
        return machine.instructions

    def place(self, memory: Memory) -> Mapping[str, int]:
        """Where the module's global and constant variables lie in a memory."""
        if self not in memory.modules:
            placed = {}
            for one in self.variables.values():
                if one.space in ("global", "const"):
                    placed[one.name] = memory.put(np.frombuffer(one.values.ljust(one.n_bytes, b"\0"), np.uint8))
            memory.modules[self] = placed
        return memory.modules[self]


def load(text: str | bytes) -> Module:
    return Module(text)


def extent(sizes: Sequence[int]) -> Extent:
    x, y, z = (*(int(size) for size in sizes), 1, 1)[:3]
    return x, y, z


def check_limits(kernel: Kernel, grid: Extent, block: Extent, shared_bytes: int) -> None:
    threads = block[0] * block[1] * block[2]
    if min(*grid, *block) < 1:
        raise Fault("launch", f"a grid of {grid} and a block of {block} have no threads")
    if threads > MOST_THREADS or block[2] > 64 or grid[0] >= 1 << 31 or max(grid[1:]) > 65535:
        raise Fault("launch", f"a grid of {grid} and a block of {block} are more than a device takes")
    if kernel.maximum_threads and threads > kernel.maximum_threads:
        raise Fault("launch-bounds", f"{kernel.name} takes {kernel.maximum_threads} threads a block, not {threads}")
    if kernel.exact_threads and block != kernel.exact_threads:
        raise Fault("launch-bounds", f"{kernel.name} takes blocks of {kernel.exact_threads}, not {block}")
    if kernel.shared_bytes + shared_bytes > MOST_SHARED_BYTES:
        raise Fault("launch", f"{kernel.shared_bytes + shared_bytes} bytes of shared memory are more than a block has")


def packed(kernel: Kernel, parameters: Sequence[Any]) -> bytes:
    """The parameters' bytes at their offsets."""
    if len(parameters) != len(kernel.parameters):
        raise Fault("parameters", f"{kernel.name} takes {len(kernel.parameters)} parameters, not {len(parameters)}")
    made = bytearray(kernel.parameter_bytes)
    for place, value in zip(kernel.parameters.values(), parameters):
        held = value if isinstance(value, bytes) else np.asarray(value).tobytes()
        if len(held) != place.n_bytes:
            raise Fault("parameters", f"{place.name} of {kernel.name} is {place.n_bytes} bytes, not {len(held)}")
        made[place.offset : place.offset + len(held)] = held
    return bytes(made)


def lockstep_blocks(launch: Launch) -> int:
    """How many blocks run together."""
    kernel, threads = launch.kernel, launch.threads
    shared = kernel.shared_bytes + launch.dynamic_bytes
    return max(
        1,
        min(
            LOCKSTEP_THREADS // threads,
            LOCKSTEP_SHARED_BYTES // max(1, shared),
            LOCKSTEP_LOCAL_BYTES // max(1, kernel.local_bytes * threads),
        ),
    )


def block_order(grid: Extent, perturb: int | None) -> Sequence[int]:
    """Blocks run in any order on a device; a perturbed launch takes another than theirs."""
    count = grid[0] * grid[1] * grid[2]
    if perturb is None:
        return range(count)
    return [int(block) for block in np.random.default_rng(perturb).permutation(count)]
