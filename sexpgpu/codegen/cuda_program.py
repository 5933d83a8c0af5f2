"""Everything that a card runs for one plan: its launches in order, and the sources of the modules that hold their kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping
from dataclasses import dataclass

from sexpgpu.codegen.cuda_attention import WIDEST_HEAD
from sexpgpu.codegen.cuda_emit import plan_launches
from sexpgpu.codegen.cuda_source import CudaKernel, CudaLaunch, module_source
from sexpgpu.ir.graph import Graph
from sexpgpu.plan.build import bound_outputs
from sexpgpu.plan.build import plan as plan_graph
from sexpgpu.plan.kernel import Plan, repeated

# One compile of several kernels costs less than several compiles, and two processes want two modules.
KERNELS_OF_A_MODULE = 8


@dataclass(frozen=True)
class CudaProgram:
    """`launches`: what runs for each launch of the plan, by its number among all (those in loops once). `modules`: their
    sources by name; `module_of`: the module that holds a kernel. `uses`: how often each kernel runs in one call."""

    plan: Plan
    launches: tuple[tuple[CudaLaunch, ...], ...]
    modules: Mapping[str, str]
    module_of: Mapping[str, str]
    uses: Mapping[str, int]

    @property
    def kernels(self) -> dict[str, CudaKernel]:
        """Every kernel once, in the order of first use."""
        return {launch.kernel.name: launch.kernel for launches in self.launches for launch in launches}

    @property
    def workspace_bytes(self) -> int:
        """Scratch that every launch finds room in."""
        return max((launch.workspace_bytes for launches in self.launches for launch in launches), default=0)


def card_plan(graph: Graph, *, keep_values: bool = False, landing: Mapping[str, int] | None = None) -> Plan:
    """The plan of a graph for a card: attention is native where its heads fit, on bf16 and f16 as they are; bound outputs are
    written in place."""
    return plan_graph(
        graph,
        aliases=bound_outputs(graph),
        keep_values=keep_values,
        landing=landing,
        widest_head=WIDEST_HEAD,
        narrow_attention=True,
    )


def cuda_program(
    plan: Plan, elsewhere: Container[int] = (), around: Mapping[int, tuple[CudaLaunch, ...]] | None = None
) -> CudaProgram:
    """The program of a plan; the same plan gives the same sources. `elsewhere`: launches that a library runs; `around`: those
    that stand before and after such a launch."""
    launches = tuple(plan_launches(plan, elsewhere, around))
    uses: Counter[str] = Counter()
    for made, (_, times) in zip(launches, repeated(plan.launches), strict=True):
        uses.update({launch.kernel.name: times for launch in made})
    every = list({launch.kernel.name: launch.kernel for made in launches for launch in made}.values())
    parts = [every[k : k + KERNELS_OF_A_MODULE] for k in range(0, len(every), KERNELS_OF_A_MODULE)]
    sources = {part[0].name: module_source(part) for part in parts}
    module_of = {kernel.name: part[0].name for part in parts for kernel in part}
    return CudaProgram(plan, launches, sources, module_of, uses)
