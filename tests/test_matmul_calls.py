"""Products run by a simulated cuBLASLt in a simulated card's memory: numbers, streams, graphs, failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sexpgpu.cuda import cublas
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.context import Context
from sexpgpu.cuda.cublas import CublasFailed
from sexpgpu.cuda.driver import TABLE as DRIVER_TABLE
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.cuda.matmul import WORKSPACE_BYTES, Matmul, Rules
from sexpgpu.cuda.matmul_calls import NoAlgorithm, PreparedMatmul, new_handle
from sexpgpu.plan.kernel import Matrix, Place, Product
from tests.fake_cublas import FakeCublas
from tests.fake_cublas.products import described, product
from tests.fake_cuda import FakeCuda, Figures

Array = np.ndarray[Any, np.dtype[Any]]
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
# Half a unit in the last place of 1.
ROUNDING = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8}
# Room for the workspace and some operands.
CARD = Figures("a card", (8, 0), memory_bytes=WORKSPACE_BYTES + (4 << 20))


class Rig:
    """A simulated card with cuBLASLt, one stream, a workspace."""

    def __init__(self, order: Any = "eager") -> None:
        self.driver = FakeCuda(CARD, order=order)
        self.library = FakeCublas(self.driver)
        calls = bind(self.driver.load("libcuda.so.1"), DRIVER_TABLE)
        calls.cuInit(0)
        self.context = Context(calls, 0)
        self.calls = bind(self.library.library, cublas.TABLE)
        self.handle = new_handle(self.calls)
        self.stream = self.context.stream()
        self.workspace = self.context.allocate(WORKSPACE_BYTES)

    def put(self, values: Array) -> int:
        pinned = self.context.pinned(values.nbytes)
        pinned.bytes[:] = values.view(np.uint8).reshape(-1)
        memory = self.context.allocate(values.nbytes)
        self.stream.upload(memory.address, pinned.address, values.nbytes)
        return memory.address

    def take(self, address: int, count: int, dtype: str) -> Array:
        size = count * np.dtype(DTYPES[dtype]).itemsize
        pinned = self.context.pinned(size)
        self.stream.download(pinned.address, address, size)
        self.stream.synchronize()
        return np.array(pinned.bytes.view(DTYPES[dtype]))

    def prepare(self, matmul: Matmul, addresses: Sequence[int], bias: int = 0) -> PreparedMatmul:
        b, a, c = addresses
        return PreparedMatmul(self.calls, self.handle, matmul, (b, a, c), bias, self.workspace.address)

    def end(self) -> None:
        self.calls.cublasLtDestroy(self.handle)
        self.context.close()
        assert self.driver.findings == [] and self.driver.faults == []
        assert self.driver.held() == [] and not self.library.held


def elements(matrix: Matrix, rows: int, columns: int) -> Array:
    """Where the elements of a batch are, [batch rows columns]."""
    z, i, j = (np.asarray(x) for x in (matrix.starts, range(rows), range(columns)))
    return np.asarray(z[:, None, None] + i[:, None] * matrix.row + j * matrix.column)


def operands(asked: Product, seed: int = 3) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    sizes = {
        "a": (elements(asked.a, asked.m, asked.k), asked.dtype),
        "b": (elements(asked.b, asked.k, asked.n), asked.dtype),
        "c": (elements(asked.c, asked.m, asked.n), asked.c_dtype),
    }
    return {name: rng.standard_normal(where.max() + 1).astype(DTYPES[dtype]) for name, (where, dtype) in sizes.items()}


def exactly(asked: Product, given: Mapping[str, Array], bias: Array | None, gelu: bool) -> tuple[Array, Array]:
    """The result in float64, and a bound of what float32 sums and one rounding may differ."""
    a, b, c = (given[name].astype(np.float64) for name in "abc")
    a, b = a[elements(asked.a, asked.m, asked.k)], b[elements(asked.b, asked.k, asked.n)]
    sums, magnitudes = a @ b, np.abs(a) @ np.abs(b)
    if asked.accumulate:
        before = c[elements(asked.c, asked.m, asked.n)]
        sums, magnitudes = sums + before, magnitudes + np.abs(before)
    if bias is not None:
        sums, magnitudes = sums + bias.astype(np.float64), magnitudes + np.abs(bias.astype(np.float64))
    bound = (asked.k + 2) * 2.0**-24 * magnitudes
    if gelu:
        # Its slope is below 1.13; the formula itself has a dozen roundings of what is at most |x|.
        bound = 1.13 * bound + 12 * 2.0**-24 * np.abs(sums)
        sums = sums / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)))
    return sums, bound * (1 + ROUNDING[asked.c_dtype]) + ROUNDING[asked.c_dtype] * np.abs(sums)


@dataclass(frozen=True)
class Asked:
    product: Product
    bias: bool = False
    gelu: bool = False
    calls: int = 1


def asked() -> Iterator[tuple[str, Asked]]:
    for a_turned in (False, True):
        for b_turned in (False, True):
            name = f"a{'ᵀ' * a_turned} b{'ᵀ' * b_turned}"
            yield name, Asked(product(5, 7, 9, a_turned=a_turned, b_turned=b_turned))
            padded = product(3, 4, 33, a_turned=a_turned, b_turned=b_turned, batch=3, padding=2, dtype="bf16")
            yield f"{name} of a batch with padding in bf16", Asked(padded)
    for dtype, result in (("bf16", "f32"), ("f16", None), ("f16", "f32")):
        yield f"{dtype} to {result or dtype}", Asked(product(8, 8, 17, dtype=dtype, result=result))
    for bias, gelu in ((True, False), (False, True), (True, True)):
        name = " and ".join(["bias"] * bias + ["GELU"] * gelu)
        yield name, Asked(product(6, 8, 16), bias, gelu)
        yield f"{name} of a batch in bf16", Asked(product(6, 8, 16, dtype="bf16", batch=2), bias, gelu)
    yield "added", Asked(product(6, 8, 16, accumulate=True))
    yield "added in bf16", Asked(product(6, 8, 16, batch=2, dtype="bf16", accumulate=True))
    yield "one row", Asked(product(1, 8, 16))
    yield "one column", Asked(product(8, 1, 16, b_turned=True))
    yield "one element of k", Asked(product(8, 5, 1))
    yield "several calls", Asked(product(3, 4, 5, batch=6, between=(2, 4)), calls=3)


CASES = dict(asked())


@pytest.mark.parametrize("name", CASES)
def test_a_product_is_what_float64_gives_within_its_bounds(name: str) -> None:
    case, rig = CASES[name], Rig("lazy")
    given = operands(case.product)
    bias = np.linspace(-1, 1, case.product.n).astype(DTYPES[case.product.c_dtype]) if case.bias else None
    matmul = described(case.product, Epilogue(Place(3) if case.bias else None, "gelu-tanh" if case.gelu else ""))
    places = {name: rig.put(values) for name, values in given.items()}
    prepared = rig.prepare(matmul, [places["b"], places["a"], places["c"]], 0 if bias is None else rig.put(bias))
    prepared.run(rig.stream)
    prepared.close()
    after = rig.take(places["c"], given["c"].size, case.product.c_dtype)
    exact, bound = exactly(case.product, given, bias, case.gelu)
    where = elements(case.product.c, case.product.m, case.product.n)
    assert np.all(np.abs(after[where].astype(np.float64) - exact) <= bound)
    untouched = np.setdiff1d(np.arange(given["c"].size), where)
    assert np.array_equal(after[untouched], given["c"][untouched])
    assert rig.library.called["cublasLtMatmul"] == case.calls
    rig.end()


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_columns_of_b_are_summed_where_the_gradient_of_a_bias_is_asked_for(dtype: str) -> None:
    rig, asked = Rig("lazy"), product(6, 8, 33, dtype=dtype, result="f32")
    given = operands(asked)
    places = {name: rig.put(values) for name, values in given.items()}
    sums = rig.put(np.full(8, np.nan, np.float32))
    prepared = rig.prepare(described(asked, Epilogue(gradient=Place(3))), [places[name] for name in "bac"], sums)
    prepared.run(rig.stream)
    prepared.close()
    b = given["b"].reshape(33, 8).astype(np.float64)
    assert np.all(np.abs(rig.take(sums, 8, "f32") - b.sum(0)) <= 33 * 2.0**-24 * np.abs(b).sum(0))
    exact, bound = exactly(asked, given, None, False)
    assert np.all(np.abs(rig.take(places["c"], 48, "f32").reshape(6, 8) - exact) <= bound)
    rig.end()


def test_the_choice_is_told() -> None:
    rig = Rig()
    long = product(2, 2, 4096)
    prepared = rig.prepare(described(long), [rig.put(operands(long)[name]) for name in "bac"])
    assert str(prepared.choice) == "cuBLASLt algorithm 21, tile 20, stages 11, k split 2 ways"
    assert prepared.choice.workspace_bytes == 2 * 2 * 2 * 4
    prepared.close()
    rig.end()


def test_sums_are_not_split_where_that_is_not_allowed() -> None:
    rig = Rig()
    long = product(2, 2, 4096)
    matmul = described(long, rules=Rules(allow_split=False))
    prepared = rig.prepare(matmul, [rig.put(operands(long)[name]) for name in "bac"])
    assert (prepared.choice.split, prepared.choice.workspace_bytes) == (1, 0)
    assert str(prepared.choice) == "cuBLASLt algorithm 21, tile 20, stages 11"
    prepared.close()
    rig.end()


def test_no_algorithm_is_told_in_the_librarys_words_and_leaves_nothing() -> None:
    rig = Rig()
    rig.library.failures["cublasLtMatmulAlgoGetHeuristic"] = 15
    small = product(2, 2, 2)
    addresses = [rig.put(operands(small)[name]) for name in "bac"]
    with pytest.raises(NoAlgorithm) as caught:
        rig.prepare(described(small), addresses)
    assert str(caught.value) == (
        "cuBLASLt has no algorithm: CUBLAS_STATUS_NOT_SUPPORTED: the requested functionality is not supported"
    )
    rig.end()


def test_a_descriptor_that_fails_leaves_nothing() -> None:
    rig = Rig()
    rig.library.failures["cublasLtMatmulPreferenceCreate"] = 3
    rig.library.words[3] = ("ALLOC_FAILED", "resource allocation failed")
    small = product(2, 2, 2)
    addresses = [rig.put(operands(small)[name]) for name in "bac"]
    with pytest.raises(CublasFailed, match="CUBLAS_STATUS_ALLOC_FAILED: resource allocation failed"):
        rig.prepare(described(small), addresses)
    rig.end()


def test_one_workspace_on_two_streams_is_seen() -> None:
    rig = Rig()
    long = product(2, 2, 4096)
    both = [rig.prepare(described(long), [rig.put(operands(long)[name]) for name in "bac"]) for _ in range(2)]
    rig.stream.synchronize()
    for stream, prepared in zip((rig.stream, rig.context.stream()), both, strict=True):
        prepared.run(stream)
        prepared.close()
    assert rig.driver.findings == [
        "unordered: cublasLtMatmul writes what cublasLtMatmul writes, and no event orders them"
    ]


def test_products_are_captured_into_a_graph() -> None:
    rig = Rig("lazy")
    asked = product(4, 4, 4, accumulate=True)
    given = operands(asked)
    places = {name: rig.put(values) for name, values in given.items()}
    prepared = rig.prepare(described(asked), [places[name] for name in "bac"])
    rig.stream.synchronize()
    graph = rig.stream.captured(lambda: prepared.run(rig.stream))
    for _ in range(3):
        graph.launch(rig.stream)
    after = rig.take(places["c"], 16, "f32").reshape(4, 4)
    a, b, c = (given[name].astype(np.float64).reshape(4, 4) for name in "abc")
    assert np.allclose(after, c + 3 * a @ b, rtol=0, atol=1e-5)
    prepared.close()
    rig.end()
