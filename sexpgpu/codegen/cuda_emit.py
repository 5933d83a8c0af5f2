"""From a plan's launches to CUDA launches: which kernel, over which grid, with which arguments."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from math import gcd

from sexpgpu.codegen.cuda_attention import emit_attention
from sexpgpu.codegen.cuda_columns import emit_column
from sexpgpu.codegen.cuda_indexed import emit_indexed
from sexpgpu.codegen.cuda_many import emit_many, groups_of
from sexpgpu.codegen.cuda_map import emit_map
from sexpgpu.codegen.cuda_operands import Alignment
from sexpgpu.codegen.cuda_product import emit_product
from sexpgpu.codegen.cuda_rows import emit_row
from sexpgpu.codegen.cuda_source import CudaLaunch
from sexpgpu.codegen.cuda_traffic import with_factor
from sexpgpu.codegen.cuda_transpose import emit_transposed
from sexpgpu.plan.kernel import Generated, Indexed, Kernel, Loop, Place, Plan, Product, flattened
from sexpgpu.plan.lifetime import ALIGNMENT


def alignment_of(plan: Plan) -> Alignment:
    """The alignment of a plan's places: that of its buffers, wherever they are; a window's is what its steps keep."""
    windows = {window.buffer: window for loop in _loops(plan.launches) for window in loop.windows}

    def alignment(place: Place) -> int:
        known = gcd(ALIGNMENT, place.offset)
        if place.buffer in windows:
            window = windows[place.buffer]
            return gcd(known, window.step, alignment(window.base))
        if plan.buffers[place.buffer].kind == "arena":
            return gcd(known, plan.buffers[place.buffer].offset)
        return known

    return alignment


def _loops(launches: object) -> Iterator[Loop]:
    assert isinstance(launches, tuple)
    for launch in launches:
        if isinstance(launch, Loop):
            yield launch
            yield from _loops(launch.launches)


def plan_launches(
    plan: Plan, elsewhere: Container[int] = (), around: Mapping[int, tuple[CudaLaunch, ...]] | None = None
) -> list[tuple[CudaLaunch, ...]]:
    """What runs for every launch of a plan, by its number among all (those in loops once): maps that are done together
    stand at the first one's number. `elsewhere`: numbers of those that a library runs; they have no kernel, or those of
    `around`, which its call stands between."""
    alignment = alignment_of(plan)
    joined: dict[int, tuple[CudaLaunch, ...]] = {}
    for members in groups_of(plan):
        together = [launch for launch in (plan.launches[m] for m in members) if isinstance(launch, Generated)]
        joined |= dict.fromkeys(members, ())
        joined[members[0]] = (emit_many(together, alignment),)
    made: list[tuple[CudaLaunch, ...]] = []
    for position, launch in enumerate(plan.launches):
        if position in joined:
            made.append(joined[position])
        else:
            for inner in flattened((launch,)):
                given = (around or {}).get(len(made), () if len(made) in elsewhere else None)
                made.append(cuda_launches(inner, alignment) if given is None else given)
    return made


def cuda_launches(launch: Kernel, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    """What runs, one after the other, for one launch of the plan; nothing where there is nothing to compute."""
    return with_factor(launch, _emit(launch, alignment), alignment)


def _emit(launch: Kernel, alignment: Alignment) -> tuple[CudaLaunch, ...]:
    if isinstance(launch, Generated) and launch.program.kind in ("map", "row"):
        if launch.program.kind == "map":
            made = emit_transposed(launch, alignment) or emit_map(launch, alignment)
        else:
            made = emit_row(launch)
        return () if made is None else (made,)
    if isinstance(launch, Generated):
        return emit_column(launch, alignment)
    if isinstance(launch, Product):
        return emit_product(launch, alignment)
    if isinstance(launch, Indexed):
        return emit_indexed(launch, alignment)
    return emit_attention(launch)
