"""Every example trains with --device cuda on the simulated driver as it does on the CPU, and nothing is found."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sexpgpu
from sexpgpu.api import load
from sexpgpu.cli import main as cli
from sexpgpu.cuda import cublas, kernels, library
from sexpgpu.device import choose
from sexpgpu.errors import Error
from tests.attending import Case
from tests.fake_cuda import A100, H100, T4, FakeCuda, Figures
from tests.fake_cuda.order import Order
from tests.fake_cudnn.library import FakeCudnn
from tests.on_fake_cuda import install, nothing_wrong, settings_in

EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
STEPS = 3


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def trained(example: str, kind: str, **options: Any) -> tuple[list[Any], Mapping[str, Any], Any]:
    """Loss, weight and gradient norm of every step, the parameters at the end, and the device."""
    trainer = load(EXAMPLES / f"{example}.sexp", variant="sim").trainer(device=kind, seed=3, **options)
    steps = [trainer.step() for _ in range(STEPS)]
    return steps, trainer.parameters, trainer._session.device


CASES: list[tuple[str, Order, Figures, str]] = [
    ("digits", "lazy", A100, "own"),
    ("digits", 4, A100, "library"),
    ("builtin", 1, A100, "library"),
    ("gpt2", 2, H100, "library"),
    ("lstm", 3, A100, "own"),
    ("lstm", 6, A100, "library"),
    ("resnet", "eager", A100, "library"),
]


@pytest.mark.parametrize("example, order, figures, products", CASES, ids=[f"{case[0]} {case[3]}" for case in CASES])
def test_an_example_trains_on_the_simulated_card_as_on_the_cpu(
    example: str, order: Order, figures: Figures, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEXPGPU_PRODUCTS", products)
    driver = FakeCuda(figures, order=order)
    products_library = install(driver, monkeypatch)
    theirs, expected, _ = trained(example, "cpu")
    ours, parameters, opened = trained(example, "cuda")
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=1e-5)
    # What a library multiplies is summed in its order.
    assert bool(products_library.called["cublasLtMatmul"]) == (products == "library")
    if products == "own":
        assert ours == theirs
        assert {name: values.tobytes() for name, values in parameters.items()} == {
            name: values.tobytes() for name, values in expected.items()
        }
    opened.close()
    assert nothing_wrong(driver)


@pytest.mark.parametrize("library", ["auto", "off"])
def test_in_bfloat16_attention_trains_by_cudnn_and_by_our_own_kernels(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEXPGPU_CUDNN", library)
    driver = FakeCuda(A100, order="lazy")
    attention = FakeCudnn(driver)
    install(driver, monkeypatch, attention)
    theirs, _, _ = trained("builtin", "cpu", precision="bfloat16")
    ours, _, opened = trained("builtin", "cuda", precision="bfloat16")
    # A rounding of 2⁻⁹ more in probabilities and results, on the way to logits of size 1.
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=2.0**-9)
    assert bool(attention.called["cudnnBackendExecute"]) == (library == "auto")
    notes = opened.prepare(Case((1, 2, 2, 8, 8, 8, 8)).graph(), 0).lowering.notes
    refused = [note for note in notes if note.startswith("attention: 2 by our own kernels: cuDNN's attention takes bf16")]
    assert bool(refused) == (library == "auto")
    opened.close()
    assert nothing_wrong(driver)


@pytest.mark.parametrize("library, figures, words", [
    ("auto", A100, "products: 3 with their bias by cuDNN"),
    ("on", H100, "products: 3 with their bias by cuDNN"),
    ("auto", H100, "products: 3 without their bias in the call: cuDNN was not compared with cuBLASLt on sm_90"),
])  # fmt: skip
def test_the_report_says_who_adds_the_biases_of_q_k_and_v(
    library: str, figures: Figures, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEXPGPU_CUDNN", library)
    driver = FakeCuda(figures)
    install(driver, monkeypatch, FakeCudnn(driver))
    trainer = load(EXAMPLES / "builtin.sexp", variant="sim").trainer(device="cuda", precision="bfloat16")
    train = trainer.lowering.partition("  update")[0]
    assert words in train
    assert (", 3 cuDNN)" in train) == ("by cuDNN" in words)
    trainer._session.device.close()
    assert nothing_wrong(driver)


def test_what_cudnn_refuses_of_a_product_is_told_in_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeCuda(A100)
    install(driver, monkeypatch, FakeCudnn(driver, refusal="{}\nWarning: X; Reason: The width is not liked at: w > 4\n"))
    trainer = load(EXAMPLES / "builtin.sexp", variant="sim").trainer(device="cuda", precision="bfloat16")
    words = "products: 3 without their bias in the call: cuDNN refuses: The width is not liked"
    assert words in trainer.lowering
    trainer._session.device.close()
    assert nothing_wrong(driver)


Said = tuple[int, str, str]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """`sexpgpu WORDS…` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["sexpgpu", *words])
        with pytest.raises(SystemExit) as ended:
            cli.start()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


DIGITS = (str(EXAMPLES / "digits.sexp"), "--variant", "sim", "--seed", "3")


def records(tmp_path: Path) -> list[dict[str, Any]]:
    """What the only run, or the last one, wrote."""
    files = sorted((tmp_path / "runs").rglob("metrics.jsonl"), key=lambda file: file.stat().st_mtime)
    return [json.loads(line) for line in files[-1].read_text().splitlines()]


def losses(tmp_path: Path) -> list[float]:
    return [record["train/loss"] for record in records(tmp_path) if record["kind"] == "step"]


def test_a_run_says_what_the_card_does_and_holds(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda(order=5)
    install(driver, monkeypatch)
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "3")
    assert code == 0, err
    assert "lowering: cuda compute_80 NVIDIA A100-SXM4-80GB" in err
    assert re.search(r"  train +\d+ nodes, \d+ kernels \(\d+ fused\), 8 products \(8 cuBLASLt 13\.1\.0\)$", err, re.M)
    assert re.search(r"  memory +32\.1 MiB of 79\.0 GiB free", err)
    assert re.search(r"^memory: peak 32\.\d MiB of 32\.1 MiB planned", err, re.M)
    assert all(record["runtime/peak_bytes"] > 0 for record in records(tmp_path) if record["kind"] == "step")
    assert len(losses(tmp_path)) == 3
    assert nothing_wrong(driver)


def test_a_run_that_is_resumed_on_the_card_goes_on_with_the_same_bits(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    written = []
    for words in (("--steps", "4"), ("--steps", "2"), ("--steps", "4", "--resume", "latest")):
        code, _, err = command("run", *DIGITS, "--device", "cuda", *words)
        assert code == 0, err
        written.append(losses(tmp_path))
    whole, _, resumed = written
    assert resumed == whole
    assert nothing_wrong(driver)


def test_where_memory_was_full_for_a_moment_a_run_says_so_and_goes_on(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    driver.fail("cuMemAlloc_v2", 2)
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "2")
    assert code == 0, err
    said = [line for line in err.splitlines() if line.startswith("memory: allocation failed (")]
    assert len(said) == 1 and said[0].endswith("caches released, tried again")
    assert [r["words"] for r in records(tmp_path) if r.get("name") == "device"] == said
    assert nothing_wrong(driver)


def test_check_tells_what_a_run_on_the_card_would_be_and_leaves_nothing(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda(H100)
    install(driver, monkeypatch)
    monkeypatch.setenv("SEXPGPU_DEVICE", "cuda")
    code, out, err = command("check", *DIGITS[:3])
    assert code == 0, err
    assert "lowering: cuda compute_90 NVIDIA H100 80GB HBM3" in out
    assert re.search(r"^  workspaces +32\.0 MiB$", out, re.M)
    assert not driver.called["cuLaunchKernel"]
    assert nothing_wrong(driver)


def test_times_are_told_for_every_launch_of_the_card(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "2", "--timings")
    assert code == 0, err
    assert re.search(r"^timings: step 2, ", err, re.M)
    assert re.search(r"^  linear +digits.sexp:\d+ +product ", err, re.M)
    (trace,) = (tmp_path / "runs").rglob("trace.json")
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"step 2", "train", "update", "linear"} <= names
    assert not driver.called["cuStreamBeginCapture_v2"]
    assert nothing_wrong(driver)


# Half a unit in the last place, relative: where a sum in another order is rounded to the neighbour.
@pytest.mark.parametrize("precision, half_ulp", [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_narrow_floats_train_on_the_simulated_card_as_on_the_cpu(
    precision: str, half_ulp: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda(order=9)
    install(driver, monkeypatch)
    theirs, _, _ = trained("digits", "cpu", precision=precision)
    ours, _, opened = trained("digits", "cuda", precision=precision)
    for one, other in zip(ours, theirs, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=half_ulp)
        assert one.gradient_norm == pytest.approx(other.gradient_norm, rel=half_ulp)
        assert one.applied and other.applied
    opened.close()
    assert nothing_wrong(driver)


def test_an_index_outside_its_axis_is_told_as_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    batch = {"x": np.zeros((32, 64), np.float32), "y": np.full(32, 3, np.int32)}
    batch["y"][7] = 12
    said = []
    for kind in ("cpu", "cuda"):
        trainer = load(EXAMPLES / "digits.sexp", variant="sim").trainer(device=kind, batches=lambda step, part: batch)
        with pytest.raises(Error) as caught:
            trainer.step()
        said.append((caught.value.code, caught.value.message, caught.value.span))
        trainer._session.device.close()
    assert said[0] == said[1]
    assert said[1][:2] == ("E-NUM-002", "index 12 at step 1 is outside an axis of 10")
    assert nothing_wrong(driver)


def test_products_that_the_library_declines_are_our_own_kernels_and_the_report_says_why(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda()
    products = install(driver, monkeypatch)
    products.failures["cublasLtMatmulAlgoGetHeuristic"] = 15
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "1")
    assert code == 0, err
    assert re.search(r"8 products \(7 cuBLASLt 13\.1\.0, 1 own kernels\)", err)
    reason = "cuBLASLt has no algorithm: CUBLAS_STATUS_NOT_SUPPORTED: the requested functionality is not supported"
    assert f"products: 1 by our own kernels: {reason}" in err
    assert nothing_wrong(driver)


def test_a_product_that_fails_is_told_in_the_librarys_words(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda()
    products = install(driver, monkeypatch)
    products.failures["cublasLtMatmul"] = 13
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "1")
    assert code == 1
    words = "cublasLtMatmul gives error 13, CUBLAS_STATUS_EXECUTION_FAILED: the function failed to launch on the GPU"
    assert f"error[E-DEV-005]: the CUDA device failed: {words}" in err
    assert nothing_wrong(driver)


def failing(call: str, number: int, after: int) -> FakeCuda:
    driver = FakeCuda()
    driver.fail(call, number, after=after)
    return driver


class NoDriver(FakeCuda):
    def load(self, name: str) -> Any:
        raise OSError(name)


REFUSED = [
    (lambda: NoDriver(), "E-DEV-001", "no NVIDIA driver is found (libcuda.so.1); a 580 series or newer is needed"),
    (lambda: FakeCuda(version=12080), "E-DEV-001", "the NVIDIA driver serves CUDA 12.8"),
    (lambda: FakeCuda(T4), "E-DEV-001", "Tesla T4 has compute capability 7.5"),
    (lambda: FakeCuda(start=100), "E-DEV-001", "there is no device cuda:0: no GPU is visible"),
    (lambda: FakeCuda(replace(A100, memory_bytes=1 << 30)), "E-MEM-001", "the run needs"),
    (lambda: failing("cuModuleLoadDataEx", 200, 0), "E-DEV-005", "cuModuleLoadDataEx gives error 200, CUDA_ERROR_INVALID_IMAGE"),
    (lambda: failing("cuLaunchKernel", 719, 5), "E-DEV-005", "cuLaunchKernel gives error 719, CUDA_ERROR_LAUNCH_FAILED"),
    (lambda: failing("cuMemAlloc_v2", 2, 0), "E-MEM-001", "more are needed"),
]  # fmt: skip


@pytest.mark.parametrize("make, code, words", REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_a_card_cannot_do_ends_a_run_with_its_code_and_never_on_the_cpu(
    make: Callable[[], FakeCuda],
    code: str,
    words: str,
    command: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = make()
    if words == "more are needed":
        driver.fail("cuMemAlloc_v2", 2, times=1000)
    install(driver, monkeypatch)
    ended, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "3")
    assert ended == 1
    assert f"error[{code}]: " in err and words in err
    assert "Traceback" not in err and "lowering: cpu" not in err
    assert nothing_wrong(driver)


def test_cublas_that_is_not_installed_is_told_with_what_brings_it(
    command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)
    find = library.find
    monkeypatch.setattr(library, "find", lambda name: None if "cublas" in name else find(name))
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "1")
    assert code == 1
    assert "error[E-DEV-001]: device cuda cannot be used here" in err
    assert "   = the CUDA libraries are not installed (nvidia-cublas)" in err
    assert nothing_wrong(driver)


@pytest.mark.parametrize("module, function", [(cublas, "cublas"), (kernels, "load_cubins")])
def test_a_library_that_does_not_load_ends_a_run_and_leaves_nothing(
    module: Any, function: str, command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda()
    install(driver, monkeypatch)

    def refuse(*_: Any) -> Any:
        raise Error("E-DEV-004", "its file is damaged")

    monkeypatch.setattr(module, function, refuse)
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "1")
    assert code == 1 and "error[E-DEV-004]: its file is damaged" in err
    assert driver.called["cuDevicePrimaryCtxRetain"] == 1
    assert nothing_wrong(driver)


@pytest.mark.parametrize("words, variables", [(("--device", "cuda:1"), ""), (("--device", "cuda"), "1")])
def test_a_run_takes_the_card_that_is_named(
    words: tuple[str, ...], variables: str, command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda(T4, A100)
    install(driver, monkeypatch)
    if variables:
        monkeypatch.setenv("SEXPGPU_DEVICES", variables)
    code, _, err = command("run", *DIGITS, *words, "--steps", "1")
    assert code == 0, err
    assert "lowering: cuda compute_80 NVIDIA A100-SXM4-80GB" in err
    assert "cards: 2 are visible, and this run uses cuda:1 alone; one run on several is not available yet" in err
    assert [card.peak_bytes > 0 for card in driver.cards] == [False, True]
    assert nothing_wrong(driver)


@pytest.mark.parametrize(
    "variables, message",
    [
        ({"SEXPGPU_DEVICES": "0,2"}, "error[E-DP-001]: SEXPGPU_DEVICES names ordinal 2; 2 visible, counted from 0"),
        ({"SEXPGPU_DEVICES": "0,1"}, "error[E-DEV-001]: one run on several GPUs is not available yet"),
        ({"SEXPGPU_MEMORY": "1GiB"}, "error[E-MEM-001]: the run needs "),
    ],
)
def test_what_the_variables_ask_in_vain_ends_a_run(
    variables: dict[str, str], message: str, command: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeCuda(A100, A100)
    install(driver, monkeypatch)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    code, _, err = command("run", *DIGITS, "--device", "cuda", "--steps", "1")
    assert code == 1 and message in err
    assert nothing_wrong(driver)


def test_auto_takes_a_card_that_can_run_and_says_why_not_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path, device="auto")
    for driver, reason in (
        (FakeCuda(), "device auto: cuda is available"),
        (FakeCuda(T4), "device auto: cpu, because Tesla T4 has compute capability 7.5"),
        (FakeCuda(version=12080), "device auto: cpu, because the NVIDIA driver serves CUDA 12.8"),
    ):
        install(driver, monkeypatch)
        assert choose(settings).reason == reason
        assert nothing_wrong(driver)
