"""cuBLASLt's functions over a simulated driver: descriptors, one algorithm, and products in the card's memory."""

from __future__ import annotations

import ctypes
import traceback
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from sexpgpu.cuda.cublas import FUNCTIONS, Proposal
from tests.fake_cublas.descriptors import (
    BGRADA,
    BIAS,
    GELU,
    INVALID_VALUE,
    LAYOUT,
    NOT_SUPPORTED,
    OPERATION,
    PREFERENCE,
    Held,
    Invalid,
    Layout,
    Operation,
    Preference,
    check_together,
    require,
)
from tests.fake_cuda import FakeCuda
from tests.fake_cuda.card import Card
from tests.fake_cuda.order import Operation as Work

NOT_INITIALIZED, EXECUTION_FAILED, INTERNAL_ERROR = 1, 13, 14
WORDS = {
    NOT_INITIALIZED: ("NOT_INITIALIZED", "the library was not initialized"),
    INVALID_VALUE: ("INVALID_VALUE", "an unsupported value or parameter was passed to the function"),
    EXECUTION_FAILED: ("EXECUTION_FAILED", "the function failed to launch on the GPU"),
    INTERNAL_ERROR: ("INTERNAL_ERROR", "an internal operation failed"),
    NOT_SUPPORTED: ("NOT_SUPPORTED", "the requested functionality is not supported"),
}
DTYPES: dict[int, Any] = {0: np.float32, 2: np.float16, 14: ml_dtypes.bfloat16}
# What the one algorithm tells of itself, by attributes; of its second one, that k is split.
TELLS = {0: 21, 1: 20, 2: 1, 3: 0, 6: 11}
# A split needs a part of the workspace for each.
SPLIT_FROM_K = 4096
Kind = TypeVar("Kind")


class FakeCublas:
    """`failures`: calls whose next one gives this status. What no program should ask is a finding of the driver's."""

    def __init__(self, driver: FakeCuda, version: int = 130100) -> None:
        self.driver = driver
        self.version = version
        self.failures: dict[str, int] = {}
        self.called: Counter[str] = Counter()
        self.held: dict[int, Any] = {}
        self.proposed: list[Preference] = []
        self.last_handle = 0x7000
        self.words = dict(WORDS)
        # Texts that callers were given pointers to.
        self.texts: dict[bytes, Any] = {}
        functions = {f.name: f.prototype(self._entry(f.name, f.returns)) for f in FUNCTIONS}
        self.library = SimpleNamespace(**functions)

    def _entry(self, name: str, returns: Any) -> Callable[..., Any]:
        implementation = getattr(self, name)
        return implementation if returns else lambda *arguments: self._answer(name, implementation, arguments)

    def _answer(self, name: str, implementation: Callable[..., None], arguments: Any) -> int:
        self.called[name] += 1
        if name in self.failures:
            return self.failures.pop(name)
        try:
            implementation(*arguments)
        except Invalid as invalid:
            self.driver.findings.append(f"{name}: {invalid}")
            return invalid.status
        except Exception:
            # The calling C code sees no exception: it must not be lost.
            self.driver.findings.append(f"the simulated cuBLASLt failed in {name}: {traceback.format_exc()}")
            return INTERNAL_ERROR
        return 0

    def _new(self, out: Any, thing: Any) -> None:
        self.last_handle += 16
        self.held[self.last_handle] = thing
        out[0] = self.last_handle

    def _get(self, handle: int | None, kind: type[Kind]) -> Kind:
        thing = self.held.get(handle or 0)
        require(isinstance(thing, kind), f"{handle or 0:#x} is no {kind.__name__}, or none any more")
        assert isinstance(thing, kind)
        return thing

    def _drop(self, handle: int, kind: type[Any]) -> None:
        self._get(handle, kind)
        del self.held[handle]

    def _set(self, handle: int, kind: type[Held], attribute: int, value: int, size: int) -> None:
        self._get(handle, kind).set(attribute, value, size)

    def cublasLtGetVersion(self) -> int:
        return self.version

    def cublasLtGetStatusName(self, status: int) -> int:
        return self._text(f"CUBLAS_STATUS_{self.words[status][0]}".encode())

    def cublasLtGetStatusString(self, status: int) -> int:
        return self._text(self.words[status][1].encode())

    def _text(self, words: bytes) -> int:
        return ctypes.addressof(self.texts.setdefault(words, ctypes.create_string_buffer(words)))

    def cublasLtCreate(self, out: Any) -> None:
        self._new(out, self.driver.current)

    def cublasLtDestroy(self, handle: int) -> None:
        self._drop(handle, Card)

    def cublasLtMatmulDescCreate(self, out: Any, compute: int, scale: int) -> None:
        self._new(out, Operation(OPERATION, compute=compute, scale=scale))

    def cublasLtMatmulDescDestroy(self, handle: int) -> None:
        self._drop(handle, Operation)

    def cublasLtMatmulDescSetAttribute(self, handle: int, attribute: int, value: int, size: int) -> None:
        self._set(handle, Operation, attribute, value, size)

    def cublasLtMatrixLayoutCreate(self, out: Any, dtype: int, rows: int, columns: int, leading: int) -> None:
        self._new(out, Layout(LAYOUT, dtype=dtype, rows=rows, columns=columns, leading=leading))

    def cublasLtMatrixLayoutDestroy(self, handle: int) -> None:
        self._drop(handle, Layout)

    def cublasLtMatrixLayoutSetAttribute(self, handle: int, attribute: int, value: int, size: int) -> None:
        self._set(handle, Layout, attribute, value, size)

    def cublasLtMatmulPreferenceCreate(self, out: Any) -> None:
        self._new(out, Preference(PREFERENCE))

    def cublasLtMatmulPreferenceDestroy(self, handle: int) -> None:
        self._drop(handle, Preference)

    def cublasLtMatmulPreferenceSetAttribute(self, handle: int, attribute: int, value: int, size: int) -> None:
        self._set(handle, Preference, attribute, value, size)

    def cublasLtMatmulAlgoGetHeuristic(
        self, handle: int, operation: int, a: int, b: int, c: int, d: int, preference: int, wanted: int,
        proposals: Any, found: Any,
    ) -> None:  # fmt: skip
        self._get(handle, Card)
        asked = self._get(operation, Operation)
        layouts = [self._get(layout, Layout) for layout in (a, b, c, d)]
        check_together(asked, *layouts)
        allowed = self._get(preference, Preference)
        self.proposed.append(allowed)
        k = layouts[0].rows if asked.values.get(3) else layouts[0].columns
        split = 2 if k >= SPLIT_FROM_K and allowed.values.get(3, 7) else 1
        made = Proposal()
        # What the algorithm needs is what it is told here: its split, and alignments.
        made.algorithm.data[0] = split
        for number, attribute in enumerate(range(5, 9), 1):
            made.algorithm.data[number] = allowed.values.get(attribute, 256)
        result = layouts[3]
        made.workspace_bytes = 4 * result.rows * result.columns * result.batch * split if split > 1 else 0
        require(made.workspace_bytes <= allowed.most_workspace_bytes, "more workspace than allowed", NOT_SUPPORTED)
        proposals[0], found[0] = made, 1

    def cublasLtMatmulAlgoConfigGetAttribute(
        self, algorithm: Any, attribute: int, value: int, size: int, written: Any
    ) -> None:
        require(attribute in TELLS and size == 4, f"attribute {attribute} of an algorithm")
        split = algorithm[0].data[0]
        told = split if attribute == 2 else 2 if attribute == 3 and split > 1 else TELLS[attribute]
        ctypes.c_int32.from_address(value).value = told
        written[0] = 4

    def cublasLtMatmul(
        self, handle: int, operation: int, alpha: int, a: int, of_a: int, b: int, of_b: int, beta: int, c: int, of_c: int,
        d: int, of_d: int, algorithm: Any, workspace: int, workspace_bytes: int, stream: int | None,
    ) -> None:  # fmt: skip
        card = self._get(handle, Card)
        require(card is self.driver.current, "a handle of another card")
        asked = self._get(operation, Operation)
        layouts = [self._get(layout, Layout) for layout in (of_a, of_b, of_c, of_d)]
        check_together(asked, *layouts)
        needs = algorithm[0].data
        for address, alignment in zip((a, b, c, d), needs[1:5], strict=True):
            require(alignment > 0 and address % alignment == 0, f"{address:#x} is not aligned to {alignment} bytes")
        require(not workspace_bytes or workspace % 256 == 0, f"the workspace at {workspace:#x}")
        scales = [ctypes.c_float.from_address(number).value for number in (alpha, beta)]
        # Descriptors are read when the call is made, and may go before it runs.
        call = Multiplication(card, asked.values.copy(), layouts, (a, b, c, d), scales)
        used = workspace_bytes if needs[0] > 1 else 0

        def run(work: Work) -> None:
            if used:
                card.touch(work, workspace, used, True)
            call.run(work)

        self.driver.give(stream, "cublasLtMatmul", lambda: run)


class Multiplication:
    """D = epilogue(alpha A B + beta C), summed in float64 and rounded to float32, then to D's type."""

    def __init__(self, card: Card, values: dict[int, int], layouts: Any, addresses: Any, scales: Any) -> None:
        self.card, self.values, self.layouts, self.addresses = card, values, layouts, addresses
        self.alpha, self.beta = scales

    def run(self, work: Work) -> None:
        a, b, c, d = self.layouts
        for entry in range(d.batch):
            left, right = (
                self._read(work, layout, address, entry)
                for layout, address in zip((a, b), self.addresses, strict=False)
            )
            left, right = (x.T if self.values.get(k) else x for k, x in ((3, left), (4, right)))
            if self.values.get(7, 1) & BGRADA:
                of = DTYPES[self.values.get(26, d.dtype)]
                sums = left.astype(np.float64).sum(1).astype(np.float32).astype(of)
                self.card.write(work, self.values[8], sums.view(np.uint8))
            made = self.alpha * (left.astype(np.float64) @ right.astype(np.float64))
            if self.beta:
                made += self.beta * self._read(work, c, self.addresses[2], entry).astype(np.float64)
            self._write(work, d, self.addresses[3], entry, self._epilogue(work, made.astype(np.float32), d))

    def _epilogue(self, work: Work, x: Any, d: Layout) -> Any:
        epilogue = self.values.get(7, 1)
        if epilogue & BIAS:
            of = DTYPES[self.values.get(26, d.dtype)]
            bias = self.card.read(work, self.values[8], d.rows * np.dtype(of).itemsize).view(of)
            x = x + bias.astype(np.float32)[:, None]
        if epilogue & GELU:
            x = x / 2 * (1 + np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)))
        return x

    def _columns(self, layout: Layout, address: int, entry: int) -> list[int]:
        size = np.dtype(DTYPES[layout.dtype]).itemsize
        return [address + size * (entry * layout.step + j * layout.leading) for j in range(layout.columns)]

    def _read(self, work: Work, layout: Layout, address: int, entry: int) -> Any:
        of = DTYPES[layout.dtype]
        columns = self._columns(layout, address, entry)
        return np.stack([self.card.read(work, at, layout.rows * np.dtype(of).itemsize).view(of) for at in columns], 1)

    def _write(self, work: Work, layout: Layout, address: int, entry: int, value: Any) -> None:
        of = DTYPES[layout.dtype]
        for j, at in enumerate(self._columns(layout, address, entry)):
            self.card.write(work, at, np.ascontiguousarray(value[:, j]).astype(of).view(np.uint8))
