"""Many maps of one program as one launch: an optimizer's update of all parameters is one kernel, not one a parameter.

What may be joined are maps of one loop over neighbours that write buffers of the model: a later one takes its turn with
the first where nothing in between touches what it writes or writes what it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sexpgpu.codegen.cuda_map import THREADS, MapWriter
from sexpgpu.codegen.cuda_operands import Alignment, Operand, offset, operands_of
from sexpgpu.codegen.cuda_source import MEMORY_TYPES, CudaKernel, CudaLaunch, Scratch, Words
from sexpgpu.codegen.source import describe_lines
from sexpgpu.plan.kernel import Generated, Launch, Place, Plan, Store, places_of

# Packs that a thread takes, one after the other.
ROUNDS = 4
# A launch's parameters may take 32,764 bytes from compute capability 7.0 on.
MOST_WORDS = 4000
# Places stay below 2^31 with room for the last block's threads.
LARGEST = 1 << 30


@dataclass
class _Group:
    position: int
    members: list[int] = field(default_factory=list)


def groups_of(plan: Plan) -> list[list[int]]:
    """Numbers of launches that are done together, each group at its first one's turn; groups of two or more."""
    last_write: dict[int, int] = {}
    last_touch: dict[int, int] = {}
    open_groups: dict[object, _Group] = {}
    made: list[_Group] = []
    for position, launch in enumerate(plan.launches):
        if isinstance(launch, Generated) and _may_join(launch, plan):
            key = launch.program
            group = open_groups.get(key)
            if group is None or not _fits(group, launch, last_write, last_touch):
                open_groups[key] = group = _Group(position)
                made.append(group)
            group.members.append(position)
        _note(launch, position, last_write, last_touch)
    return [group.members for group in made if len(group.members) > 1]


def _may_join(launch: Generated, plan: Plan) -> bool:
    if launch.program.kind != "map" or len(launch.sizes) != 1 or not 0 < launch.sizes[0] <= LARGEST:
        return False
    in_memory = all(access.place is not None for access in launch.loads)
    plain = all(access.strides[0] in (0, 1) for access in launch.loads) and all(a.strides == (1,) for a in launch.stores)
    return in_memory and plain and all(a.place and plan.buffers[a.place.buffer].kind == "external" for a in launch.stores)


def _fits(group: _Group, launch: Generated, last_write: dict[int, int], last_touch: dict[int, int]) -> bool:
    """Whether a launch may be done at the group's turn, together with its members."""
    words = (len(group.members) + 1) * (2 + len(launch.loads) + len(launch.stores))
    reads = {a.place.buffer for a in launch.loads if a.place is not None}
    writes = {a.place.buffer for a in launch.stores if a.place is not None}
    early = all(last_write.get(b, -1) < group.position for b in reads)
    return words <= MOST_WORDS and early and all(last_touch.get(b, -1) < group.position for b in writes)


def _note(launch: Launch, position: int, last_write: dict[int, int], last_touch: dict[int, int]) -> None:
    for place in places_of(launch):
        last_touch[place.buffer] = position
    if isinstance(launch, Generated):
        for access in launch.stores:
            if access.place is not None:
                last_write[access.place.buffer] = position
    else:
        # What of these a launch only reads does not matter enough to be told apart.
        for place in places_of(launch):
            last_write[place.buffer] = position


def emit_many(launches: Sequence[Generated], alignment: Alignment) -> CudaLaunch:
    """One launch for maps of one program. A block takes a part of one of them."""
    writer = _Many(launches, alignment)
    kernel = writer.write()
    return CudaLaunch(kernel, (writer.blocks, 1, 1), tuple(writer.text.arguments))


class _Many(MapWriter):
    """Of `count` launches the table of words holds every first block, then every size, then every operand's addresses."""

    def __init__(self, launches: Sequence[Generated], alignment: Alignment) -> None:
        super().__init__(launches[0], alignment)
        self.text.kind = "many"
        self.limit = "n"
        self.count = len(launches)
        self.every = [operands_of(launch) for launch in launches]
        self.width = min(MapWriter(launch, alignment).width for launch in launches)
        self.part = THREADS * self.width * ROUNDS
        self.sizes = [launch.sizes[0] for launch in launches]
        blocks = [-(-size // self.part) for size in self.sizes]
        self.first = [sum(blocks[:number]) for number in range(self.count)]
        self.blocks = sum(blocks)

    def write(self) -> CudaKernel:
        words: list[Place | Scratch | int] = [*self.first, *self.sizes]
        pointers = [self._pointer(operand, words) for operand in self.operands if operand.pointer == f"p{operand.number}"]
        self.text.call(f"struct Words{len(words)} {{ unsigned long long at[{len(words)}]; }};")
        self.text.parameter(f"const __grid_constant__ Words{len(words)} words", Words(tuple(words)))
        self._search()
        for pointer in filter(None, pointers):
            self.text.add(pointer)
        self._rounds()
        return self.text.finish([f"{self.count} maps.", *describe_lines(self.program)])

    def _pointer(self, operand: Operand, words: list[Place | Scratch | int]) -> str:
        """An operand of one address in all launches is a parameter, else the line that reads its address is given back."""
        places = [own[operand.number].access.place for own in self.every]
        written = any(isinstance(o.description, Store) for o in self.operands if o.pointer == operand.pointer)
        kind = f"{'' if written else 'const '}{MEMORY_TYPES[operand.description.dtype]}*"
        if not written and len(set(places)) == 1:
            assert places[0] is not None
            self.text.parameter(f"{kind} __restrict__ {operand.pointer}", places[0])
            return ""
        begin = len(words)
        words += [place for place in places if place is not None]
        return f"{kind} __restrict__ {operand.pointer} = ({kind})words.at[{begin} + low];"

    def _search(self) -> None:
        add = self.text.add
        add("// The map that this block works on: the last whose first block is not beyond it.")
        add(f"int low = 0, high = {self.count};")
        self.text.open("while (high - low > 1)")
        add("const int middle = (low + high) / 2;")
        add("if ((unsigned)words.at[middle] <= blockIdx.x) low = middle; else high = middle;")
        self.text.close()
        add(f"const int n = (int)words.at[{self.count} + low];")
        add(f"const int begin = (int)(blockIdx.x - (unsigned)words.at[low]) * {self.part};")

    def _rounds(self) -> None:
        self.text.open(f"for (int round = 0; round < {ROUNDS}; ++round)")
        self.text.add(f"const int i0 = begin + (round * {THREADS} + (int)threadIdx.x) * {self.width};")
        has_rest = self.width > 1 and any(size % self.width for size in self.sizes)
        if not has_rest:
            self.text.add("if (i0 >= n) return;")
        for operand in self.operands:
            self.text.add(f"const int o{operand.number} = {offset(operand, {0: 'i0'})};")
        self.points(has_rest)
        self.text.close()
