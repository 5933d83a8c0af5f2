"""The buffers of a plan: what is bound by name, what the host writes before a call, and the arena with its lives."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from sexpgpu.ir.graph import Node
from sexpgpu.ir.host import Expression
from sexpgpu.ir.types import SIZES, TensorType
from sexpgpu.passes.access import contiguous
from sexpgpu.plan.chunk import chunk
from sexpgpu.plan.kernel import Buffer, Launch, Place, Plan, places_of
from sexpgpu.plan.lifetime import FOREVER, Life, aligned, place
from sexpgpu.plan.reuse import reuse
from sexpgpu.plan.trace import Storage

# u32 scan, microbatch, step, one unused.
COUNTER_BYTES, KEY_BYTES, HOST_BYTES, FLAG_BYTES = 16, 8, 4, 16


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
        self.names: list[str] = ["runtime:hosts", "runtime:random", "runtime:flags", "runtime:counter"]
        self.externals: dict[str, TensorType] = {}
        self.lives: dict[int, Life] = {}
        self.hosts: list[tuple[Expression, Place]] = []
        self.randoms: list[tuple[str, int, Place]] = []
        self.flags: list[tuple[Place, int]] = []
        self._keys: dict[tuple[str, int], Place] = {}
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

    def random(self, node: Node) -> tuple[Place, Place]:
        """Places of a random field's key and of the counter."""
        key = (node.attributes["path"], node.attributes["ordinal"])
        if key not in self._keys:
            self._keys[key] = Place(1, KEY_BYTES * len(self.randoms))
            self.randoms.append((*key, self._keys[key]))
        return self._keys[key], Place(3, 0)

    def flag(self, node: Node) -> Place:
        at = Place(2, FLAG_BYTES * len(self.flags))
        self.flags.append((at, node.index))
        return at

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
        number = self._new(name)
        size = SIZES[node.dtype] * prod(node.shape)
        self.lives[number] = Life(size, first=FOREVER, last=-1)
        return Storage(Place(number), strides or contiguous(node.shape), SIZES[node.dtype])

    def keep(self, storage: Storage, moment: int) -> None:
        """An output lives to the end."""
        life = self.lives.get(storage.place.buffer)
        if life is not None:
            life.last = FOREVER

    def touch(self, launch: Launch, moment: int) -> None:
        """Records that a launch reads or writes its places."""
        for at in places_of(launch):
            life = self.lives.get(at.buffer)
            if life is not None:
                life.first = min(life.first, moment)
                life.last = max(life.last, moment)

    def _in_chunks(self, launches: tuple[Launch, ...]) -> tuple[Launch, ...]:
        """The launches with large values in chunks, and the lives as they are then."""
        made = tuple(chunk(launches, self.lives))
        if len(made) != len(launches):
            for life in self.lives.values():
                if life.last < FOREVER:
                    life.first, life.last = FOREVER, -1
            for moment, launch in enumerate(made):
                self.touch(launch, moment)
        return made

    def finish(
        self, launches: tuple[Launch, ...], outputs: dict[str, tuple[Place, TensorType]], sources: list[int]
    ) -> Plan:
        if self.keep_values:
            for life in self.lives.values():
                life.last = FOREVER
        else:
            made, stands = reuse(launches, self.lives)
            launches = self._in_chunks(tuple(made))
            outputs = {
                name: (Place(stands.get(at.buffer, at.buffer), at.offset), type_) for name, (at, type_) in outputs.items()
            }
        for moment, launch in enumerate(launches):
            for at in places_of(launch):
                if at.buffer in self.landed:
                    self.landed[at.buffer].first = min(self.landed[at.buffer].first, moment)
        used = [life for life in self.lives.values() if life.last >= 0]
        arena_bytes = place(used, tuple(self.landed.values()))
        counts = ((HOST_BYTES, self.hosts), (KEY_BYTES, self.randoms), (FLAG_BYTES, self.flags))
        runtime = (*(size * len(held) for size, held in counts), COUNTER_BYTES)
        buffers: list[Buffer] = []
        for number, name in enumerate(self.names):
            if number < len(runtime):
                buffers.append(Buffer(name, aligned(runtime[number]), "runtime"))
            elif number in self.lives or number in self.landed:
                life = self.lives[number] if number in self.lives else self.landed[number]
                buffers.append(Buffer(name, life.size_bytes, "arena", life.offset))
            elif name in self.externals:
                buffers.append(Buffer(name, self.externals[name].size_bytes, "external"))
            else:
                # Another buffer stands for it.
                buffers.append(Buffer(name, 0, "arena"))
        flags = tuple((at, sources[index]) for at, index in self.flags)
        return Plan(
            launches, tuple(buffers), arena_bytes, self.externals, outputs, tuple(self.hosts), tuple(self.randoms), flags
        )


def lives_of(plan: Plan) -> dict[int, Life]:
    """For every buffer that a plan uses the launches between which it does; outputs to the end."""
    lives: dict[int, Life] = {}

    def touch(number: int, moment: int) -> None:
        life = lives.setdefault(number, Life(plan.buffers[number].size_bytes, moment, moment, plan.buffers[number].offset))
        life.last = max(life.last, moment)

    for moment, launch in enumerate(plan.launches):
        for at in places_of(launch):
            touch(at.buffer, moment)
    for at, _ in plan.outputs.values():
        touch(at.buffer, len(plan.launches))
    return lives
