"""Large values that few launches share are made in chunks of rows: logits, say, and what the loss and its gradient make of them.

A product writes the value, row kernels read and rewrite it, further products contract it away. When every launch on the
way works row by row, all of them run for some rows, then for the next ones, and only a chunk of the value is in memory.
A product over the rows adds up chunk by chunk. How the rows are cut follows from shapes alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import lcm

from msgspec.structs import replace

from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Access, Attention, Generated, Indexed, Launch, Matrix, Place, Product, places_of
from sexpgpu.plan.lifetime import FOREVER, Life

# Smaller values are made whole. A chunk has at least so many bytes, and half of what the products beside it have:
# each chunk reads and writes their other operands and results again.
SMALLEST_BYTES = 24 << 20
CHUNK_BYTES, SHARE = 16 << 20, 0.5
# Rows of a chunk are a multiple of this, as products are computed in tiles.
TILE = 16
# Launches between the first and the last that touch the value.
MOST_LAUNCHES = 64


@dataclass(frozen=True)
class _Step:
    """One operand of a launch: it moves by `bytes` for every `unit` rows, of which it covers so many bytes."""

    place: Place
    unit: int
    bytes: int
    covers: int
    written: bool

    def at(self, start: int) -> Place:
        """Its place from this row on."""
        return replace(self.place, offset=self.place.offset + start // self.unit * self.bytes)


@dataclass
class _Group:
    """The launches that run chunk by chunk, and for each what its operands step by."""

    rows: int
    members: dict[int, list[_Step]] = field(default_factory=dict)
    unit: int = 1


def chunk(launches: Sequence[Launch], lives: Mapping[int, Life]) -> list[Launch]:
    """The launches with large values in chunks. `lives`: sizes of arena buffers; those of chunked values shrink."""
    made = list(launches)
    large = [number for number, life in lives.items() if life.size_bytes >= SMALLEST_BYTES and life.last < FOREVER]
    for number in sorted(large):
        touching = [k for k, launch in enumerate(made) if any(at.buffer == number for at in places_of(launch))]
        if len(touching) > 1 and touching[-1] - touching[0] < MOST_LAUNCHES:
            made = _chunked(made, number, touching, lives) or made
    return made


def _chunked(
    launches: list[Launch], number: int, touching: Sequence[int], lives: Mapping[int, Life]
) -> list[Launch] | None:
    """The launches with this value in chunks; None where some launch does not work row by row."""
    first, last = touching[0], touching[-1]
    producer = launches[first]
    if not isinstance(producer, Product) or producer.accumulate or len(producer.c.starts) > 1:
        return None
    members, before, after = _sorted_out(launches, first, last, set(touching))
    group = _grouped({k: launches[k] for k in members}, number, producer)
    if group is None:
        return None
    count = _rows_of_chunk(group, launches, lives[number].size_bytes)
    if count >= group.rows:
        return None
    inside = _shrinking(launches, group, lives)
    chunks = [
        _part(launches[k], steps, start, min(count, group.rows - start), inside)
        for start in range(0, group.rows, count)
        for k, steps in group.members.items()
    ]
    for buffer in inside:
        lives[buffer].size_bytes = lives[buffer].size_bytes // group.rows * count
    return [*launches[:first], *(launches[k] for k in before), *chunks, *(launches[k] for k in after), *launches[last + 1 :]]


# -- which launches


def _touches(launch: Launch) -> tuple[set[int], set[int]]:
    """Buffers that a launch reads and those that it writes; flags aside, which nothing reads."""
    if isinstance(launch, Generated | Attention):
        return {a.place.buffer for a in launch.loads if a.place}, {a.place.buffer for a in launch.stores if a.place}
    if isinstance(launch, Product):
        written = {launch.c.place.buffer}
        return {launch.a.place.buffer, launch.b.place.buffer} | (written if launch.accumulate else set()), written
    if isinstance(launch, Indexed):
        read, written = {at.buffer for at in launch.inputs}, {launch.out.buffer}
        return read | (written if launch.op.endswith("_add") else set()), written
    every = {at.buffer for at in places_of(launch)}
    return every, every


def _sorted_out(
    launches: Sequence[Launch], first: int, last: int, touching: set[int]
) -> tuple[list[int], list[int], list[int]]:
    """The launches from `first` to `last`: those that a chunk runs, and the others, before and after the chunks."""
    window = range(first, last + 1)
    touched = {k: _touches(launches[k]) for k in window}

    def needs(later: int, earlier: int) -> bool:
        (read, written), (read_before, written_before) = touched[later], touched[earlier]
        return bool(written_before & (read | written) or read_before & written)

    follows: dict[int, bool] = {}
    for k in window:
        follows[k] = k in touching or any(follows[j] and needs(k, j) for j in range(first, k))
    members = set(touching)
    for k in reversed(window):
        if k not in members and follows[k] and any(j in members and needs(j, k) for j in range(k + 1, last + 1)):
            members.add(k)
    others = [k for k in window if k not in members]
    return sorted(members), [k for k in others if not follows[k]], [k for k in others if follows[k]]


# -- how each works row by row


def _grouped(members: Mapping[int, Launch], number: int, producer: Product) -> _Group | None:
    """How every member steps along the rows; None where one does not, or reads other rows than its own."""
    group = _Group(producer.m)
    row_bytes = {number: producer.c.row * SIZES[producer.c_dtype]}
    sums: set[int] = set()
    for k, launch in members.items():
        found = next((steps for steps in _ways(launch, group.rows) if _fits(steps, row_bytes, sums)), None)
        if found is None:
            return None
        for step in found:
            group.unit = lcm(group.unit, step.unit)
            if step.written and step.bytes:
                row_bytes.setdefault(step.place.buffer, step.bytes // step.unit)
            elif step.written:
                sums.add(step.place.buffer)
        group.members[k] = found
    return group


def _fits(steps: Sequence[_Step], row_bytes: Mapping[int, int], sums: set[int]) -> bool:
    """Whether what members share is read and written row by row, at the same step, and no sum is used unfinished."""
    for step in steps:
        if step.place.buffer in sums:
            return False
        row = row_bytes.get(step.place.buffer, step.bytes // step.unit if step.written and step.bytes else None)
        if row is None:
            continue
        if step.bytes != row * step.unit or step.place.offset + step.covers > step.bytes:
            return False
    return True


def _ways(launch: Launch, rows: int) -> Iterator[list[_Step]]:
    """The ways in which a launch may be cut along the rows."""
    if isinstance(launch, Generated):
        if launch.sizes and rows % launch.sizes[0] == 0 and launch.sizes[0] > 1 and _cuts_first_loop(launch):
            yield list(_generated_steps(launch, rows // launch.sizes[0]))
    elif isinstance(launch, Product):
        if len(launch.c.starts) == 1:
            yield from _product_ways(launch, rows)
    elif isinstance(launch, Indexed) and launch.op == "gather" and launch.outer > 1 and rows % launch.outer == 0:
        yield _gather_steps(launch, rows // launch.outer)


def _cuts_first_loop(launch: Generated) -> bool:
    reduced = {"map": 0, "row": 1, "column": 2}[launch.program.kind]
    return len(launch.sizes) > reduced


def _generated_steps(launch: Generated, unit: int) -> Iterator[_Step]:
    program = launch.program
    loads = ((a, load.dtype, False) for a, load in zip(launch.loads, program.loads))
    stores = ((a, store.dtype, True) for a, store in zip(launch.stores, program.stores))
    for access, dtype, written in (*loads, *stores):
        if access.place is not None:
            size = SIZES[dtype]
            inner = [(n - 1) * step for n, step in zip(launch.sizes[1:], access.strides[1:])]
            # Steps backwards fit no buffer that members share.
            covers = (sum(inner) + 1) * size if min(inner, default=0) >= 0 else FOREVER
            yield _Step(access.place, unit, access.strides[0] * size, covers, written)


def _product_ways(launch: Product, rows: int) -> Iterator[list[_Step]]:
    def step(matrix: Matrix, moves: int, count: int, along: int, written: bool = False) -> _Step:
        size = SIZES[launch.c_dtype if written else launch.dtype]
        place = replace(matrix.place, offset=matrix.place.offset + matrix.starts[0] * size)
        return _Step(place, 1, moves * size, (max(count - 1, 0) * along + 1) * size, written)

    a, b, c = launch.a, launch.b, launch.c
    if a.has_loops or b.has_loops:
        return
    if launch.m == rows:
        yield [step(a, a.row, launch.k, a.column), step(b, 0, 1, 0), step(c, c.row, launch.n, c.column, True)]
    if launch.k == rows:
        yield [step(a, a.column, launch.m, a.row), step(b, b.row, launch.n, b.column), step(c, 0, 1, 0, True)]


def _gather_steps(launch: Indexed, unit: int) -> list[_Step]:
    table, picked = launch.size * launch.inner * SIZES[launch.dtype], launch.count * launch.inner
    sizes = table, picked * SIZES[launch.index_dtype], picked * SIZES[launch.dtype]
    places = *launch.inputs, launch.out
    return [_Step(at, unit, size, size, k == 2) for k, (at, size) in enumerate(zip(places, sizes))]


# -- the chunks


def _rows_of_chunk(group: _Group, launches: Sequence[Launch], size_bytes: int) -> int:
    members = [launches[k] for k in group.members]
    sums = [4 * p.m * p.n for p in members if isinstance(p, Product) and p.m != group.rows]
    pieces = -(-size_bytes // max(CHUNK_BYTES, int(max(sums, default=0) * SHARE)))
    step = lcm(group.unit, TILE)
    return -(-group.rows // (pieces * step)) * step


def _shrinking(launches: Sequence[Launch], group: _Group, lives: Mapping[int, Life]) -> set[int]:
    """Buffers that only members touch, each by whole rows: they hold one chunk."""
    inside = {step.place.buffer for steps in group.members.values() for step in steps if step.written and step.bytes}
    for k, launch in enumerate(launches):
        if k not in group.members:
            inside -= {at.buffer for at in places_of(launch)}
    return {number for number in inside if number in lives and lives[number].last < FOREVER}


def _part(launch: Launch, steps: Sequence[_Step], start: int, count: int, inside: set[int]) -> Launch:
    """The launch for rows start … start + count."""
    places = [step.place if step.place.buffer in inside else step.at(start) for step in steps]
    unit = steps[0].unit
    if isinstance(launch, Generated):
        remaining = iter(places)

        def access(old: Access) -> Access:
            if old.place is None:
                return replace(old, start=old.start + start // unit * old.strides[0])
            return replace(old, place=next(remaining))

        loads = tuple(map(access, launch.loads))
        sizes = (count // unit, *launch.sizes[1:])
        return replace(launch, sizes=sizes, loads=loads, stores=tuple(map(access, launch.stores)))
    if isinstance(launch, Indexed):
        return replace(launch, outer=count // unit, inputs=tuple(places[:2]), out=places[2])
    assert isinstance(launch, Product), launch
    a, b, c = (replace(m, place=at, starts=(0,)) for m, at in zip((launch.a, launch.b, launch.c), places))
    if steps[2].bytes:
        return replace(launch, m=count, a=a, b=b, c=c)
    return replace(launch, k=count, a=a, b=b, c=c, accumulate=launch.accumulate or start > 0)
