"""The simulated driver's calls about streams, events and graphs."""

from __future__ import annotations

from typing import Any

from tests.fake_cuda import streams
from tests.fake_cuda.state import State
from tests.fake_cuda.streams import CAPTURED_EVENT, Event, Executable, Graph, Refused, Stream

NOT_READY = 600
NON_BLOCKING, WITHOUT_TIME = 1, 2


class OrderCalls(State):
    def cuStreamCreate(self, stream: Any, flags: int) -> None:
        made = Stream(None, blocking=not flags & NON_BLOCKING)
        stream[0] = made.lane = self.new(made)

    def cuStreamDestroy_v2(self, stream: int) -> None:
        """What was given to it still runs."""
        if self.drop(stream, Stream).capture is not None:
            self.findings.append("a stream is destroyed while it is captured")

    def cuStreamSynchronize(self, stream: int | None) -> None:
        if self.stream(stream).capture is not None:
            self.uncaptured()
        self.wait_for(self.stream(stream).frontier)

    def cuStreamWaitEvent(self, stream: int | None, event: int, flags: int) -> None:
        streams.wait(self.stream(stream), self.get(event, Event))

    def cuEventCreate(self, event: Any, flags: int) -> None:
        event[0] = self.new(Event(timed=not flags & WITHOUT_TIME))

    def cuEventDestroy_v2(self, event: int) -> None:
        self.drop(event, Event)

    def cuEventRecord(self, event: int, stream: int | None) -> None:
        streams.record(self.get(event, Event), self.stream(stream))

    def cuEventSynchronize(self, event: int) -> None:
        self.wait_for(self._uncaptured_event(event).operations or [])

    def cuEventQuery(self, event: int) -> None:
        """Time passes between two questions: one operation runs."""
        operations = self._uncaptured_event(event).operations or []
        if not all(operation.done for operation in operations):
            self.schedule.step()
        if not all(operation.done for operation in operations):
            raise Refused(NOT_READY)
        self.wait_for(operations)

    def cuEventElapsedTime_v2(self, milliseconds: Any, first: int, last: int) -> None:
        """As many milliseconds as operations."""
        events = [self._uncaptured_event(first), self._uncaptured_event(last)]
        if not all(event.timed and event.operations is not None for event in events):
            raise Refused(400)
        if not all(made.done for event in events for made in event.operations or []):
            raise Refused(NOT_READY)
        first_number, last_number = (max((made.number for made in e.operations or []), default=0) for e in events)
        milliseconds[0] = float(last_number - first_number)

    def _uncaptured_event(self, handle: int) -> Event:
        event = self.get(handle, Event)
        if event.capture is not None:
            event.capture.valid = False
            raise Refused(CAPTURED_EVENT)
        return event

    def cuStreamBeginCapture_v2(self, stream: int, mode: int) -> None:
        streams.begin_capture(self.get(stream, Stream))

    def cuStreamEndCapture(self, stream: int, graph: Any) -> None:
        graph[0] = None
        graph[0] = self.new(streams.end_capture(self.get(stream, Stream)))

    def cuGraphInstantiateWithFlags(self, executable: Any, graph: int, flags: int) -> None:
        nodes = streams.without_edges(self.get(graph, Graph).nodes, self.forgotten_edges)
        executable[0] = self.new(Executable(nodes, streams.lanes_of(nodes)))

    def cuGraphLaunch(self, executable: int, stream: int | None) -> None:
        streams.launch(self.schedule, self.get(executable, Executable), self.stream(stream))
        self.schedule.progress()

    def cuGraphExecDestroy(self, executable: int) -> None:
        """What was launched still runs."""
        self.drop(executable, Executable)

    def cuGraphDestroy(self, graph: int) -> None:
        self.drop(graph, Graph)
