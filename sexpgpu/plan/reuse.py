"""In place: a kernel's result takes the memory of an operand that it is the last to read, element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from sexpgpu.plan.kernel import Access, Attention, Generated, Indexed, Launch, Loop, Place, Product
from sexpgpu.plan.lifetime import Life

# Below this a result keeps its own place: the gain is nothing, and a kernel in place is a program of its own.
SMALLEST_BYTES = 1 << 16


def reuse(launches: Sequence[Launch], lives: dict[int, Life]) -> tuple[list[Launch], dict[int, int]]:
    """The launches in which operands are overwritten, and which buffer stands for which.

    `lives` loses the buffers that are now others; these live as long as both.
    """
    stands: dict[int, int] = {}
    made, _ = _reused(launches, 0, lives, stands)
    return made, stands


def _reused(
    launches: Sequence[Launch], moment: int, lives: dict[int, Life], stands: dict[int, int]
) -> tuple[list[Launch], int]:
    """The launches from a moment on (see `plan/moments.py`), and the moment after them."""
    made: list[Launch] = []
    for launch in launches:
        if isinstance(launch, Loop):
            inner, moment = _reused(launch.launches, moment + 1, lives, stands)
            launch = replace(launch, launches=tuple(inner))
        launch = moved(launch, stands)
        if isinstance(launch, Generated):
            launch = _in_place(launch, moment, lives, stands)
        made.append(launch)
        moment += 1
    return made, moment


def _in_place(launch: Generated, moment: int, lives: dict[int, Life], stands: dict[int, int]) -> Generated:
    for number, store in enumerate(launch.stores):
        assert store.place is not None
        mine = store.place.buffer
        life = lives.get(mine)
        if life is None or life.first != moment or life.size_bytes < SMALLEST_BYTES or store.place.offset:
            continue
        if sum(other.place is not None and other.place.buffer == mine for other in launch.stores) > 1:
            continue
        load = _overwritable(launch, number, moment, lives)
        if load is None:
            continue
        place = launch.loads[load].place
        assert place is not None
        stands[mine] = place.buffer
        lives[place.buffer].last = life.last
        del lives[mine]
        stores = list(launch.program.stores)
        stores[number] = replace(stores[number], alias=load)
        accesses = list(launch.stores)
        accesses[number] = launch.loads[load]
        launch = replace(launch, program=replace(launch.program, stores=tuple(stores)), stores=tuple(accesses))
    return launch


def _overwritable(launch: Generated, number: int, moment: int, lives: Mapping[int, Life]) -> int | None:
    """The load whose buffer dies here and is read only at the very places that the store writes."""
    store, dtype = launch.stores[number], launch.program.stores[number].dtype
    assert store.place is not None
    size = lives[store.place.buffer].size_bytes
    for k, access in enumerate(launch.loads):
        if access.place is None or launch.program.loads[k].dtype != dtype:
            continue
        life = lives.get(access.place.buffer)
        if life is None or life.last != moment or life.first == moment or life.size_bytes != size:
            continue
        fits = access.strides == store.strides and access.place.offset == 0
        if fits and not _read_otherwise(launch, k):
            return k
    return None


def _read_otherwise(launch: Generated, load: int) -> bool:
    place = launch.loads[load].place
    assert place is not None
    others: list[Access] = [a for k, a in enumerate(launch.loads) if k != load]
    return any(a.place is not None and a.place.buffer == place.buffer for a in (*others, *launch.stores))


def moved(launch: Launch, stands: Mapping[int, int]) -> Launch:
    """The launch with its places in the buffers that stand for theirs."""
    if not stands:
        return launch

    def at(place: Place) -> Place:
        return Place(stands[place.buffer], place.offset) if place.buffer in stands else place

    def access(old: Access) -> Access:
        return old if old.place is None else Access(at(old.place), old.strides, old.start)

    if isinstance(launch, Generated | Attention):
        if not any(a.place is not None and a.place.buffer in stands for a in (*launch.loads, *launch.stores)):
            return launch
        return replace(launch, loads=tuple(map(access, launch.loads)), stores=tuple(map(access, launch.stores)))
    if isinstance(launch, Product):
        a, b, c = (replace(m, place=at(m.place)) for m in (launch.a, launch.b, launch.c))
        return replace(launch, a=a, b=b, c=c)
    if isinstance(launch, Loop):
        windows = tuple(replace(window, base=at(window.base)) for window in launch.windows)
        return replace(launch, windows=windows)
    assert isinstance(launch, Indexed)
    return replace(launch, inputs=tuple(map(at, launch.inputs)), out=at(launch.out))
