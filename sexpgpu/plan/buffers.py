"""The buffers of a plan: what is bound by name, what the host writes before a call, and the arena with its lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from sexpgpu.ir.graph import Node
from sexpgpu.ir.host import Expression
from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.passes.access import contiguous
from sexpgpu.plan.chunk import chunk
from sexpgpu.plan.kernel import Buffer, Launch, Place, Plan, Window
from sexpgpu.plan.lifetime import FOREVER, Life, aligned, place
from sexpgpu.plan.moments import uses
from sexpgpu.plan.reuse import reuse
from sexpgpu.plan.trace import Storage

# u32 scan, microbatch, step, one unused.
COUNTER_BYTES, KEY_BYTES, HOST_BYTES, FLAG_BYTES, POSITION_BYTES = 16, 8, 4, 16, 4
# Numbers of the host's buffers.
COUNTER, POSITIONS = 3, 4


@dataclass
class OpenLoop:
    """A loop whose body is being planned."""

    length: int
    windows: list[Window] = field(default_factory=list)
    temporaries: set[int] = field(default_factory=set)


class Buffers:
    """Collects storages while launches are made; `finish` places the arena."""

    def __init__(self, keep_values: bool, landing: Mapping[str, int]) -> None:
        self.keep_values = keep_values
        # Bound outputs that have a fixed place in the arena, in bytes, and the numbers of their buffers.
        self.landing = landing
        self.landed: dict[int, Life] = {}
        self.storage: dict[Node, Storage] = {}
        self.claimed: dict[Node, str] = {}
        # Values whose memory is given before they are made.
        self.placed: dict[Node, Storage] = {}
        self.names: list[str] = ["runtime:hosts", "runtime:random", "runtime:flags", "runtime:counter", "runtime:positions"]
        self.externals: dict[str, TensorType] = {}
        self.lives: dict[int, Life] = {}
        self.hosts: list[tuple[Expression, Place]] = []
        self.randoms: list[tuple[str, int, Place]] = []
        self.flags: list[tuple[Place, int]] = []
        # The loops whose body is being planned, the outermost first, and the most positions that a draw has in them.
        self.loops: list[OpenLoop] = []
        self.positions = 0
        self._keys: dict[tuple[str, int], Place] = {}
        self.windows: set[int] = set()
        self._numbers: dict[str, int] = {name: k for k, name in enumerate(self.names)}

    def _new(self, name: str) -> int:
        self.names.append(name)
        return len(self.names) - 1

    @staticmethod
    def external_name(node: Node) -> str:
        return f"{node.attributes['kind']}:{node.attributes['name']}"

    def named(self, name: str, node: Node) -> Storage:
        """The storage of an external buffer of the node's type."""
        if name not in self._numbers:
            self._numbers[name] = self._new(name)
            if name in self.landing:
                self.landed[self._numbers[name]] = Life(node.tensor.size_bytes, FOREVER, FOREVER, self.landing[name])
            else:
                self.externals[name] = node.tensor
        return Storage(Place(self._numbers[name]), contiguous(node.shape), SIZES[node.dtype])

    def external(self, node: Node) -> None:
        self.storage[node] = self.named(self.external_name(node), node)

    def find(self, node: Node) -> Storage | None:
        """Where a value is; a reshape of what lies row-major is there too."""
        found = self.storage.get(node)
        if found is None and node.op == "reshape":
            source = self.find(node.inputs[0])
            if source is not None and source.strides == contiguous(node.inputs[0].shape):
                return Storage(source.place, contiguous(node.shape), source.item_bytes)
        return found

    def host(self, node: Node) -> None:
        at = Place(0, HOST_BYTES * len(self.hosts))
        self.hosts.append((node.attributes["expression"], at))
        self.storage[node] = Storage(at, (), HOST_BYTES)

    def random(self, node: Node) -> tuple[Place, Place, Place]:
        """Places of a random field's key, of the counter and of the counter's word `scan`."""
        key = (node.attributes["path"], node.attributes["ordinal"])
        if key not in self._keys:
            self._keys[key] = Place(1, KEY_BYTES * len(self.randoms))
            self.randoms.append((*key, self._keys[key]))
        return self._keys[key], Place(COUNTER), self._position()

    def _position(self) -> Place:
        """Where a launch finds the index of the scan around it, counted on through scans in scans."""
        if not self.loops:
            return Place(COUNTER)
        self.positions = max(self.positions, prod(loop.length for loop in self.loops))
        return self.spread(Place(POSITIONS), POSITION_BYTES)

    def flag(self, source: int) -> Place:
        """A flag of a node of the graph that is planned."""
        at = Place(2, FLAG_BYTES * len(self.flags))
        self.flags.append((at, source))
        return at

    # -- loops

    def window(self, loop: OpenLoop, base: Place, step: int, shift: int = 0, period: int = 0) -> Place:
        """The part of a buffer that follows an open loop's position."""
        name = self.names[base.buffer]
        number = self._new(f"{name}#{base.buffer}@" if base.buffer in self.lives else f"{name}@")
        self.windows.add(number)
        loop.windows.append(Window(number, base, step, shift, period))
        return Place(number)

    def spread(self, base: Place, size_bytes: int) -> Place:
        """The place of an iteration's own part of a buffer that has one for every iteration of all open loops."""
        for k, loop in enumerate(self.loops):
            base = self.window(loop, base, size_bytes * prod(inner.length for inner in self.loops[k + 1 :]))
        return base

    def claim(self, node: Node, target: str) -> None:
        """The node's value will be written to this external buffer."""
        self.claimed[node] = target

    def result(self, node: Node, strides: tuple[int, ...] | None = None) -> Storage:
        """The storage of a value that a launch is about to write."""
        if node in self.placed:
            return self.placed[node]
        if node in self.claimed:
            return self.named(self.claimed[node], node)
        return self.arena(node.op, node, strides)

    def arena(self, name: str, node: Node, strides: tuple[int, ...] | None = None) -> Storage:
        item = SIZES[node.dtype]
        return Storage(self.block(name, item * prod(node.shape)), strides or contiguous(node.shape), item)

    def block(self, name: str, size_bytes: int) -> Place:
        """So many bytes of the arena; where every value is kept, those of each iteration."""
        number = self._new(name)
        kept = self.keep_values and bool(self.loops)
        times = prod(loop.length for loop in self.loops) if kept else 1
        self.lives[number] = Life(size_bytes * times, first=FOREVER, last=-1)
        if kept:
            return self.spread(Place(number), size_bytes)
        if self.loops:
            self.loops[-1].temporaries.add(number)
        return Place(number)

    def keep(self, storage: Storage) -> None:
        """An output lives to the end."""
        life = self.lives.get(storage.place.buffer)
        if life is not None:
            life.last = FOREVER

    def _find_lives(self, launches: tuple[Launch, ...]) -> None:
        """Sets when each buffer of the arena is in use."""
        for life in self.lives.values():
            life.first, life.last = FOREVER, life.last if life.last == FOREVER else -1
        for number, first, last in uses(launches)[0]:
            life_of = self.lives.get(number)
            if life_of is not None:
                life_of.first, life_of.last = min(life_of.first, first), max(life_of.last, last)

    def _in_chunks(self, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
        """The launches with large values in chunks, and the lives as they are then."""
        made = tuple(chunk(launches, self.lives))
        if len(made) != len(launches):
            self._find_lives(made)
        return made

    def finish(
        self, launches: tuple[Launch, ...], outputs: dict[str, tuple[Place, TensorType]]
    ) -> Plan:
        self._find_lives(launches)
        if self.keep_values:
            for life in self.lives.values():
                life.last = FOREVER
        else:
            made, stands = reuse(launches, self.lives)
            launches = self._in_chunks(tuple(made))
            outputs = {
                name: (Place(stands.get(at.buffer, at.buffer), at.offset), type_) for name, (at, type_) in outputs.items()
            }
        for number, first, _ in uses(launches)[0]:
            if number in self.landed:
                self.landed[number].first = min(self.landed[number].first, first)
        used = [life for life in self.lives.values() if life.last >= 0]
        arena_bytes = place(used, tuple(self.landed.values()))
        counts = ((HOST_BYTES, self.hosts), (KEY_BYTES, self.randoms), (FLAG_BYTES, self.flags))
        runtime = (*(size * len(held) for size, held in counts), COUNTER_BYTES, POSITION_BYTES * self.positions)
        buffers: list[Buffer] = []
        for number, name in enumerate(self.names):
            if number < len(runtime):
                buffers.append(Buffer(name, aligned(runtime[number]), "runtime"))
            elif number in self.lives or number in self.landed:
                life = self.lives[number] if number in self.lives else self.landed[number]
                buffers.append(Buffer(name, life.size_bytes, "arena", life.offset))
            elif number in self.windows:
                buffers.append(Buffer(name, 0, "window"))
            elif name in self.externals:
                buffers.append(Buffer(name, self.externals[name].size_bytes, "external"))
            else:
                # Another buffer stands for it.
                buffers.append(Buffer(name, 0, "arena"))
        written = tuple(self.hosts), tuple(self.randoms), tuple(self.flags)
        return Plan(launches, tuple(buffers), arena_bytes, self.externals, outputs, *written)


def lives_of(plan: Plan) -> dict[int, Life]:
    """For every buffer that a plan uses the launches between which it does; outputs to the end."""
    lives: dict[int, Life] = {}

    def touch(number: int, moment: int) -> None:
        life = lives.setdefault(number, Life(plan.buffers[number].size_bytes, moment, moment, plan.buffers[number].offset))
        life.first, life.last = min(life.first, moment), max(life.last, moment)

    found, end = uses(plan.launches)
    for number, first, last in found:
        if plan.buffers[number].kind != "window":
            touch(number, first)
            touch(number, last)
    for at, _ in plan.outputs.values():
        touch(at.buffer, end)
    return lives
