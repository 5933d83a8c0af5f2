"""Attention by cuDNN: which of a plan's regions it runs, the words why our own kernels run the others, and their calls.

cuDNN reads and writes bf16 (f16) alone, a region's results are f32: what it writes goes through scratch memory, and is
widened from there; the kept result that its gradient reads is rounded to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from sexpgpu.codegen.cuda_emit import alignment_of, cuda_launches
from sexpgpu.codegen.cuda_operands import Alignment
from sexpgpu.codegen.cuda_source import CudaLaunch
from sexpgpu.cuda.cudnn_graph import OperationGraph
from sexpgpu.cuda.cudnn_graphs import attention, product, why_not_attention, why_not_product
from sexpgpu.cuda.cudnn_plans import BoundPlan, ExecutionPlan, Handle, Refusal, new_handle, plan
from sexpgpu.cuda.folding import Fold
from sexpgpu.ir.types import SIZES
from sexpgpu.passes.access import contiguous
from sexpgpu.plan.kernel import Access, Attention, Generated, Instruction, Load, Place, Plan, Program, Store, flattened
from sexpgpu.plan.lifetime import aligned

# The number of the workspace, which stands after a plan's buffers.
SCRATCH = -1
# Where cuDNN is asked without being told to: architectures on which it was compared with our own kernels.
POLICY = frozenset(("sm_80",))


@dataclass(frozen=True)
class ChosenGraph:
    """A region that cuDNN runs: what is rounded before its call, and widened after it."""

    planned: ExecutionPlan
    before: tuple[CudaLaunch, ...] = ()
    after: tuple[CudaLaunch, ...] = ()
    scratch_bytes: int = 0

    @property
    def workspace_bytes(self) -> int:
        made: int = self.scratch_bytes + self.planned.workspace_bytes
        return made

    def at(self, address: Callable[[Place], int], workspace: int) -> BoundPlan:
        return self.planned.bound(address, workspace + self.scratch_bytes)


@dataclass(frozen=True)
class Attending:
    """Who runs the attention of a plan: cuDNN that of `chosen`, by their launches' numbers; of the others, how many for which
    reason."""

    chosen: Mapping[int, ChosenGraph] = field(default_factory=dict)
    own: Mapping[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        ours = [f"attention: {count} by our own kernels: {reason}" for reason, count in self.own.items() if reason]
        return [f"attention: {len(self.chosen)} by cuDNN", *ours] if self.chosen else ours

    @property
    def around(self) -> Mapping[int, tuple[CudaLaunch, ...]]:
        return {number: (*chosen.before, *chosen.after) for number, chosen in self.chosen.items()}

    @property
    def workspace_bytes(self) -> int:
        return max((chosen.workspace_bytes for chosen in self.chosen.values()), default=0)


class Cudnn:
    """cuDNN in the current context, with all that it has planned. To be closed."""

    def __init__(self, calls: Any) -> None:
        self.calls = calls
        self.handle: Handle = new_handle(calls)
        self._planned: list[ExecutionPlan] = []

    def divide(self, whole: Plan) -> Attending:
        alignment = alignment_of(whole)
        chosen: dict[int, ChosenGraph] = {}
        own: Counter[str] = Counter()
        for number, launch in enumerate(flattened(whole.launches)):
            if isinstance(launch, Attention):
                found = self._choose(launch, alignment)
                if isinstance(found, str):
                    own[found] += 1
                else:
                    chosen[number] = found
        return Attending(chosen, own)

    def _choose(self, launch: Attention, alignment: Alignment) -> ChosenGraph | str:
        if 0 in (launch.batch, launch.heads, launch.rows, launch.columns):
            return "it has no elements"
        narrowed = _Narrowed(launch, alignment)
        refused = why_not_attention(narrowed.launch, launch.dtype)
        if refused:
            return refused
        made = self._plan(attention(narrowed.launch, launch.dtype))
        if isinstance(made, str):
            return made
        return ChosenGraph(made, narrowed.before, narrowed.after, narrowed.scratch_bytes)

    def choose_product(self, fold: Fold) -> ChosenGraph | str:
        """A product with its bias as one graph, or why not."""
        refused = why_not_product(fold.product, fold.epilogue)
        if refused:
            return refused
        made = self._plan(product(fold.product, fold.epilogue))
        return made if isinstance(made, str) else ChosenGraph(made)

    def _plan(self, graph: OperationGraph) -> ExecutionPlan | str:
        made = plan(self.calls, graph, self.handle)
        if isinstance(made, Refusal):
            return str(made)
        self._planned.append(made)
        return made

    def close(self) -> None:
        while self._planned:
            self._planned.pop().close()
        self.calls.cudnnDestroy(self.handle.number)


class _Narrowed:
    """A launch whose results, and the kept one that it reads, are in scratch memory in the dtype of its operands."""

    def __init__(self, launch: Attention, alignment: Alignment) -> None:
        self._of, self._alignment = launch, alignment
        self.scratch_bytes = 0
        self.before: tuple[CudaLaunch, ...] = ()
        self.after: tuple[CudaLaunch, ...] = ()
        loads, stores = list(launch.loads), list(launch.stores)
        if launch.backward:
            loads[3] = self._scratch(False, launch.value_width)
            self.before = self._cast(loads[3], launch.loads[3], "f32", False, launch.value_width)
        sides = ((False, launch.width), (True, launch.width), (True, launch.value_width))
        for k, (of_k, width) in enumerate(sides if launch.backward else ((False, launch.value_width),)):
            stores[k] = self._scratch(of_k, width)
            self.after += self._cast(stores[k], launch.stores[k], launch.dtype, of_k, width)
        self.launch = replace(launch, loads=tuple(loads), stores=tuple(stores))

    def _shape(self, of_k: bool, width: int) -> tuple[int, ...]:
        of = self._of
        heads, rows = (of.heads // of.group, of.columns) if of_k else (of.heads, of.rows)
        return of.batch, heads, rows, width

    def _scratch(self, of_k: bool, width: int) -> Access:
        batch, heads, rows, _ = shape = self._shape(of_k, width)
        place = Place(SCRATCH, self.scratch_bytes)
        self.scratch_bytes += aligned(SIZES[self._of.dtype] * batch * heads * rows * width)
        return Access(place, contiguous(shape)[:3])

    def _cast(self, scratch: Access, memory: Access, source: str, of_k: bool, width: int) -> tuple[CudaLaunch, ...]:
        """A map from scratch memory (from f32: to it)."""
        ends, dtypes = (scratch, memory), (self._of.dtype, "f32")
        if source == "f32":
            ends, dtypes = (memory, scratch), ("f32", self._of.dtype)
        load, store = (Access(end.place, (*end.strides, 1)) for end in ends)
        body = (Instruction("cast", (0,), dtypes[1]),)
        program = Program("map", 4, (Load("memory", dtypes[0], "one"),), body, (Store(1, dtypes[1], "one"),))
        return cuda_launches(Generated(program, self._shape(of_k, width), (load,), (store,)), self._known)

    def _known(self, place: Place) -> int:
        return 256 if place.buffer == SCRATCH and place.offset % 256 == 0 else self._alignment(place)


def own_attending(whole: Plan, reason: str) -> Attending:
    """Our own kernels run all."""
    count = sum(isinstance(launch, Attention) for launch in flattened(whole.launches))
    return Attending(own={reason: count} if count else {})
