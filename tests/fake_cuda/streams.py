"""Streams, events, and what a capture makes of the work that is given to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.fake_cuda.order import Lane, Operation, Schedule

# Called when work is given (a graph's: at every launch of the graph), it returns what the device will do.
Work = Callable[[], Callable[[Operation], None]]


class Refused(Exception):
    """A call gives this error's number."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_UNJOINED = 900, 901, 903, 904
CAPTURE_ISOLATION, CAPTURED_EVENT, ILLEGAL_STATE = 905, 907, 401


@dataclass(eq=False)
class Node:
    """An operation of a graph, and the nodes that must be done before."""

    name: str
    work: Work
    after: list[Node]


@dataclass(eq=False)
class Capture:
    """Streams whose work becomes a graph's nodes. `frontiers`: what the next node of each comes after."""

    origin: Stream
    nodes: list[Node] = field(default_factory=list)
    frontiers: dict[Stream, list[Node]] = field(default_factory=dict)
    valid: bool = True


@dataclass(eq=False)
class Stream:
    """`frontier`: what the next operation comes after."""

    lane: Lane
    blocking: bool = False
    frontier: list[Operation] = field(default_factory=list)
    capture: Capture | None = None


@dataclass(eq=False)
class Event:
    """What was given to a stream when it was recorded; of a capture, nodes."""

    timed: bool
    operations: list[Operation] | None = None
    capture: Capture | None = None
    nodes: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Graph:
    nodes: list[Node]


@dataclass(eq=False)
class Executable:
    """A graph ready to run. One launch of it runs after the one before, whatever their streams. `lanes`: of every node."""

    nodes: list[Node]
    lanes: list[Lane]
    last: list[Operation] = field(default_factory=list)


def lanes_of(nodes: Sequence[Node]) -> list[Lane]:
    """Chains of nodes: one goes on where an earlier node of it is what a node comes after."""
    graph, ends, found = object(), dict[Node, Lane](), list[Lane]()
    for number, node in enumerate(nodes):
        lane = next((ends.pop(earlier) for earlier in node.after if earlier in ends), (graph, number))
        ends[node] = lane
        found.append(lane)
    return found


def without_edges(nodes: Sequence[Node], forgotten: Sequence[tuple[str, str]]) -> list[Node]:
    """The nodes without the dependencies (node, earlier node) of these names, but with what the earlier one came after:
    what a program gives that forgets a dependency."""
    made: dict[Node, Node] = {}
    for node in nodes:
        kept: list[Node] = []
        for earlier in node.after:
            kept += earlier.after if (node.name, earlier.name) in forgotten else [earlier]
        made[node] = Node(node.name, node.work, [made[earlier] for earlier in kept])
    return list(made.values())


def give(schedule: Schedule, stream: Stream, name: str, work: Work) -> Operation | None:
    """Work for a stream: an operation, or a node where the stream is captured."""
    if stream.capture is None:
        made = schedule.give(name, stream.lane, stream.frontier, work())
        stream.frontier = [made]
        return made
    capture = stream.capture
    if not capture.valid:
        raise Refused(CAPTURE_INVALIDATED)
    node = Node(name, work, capture.frontiers[stream])
    capture.nodes.append(node)
    capture.frontiers[stream] = [node]
    return None


def record(event: Event, stream: Stream) -> None:
    if stream.capture is None:
        event.operations, event.capture, event.nodes = list(stream.frontier), None, []
    else:
        event.operations, event.capture = None, stream.capture
        event.nodes = list(stream.capture.frontiers[stream])


def wait(stream: Stream, event: Event) -> None:
    if event.capture is not None:
        if stream.capture is None:
            # The stream joins the capture, and what it did before is no part of the graph.
            stream.capture = event.capture
            event.capture.frontiers[stream] = []
        elif stream.capture is not event.capture:
            raise Refused(CAPTURE_ISOLATION)
        frontier = event.capture.frontiers[stream]
        frontier += [node for node in event.nodes if node not in frontier]
    elif stream.capture is not None:
        stream.capture.valid = False
        raise Refused(CAPTURE_ISOLATION)
    else:
        stream.frontier = stream.frontier + [made for made in event.operations or () if made not in stream.frontier]


def begin_capture(stream: Stream) -> None:
    if stream.capture is not None:
        raise Refused(ILLEGAL_STATE)
    stream.capture = Capture(stream)
    stream.capture.frontiers[stream] = []


def end_capture(stream: Stream) -> Graph:
    """The graph, where everything that was captured is before the end of the stream that began."""
    capture = stream.capture
    if capture is None or capture.origin is not stream:
        raise Refused(CAPTURE_UNMATCHED)
    for joined in capture.frontiers:
        joined.capture = None
    if not capture.valid:
        raise Refused(CAPTURE_INVALIDATED)
    reached, left = set[Node](), list(capture.frontiers[stream])
    while left:
        node = left.pop()
        if node not in reached:
            reached.add(node)
            left += node.after
    if len(reached) < len(capture.nodes):
        raise Refused(CAPTURE_UNJOINED)
    return Graph(capture.nodes)


def launch(schedule: Schedule, executable: Executable, stream: Stream) -> None:
    """All nodes of a graph, as operations after the stream's work; the stream's later work comes after them."""
    if stream.capture is not None:
        raise Refused(CAPTURE_UNSUPPORTED)
    first = [*stream.frontier, *(made for made in executable.last if made not in stream.frontier)]
    made: dict[Node, Operation] = {}
    for node, lane in zip(executable.nodes, executable.lanes):
        after = [made[earlier] for earlier in node.after] or first
        made[node] = schedule.give(f"{node.name} of a graph", lane, after, node.work())
    if made:
        followed = {earlier for node in executable.nodes for earlier in node.after}
        stream.frontier = executable.last = [made[node] for node in executable.nodes if node not in followed]
