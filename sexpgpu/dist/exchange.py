"""What ranks tell each other, with the same methods for one rank, which pays nothing, and for many."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from sexpgpu.dist.reduction import MOST_LANES
from sexpgpu.dist.waiting import DEADLINE_S, wait_for
from sexpgpu.dist.world import Launch, World, launch_of, start_library, threads_of
from sexpgpu.errors import Error

if TYPE_CHECKING:
    from sexpgpu.dist.failure import Link
    from sexpgpu.dist.gradients import GradientExchange


class Exchange(Protocol):
    """All methods but `phase` are called by every rank alike, in the same order."""

    @property
    def world(self) -> World: ...

    @property
    def threads(self) -> int:
        """The threads that are this rank's, of the CPUs that the ranks of its node may use."""
        ...

    def gradients(self, elements: int, calls: Collection[int], most_lanes: int = MOST_LANES) -> GradientExchange:
        """The sum of flat gradients; `calls` has every number of calls that a step may have."""
        ...

    def gather(self, values: Sequence[float]) -> list[float]:
        """Every rank's float64 numbers, of rank 0 first: what a tree over all calls then sums."""
        ...

    def count(self, value: int) -> int:
        """The sum of the ranks' integers."""
        ...

    def agree(self, value: int) -> int:
        """The largest of the ranks' integers: of flags, whether any is set."""
        ...

    def broadcast(self, value: Any) -> Any:
        """Rank zero's value, made of what JSON has."""
        ...

    def barrier(self, phase: str, deadline_s: float | None = DEADLINE_S) -> None:
        """Wait until every rank has come. deadline_s None: as long as they live."""
        ...

    def phase(self, name: str) -> None:
        """What this rank does now, said of it if it dies."""
        ...


class SingleRank:
    """One rank: everything is said already."""

    def __init__(self) -> None:
        self.world = World()

    @property
    def threads(self) -> int:
        return len(os.sched_getaffinity(0))

    def gradients(self, elements: int, calls: Collection[int], most_lanes: int = MOST_LANES) -> GradientExchange:
        from sexpgpu.dist.gradients import Alone

        return Alone(most_lanes)

    def gather(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def count(self, value: int) -> int:
        return value

    def agree(self, value: int) -> int:
        return value

    def broadcast(self, value: Any) -> Any:
        return value

    def barrier(self, phase: str, deadline_s: float | None = DEADLINE_S) -> None:
        """Everyone is here."""

    def phase(self, name: str) -> None:
        """Nobody asks."""


class Ranks:
    """Several ranks under MPI. `layout`: the ranks of each node, in order."""

    def __init__(self, mpi: Any) -> None:
        from sexpgpu.dist.failure import ending

        self._mpi = mpi
        self.link: Link | None = None
        self.communicator, self._local, self.layout = order_by_node(mpi)
        rank = self.communicator.Get_rank()
        node = next(number for number, members in enumerate(self.layout) if rank in members)
        self.world = World(
            rank=rank,
            size=self.communicator.Get_size(),
            local_rank=self._local.Get_rank(),
            local_size=self._local.Get_size(),
            node=node,
            nodes=len(self.layout),
        )
        self.end = ending(mpi, self.world.nodes)
        self._join_guard()
        masks = [frozenset(mask) for mask in self._local.allgather(sorted(os.sched_getaffinity(0)))]
        self.threads = threads_of(masks, self.world.local_rank)

    def _join_guard(self) -> None:
        from sexpgpu.dist.failure import Link, start_guard

        world = self.world
        address = start_guard(world.local_size, world.size, os.uname().nodename) if world.local_rank == 0 else ""
        self.link = Link(self._local.bcast(address), world.rank, self.end)

    def check(self) -> None:
        if self.link is not None:
            self.link.check()

    def wait(self, requests: Any, phase: str, deadline_s: float | None = DEADLINE_S) -> None:
        wait_for(requests, self.check, phase, deadline_s)

    def gradients(self, elements: int, calls: Collection[int], most_lanes: int = MOST_LANES) -> GradientExchange:
        from sexpgpu.dist.gradients import Shared

        return Shared(self, elements, calls, most_lanes)

    def gather(self, values: Sequence[float]) -> list[float]:
        import numpy as np

        counts = np.empty(self.world.size, np.int64)
        mine = np.array([len(values)], np.int64)
        self.wait(self.communicator.Iallgather(mine, counts), "a sum of losses")
        found = np.empty(int(counts.sum()), np.float64)
        request = self.communicator.Iallgatherv(np.array(values, np.float64), [found, counts.tolist()])
        self.wait(request, "a sum of losses")
        return [float(value) for value in found]

    def count(self, value: int) -> int:
        return self._reduce(value, self._mpi.SUM, "a count")

    def agree(self, value: int) -> int:
        return self._reduce(value, self._mpi.MAX, "an agreement")

    def _reduce(self, value: int, operation: Any, phase: str) -> int:
        import numpy as np

        result = np.empty(1, np.int64)
        self.wait(self.communicator.Iallreduce(np.array([value], np.int64), result, operation), phase)
        return int(result[0])

    def broadcast(self, value: Any) -> Any:
        return self._broadcast(self.communicator, value)

    def broadcast_local(self, value: Any) -> Any:
        """The value of the first rank of this node."""
        return self._broadcast(self._local, value)

    def _broadcast(self, communicator: Any, value: Any) -> Any:
        import msgspec
        import numpy as np

        data = np.frombuffer(msgspec.msgpack.encode(value), np.uint8) if communicator.Get_rank() == 0 else None
        size = np.array([0 if data is None else data.size], np.int64)
        self.wait(communicator.Ibcast(size), "a broadcast")
        content = np.empty(int(size[0]), np.uint8) if data is None else data.copy()
        self.wait(communicator.Ibcast(content), "a broadcast")
        return msgspec.msgpack.decode(content.tobytes())

    def barrier(self, phase: str, deadline_s: float | None = DEADLINE_S, local: bool = False) -> None:
        """`local`: only the ranks of this node."""
        self.wait((self._local if local else self.communicator).Ibarrier(), phase, deadline_s)

    def phase(self, name: str) -> None:
        if self.link is not None:
            self.link.phase(name)

    def close(self) -> None:
        """The end of a run in which no rank failed: all come here, then MPI may be left."""
        self.barrier("the end of the run", None)
        if self.link is not None:
            self.link.close()
        self._mpi.Finalize()


def order_by_node(mpi: Any) -> tuple[Any, Any, list[list[int]]]:
    """Communicators of all ranks, node by node whatever the launcher dealt, and of this node's; the ranks of each node."""
    dealt = mpi.COMM_WORLD.Get_rank()
    local = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED, key=dealt)
    leaders = mpi.COMM_WORLD.allgather(local.bcast(dealt))
    nodes = sorted(set(leaders))
    ordered = mpi.COMM_WORLD.Split(0, key=nodes.index(leaders[dealt]) * len(leaders) + local.Get_rank())
    counts = [leaders.count(leader) for leader in nodes]
    starts = [sum(counts[:node]) for node in range(len(nodes) + 1)]
    return ordered, local, [list(range(low, high)) for low, high in pairwise(starts)]


@contextmanager
def joined(environment: Mapping[str, str], agreed: tuple[type[BaseException], ...] = ()) -> Iterator[Exchange]:
    """This process's exchange for the length of a block.

    With several ranks an exception ends the run: the guard prints it once and no rank lives on, so it does not come out
    of the block. `agreed` are exceptions that every rank raises together, which do; so does everything with one rank.
    """
    launch = launch_of(environment)
    if launch.size == 1:
        yield SingleRank()
        return
    from sexpgpu.dist.failure import leave

    ranks = start_ranks(launch)
    try:
        yield ranks
    except agreed:
        ranks.close()
        raise
    except BaseException as problem:
        leave(ranks.link, ranks.end, problem)
    else:
        ranks.close()


def start_ranks(launch: Launch) -> Ranks:
    """MPI, started. What is wrong with launcher and library is wrong on every rank, and said by the first."""
    try:
        return Ranks(start_library(launch))
    except Error as problem:
        from sexpgpu.dist.failure import write_line

        if launch.rank == 0:
            write_line(problem.render())
        else:
            # Some launchers end all ranks as soon as one exits; the first one speaks before.
            time.sleep(1.0)
        os._exit(1)
