"""Products as cuBLASLt takes them: which it can take, and exactly how, decided without a card.

cuBLASLt sees memory by columns: our c = a b, whose rows lie one after the other, is there cᵀ = bᵀ aᵀ. So its left operand
is our b, and a bias a column of ours is one a row of its result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from sexpgpu.cuda.cublas import Compute, EpilogueFlag
from sexpgpu.cuda.epilogue import NO_EPILOGUE, Epilogue
from sexpgpu.plan.kernel import Matrix, Place, Product

SIZE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
# Reserved for every stream that runs products.
WORKSPACE_BYTES = 32 << 20
# Matrices that are not evenly spaced are several calls; of more than this the call's own time is too large a part.
MOST_CALLS = 64
_MOST_ALIGNMENT_BYTES = 256
_MOST_SIZE = 2**31 - 1
# Of b, a and c.
Three = tuple[int, int, int]
# Of both operands, and of the result.
_TYPES = {("f32", "f32"), ("bf16", "bf16"), ("bf16", "f32"), ("f16", "f16"), ("f16", "f32")}


@dataclass(frozen=True)
class Rules:
    """What a user allows: operands of f32 rounded to tf32; sums split over parts of k."""

    allow_tf32: bool = False
    allow_split: bool = True


IEEE = Rules()


@dataclass(frozen=True)
class Stored:
    """A matrix by columns: element (i, j) is at i + j · leading; the next one of a batch is `step` elements further."""

    dtype: str
    rows: int
    columns: int
    leading: int
    step: int
    alignment_bytes: int


@dataclass(frozen=True)
class Matmul:
    """result = left · right, each seen transposed where it is `…_turned`; left is the product's b, right its a.

    `calls`: for each call the bytes from the places of b, a and c to its first matrices. `bias`, in the result's dtype, is
    what is added, or with BGRADA where the sums of left's rows are written.
    """

    left: Stored
    right: Stored
    result: Stored
    left_turned: bool
    right_turned: bool
    batch: int
    calls: tuple[Three, ...]
    places: tuple[Place, Place, Place]
    compute: Compute
    accumulate: bool = False
    epilogue: EpilogueFlag = EpilogueFlag.DEFAULT
    bias: Place | None = None
    allow_split: bool = True


def why_not(product: Product, epilogue: Epilogue = NO_EPILOGUE) -> str:
    """Why cuBLASLt cannot take a product; '' where it can."""
    made = describe(product, lambda _: _MOST_ALIGNMENT_BYTES, epilogue)
    return made if isinstance(made, str) else ""


def describe(
    product: Product,
    alignment: Callable[[Place], int],
    epilogue: Epilogue = NO_EPILOGUE,
    rules: Rules = IEEE,
) -> Matmul | str:
    """The call of a product, or why there is none. `alignment`: in bytes, of a place."""
    reason = _refused(product, epilogue)
    if reason:
        return reason
    runs = _even_runs(product)
    if runs is None:
        return f"its matrices take more than {MOST_CALLS} calls"
    lines = [_by_columns(matrix, rows, columns) for matrix, rows, columns in _sides(product)]
    for name, found in zip("bac", lines, strict=True):
        if found is None or (name == "c" and found.turned):
            return f"the rows of {name} overlap, or its elements are no neighbours"
    dtypes = (product.dtype, product.dtype, product.c_dtype)
    places = (product.b.place, product.a.place, product.c.place)
    stored = [
        _stored(dtype, found, step, alignment(place), place.offset, [first[k] for first in runs.firsts])
        for k, (dtype, place, found, step) in enumerate(zip(dtypes, places, lines, runs.steps, strict=True))
        if found is not None
    ]
    if runs.length > 1 and _overlaps(stored[2], runs.length):
        return "the matrices of c overlap"
    return Matmul(
        left=stored[0],
        right=stored[1],
        result=stored[2],
        left_turned=lines[0] is not None and lines[0].turned,
        right_turned=lines[1] is not None and lines[1].turned,
        batch=runs.length,
        calls=tuple(_in_bytes(first, dtypes) for first in runs.firsts),
        places=places,
        compute=Compute.C_32F_FAST_TF32 if product.dtype == "f32" and rules.allow_tf32 else Compute.C_32F,
        accumulate=product.accumulate,
        epilogue=_flags(epilogue),
        bias=epilogue.bias or epilogue.gradient,
        allow_split=rules.allow_split,
    )


def _sides(product: Product) -> tuple[tuple[Matrix, int, int], ...]:
    """b, a and c with their rows and columns."""
    m, n, k = product.m, product.n, product.k
    return (product.b, k, n), (product.a, m, k), (product.c, m, n)


def _in_bytes(elements: Three, dtypes: tuple[str, str, str]) -> Three:
    b, a, c = (count * SIZE_BYTES[dtype] for count, dtype in zip(elements, dtypes, strict=True))
    return b, a, c


def _stored(dtype: str, lines: _Lines, step: int, alignment: int, offset: int, firsts: Sequence[int]) -> Stored:
    size = SIZE_BYTES[dtype]
    aligned = gcd(alignment, _MOST_ALIGNMENT_BYTES, offset, step * size, *(first * size for first in firsts))
    return Stored(dtype, lines.neighbours, lines.count, lines.leading, step, aligned)


def _refused(product: Product, epilogue: Epilogue) -> str:
    if (product.dtype, product.c_dtype) not in _TYPES:
        return f"cuBLASLt multiplies no {product.dtype} to {product.c_dtype}"
    if 0 in (product.m, product.n, product.k, len(product.c.starts)):
        return "it has no elements to multiply"
    if max(product.m, product.n, product.k) > _MOST_SIZE:
        return f"a size is larger than {_MOST_SIZE}"
    for name, matrix in (("a", product.a), ("b", product.b)):
        if matrix.has_loops:
            return f"{name} is no matrix, but loops"
    if epilogue.activation == "gelu":
        return "cuBLASLt's GELU is the tanh form, not that of erf"
    if epilogue != NO_EPILOGUE and product.accumulate:
        return "bias and activation do not go with adding to a result"
    if epilogue.bias_dtype:
        return f"cuBLASLt adds no bias of {epilogue.bias_dtype} to {product.c_dtype}"
    if epilogue.gradient is not None and len(product.c.starts) > 1:
        return "columns are summed of one matrix alone"
    return ""


def _flags(epilogue: Epilogue) -> EpilogueFlag:
    if epilogue.gradient is not None:
        assert epilogue.bias is None and not epilogue.activation, epilogue
        return EpilogueFlag.BGRADA
    flags = EpilogueFlag(0)
    if epilogue.bias is not None:
        flags |= EpilogueFlag.BIAS
    if epilogue.activation:
        flags |= EpilogueFlag.GELU
    return flags or EpilogueFlag.DEFAULT


@dataclass(frozen=True)
class _Lines:
    """How a matrix lies in memory: lines of neighbours, and how far it is to the next; `turned`: they are its columns."""

    neighbours: int
    count: int
    leading: int
    turned: bool


def _by_columns(matrix: Matrix, rows: int, columns: int) -> _Lines | None:
    """None: no elements are neighbours, or lines overlap."""
    if matrix.column == 1 or columns == 1:
        leading = matrix.row if rows > 1 else columns
        if leading >= columns:
            return _Lines(columns, rows, leading, False)
    if matrix.row == 1 or rows == 1:
        leading = matrix.column if columns > 1 else rows
        if leading >= rows:
            return _Lines(rows, columns, leading, True)
    return None


@dataclass(frozen=True)
class _Runs:
    """Matrices of a batch in runs of one length, in which b, a and c take even steps, and where each run begins."""

    length: int
    steps: Three
    firsts: tuple[Three, ...]


def _even_runs(product: Product) -> _Runs | None:
    """The longest runs that there are; None: they are too many."""
    starts = list(zip(product.b.starts, product.a.starts, product.c.starts, strict=True))
    for length in _divisors(len(starts)):
        firsts = starts[::length]
        if len(firsts) > MOST_CALLS:
            return None
        steps = _difference(starts[0], starts[1]) if length > 1 else (0, 0, 0)
        even = (_moved(first, steps, i) for first in firsts for i in range(length))
        if min(steps) >= 0 and starts == list(even):
            return _Runs(length, steps, tuple(firsts))
    return None


def _divisors(number: int) -> list[int]:
    """The largest first."""
    return [n for n in range(number, 0, -1) if number % n == 0]


def _difference(x: Three, y: Three) -> Three:
    return y[0] - x[0], y[1] - x[1], y[2] - x[2]


def _moved(first: Three, step: Three, times: int) -> Three:
    return first[0] + times * step[0], first[1] + times * step[1], first[2] + times * step[2]


def _overlaps(result: Stored, batch: int) -> bool:
    """Whether two results of a batch may share an element: they lie one after the other, or side by side in their lines."""
    extent = (result.columns - 1) * result.leading + result.rows
    side_by_side = result.step >= result.rows and (batch - 1) * result.step + result.rows <= result.leading
    return result.step < extent and not side_by_side


def check(matmul: Matmul) -> None:
    """What cuBLASLt does not check: sizes that agree, types that it has, lines that do not overlap. A failure is our bug."""
    left, right, result = matmul.left, matmul.right, matmul.result
    rows, inner = (left.columns, left.rows) if matmul.left_turned else (left.rows, left.columns)
    further, columns = (right.columns, right.rows) if matmul.right_turned else (right.rows, right.columns)
    assert inner == further, f"{inner} columns on the left, {further} rows on the right"
    assert (rows, columns) == (result.rows, result.columns), f"{rows} × {columns} into {result}"
    assert left.dtype == right.dtype and (left.dtype, result.dtype) in _TYPES, (left.dtype, right.dtype, result.dtype)
    for stored in (left, right, result):
        assert stored.rows > 0 and stored.columns > 0 and stored.step >= 0, stored
        assert stored.leading >= stored.rows, stored
        assert stored.alignment_bytes % SIZE_BYTES[stored.dtype] == 0, stored
    assert matmul.batch > 0 and matmul.calls, matmul
    assert matmul.batch == 1 or not _overlaps(result, matmul.batch), matmul
    with_bias = EpilogueFlag.BIAS | EpilogueFlag.BGRADA
    assert (matmul.bias is not None) == bool(matmul.epilogue & with_bias), matmul.epilogue
    assert not matmul.epilogue & EpilogueFlag.BGRADA or matmul.batch == 1, matmul.epilogue
    assert not matmul.accumulate or matmul.epilogue == EpilogueFlag.DEFAULT, matmul.epilogue
    assert matmul.compute == Compute.C_32F or left.dtype == "f32", (matmul.compute, left.dtype)
