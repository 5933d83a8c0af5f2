"""The simulated driver runs NVRTC's kernels through our own calls, in any legal order, and reports what no order allows."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context, Graph, Launch
from sexpgpu.cuda.driver import TABLE, DriverError
from sexpgpu.cuda.nvrtc import Compiled, compile_source
from tests.fake_cuda import A100, FakeCuda
from tests.fake_cuda.order import Order

ORDERS: tuple[Order, ...] = ("eager", "lazy", 1, 2, 3)
COUNT = 300
SOURCE = """
extern "C" __global__ void scale(float *y, const float *x, float by, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i] * by;
}
extern "C" __global__ void add(float *y, const float *a, const float *b, int n) {
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = a[i] + b[i];
}
"""


@cache
def compiled() -> Compiled:
    return compile_source(SOURCE, "sm_80")


class Rig:
    """Two streams on a simulated card: one copies `x` to the card, the other computes 3x + 2x there and copies it back."""

    def __init__(self, driver: FakeCuda) -> None:
        driver.register(compiled())
        calls = bind(driver.load("libcuda.so.1"), TABLE)
        calls.cuInit(0)
        self.context = Context(calls, 0)
        self.copying, self.computing = self.context.stream(), self.context.stream()
        self.copied, self.computed = self.context.event(), self.context.event()
        self.module = self.context.load(compiled().cubin)
        self.x, self.threefold, self.double, self.sum = (self.context.allocate(4 * COUNT) for _ in range(4))
        self.given, self.result = (self.context.pinned(4 * COUNT) for _ in range(2))

    def launch(self, name: str, *values: Any) -> Launch:
        return self.module.kernel(name).prepare((3, 1, 1), (128, 1, 1), [*values, ctypes.c_int32(COUNT)])

    def scale(self, target: int, by: float) -> Launch:
        return self.launch("scale", ctypes.c_uint64(target), ctypes.c_uint64(self.x.address), ctypes.c_float(by))

    def add(self) -> Launch:
        places = (self.sum, self.threefold, self.double)
        return self.launch("add", *(ctypes.c_uint64(place.address) for place in places))

    def upload(self) -> None:
        self.copying.upload(self.x.address, self.given.address, 4 * COUNT)

    def compute(self) -> None:
        self.scale(self.threefold.address, 3).run(self.computing)
        self.scale(self.double.address, 2).run(self.computing)
        self.add().run(self.computing)

    def download(self) -> None:
        self.computing.download(self.result.address, self.sum.address, 4 * COUNT)

    def give(self, x: Any) -> None:
        self.given.bytes.view(np.float32)[:] = x

    def taken(self) -> Any:
        self.computing.synchronize()
        return self.result.bytes.view(np.float32).copy()


def assert_unordered(driver: FakeCuda, one: str, other: str) -> None:
    """These two are reported, whichever ran first, and no other pair."""
    said = [
        f"unordered: {second} {does} what {first} {did}, and no event orders them"
        for first, second in ((one, other), (other, one))
        for does, did in (("reads", "writes"), ("writes", "reads"), ("writes", "writes"))
    ]
    found = {finding for finding in driver.findings if finding.startswith("unordered: ")}
    assert found and found <= set(said)


X = np.random.default_rng(5).normal(size=COUNT).astype(np.float32)


@pytest.mark.parametrize("order", ORDERS)
def test_two_streams_with_an_event_between_them_give_the_result_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    for x in (X, 2 * X):
        rig.give(x)
        rig.copying.wait(rig.computed)
        rig.upload()
        rig.copying.record(rig.copied)
        rig.computing.wait(rig.copied)
        rig.compute()
        rig.computing.record(rig.computed)
        rig.download()
        assert np.array_equal(rig.taken(), 3 * x + 2 * x)
    rig.context.close()
    assert driver.findings == driver.held() == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_wait_is_reported_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    rig.give(X)
    rig.upload()
    rig.compute()
    rig.context.synchronize()
    assert_unordered(driver, "a copy to the device", "scale")


@pytest.mark.parametrize("order", ORDERS)
def test_a_missing_wait_before_the_next_copy_is_reported_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    rig.give(X)
    for _ in range(2):
        rig.upload()
        rig.copying.record(rig.copied)
        rig.computing.wait(rig.copied)
        rig.compute()
    rig.context.synchronize()
    assert_unordered(driver, "a copy to the device", "scale")


def captured(rig: Rig, work: Callable[[], None] | None = None) -> Graph:
    """The two streams' work as a graph that begins and ends on the computing one."""

    def both() -> None:
        rig.computing.record(rig.computed)
        rig.copying.wait(rig.computed)
        rig.upload()
        rig.copying.record(rig.copied)
        rig.computing.wait(rig.copied)
        rig.compute()
        rig.download()

    return rig.computing.captured(work or both)


@pytest.mark.parametrize("order", ORDERS)
def test_a_captured_graph_runs_as_often_as_it_is_launched(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    graph = captured(rig)
    assert driver.cards[0].launches == 0, "a capture runs nothing"
    for x in (X, 2 * X, 3 * X):
        rig.give(x)
        graph.launch(rig.computing)
        assert np.array_equal(rig.taken(), 3 * x + 2 * x)
    rig.context.close()
    assert driver.findings == driver.held() == []


@pytest.mark.parametrize("order", ORDERS)
def test_a_dependency_that_a_graph_lacks_is_reported_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    driver.forgotten_edges = [("add", "scale")]
    graph = captured(rig)
    rig.give(X)
    graph.launch(rig.computing)
    rig.context.synchronize()
    assert_unordered(driver, "add of a graph", "scale of a graph")


@pytest.mark.parametrize("order", ORDERS)
def test_pinned_memory_that_the_host_changes_too_early_is_reported_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    rig.give(X)
    rig.upload()
    rig.give(2 * X)
    rig.context.synchronize()
    assert driver.findings == ["pinned memory is changed, and the host has not waited for a copy from it"]


def test_nothing_has_happened_before_the_host_waits_where_the_order_is_lazy() -> None:
    rig = Rig(FakeCuda(order="lazy"))
    rig.give(X)
    rig.upload()
    rig.copying.download(rig.result.address, rig.x.address, 4 * COUNT)
    before = rig.result.bytes.view(np.float32).copy()
    assert not np.array_equal(before, X)
    rig.copying.synchronize()
    assert np.array_equal(rig.result.bytes.view(np.float32), X)


def test_an_event_is_done_when_the_host_asks_often_enough() -> None:
    rig = Rig(FakeCuda(order="lazy"))
    rig.give(X)
    rig.upload()
    rig.copying.upload(rig.sum.address, rig.given.address, 4 * COUNT)
    rig.copying.record(rig.copied)
    assert [rig.copied.done, rig.copied.done] == [False, True]


@pytest.mark.parametrize("order", ORDERS)
def test_memory_that_is_freed_in_use_is_reported_in_every_order(order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    rig.give(X)
    rig.upload()
    rig.x.close()
    sentence = "memory that a copy to the device uses is freed, and the host has not waited for it"
    assert driver.findings == [sentence]


def test_a_kernel_that_uses_freed_memory_breaks_the_card() -> None:
    driver = FakeCuda()
    rig = Rig(driver)
    rig.give(X)
    rig.upload()
    rig.context.synchronize()
    launch = rig.scale(rig.double.address, 2)
    rig.x.close()
    launch.run(rig.computing)
    for call in (rig.computing.synchronize, lambda: rig.context.allocate(4), rig.copying.synchronize):
        with pytest.raises(DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access") as caught:
            call()
        assert caught.value.sticky and caught.value.number == 700
    rig.context.close()
    assert driver.held() == [] and "scale: " in driver.faults[0]


def test_a_block_with_more_threads_than_its_registers_allow_is_refused() -> None:
    rig = Rig(FakeCuda())
    values = [ctypes.c_uint64(rig.x.address)] * 2
    launch = rig.module.kernel("scale").prepare(
        (1, 1, 1), (2048, 1, 1), [*values, ctypes.c_float(1), ctypes.c_int32(1)]
    )
    with pytest.raises(DriverError, match="cuLaunchKernel gives error 1, CUDA_ERROR_INVALID_VALUE"):
        launch.run(rig.computing)


def test_what_is_not_given_back_is_told() -> None:
    driver = FakeCuda()
    rig = Rig(driver)
    rig.context.owned.pop(id(rig.sum))
    rig.context.owned.pop(id(rig.copied))
    rig.context.close()
    assert driver.held() == ["Event", f"{4 * COUNT} bytes of NVIDIA A100-SXM4-80GB"]


def test_a_capture_that_waits_for_the_device_fails_and_leaves_nothing() -> None:
    driver = FakeCuda()
    rig = Rig(driver)
    with pytest.raises(DriverError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        captured(rig, rig.computing.synchronize)
    with pytest.raises(DriverError, match="CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"):
        captured(rig, lambda: rig.context.allocate(4).close())
    rig.give(X)
    rig.upload()
    rig.context.close()
    assert driver.findings == driver.held() == []


def test_a_capture_that_another_stream_does_not_come_back_to_fails() -> None:
    driver = FakeCuda()
    rig = Rig(driver)

    def fork() -> None:
        rig.computing.record(rig.computed)
        rig.copying.wait(rig.computed)
        rig.upload()

    with pytest.raises(DriverError, match="CUDA_ERROR_STREAM_CAPTURE_UNJOINED"):
        captured(rig, fork)
    rig.context.close()
    assert driver.held() == []


def test_code_for_another_architecture_is_refused() -> None:
    driver = FakeCuda()
    rig = Rig(driver)
    newer = compile_source(SOURCE, "sm_90")
    driver.register(newer)
    with pytest.raises(DriverError, match="CUDA_ERROR_NO_BINARY_FOR_GPU"):
        rig.context.load(newer.cubin)


def test_bytes_that_nothing_wrote_are_reported_when_the_host_reads_them() -> None:
    driver = FakeCuda()
    rig = Rig(driver)
    rig.download()
    rig.computing.synchronize()
    assert driver.findings == ["a copy to the host reads bytes that nothing wrote"]


def test_memory_of_the_host_that_is_not_pinned_is_copied_at_once() -> None:
    driver = FakeCuda(order="lazy")
    rig = Rig(driver)
    there, back = X.copy(), np.zeros_like(X)
    rig.copying.upload(rig.x.address, there.ctypes.data, there.nbytes)
    there[:] = 0
    rig.copying.download(back.ctypes.data, rig.x.address, back.nbytes)
    assert np.array_equal(back, X)
    rig.context.close()
    assert driver.findings == driver.held() == []


def test_a_card_has_the_memory_that_it_was_given() -> None:
    driver = FakeCuda(replace(A100, memory_bytes=1 << 20))
    rig = Rig(driver)
    free, total = rig.context.memory_bytes()
    assert total - free == 4 * 4 * COUNT
    with pytest.raises(DriverError, match="CUDA_ERROR_OUT_OF_MEMORY: out of memory"):
        rig.context.allocate(free + 1)
    with rig.context.allocate(free):
        assert rig.context.memory_bytes() == (0, total)
    assert rig.context.memory_bytes() == (free, total)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("blocking", [True, False])
def test_work_on_the_null_stream_waits_for_blocking_streams_alone(blocking: bool, order: Order) -> None:
    driver = FakeCuda(order=order)
    rig = Rig(driver)
    rig.give(X)
    stream = ctypes.c_void_p()
    rig.context.calls.cuStreamCreate(ctypes.byref(stream), 0 if blocking else 1)
    rig.context.calls.cuMemcpyHtoDAsync_v2(rig.x.address, rig.given.address, 4 * COUNT, stream)
    rig.context.calls.cuMemsetD8Async(rig.x.address, 0, 4 * COUNT, None)
    rig.context.calls.cuMemcpyDtoHAsync_v2(rig.result.address, rig.x.address, 4 * COUNT, stream)
    rig.context.synchronize()
    if blocking:
        assert driver.findings == [] and not rig.result.bytes.any()
    else:
        assert [finding for finding in driver.findings if finding.startswith("unordered: ")]


def test_two_cards_have_memory_and_errors_of_their_own() -> None:
    driver = FakeCuda(A100, A100)
    calls = bind(driver.load("libcuda.so.1"), TABLE)
    calls.cuInit(0)
    contexts = [Context(calls, ordinal) for ordinal in (0, 1)]
    driver.cards[0].broken = 719
    contexts[0].enter()
    with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
        contexts[0].allocate(16)
    contexts[1].enter()
    with contexts[1].allocate(16), contexts[1].stream() as stream:
        stream.synchronize()
    for context in contexts:
        context.close()
    assert driver.findings == driver.held() == []


def test_a_call_from_a_thread_without_a_context_is_refused() -> None:
    rig = Rig(FakeCuda())
    problems: list[DriverError] = []

    def call() -> None:
        try:
            rig.context.memory_bytes()
        except DriverError as error:
            problems.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert [error.name for error in problems] == ["CUDA_ERROR_INVALID_CONTEXT"]
