"""Products made ready for a card by cuBLASLt, its algorithm chosen and told, and run on a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sexpgpu.cuda.context import Stream
from sexpgpu.cuda.cublas import (
    ALL_IMPLEMENTATIONS,
    DTYPES,
    REDUCTION_NONE,
    TRANSPOSED,
    Algorithm,
    AlgorithmAttribute,
    Compute,
    CublasFailed,
    DataType,
    EpilogueFlag,
    Implementation,
    LayoutAttribute,
    MatmulAttribute,
    PreferenceAttribute,
    Proposal,
)
from sexpgpu.cuda.matmul import WORKSPACE_BYTES, Matmul, Stored, Three, check

_HANDLE = ctypes.c_void_p
# A number: the complement of flags has known ones alone.
_NARROWED = int(Implementation.INPUT_TF32 | Implementation.INPUT_16BF | Implementation.INPUT_16F)


class NoAlgorithm(Exception):
    """cuBLASLt has none for a matmul, in its words."""


@dataclass(frozen=True)
class Choice:
    """The algorithm that runs: what makes two of them the same, and its workspace."""

    number: int
    tile: int
    stages: int
    split: int
    reduction: int
    workspace_bytes: int

    def __str__(self) -> str:
        split = f", k split {self.split} ways" if self.split > 1 else ""
        return f"cuBLASLt algorithm {self.number}, tile {self.tile}, stages {self.stages}{split}"


class MatmulDescriptors:
    """What cuBLASLt is told of a matmul. To be closed."""

    def __init__(self, calls: Any, matmul: Matmul, bias: int) -> None:
        check(matmul)
        assert bool(bias) == (matmul.bias is not None), f"a bias at {bias:#x}"
        self.calls = calls
        self._made: list[tuple[str, int]] = []
        try:
            self.operation = self._matmul(matmul, bias)
            self.left = self._layout(matmul.left, matmul.batch)
            self.right = self._layout(matmul.right, matmul.batch)
            self.result = self._layout(matmul.result, matmul.batch)
            self.preference = self._preference(matmul)
        except CublasFailed:
            self.close()
            raise

    def close(self) -> None:
        while self._made:
            kind, made = self._made.pop()
            getattr(self.calls, f"cublasLt{kind}Destroy")(made)

    def _new(self, kind: str, *arguments: int) -> int:
        made = _HANDLE()
        getattr(self.calls, f"cublasLt{kind}Create")(ctypes.byref(made), *arguments)
        assert made.value
        self._made.append((kind, made.value))
        return made.value

    def _matmul(self, matmul: Matmul, bias: int) -> int:
        made = self._new("MatmulDesc", matmul.compute, DataType.R_32F)
        set_ = self.calls.cublasLtMatmulDescSetAttribute
        for attribute, turned in (
            (MatmulAttribute.TRANSA, matmul.left_turned),
            (MatmulAttribute.TRANSB, matmul.right_turned),
        ):
            if turned:
                _set(set_, made, attribute, ctypes.c_int32(TRANSPOSED))
        if matmul.epilogue != EpilogueFlag.DEFAULT:
            _set(set_, made, MatmulAttribute.EPILOGUE, ctypes.c_uint32(matmul.epilogue))
        if bias:
            self.point(made, bias)
            _set(set_, made, MatmulAttribute.BIAS_DATA_TYPE, ctypes.c_int32(DTYPES[matmul.result.dtype]))
        return made

    def point(self, operation: int, bias: int) -> None:
        """The bias of the next calls."""
        _set(self.calls.cublasLtMatmulDescSetAttribute, operation, MatmulAttribute.BIAS_POINTER, ctypes.c_uint64(bias))

    def _layout(self, stored: Stored, batch: int) -> int:
        made = self._new("MatrixLayout", DTYPES[stored.dtype], stored.rows, stored.columns, stored.leading)
        if batch > 1:
            set_ = self.calls.cublasLtMatrixLayoutSetAttribute
            _set(set_, made, LayoutAttribute.BATCH_COUNT, ctypes.c_int32(batch))
            _set(set_, made, LayoutAttribute.STRIDED_BATCH_OFFSET, ctypes.c_int64(stored.step))
        return made

    def _preference(self, matmul: Matmul) -> int:
        made = self._new("MatmulPreference")
        set_ = self.calls.cublasLtMatmulPreferenceSetAttribute
        _set(set_, made, PreferenceAttribute.MAX_WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE_BYTES))
        for attribute, stored in (
            (PreferenceAttribute.MIN_ALIGNMENT_A_BYTES, matmul.left),
            (PreferenceAttribute.MIN_ALIGNMENT_B_BYTES, matmul.right),
            (PreferenceAttribute.MIN_ALIGNMENT_C_BYTES, matmul.result),
            (PreferenceAttribute.MIN_ALIGNMENT_D_BYTES, matmul.result),
        ):
            _set(set_, made, attribute, ctypes.c_uint32(stored.alignment_bytes))
        if not matmul.allow_split:
            _set(set_, made, PreferenceAttribute.REDUCTION_SCHEME_MASK, ctypes.c_uint32(REDUCTION_NONE))
        if matmul.left.dtype == "f32" and matmul.compute == Compute.C_32F:
            # It says that it does not round operands of f32 then; this makes sure.
            _set(set_, made, PreferenceAttribute.IMPL_MASK, ctypes.c_uint64(ALL_IMPLEMENTATIONS & ~_NARROWED))
        return made


def _set(function: Any, descriptor: int, attribute: int, value: Any) -> None:
    function(descriptor, attribute, ctypes.byref(value), ctypes.sizeof(value))


class PreparedMatmul:
    """A matmul on memory: `addresses` of the places of b, a and c, one of the bias (0: none), and of a workspace of
    WORKSPACE_BYTES that nothing else uses at the same time. To be closed. Raises NoAlgorithm."""

    def __init__(
        self, calls: Any, handle: int, matmul: Matmul, addresses: Sequence[int], bias: int, workspace: int
    ) -> None:
        self.matmul = matmul
        self._calls, self._handle, self._workspace = calls, handle, workspace
        left, right, result = addresses
        self._addresses = [(left + b, right + a, result + c) for b, a, c in matmul.calls]
        # cuBLASLt reads both from the host at every call.
        self._alpha, self._beta = ctypes.c_float(1), ctypes.c_float(matmul.accumulate)
        self._descriptors = MatmulDescriptors(calls, matmul, bias)
        try:
            self._algorithm, self.choice = self._choose()
        except (CublasFailed, NoAlgorithm):
            self.close()
            raise

    def close(self) -> None:
        self._descriptors.close()

    def _choose(self) -> tuple[Algorithm, Choice]:
        """The first that the heuristic proposes: for a shape, a card and a version it is always the same."""
        of, found, proposal = self._descriptors, ctypes.c_int(), Proposal()
        layouts = (of.left, of.right, of.result, of.result)
        heuristic = self._calls.cublasLtMatmulAlgoGetHeuristic
        try:
            heuristic(
                self._handle, of.operation, *layouts, of.preference, 1, ctypes.byref(proposal), ctypes.byref(found)
            )
        except CublasFailed as failed:
            raise NoAlgorithm(f"cuBLASLt has no algorithm: {failed.meaning}") from failed
        if not found.value or proposal.state:
            raise NoAlgorithm(f"cuBLASLt has no algorithm (status {proposal.state})")
        assert proposal.workspace_bytes <= WORKSPACE_BYTES, proposal.workspace_bytes
        number, tile, stages, split, reduction = (self._told(proposal.algorithm, each) for each in _TOLD)
        return proposal.algorithm, Choice(number, tile, stages, split, reduction, proposal.workspace_bytes)

    def _told(self, algorithm: Algorithm, attribute: AlgorithmAttribute) -> int:
        value, written = ctypes.c_int32(), ctypes.c_size_t()
        size = ctypes.sizeof(value)
        get = self._calls.cublasLtMatmulAlgoConfigGetAttribute
        get(ctypes.byref(algorithm), attribute, ctypes.byref(value), size, ctypes.byref(written))
        return value.value

    def run(self, stream: Stream) -> None:
        """Gives the calls to a stream."""
        self.run_at(self._addresses, self._workspace, stream)

    def run_at(self, calls: Sequence[Three], workspace: int, stream: Stream, bias: int = 0) -> None:
        """The same on other memory: the addresses of b, a and c for each call, aligned as the matmul says; of the bias."""
        of = self._descriptors
        if bias:
            of.point(of.operation, bias)
        for b, a, c in calls:
            self._calls.cublasLtMatmul(
                self._handle, of.operation, ctypes.byref(self._alpha), b, of.left, a, of.right,
                ctypes.byref(self._beta), c, of.result, c, of.result,
                ctypes.byref(self._algorithm), workspace, WORKSPACE_BYTES, stream.handle,
            )  # fmt: skip


# In the order of Choice.
_TOLD = (
    AlgorithmAttribute.ID,
    AlgorithmAttribute.TILE_ID,
    AlgorithmAttribute.STAGES_ID,
    AlgorithmAttribute.SPLITK_NUM,
    AlgorithmAttribute.REDUCTION_SCHEME,
)


def new_handle(calls: Any) -> int:
    """cuBLASLt's handle for the current context's card."""
    made = _HANDLE()
    calls.cublasLtCreate(ctypes.byref(made))
    assert made.value
    return made.value
