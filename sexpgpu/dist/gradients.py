"""The sum of gradients over ranks: every rank evaluates a slice of one canonical tree, so the bits are those of one rank.

Ranks of a node share one piece of memory, in which each leaves the nodes of the tree that it holds (`plan_sum`). Between
nodes, ranks of the same local number exchange their slice of the node's own nodes, and all add them up alike.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from sexpgpu.dist.reduction import MOST_LANES, Node, SumPlan, lanes_of, middle, plan_sum, share_of, tree_nodes
from sexpgpu.errors import Error

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sexpgpu.dist.exchange import Ranks

    Array = NDArray[np.float32]

PAGE_BYTES = 4096
# Elements that are summed at a time: a rank's slice of every node of the tree stays in the cache of its core.
CHUNK_ELEMENTS = 1 << 15


class GradientExchange(Protocol):
    """The sum over all ranks of a step's gradients. In each step: `begin`, the operations of `plan`, `finish`."""

    @property
    def arrays(self) -> Sequence[Array] | None:
        """Flat memory for this rank's buffers; None: one's own will do."""
        ...

    @property
    def total(self) -> Array | None:
        """Where `finish` leaves the sum, the same memory for all ranks of a node; None: in buffer 0."""
        ...

    def plan(self, calls: int) -> SumPlan:
        """This rank's part of a step of so many calls."""
        ...

    def begin(self) -> None:
        """Before the first write of a step: waits until no rank reads the former sum any more."""
        ...

    def finish(self, calls: int) -> None:
        """Every operation of this rank's plan is done; afterwards `total` holds the sum."""
        ...


def lanes_for(calls: int, ranks: int, most: int = MOST_LANES) -> int:
    """Lanes of a step: those of one rank where each rank then has equally many calls, else a multiple of the ranks.

    Where the calls do not divide over the ranks (`:global-batch`), shares are uneven and the lanes those of one rank.
    """
    lanes = lanes_of(calls, most)
    if calls % ranks or lanes % ranks == 0:
        return lanes
    return next(count for count in range(max(most, ranks), 0, -1) if calls % count == 0 and count % ranks == 0)


def lanes_line(calls: int, ranks: int, most: int = MOST_LANES) -> str | None:
    """What the header says where the sum of this many ranks has other bits than that of one."""
    lanes, alone = lanes_for(calls, ranks, most), lanes_of(calls, most)
    if lanes == alone:
        return None
    return f"sum lanes {lanes}, one rank has {alone}: bits differ from those of one rank"


class Alone:
    """One rank: the plan alone is the sum."""

    arrays: Sequence[Array] | None = None
    total: Array | None = None

    def __init__(self, most_lanes: int = MOST_LANES) -> None:
        self.most_lanes = most_lanes

    def plan(self, calls: int) -> SumPlan:
        return plan_sum(calls, lanes_for(calls, 1, self.most_lanes))

    def begin(self) -> None:
        """Nobody else reads the sum."""

    def finish(self, calls: int) -> None:
        """Buffer 0 holds the sum already."""


class Shared:
    """Several ranks. `calls`: every number of calls that a step of this run may have."""

    def __init__(self, ranks: Ranks, elements: int, calls: Collection[int], most_lanes: int = MOST_LANES) -> None:
        self.ranks, self.world = ranks, ranks.world
        self.most_lanes = most_lanes
        self.elements = elements
        # Buffers begin at whole cache lines.
        self.stride = -(-elements // 16) * 16
        counts = [self._buffers(rank, calls) for rank in range(self.world.size)]
        first = self.world.rank - self.world.local_rank
        self.local = range(first, first + self.world.local_size)
        starts = [sum(counts[first:rank]) for rank in (*self.local, self.local.stop)]
        memory = share_memory(ranks, starts[-1] * self.stride * 4)
        self._buffers_of = [
            [memory[i * self.stride : i * self.stride + elements] for i in range(low, high)]
            for low, high in pairwise(starts)
        ]
        self.arrays: Sequence[Array] | None = self._buffers_of[self.world.local_rank]
        self.total: Array | None = self._buffers_of[0][0]

    def _buffers(self, rank: int, calls: Collection[int]) -> int:
        # A rank without lanes still has one buffer, so that the first of a node has room for the sum.
        return max(1, *(self._plan(rank, count).buffers for count in calls))

    def _lanes(self, rank: int, calls: int) -> tuple[int, Node]:
        lanes = lanes_for(calls, self.world.size, self.most_lanes)
        return lanes, share_of(rank, self.world.size, lanes)

    def _plan(self, rank: int, calls: int) -> SumPlan:
        lanes, (low, high) = self._lanes(rank, calls)
        return plan_sum(calls, lanes, low, high)

    def plan(self, calls: int) -> SumPlan:
        return self._plan(self.world.rank, calls)

    def begin(self) -> None:
        self.ranks.barrier("the begin of a step", local=True)

    def finish(self, calls: int) -> None:
        self.ranks.barrier("the sum of gradients", local=True)
        lanes, _ = self._lanes(0, calls)
        parts = {
            node: array
            for rank, arrays in zip(self.local, self._buffers_of)
            for node, array in zip(self._plan(rank, calls).nodes, arrays)
        }
        if self.world.nodes == 1:
            self._sum_slice(parts, lanes)
        else:
            self._sum_between(parts, lanes)
        self.ranks.barrier("the sum of gradients", local=True)

    def _slice(self, pieces: int) -> range:
        """The first elements of the chunks that this rank sums, of those cut for so many ranks of a node."""
        low, high = share_of(self.world.local_rank, pieces, -(-self.elements // 16))
        return range(min(low * 16, self.elements), min(high * 16, self.elements), CHUNK_ELEMENTS)

    def _sum_slice(self, parts: dict[Node, Array], lanes: int) -> None:
        assert self.total is not None
        chunks = self._slice(self.world.local_size)
        for start in chunks:
            cut = slice(start, min(start + CHUNK_ELEMENTS, chunks.stop))
            self._place(cut, evaluate({node: array[cut] for node, array in parts.items()}, (0, lanes)))

    def _place(self, cut: slice, summed: Array) -> None:
        assert self.total is not None
        into = self.total[cut]
        if into.ctypes.data != summed.ctypes.data:
            np.copyto(into, summed)

    def _sum_between(self, parts: dict[Node, Array], lanes: int) -> None:
        """Slices go by local rank; where nodes have different numbers of ranks, those that all have do the work."""
        layout = self.ranks.layout
        pieces = min(len(members) for members in layout)
        if self.world.local_rank >= pieces:
            return
        held = [tree_nodes(*self._span(members, lanes), lanes) for members in layout]
        chunks = self._slice(pieces)
        for start in chunks:
            cut = slice(start, min(start + CHUNK_ELEMENTS, chunks.stop))
            local = {node: array[cut] for node, array in parts.items()}
            own = [evaluate(local, node) for node in held[self.world.node]]
            self._place(cut, evaluate(self._exchange(own, held, cut.stop - cut.start), (0, lanes)))

    def _span(self, members: Sequence[int], lanes: int) -> Node:
        """The lanes that the ranks of a node hold together: ranks count node by node."""
        return share_of(members[0], self.world.size, lanes)[0], share_of(members[-1], self.world.size, lanes)[1]

    def _exchange(self, own: list[Array], held: list[tuple[Node, ...]], elements: int) -> dict[Node, Array]:
        """Send this node's parts of a slice to the ranks that sum it on the other nodes, and take in theirs."""
        parts: dict[Node, Array] = {}
        requests: list[Any] = []
        for node, members in enumerate(self.ranks.layout):
            peer = members[self.world.local_rank]
            if node == self.world.node:
                parts |= dict(zip(held[node], own))
                continue
            for tag, place in enumerate(held[node]):
                parts[place] = np.empty(elements, np.float32)
                requests.append(self.ranks.communicator.Irecv(parts[place], peer, tag))
            requests += [self.ranks.communicator.Isend(array, peer, tag) for tag, array in enumerate(own)]
        self.ranks.wait(requests, "the sum of gradients between nodes")
        # What was sent is added to below: it may change from here on.
        return parts


def evaluate(parts: dict[Node, Array], node: Node) -> Array:
    """The sum of a node of the tree, in place of its leftmost part."""
    if node in parts:
        return parts[node]
    cut = middle(*node)
    left, right = evaluate(parts, (node[0], cut)), evaluate(parts, (cut, node[1]))
    return np.add(left, right, out=left)


def share_memory(ranks: Ranks, size_bytes: int) -> Array:
    """Memory of zeros that all ranks of a node have in common.

    An anonymous file, not a window of MPI: containers keep /dev/shm small, and nothing remains of it after a crash.
    """
    size = max(-(-size_bytes // PAGE_BYTES) * PAGE_BYTES, PAGE_BYTES)
    descriptor = -1
    if ranks.world.local_rank == 0:
        descriptor = os.memfd_create("sexpgpu-gradients")
        os.ftruncate(descriptor, size)
    path = ranks.broadcast_local(f"/proc/{os.getpid()}/fd/{descriptor}")
    if ranks.world.local_rank != 0:
        descriptor = _open_shared(path)
    memory = np.frombuffer(mmap.mmap(descriptor, size), np.float32)
    ranks.barrier("the memory that ranks share", local=True)
    os.close(descriptor)
    return memory


def _open_shared(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError as problem:
        message = f"the ranks of this node cannot share memory: {path}: {problem.strerror}"
        raise Error("E-DEV-002", message, notes=["start them by one user, in one container"]) from None
