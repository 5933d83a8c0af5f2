"""What a card is worked with: its context, which owns the streams, events, memory, modules and graphs made in it.

Each is given back by `close`, once, and `Context.close` gives back what is still there. After a sticky error the driver
takes nothing back; the context's end frees all.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sexpgpu.cuda.driver import (
    CAPTURE_THREAD_LOCAL,
    EVENT_WITHOUT_TIME,
    STREAM_NON_BLOCKING,
    DeviceAttribute,
    DriverError,
    FunctionAttribute,
    Status,
)
from sexpgpu.cuda.probe import attribute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# More shared memory than this a kernel has to ask for, on every card.
SHARED_WITHOUT_ASKING = 48 * 1024
# A launch takes its parameters as values of these types: addresses are u64.
Value = ctypes.c_uint64 | ctypes.c_int64 | ctypes.c_uint32 | ctypes.c_int32 | ctypes.c_float
Extent = tuple[int, int, int]


class Owned:
    """Something of the driver's that is given back once."""

    def __init__(self, context: Context, handle: int, give_back: Callable[[int], None]) -> None:
        self.context = context
        self.calls = context.calls
        self.handle = handle
        self._give_back = give_back
        context.owned[id(self)] = self

    def close(self) -> None:
        if self.context.owned.pop(id(self), None) is not None:
            self._give_back(self.handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


class Context:
    """The primary context of a card, the one that cuBLAS and cuDNN use too."""

    def __init__(self, calls: Any, ordinal: int) -> None:
        self.calls = calls
        self.ordinal = ordinal
        # What is still to be given back, in the order in which it was made.
        self.owned: dict[int, Owned] = {}
        self.device = _made(ctypes.c_int(), calls.cuDeviceGet, ordinal)
        self.handle = _made(ctypes.c_void_p(), calls.cuDevicePrimaryCtxRetain, self.device)
        self._open = True
        try:
            self.enter()
        except DriverError:
            calls.cuDevicePrimaryCtxRelease_v2(self.device)
            raise

    def enter(self) -> None:
        """Makes this the context of the calling thread."""
        self.calls.cuCtxSetCurrent(self.handle)

    def attribute(self, number: DeviceAttribute) -> int:
        return attribute(self.calls, number, self.device)

    def synchronize(self) -> None:
        self.calls.cuCtxSynchronize()

    def memory_bytes(self) -> tuple[int, int]:
        """Free and total memory of the card, whoever holds it."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.calls.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, size_bytes: int) -> DeviceMemory:
        """Memory of the card; its content is undefined."""
        assert size_bytes > 0
        return DeviceMemory(self, _made(ctypes.c_uint64(), self.calls.cuMemAlloc_v2, size_bytes), size_bytes)

    def pinned(self, size_bytes: int) -> PinnedMemory:
        """Memory of the host that copies reach while the host goes on; its content is undefined."""
        assert size_bytes > 0
        return PinnedMemory(self, _made(ctypes.c_void_p(), self.calls.cuMemHostAlloc, size_bytes, 0), size_bytes)

    def stream(self) -> Stream:
        handle = _made(ctypes.c_void_p(), self.calls.cuStreamCreate, STREAM_NON_BLOCKING)
        return Stream(self, handle, self.calls.cuStreamDestroy_v2)

    def event(self, timed: bool = False) -> Event:
        handle = _made(ctypes.c_void_p(), self.calls.cuEventCreate, 0 if timed else EVENT_WITHOUT_TIME)
        return Event(self, handle, self.calls.cuEventDestroy_v2)

    def load(self, cubin: bytes) -> Module:
        """Code for this card, as NVRTC made it."""
        handle = _made(ctypes.c_void_p(), self.calls.cuModuleLoadDataEx, cubin, 0, None, None)
        return Module(self, handle, self.calls.cuModuleUnload)

    def close(self) -> None:
        """Waits for the card, gives back everything that was made here, and the context last. A failure is raised when
        all has been tried; sticky errors were raised where they came up, and are not raised again."""
        if not self._open:
            return
        self._open = False
        # What was made last may use what was made before it.
        giving = [self.enter, self.synchronize, *(owned.close for owned in reversed(list(self.owned.values())))]
        failed = [error for error in map(_failure, giving) if error is not None and not error.sticky]
        self.owned.clear()
        last = _failure(lambda: self.calls.cuDevicePrimaryCtxRelease_v2(self.device))
        if last is not None and not last.sticky:
            failed.append(last)
        if failed:
            raise failed[0]


def _failure(call: Callable[[], None]) -> DriverError | None:
    try:
        call()
    except DriverError as error:
        return error
    return None


class DeviceMemory(Owned):
    """A block of the card's memory."""

    def __init__(self, context: Context, address: int, size_bytes: int) -> None:
        super().__init__(context, address, context.calls.cuMemFree_v2)
        self.address = address
        self.size_bytes = size_bytes


class PinnedMemory(Owned):
    """A block of the host's memory that the card reads and writes by itself."""

    def __init__(self, context: Context, address: int, size_bytes: int) -> None:
        super().__init__(context, address, context.calls.cuMemFreeHost)
        self.address = address
        self.bytes: Array = np.ctypeslib.as_array((ctypes.c_ubyte * size_bytes).from_address(address))


class Stream(Owned):
    """Work in order. Copies and fills return before they are done; `address` is the card's, `host` the host's."""

    def synchronize(self) -> None:
        """Waits for all work that was given to the stream, and raises what went wrong in it."""
        self.calls.cuStreamSynchronize(self.handle)

    def upload(self, address: int, host: int, size_bytes: int) -> None:
        self.calls.cuMemcpyHtoDAsync_v2(address, host, size_bytes, self.handle)

    def download(self, host: int, address: int, size_bytes: int) -> None:
        self.calls.cuMemcpyDtoHAsync_v2(host, address, size_bytes, self.handle)

    def copy(self, target: int, source: int, size_bytes: int) -> None:
        self.calls.cuMemcpyDtoDAsync_v2(target, source, size_bytes, self.handle)

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        self.calls.cuMemsetD8Async(address, byte, size_bytes, self.handle)

    def wait(self, event: Event) -> None:
        """What comes after on this stream starts when what the event recorded is done."""
        self.calls.cuStreamWaitEvent(self.handle, event.handle, 0)

    def record(self, event: Event) -> None:
        self.calls.cuEventRecord(event.handle, self.handle)

    def captured(self, work: Callable[[], None]) -> Graph:
        """The graph of what `work` gives to this stream, and to others that wait for it. None of it runs."""
        self.calls.cuStreamBeginCapture_v2(self.handle, CAPTURE_THREAD_LOCAL)
        try:
            work()
        except BaseException:
            _failure(lambda: self._end_capture())
            raise
        template = _made(ctypes.c_void_p(), self.calls.cuStreamEndCapture, self.handle, last=True)
        try:
            handle = _made(ctypes.c_void_p(), self.calls.cuGraphInstantiateWithFlags, template, 0)
        finally:
            self.calls.cuGraphDestroy(template)
        return Graph(self.context, handle, self.calls.cuGraphExecDestroy)

    def _end_capture(self) -> None:
        template = ctypes.c_void_p()
        self.calls.cuStreamEndCapture(self.handle, ctypes.byref(template))
        if template.value:
            self.calls.cuGraphDestroy(template)


class Event(Owned):
    """A point in a stream's work."""

    @property
    def done(self) -> bool:
        try:
            self.calls.cuEventQuery(self.handle)
        except DriverError as error:
            if error.number != Status.NOT_READY:
                raise
            return False
        return True

    def synchronize(self) -> None:
        self.calls.cuEventSynchronize(self.handle)

    def milliseconds_since(self, earlier: Event) -> float:
        """Between two timed events that are done."""
        passed = ctypes.c_float()
        self.calls.cuEventElapsedTime_v2(ctypes.byref(passed), earlier.handle, self.handle)
        return passed.value


class Graph(Owned):
    """Captured work that is given to a stream as one."""

    def launch(self, stream: Stream) -> None:
        self.calls.cuGraphLaunch(self.handle, stream.handle)


class Module(Owned):
    """Loaded code."""

    def kernel(self, name: str) -> Kernel:
        return Kernel(self, name, _made(ctypes.c_void_p(), self.calls.cuModuleGetFunction, self.handle, name.encode()))


@dataclass(frozen=True)
class Kernel:
    """A kernel of a loaded module."""

    module: Module
    name: str
    handle: int

    def attribute(self, number: FunctionAttribute) -> int:
        value = ctypes.c_int()
        self.module.calls.cuFuncGetAttribute(ctypes.byref(value), number, self.handle)
        return value.value

    def prepare(self, grid: Extent, block: Extent, values: Sequence[Value], shared_bytes: int = 0) -> Launch:
        """A launch with its parameters, which may be run often."""
        if shared_bytes > SHARED_WITHOUT_ASKING:
            number = FunctionAttribute.MOST_DYNAMIC_SHARED_BYTES
            self.module.calls.cuFuncSetAttribute(self.handle, number, shared_bytes)
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        return Launch(self, grid, block, shared_bytes, tuple(values), pointers)


@dataclass(frozen=True)
class Launch:
    """A kernel's launch. `pointers` are those to `values`, in the order of the parameters."""

    kernel: Kernel
    grid: Extent
    block: Extent
    shared_bytes: int
    values: tuple[Value, ...]
    pointers: Any

    def run(self, stream: Stream) -> None:
        call = self.kernel.module.calls.cuLaunchKernel
        call(self.kernel.handle, *self.grid, *self.block, self.shared_bytes, stream.handle, self.pointers, None)


def _made(place: Any, call: Callable[..., None], *arguments: Any, last: bool = False) -> int:
    """What a call writes to the place that its first argument (`last`: its last one) points to."""
    pointer = ctypes.byref(place)
    call(*((*arguments, pointer) if last else (pointer, *arguments)))
    return int(place.value or 0)
