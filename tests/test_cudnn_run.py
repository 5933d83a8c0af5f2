"""Graphs run by a simulated cuDNN in a simulated card's memory: numbers, streams, refusals, failures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context
from sexpgpu.cuda.cudnn import TABLE, CudnnFailed, unusable, version
from sexpgpu.cuda.cudnn_graphs import BACKWARD, FORWARD, attention, product
from sexpgpu.cuda.cudnn_plans import Described, ExecutionPlan, Refusal, new_handle, plan
from sexpgpu.cuda.driver import TABLE as DRIVER_TABLE
from sexpgpu.cuda.epilogue import NO_EPILOGUE
from sexpgpu.plan.kernel import Attention, Matrix, Place, Product
from tests.attending import Case, expected
from tests.fake_cuda import FakeCuda, Figures
from tests.fake_cudnn.attentions import launches, shape_of, strides_of
from tests.fake_cudnn.library import FakeCudnn

Array = np.ndarray[Any, np.dtype[Any]]
CARD = Figures("a card", (8, 0), memory_bytes=4 << 20)
BF16 = ml_dtypes.bfloat16
REFUSAL = """{"engineId":0,"smVersion":800}
Warning: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN; Reason: Fused Attention graph was not given to the engine at: true
{"engineId":1,"smVersion":800}
Warning: CUDNN_STATUS_NOT_SUPPORTED; Reason: The width is not liked at: width > 4
"""


class Rig:
    """A simulated card with cuDNN, one stream, a workspace."""

    def __init__(self, order: Any = "eager", **options: Any) -> None:
        self.driver = FakeCuda(CARD, order=order)
        self.library = FakeCudnn(self.driver, **options)
        calls = bind(self.driver.load("libcuda.so.1"), DRIVER_TABLE)
        calls.cuInit(0)
        self.context = Context(calls, 0)
        self.calls = bind(self.library.library, TABLE)
        self.handle = new_handle(self.calls)
        self.stream = self.context.stream()
        self.workspace = self.context.allocate(1024).address
        self.places: dict[int, int] = {}

    def address(self, place: Place) -> int:
        return self.places[place.buffer] + place.offset

    def put(self, number: int, values: Array) -> None:
        pinned = self.context.pinned(values.nbytes)
        pinned.bytes[:] = values.view(np.uint8).reshape(-1)
        self.places[number] = self.context.allocate(values.nbytes).address
        self.stream.upload(self.places[number], pinned.address, values.nbytes)

    def take(self, number: int, count: int, dtype: Any) -> Array:
        pinned = self.context.pinned(count * np.dtype(dtype).itemsize)
        self.stream.download(pinned.address, self.places[number], pinned.bytes.size)
        self.stream.synchronize()
        return np.array(pinned.bytes.view(dtype))

    def planned(self, graph: Any) -> ExecutionPlan:
        made = plan(self.calls, graph, self.handle)
        assert isinstance(made, ExecutionPlan), str(made)
        return made

    def end(self) -> None:
        self.calls.cudnnDestroy(self.handle.number)
        self.context.close()
        assert self.driver.findings == [] and self.driver.faults == []
        assert self.driver.held() == [] and not self.library.held


def laid_out(launch: Attention, name: str, values: Array) -> Array:
    """Values [batch heads rows width] in memory as a launch has them."""
    dtype: Any = np.float32 if name == "lse" else BF16
    flat = np.zeros(values.size, dtype)
    view(flat, launch, name)[...] = values.reshape(shape_of(launch, name))
    return flat


def view(flat: Array, launch: Attention, name: str) -> Array:
    steps = [step * flat.itemsize for step in (*strides_of(launch, name), 1)]
    return np.lib.stride_tricks.as_strided(flat, shape_of(launch, name), steps)


def attend(rig: Rig, launch: Attention, given: dict[str, Array]) -> dict[str, Array]:
    """The results of a launch on the simulated card."""
    names, results = BACKWARD if launch.backward else FORWARD
    for number, name in enumerate((*names, *results)):
        shape = shape_of(launch, name)
        rig.put(number, laid_out(launch, name, given.get(name, np.full(shape, np.nan, np.float32))))
    planned = rig.planned(attention(launch, "bf16"))
    planned.bound(rig.address, rig.workspace).run(rig.stream)
    made: dict[str, Array] = {}
    for name in results:
        dtype: Any = np.float32 if name == "lse" else BF16
        flat = rig.take((*names, *results).index(name), int(np.prod(shape_of(launch, name))), dtype)
        made[name] = view(flat, launch, name).astype(np.float64)
    planned.close()
    return made


def test_attention_runs_forward_and_backward_on_the_card() -> None:
    case, rig = Case((2, 4, 2, 9, 9, 8, 8), causal=True), Rig("lazy")
    forward, backward = launches(case)
    numbers = {name: x.astype(BF16).astype(np.float32) for name, x in case.values().items()}
    kept = attend(rig, forward, {name: numbers[name] for name in "qkv"})
    exact, _ = expected(case, numbers)
    gradients = attend(rig, backward, {**{n: numbers[n] for n in "qkv"}, **kept, "dout": numbers["d"]})
    # Four roundings of 2⁻⁸ stand between the operands and a result; a sum here is of 36 of them at most.
    for name, made, want in (
        ("out", kept["out"], exact["out"]),
        ("lse", kept["lse"][..., 0], exact["lse"]),
        *((f"d{k}", gradients[f"d{k}"], exact[f"gradient:{k}"]) for k in "qkv"),
    ):
        assert np.abs(made - want).max() <= 4 * 2.0**-8 * 2 * max(1, np.abs(want).max()), name
    rig.end()


def linear() -> Product:
    a, b, c = (Matrix(Place(n), 8, 1, (0,)) for n in range(3))
    return Product("bf16", 8, 8, 8, a, b, c)


def test_a_plan_is_captured_into_a_graph() -> None:
    rig = Rig("lazy")
    for number in range(3):
        rig.put(number, np.eye(8).astype(BF16) * 2)
    planned = rig.planned(product(linear(), NO_EPILOGUE))
    bound = planned.bound(rig.address, rig.workspace)
    rig.stream.synchronize()
    graph = rig.stream.captured(lambda: bound.run(rig.stream))
    graph.launch(rig.stream)
    assert np.array_equal(rig.take(2, 64, BF16).astype(np.float64).reshape(8, 8), 4 * np.eye(8))
    planned.close()
    rig.end()


def test_one_workspace_on_two_streams_is_seen() -> None:
    rig = Rig()
    for number in range(6):
        rig.put(number, np.ones(64, BF16))
    places: list[Callable[[Place], int]] = [rig.address, lambda place: rig.places[place.buffer + 3]]
    both = [rig.planned(product(linear(), NO_EPILOGUE)).bound(place, rig.workspace) for place in places]
    rig.stream.synchronize()
    for bound, stream in zip(both, (rig.stream, rig.context.stream()), strict=True):
        bound.run(stream)
    assert rig.driver.findings == [
        "unordered: cudnnBackendExecute writes what cudnnBackendExecute writes, and no event orders them"
    ]


def test_a_refusal_leaves_nothing() -> None:
    rig = Rig(refusal=REFUSAL)
    made = plan(rig.calls, product(linear(), NO_EPILOGUE), rig.handle)
    assert isinstance(made, Refusal)
    assert str(made) == "cuDNN refuses: The width is not liked"
    rig.end()


def test_an_engine_whose_results_differ_between_runs_is_not_taken() -> None:
    rig = Rig()
    rig.library.notes = [0, 4]
    made = plan(rig.calls, product(linear(), NO_EPILOGUE), rig.handle)
    assert str(made) == "cuDNN refuses: it gives no reason"
    rig.end()


@pytest.mark.parametrize("call", ["cudnnBackendFinalize", "cudnnBackendSetAttribute", "cudnnBackendGetAttribute"])
def test_a_call_that_fails_is_a_refusal_with_its_name_and_leaves_nothing(call: str) -> None:
    rig = Rig()
    rig.library.failures[call] = 3000
    made = plan(rig.calls, product(linear(), NO_EPILOGUE), rig.handle)
    assert str(made) == "cuDNN refuses: CUDNN_STATUS_NOT_SUPPORTED:"
    rig.end()


def test_a_run_that_fails_is_raised() -> None:
    rig = Rig()
    for number in range(3):
        rig.put(number, np.ones(64, BF16))
    planned = rig.planned(product(linear(), NO_EPILOGUE))
    rig.library.failures["cudnnBackendExecute"] = 5000
    with pytest.raises(CudnnFailed, match="cudnnBackendExecute gives error 5000, CUDNN_STATUS_EXECUTION_FAILED"):
        planned.bound(rig.address, rig.workspace).run(rig.stream)
    planned.close()
    rig.end()


def test_a_plan_for_a_card_that_is_not_here_is_not_run() -> None:
    rig = Rig()
    graph = product(linear(), NO_EPILOGUE)
    planned = rig.planned(graph)
    planned._card = Described("{}")
    with pytest.raises(AssertionError, match="a card that is not here"):
        planned.bound(rig.address, rig.workspace)
    planned.close()
    rig.end()


def test_an_old_cudnn_is_not_used() -> None:
    old, new = (bind(FakeCudnn(FakeCuda(CARD), version=number).library, TABLE) for number in (91200, 91300))
    assert version(old) == (9, 12, 0)
    assert unusable(old) == "cuDNN 9.12.0 is here, 9.13.0 or newer is needed"
    assert unusable(new) == ""
