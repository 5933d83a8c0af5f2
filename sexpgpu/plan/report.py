"""A plan as text: every launch with what it computes and where that was written, counts, memory and its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.plan.buffers import lives_of
from sexpgpu.plan.kernel import (
    Access,
    Attention,
    Generated,
    Kernel,
    Launch,
    Loop,
    Place,
    Plan,
    Product,
    attention_flops,
    flattened,
    repeated,
)
from sexpgpu.plan.lifetime import Life
from sexpgpu.plan.moments import uses, with_moments

# Of the values at the peak so many are named.
LARGEST = 8
OPERATIONS = 24


@dataclass(frozen=True)
class Totals:
    """What a plan asks for. `flops` are those of its products, two a multiply-add; `peak_at` is the number of the
    launch during which most of the arena is alive, `peak_bytes` what is alive then (the arena is at least that)."""

    launches: int
    kernels: int
    fused: int
    products: int
    attentions: int
    indexed: int
    programs: int
    flops: int
    arena_bytes: int
    peak_bytes: int
    peak_at: int
    parts: dict[str, int]


def totals(plan: Plan) -> Totals:
    """The counts and the memory of a plan."""
    launches = list(flattened(plan.launches))
    generated = [launch for launch in launches if isinstance(launch, Generated)]
    products = [launch for launch in launches if isinstance(launch, Product)]
    attentions = [launch for launch in launches if isinstance(launch, Attention)]
    moment, live = peak(plan)
    return Totals(
        launches=len(launches),
        kernels=len(generated),
        fused=sum(_computes(launch) > 1 for launch in generated),
        products=len(products),
        attentions=len(attentions),
        indexed=len(launches) - len(generated) - len(products) - len(attentions),
        programs=len({repr(launch.program) for launch in generated}),
        flops=sum(times * flops_of(launch) for launch, times in repeated(plan.launches)),
        arena_bytes=plan.arena_bytes,
        peak_bytes=sum(plan.buffers[number].size_bytes for number in live),
        peak_at=moment,
        parts=memory_parts(plan),
    )


def _computes(launch: Generated) -> int:
    return sum(instruction.op not in ("constant", "cast") for instruction in launch.program.body)


def flops_of(launch: Kernel) -> int:
    """Those of a product or of attention."""
    if isinstance(launch, Attention):
        return attention_flops(launch)
    return product_flops(launch) if isinstance(launch, Product) else 0


def product_flops(launch: Product) -> int:
    return 2 * launch.m * launch.n * launch.k * len(launch.c.starts)


def memory_parts(plan: Plan) -> dict[str, int]:
    """Bytes by what they hold: the kinds of external buffers, the arena, what the host writes."""
    parts: Counter[str] = Counter()
    for buffer in plan.buffers:
        if buffer.kind == "external":
            parts[buffer.name.partition(":")[0]] += buffer.size_bytes
        elif buffer.kind == "runtime":
            parts["runtime"] += buffer.size_bytes
    return {**parts, "arena": plan.arena_bytes}


def peak(plan: Plan) -> tuple[int, list[int]]:
    """The launch during which most bytes of the arena are alive, and the buffers that are, the largest first."""
    lives = {number: life for number, life in lives_of(plan).items() if plan.buffers[number].kind == "arena"}
    changes = [0] * (uses(plan.launches)[1] + 1)
    for life in lives.values():
        changes[life.first] += life.size_bytes
        if life.last + 1 < len(changes):
            changes[life.last + 1] -= life.size_bytes
    best, now, moment = 0, 0, 0
    for k, change in enumerate(changes[:-1]):
        now += change
        if now > best:
            best, moment = now, k
    live = [number for number, life in lives.items() if life.first <= moment <= life.last]
    return moment, sorted(live, key=lambda number: (-lives[number].size_bytes, number))


def describe(plan: Plan, graph: Graph) -> str:
    """Every launch of the plan of `graph`, then counts and memory."""
    regions = region_instances(graph)
    lines = [
        _line(f"{number:>5}  {'  ' * depth}", launch, plan, graph, regions)
        for number, depth, launch in with_moments(plan.launches)
    ]
    return "\n".join([*lines, *_summary(plan)])


def region_instances(graph: Graph) -> dict[int, str]:
    """`layernorm 3` by the number of each region node: the body's name and which of its calls it is."""
    counts: Counter[str] = Counter()
    names: dict[int, str] = {}
    for node in graph.nodes:
        if node.op == "region":
            name = node.attributes["body"].name
            counts[name] += 1
            names[node.index] = f"{name} {counts[name]}"
    return names


def _line(head: str, launch: Launch, plan: Plan, graph: Graph, regions: dict[int, str]) -> str:
    nodes = [graph.nodes[index] for index in launch.nodes]
    names = dict.fromkeys(regions[node.index] for node in nodes if node.index in regions)
    where = ", ".join(dict.fromkeys(place for node in nodes if (place := _place(node))))
    if isinstance(launch, Loop):
        return f"{head}loop {launch.length} times{' in reverse' if launch.reverse else ''}  {where}".rstrip()
    what = f"{head}{_kind(launch)}: {_operations(launch)}  {_operands(launch, plan)}"
    return "  ".join(part for part in (what, ", ".join(names), where) if part)


def _kind(launch: Kernel) -> str:
    if isinstance(launch, Generated):
        return f"{launch.program.kind} {_sizes(launch.sizes)}"
    if isinstance(launch, Product):
        batch = f"{len(launch.c.starts)} × " if len(launch.c.starts) > 1 else ""
        return f"product {batch}[{launch.m} {launch.k}] · [{launch.k} {launch.n}]"
    if isinstance(launch, Attention):
        name = f"{'causal ' if launch.causal else ''}attention{' backward' if launch.backward else ''}"
        return f"{name} {launch.batch * launch.heads} × [{launch.rows} {launch.columns}] of {launch.width}"
    return f"{launch.op} {_sizes((launch.outer, launch.size, launch.inner))} at {launch.count}"


def _sizes(sizes: Iterable[int]) -> str:
    return f"[{' '.join(map(str, sizes))}]"


def _operations(launch: Kernel) -> str:
    if not isinstance(launch, Generated):
        return f"{launch.dtype} to {launch.result}" if isinstance(launch, Product) and launch.result else launch.dtype
    ops = [instruction.op for instruction in launch.program.body if instruction.op != "constant"]
    rest = f" and {len(ops) - OPERATIONS} more" if len(ops) > OPERATIONS else ""
    return (" ".join(ops[:OPERATIONS]) or "copy") + rest


def _operands(launch: Kernel, plan: Plan) -> str:
    if isinstance(launch, Generated | Attention):
        read, written = _places(launch.loads), _places(launch.stores)
    elif isinstance(launch, Product):
        read, written = [launch.a.place, launch.b.place], [launch.c.place]
    else:
        read, written = list(launch.inputs), [launch.out]
    sources, results = (" ".join(dict.fromkeys(_name(plan, place) for place in places)) for places in (read, written))
    return f"{sources} → {results}".strip()


def _places(accesses: Sequence[Access]) -> list[Place]:
    return [access.place for access in accesses if access.place is not None]


def _name(plan: Plan, place: Place) -> str:
    """External buffers by name, values in the arena by number; `@` is the part of an iteration."""
    buffer = plan.buffers[place.buffer]
    return f"{buffer.name}#{place.buffer}" if buffer.kind == "arena" else buffer.name


def _place(node: Node) -> str:
    span = next((origin.span for origin in node.origins if origin.span is not None), None)
    return "" if span is None else span.place


def _summary(plan: Plan) -> list[str]:
    counts = totals(plan)
    moment, live = peak(plan)
    parts = ", ".join(f"{name} {size:,}" for name, size in counts.parts.items() if size)
    lines = [
        f"launches  {counts.launches}: {counts.kernels} kernels ({counts.fused} fused, {counts.programs} programs), "
        f"{counts.products} products, {counts.attentions} attentions, {counts.indexed} by index",
        f"flops     {counts.flops:,} in products",
        f"bytes     {parts}",
        f"peak      {counts.peak_bytes:,} bytes alive at launch {moment}",
    ]
    lives = lives_of(plan)
    for number in live[:LARGEST]:
        lines.append(f"          {_life(plan, number, lives[number])}")
    return [*lines, *(f"note      {note}" for note in plan.notes)]


def _life(plan: Plan, number: int, life: Life) -> str:
    return f"{life.size_bytes:>15,}  {plan.buffers[number].name}#{number}, launches {life.first} to {life.last}"
