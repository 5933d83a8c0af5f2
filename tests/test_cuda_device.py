"""The CUDA device on the simulated driver has the CPU's bits, and says what fails."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sexpgpu
from sexpgpu.api import load
from sexpgpu.backend import Counter
from sexpgpu.cuda import kernels
from sexpgpu.cuda.device import CudaDevice
from sexpgpu.errors import Error
from sexpgpu.interp.device import CpuDevice
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.passes.pipeline import training_graph, update_graph
from tests.fake_cuda import A100, FakeCuda
from tests.fake_cuda.order import Order
from tests.on_fake_cuda import nothing_wrong, opened, settings_in

EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
HOSTS = {
    "step": 3.0,
    "updates": 3.0,
    "total-steps": 10.0,
    "gradient-scale": 0.5,
    "microbatches": 2.0,
    "loss-scale": 1.0,
}
RNG = np.random.default_rng(8)


@cache
def update() -> Graph:
    """An optimizer's update: maps alone, over parameters and states that are replaced in place."""
    return update_graph(load(EXAMPLES / "digits.sexp", variant="sim").elaborated)


def f32(*shape: int) -> TensorType:
    return TensorType("f32", shape)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


class Sides:
    """The same graph, with the same memory, on the CPU and on the simulated card."""

    def __init__(self, graph: Graph, *devices: Any) -> None:
        self.devices = devices
        self.executables = [device.prepare(graph, 7) for device in devices]
        self.memory: list[dict[str, Any]] = [{} for _ in devices]
        rng = np.random.default_rng(3)
        for name, type_ in self.executables[0].externals.items():
            values = abs(rng.normal(size=type_.shape)).astype(numpy_dtype(type_.dtype))
            for device, executable, memory in zip(devices, self.executables, self.memory):
                memory[name] = device.allocate(type_)
                device.write(memory[name], values)
                executable.bind(name, memory[name])

    def run(self, step: int) -> None:
        for executable in self.executables:
            executable.run({**HOSTS, "step": float(step), "updates": float(step)}, Counter(0, step))

    def agree(self) -> None:
        first, second = self.devices
        for name, memory in self.memory[0].items():
            assert first.read(memory).tobytes() == second.read(self.memory[1][name]).tobytes(), name


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = CpuDevice(settings_in(tmp_path_factory.mktemp("cpu"), threads=2))
    yield made
    made.engine.close()


@pytest.mark.parametrize("order", ["eager", "lazy", 1])
def test_an_update_has_the_cpus_bits_launched_and_as_a_graph(
    order: Order, cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda(order=order)
    device = opened(driver, monkeypatch, tmp_path)
    sides = Sides(update(), cpu, device)
    for step in (1, 2, 3, 4):
        sides.run(step)
    sides.agree()
    assert driver.called["cuStreamBeginCapture_v2"] == 1
    assert driver.called["cuGraphLaunch"] == 3, "all calls but the first are one launch"
    device.close()
    assert nothing_wrong(driver)


@pytest.mark.parametrize("order", ["eager", "lazy", 1])
def test_a_dependency_that_a_calls_graph_lacks_is_reported(
    order: Order, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda(order=order)
    device = opened(driver, monkeypatch, tmp_path, products="own")
    graph = training_graph(load(EXAMPLES / "digits.sexp", variant="sim").elaborated)
    found = []
    for forgotten in (False, True):
        sides = Sides(graph, device)
        first, second = (made[0].kernel.name for made in sides.executables[0].program.launches[:2])
        # A product, and what adds the bias to it.
        assert first.startswith("product") and second.startswith("map"), (first, second)
        driver.forgotten_edges = [(second, first)] if forgotten else []
        for step in (1, 2):
            sides.run(step)
        sides.executables[0].output("loss")
        found.append([finding for finding in driver.findings if finding.startswith("unordered: ")])
    assert found[0] == []
    assert any(f"{first} of a graph" in finding and f"{second} of a graph" in finding for finding in found[1])


def test_memory_that_is_bound_anew_is_used_from_then_on(
    cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    sides = Sides(update(), cpu, device)
    for step in (1, 2, 3):
        sides.run(step)
    name = next(iter(sides.memory[0]))
    for side, (executable, made) in enumerate(zip(sides.executables, sides.devices)):
        old, new = sides.memory[side][name], made.allocate(executable.externals[name])
        made.copy(new, old)
        sides.memory[side][name] = new
        executable.bind(name, new)
    for step in (4, 5):
        sides.run(step)
    sides.agree()
    device.close()
    assert nothing_wrong(driver)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[FakeCuda, CudaDevice]]:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    yield driver, device
    device.close()
    assert nothing_wrong(driver)


Rig = tuple[FakeCuda, CudaDevice]


def test_memory_is_zeros_until_it_is_written(rig: Rig) -> None:
    _, device = rig
    assert not device.read(device.allocate(f32(5, 3))).any()


@pytest.mark.parametrize("size", [1, 1000, (1 << 18) + 7])
def test_what_is_written_is_read(rig: Rig, size: int) -> None:
    _, device = rig
    memory, values = device.allocate(f32(size)), normal(size)
    given = values.copy()
    device.write(memory, given)
    given[:] = 0
    assert np.array_equal(device.read(memory), values)


def test_a_part_is_the_same_memory(rig: Rig) -> None:
    _, device = rig
    whole, values = device.allocate(f32(100)), normal(3, 4)
    device.write(device.part(whole, 20, f32(3, 4)), values)
    expected = np.zeros(100, np.float32)
    expected[20:32] = values.reshape(-1)
    assert np.array_equal(device.read(whole), expected)


@pytest.mark.parametrize("size", [1, 7, 8, 255, 32768, 32769, 100_003])
def test_sums_have_the_cpus_bits(rig: Rig, cpu: Any, size: int) -> None:
    _, device = rig
    values = [normal(size), normal(size)]
    both, devices = [], [cpu, device]
    for made in devices:
        target, source = (made.allocate(f32(size)) for _ in range(2))
        made.write(target, values[0])
        made.write(source, values[1])
        squares = made.square_sum(target)
        made.add(target, source)
        both.append((squares, made.read(target).tobytes()))
    assert both[0] == both[1]


def test_the_report_counts_modules_and_says_at_once_what_the_cache_could_not_give(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    make = kernels.load_cubins

    def with_damage(*given: Any, **more: Any) -> kernels.Modules:
        made = make(*given, **more)
        count = len(made.modules)
        return kernels.Modules(made.modules, 0, count - 1, 1, 0.0, ["kernel cache: x.cubin is damaged and made again"])

    monkeypatch.setattr(kernels, "load_cubins", with_damage)
    first = device.prepare(update(), 0).lowering.notes
    experiment = load(EXAMPLES / "digits.sexp", variant="sim").elaborated
    second = device.prepare(training_graph(experiment), 0).lowering.notes
    assert first[-2] == "kernel cache: x.cubin is damaged and made again"
    assert first[-1] == "kernels: 1 modules: 0 compiled, 0 from the cache, 1 rebuilt"
    assert not any("damaged" in note for note in second) and second[-1].startswith("kernels: ")
    # What is loaded already is not asked for again.
    assert not any(note.startswith("kernels: ") for note in device.prepare(update(), 0).lowering.notes)
    gc.collect()
    device.close()
    assert nothing_wrong(driver)


def test_memory_that_nobody_has_is_used_again(rig: Rig) -> None:
    _, device = rig
    held = []
    for _ in range(5):
        memory = device.allocate(f32(1000))
        held.append(device.peak_bytes())
        del memory
        gc.collect()
    assert held[0] == held[-1]


def small(memory_bytes: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[FakeCuda, CudaDevice]:
    driver = FakeCuda(replace(A100, memory_bytes=memory_bytes))
    return driver, opened(driver, monkeypatch, folder)


def test_where_memory_is_full_what_can_be_had_again_is_given_back_and_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, device = small(1 << 20, monkeypatch, tmp_path)
    kept, gone = device.allocate(f32(100 << 10)), device.allocate(f32(100 << 10))
    device.write(kept, np.full(100 << 10, 3, np.float32))
    del gone
    gc.collect()
    more = device.allocate(f32(120 << 10))
    assert device.report() == [
        "memory: allocation failed (480.0 KiB asked, 224.0 KiB free); caches released, tried again"
    ]
    assert device.report() == []
    assert not device.read(more).any() and (device.read(kept) == 3).all()
    device.close()
    assert nothing_wrong(driver)


def test_a_graph_that_was_given_back_for_memory_is_captured_again(
    cpu: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    sides = Sides(update(), cpu, device)
    for step in (1, 2, 3):
        sides.run(step)
    driver.fail("cuMemAlloc_v2", 2)
    device.allocate(f32(100))
    sides.run(4)
    sides.agree()
    assert driver.called["cuStreamBeginCapture_v2"] == 2
    device.close()
    assert nothing_wrong(driver)


def test_where_memory_is_full_for_good_the_error_says_how_much_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver, device = small(1 << 20, monkeypatch, tmp_path)
    kept = device.allocate(f32(100 << 10))
    with pytest.raises(Error) as caught:
        device.allocate(f32(200 << 10))
    assert caught.value.code == "E-MEM-001"
    assert caught.value.message == "800.0 KiB more are needed; 624.0 KiB of 1.0 MiB are free"
    assert caught.value.notes == ["this run holds 400.0 KiB", "a smaller :batch, or a smaller model"]
    assert kept.address
    device.close()
    assert nothing_wrong(driver)


def prepared(device: CudaDevice) -> None:
    Sides(update(), device)


def trained(device: CudaDevice) -> None:
    sides = Sides(update(), device)
    for step in (1, 2):
        sides.run(step)
    device.read(next(iter(sides.memory[0].values())))


FAILURES = [
    # call, number, its name and words, what fails
    ("cuModuleLoadDataEx", 200, "CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid", prepared),
    ("cuModuleGetFunction", 500, "CUDA_ERROR_NOT_FOUND: named symbol not found", prepared),
    ("cuLaunchKernel", 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested for launch", trained),
    ("cuGraphInstantiateWithFlags", 999, "CUDA_ERROR_UNKNOWN: unknown error", trained),
    ("cuMemcpyHtoDAsync_v2", 1, "CUDA_ERROR_INVALID_VALUE: invalid argument", trained),
]


@pytest.mark.parametrize("call, number, words, use", FAILURES, ids=[failure[0] for failure in FAILURES])
def test_a_call_that_fails_is_told_in_the_drivers_words_and_nothing_leaks(
    call: str,
    number: int,
    words: str,
    use: Callable[[CudaDevice], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    driver.fail(call, number)
    with pytest.raises(Error) as caught:
        use(device)
    assert caught.value.code == "E-DEV-005"
    assert caught.value.message == f"the CUDA device failed: {call} gives error {number}, {words}"
    assert caught.value.notes == ["go on from the last checkpoint with --resume latest"]
    device.close()
    assert nothing_wrong(driver)


def test_after_a_sticky_error_every_call_fails_and_closing_still_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    device = opened(driver, monkeypatch, tmp_path)
    memory = device.allocate(f32(8))
    driver.cards[0].broken = 719
    for call in (lambda: device.read(memory), lambda: device.allocate(f32(3)), device.free_bytes):
        with pytest.raises(Error, match="E-DEV-005") as caught:
            call()
        assert caught.value.notes[0] == "the card takes no more work from this process; see nvidia-smi and dmesg"
    device.close()
    assert driver.held() == []


def test_a_device_that_fails_to_open_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for call in ("cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuMemHostAlloc", "cuEventCreate"):
        driver = FakeCuda()
        driver.fail(call, 999)
        with pytest.raises(Error, match="E-DEV-005"):
            opened(driver, monkeypatch, tmp_path)
        assert nothing_wrong(driver)
