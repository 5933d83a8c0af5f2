"""Operators that make, move, cut, join and index tensors, and products."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

import numpy as np

from onnx_nodes.case import NAMES, Case, Left, Row, written
from onnx_nodes.rows_elementwise import CAST, TYPE


def reshape(c: Case) -> str:
    sizes = c.numbers(1)
    if not c.get("allowzero", 0):
        sizes = [c.shape()[i] if n == 0 else n for i, n in enumerate(sizes)]
    return f"(reshape x {written(sizes)})"


def transpose(c: Case) -> str:
    return "(transpose x)" if c.get("perm") is None else f"(permute x {written(c.get('perm'))})"


def expand(c: Case) -> str:
    return f"(broadcast-to x {written(np.broadcast_shapes(c.shape(), tuple(c.numbers(1))))})"


def squeeze(c: Case) -> str:
    return f"(squeeze x {written(c.numbers(1))})" if c.has(1) else "(squeeze x)"


def sliced(c: Case) -> str:
    """Places beyond an axis are cut, as in NumPy; an end before the beginning of a backward slice is nil."""
    rank, count = c.rank(), len(c.numbers(1))
    given = c.numbers(3) if c.has(3) else list(range(count))
    steps = c.numbers(4) if c.has(4) else [1] * count
    parts = {a % rank: (s, e, p) for a, s, e, p in zip(given, c.numbers(1), c.numbers(2), steps, strict=True)}
    starts, ends, strides = zip(*[parts.get(i, (None, None, 1)) for i in range(rank)], strict=True)
    return f"(slice x {written(starts)} {written(ends)} :steps {written(strides)})"


def joined(c: Case) -> str:
    return f"(concat [{' '.join(NAMES[: len(c.inputs)])}] :axis {c.get('axis')})"


def split(c: Case) -> str:
    axis = c.get("axis", 0)
    if c.has(1):
        return f"(split x {written(c.numbers(1))} :axis {axis})"
    total, parts = c.shape()[axis], c.get("num_outputs") or c.get("outputs") or len(c.outputs)
    size = ceil(total / parts)
    sizes = [size] * (parts - 1)
    return f"(split x {parts if total % parts == 0 else written([*sizes, total - sum(sizes)])} :axis {axis})"


def padded(c: Case) -> str:
    """Other modes than a constant read the axis at indices that NumPy's own pad of 0 … n − 1 gives."""
    widths, rank = c.numbers(1), c.rank()
    axes = [a % rank for a in c.numbers(3)] if c.has(3) else list(range(rank))
    low, high = [0] * rank, [0] * rank
    for k, axis in enumerate(axes):
        low[axis], high[axis] = widths[k], widths[k + len(axes)]
    mode = c.get("mode", b"constant").decode()
    if mode == "constant":
        value = written(c.array(2).reshape(-1)[0]) if c.has(2) else "0"
        return f"(pad x {written(list(zip(low, high, strict=True)))} :value {value})"
    text = "x"
    for axis in range(rank):
        if low[axis] or high[axis]:
            places = np.pad(np.arange(c.shape()[axis]), (low[axis], high[axis]), mode=mode)  # type: ignore[call-overload]
            text = f"(take {text} {written(places.tolist())} :axis {axis})"
    return text


def flatten(c: Case) -> str:
    axis = c.get("axis", 1)
    shape = c.shape()
    axis = axis + len(shape) if axis < 0 else axis
    return f"(reshape x [{prod(shape[:axis])} {prod(shape[axis:])}])"


def tile(c: Case) -> str:
    text = "x"
    for axis, times in enumerate(c.numbers(1)):
        text = f"(let ((t {text})) (concat [{' '.join(['t'] * times)}] :axis {axis}))"
    return text


def flat_index(c: Case, indices: str, batch: int = 0) -> tuple[str, int]:
    """GatherND's and ScatterND's index tuples as rows of x with its indexed axes joined."""
    depth = c.shape(1)[-1]
    sizes = c.shape()[batch : batch + depth]
    parts = [f"(squeeze (slice {indices} [{' '.join(['nil'] * (c.rank(1) - 1))} {k}] "
             f"[{' '.join(['nil'] * (c.rank(1) - 1))} {k + 1}]) -1)" for k in range(depth)]  # fmt: skip
    text = f"(mod {parts[0]} {sizes[0]})"
    for part, size in zip(parts[1:], sizes[1:], strict=True):
        text = f"(+ (* {text} {size}) (mod {part} {size}))"
    return text, depth


def gather_nd(c: Case) -> str:
    batch = c.get("batch_dims", 0)
    shape = c.shape()
    index, depth = flat_index(c, "y", batch)
    rows = prod(shape[batch : batch + depth])
    count, rest = prod(shape[:batch]), shape[batch + depth :]
    lead = f"(reshape (* (iota {count}) {rows}) {written([*shape[:batch], *[1] * (c.rank(1) - 1 - batch)])})"
    return f"(take (reshape x {written([count * rows, *rest])}) (+ {index} {lead}))"


def scattered(base: str, rows: int, index: str, updates: str, reduction: str) -> str:
    """Rows set or added. Set rows: what is added to zeros, where anything is."""
    if reduction == "add":
        return f"(scatter-add {base} {index} {updates})"
    if reduction != "none":
        raise Left("scatters by another operation than a sum, which the language has not")
    count = f"(scatter-add (zeros [{rows}]) {index} (ones (shape {index})))"
    return (f"(let* ((base {base}) (at {index}) (hit (> {count} 0))) (where (if (= (rank base) 1) hit "
            f"(expand-dims hit (range 1 (rank base)))) (scatter-add (zeros-like base) at {updates}) base))")  # fmt: skip


def scatter_elements(c: Case) -> str:
    axis, shape, counts = c.get("axis", 0) % c.rank(), c.shape(), c.shape(1)
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    index = f"(* (mod y {shape[axis]}) {strides[axis]})"
    for i, stride in enumerate(strides):
        if i != axis:
            size = written([counts[i] if k == i else 1 for k in range(len(shape))])
            index = f"(+ {index} (* (reshape (iota {counts[i]}) {size}) {stride}))"
    reduction = c.get("reduction", b"none").decode()
    made = scattered("(reshape x [-1])", prod(shape), f"(reshape {index} [-1])", "(reshape z [-1])", reduction)
    return f"(reshape {made} {written(shape)})"


def scatter_nd(c: Case) -> str:
    index, depth = flat_index(c, "y")
    rows, rest = prod(c.shape()[:depth]), c.shape()[depth:]
    made = scattered(
        f"(reshape x {written([rows, *rest])})", rows, f"(reshape {index} [-1])",
        f"(reshape z {written([-1, *rest])})", c.get("reduction", b"none").decode(),
    )  # fmt: skip
    return f"(reshape {made} {written(c.shape())})"


def reverse_sequence(c: Case) -> str:
    batch, time = c.get("batch_axis", 1), c.get("time_axis", 0)
    n = c.shape()[time]
    t, length = f"(expand-dims (iota {n}) {batch})", f"(expand-dims y {time})"
    index = f"(let ((t {t}) (n {length})) (where (< t n) (- n 1 t) t))"
    shape = c.shape()
    full = written(shape)
    return f"(gather x (broadcast-to (reshape {index} {written([*shape[:2], *[1] * (len(shape) - 2)])}) {full}) :axis {time})"


def one_hot(c: Case) -> str:
    n, axis = c.numbers(1)[0], c.get("axis", -1)
    rank = c.rank()
    at = axis % (rank + 1)
    order = [*range(at), rank, *range(at, rank)]
    off, on = (written(v) for v in c.array(2))
    hot = f"(permute (one-hot (let ((i (cast x i64))) (where (< i 0) (+ i {n}) i)) {n} :dtype bool) {written(order)})"
    return f"(cast (where {hot} {on} {off}) {TYPE[c.array(2).dtype.name]})"


def ranged(c: Case) -> str:
    start, limit, delta = (float(c.array(k)) for k in range(3))
    dtype = TYPE[c.array(0).dtype.name]
    n = max(ceil((limit - start) / delta), 0)
    return f"(cast (+ {start} (* {delta} (cast (iota {n}) f32))) {dtype})"


def eye(c: Case) -> str:
    dtype = CAST[c.get("dtype")] if c.get("dtype") else TYPE[c.array(0).dtype.name]
    rows, columns = c.shape()
    return f"(cast (= (expand-dims (iota {rows}) -1) (- (iota {columns}) {c.get('k', 0)})) {dtype})"


def triangle(c: Case) -> str:
    k = c.numbers(1)[0] if c.has(1) else 0
    return f"({'triu' if c.get('upper', 1) else 'tril'} x :k {k})"


def constant_of_shape(c: Case) -> str:
    value = c.get("value")
    return f"(full {written(c.numbers(0))} {written(value.reshape(-1)[0])} :dtype {TYPE[value.dtype.name]})"


def depth_to_space(c: Case) -> str:
    (b, ch, h, w), n = c.shape(), c.get("blocksize")
    first = [b, n, n, ch // n**2, h, w] if c.get("mode", b"DCR") == b"DCR" else [b, ch // n**2, n, n, h, w]
    order = [0, 3, 4, 1, 5, 2] if c.get("mode", b"DCR") == b"DCR" else [0, 1, 4, 2, 5, 3]
    return f"(reshape (permute (reshape x {written(first)}) {written(order)}) {written([b, ch // n**2, h * n, w * n])})"


def space_to_depth(c: Case) -> str:
    (b, ch, h, w), n = c.shape(), c.get("blocksize")
    order = [0, 3, 5, 1, 2, 4] if c.get("mode", b"DCR") == b"DCR" else [0, 1, 3, 5, 2, 4]
    return (f"(reshape (permute (reshape x {written([b, ch, h // n, n, w // n, n])}) {written(order)}) "
            f"{written([b, ch * n**2, h // n, w // n])})")  # fmt: skip


def center(c: Case) -> str:
    axes = [a % c.rank() for a in c.get("axes", range(c.rank()))]
    starts, ends, widths = [None] * c.rank(), [None] * c.rank(), [[0, 0] for _ in range(c.rank())]
    for axis, n in zip(axes, c.numbers(1), strict=True):
        have = c.shape()[axis]
        if n < have:
            starts[axis] = (have - n) // 2  # type: ignore[call-overload]
            ends[axis] = (have - n) // 2 + n  # type: ignore[call-overload]
        else:
            widths[axis] = [(n - have) // 2, n - have - (n - have) // 2]
    return f"(pad (slice x {written(starts)} {written(ends)}) {written(widths)})"


def shape_of(c: Case) -> str:
    lo, hi, _ = slice(c.get("start", 0), c.get("end")).indices(c.rank())
    return "(shape x)" if (lo, hi) == (0, c.rank()) else f"(map (fn (i) (dim x i)) (range {lo} {max(hi, lo)}))"


def einsum(c: Case) -> str:
    left, right = c.get("equation").decode().replace(" ", "").split("->")
    terms = ", ".join(" ".join(term) for term in left.split(","))
    return f'(einsum "{terms} -> {" ".join(right)}" {" ".join(NAMES[: len(c.inputs)])})'


def gemm(c: Case) -> str:
    a, b = ("(transpose x)" if c.get("transA") else "x"), ("(transpose y)" if c.get("transB") else "y")
    made = f"(* {c.get('alpha', 1.0)} (matmul {a} {b}))"
    return f"(+ {made} (* {c.get('beta', 1.0)} z))" if c.has(2) else made


def by_axis(text: str, default: int) -> Callable[[Case], str]:
    return lambda c: text.format(axis=c.get("axis", default))


MOVEMENT = (
    ("Reshape", reshape), ("Transpose", transpose), ("Expand", expand), ("Squeeze", squeeze),
    ("Unsqueeze", lambda c: f"(expand-dims x {written(c.numbers(1))})"), ("Slice", sliced), ("Concat", joined),
    ("Split", split), ("Pad", padded), ("Flatten", flatten), ("Tile", tile), ("Gather", by_axis("(take x y :axis {axis})", 0)),
    ("GatherElements", by_axis("(gather x y :axis {axis})", 0)), ("GatherND", gather_nd), ("ScatterElements", scatter_elements),
    ("Scatter", scatter_elements), ("ScatterND", scatter_nd), ("ReverseSequence", reverse_sequence), ("OneHot", one_hot),
    ("Range", ranged), ("EyeLike", eye), ("Trilu", triangle), ("ConstantOfShape", constant_of_shape),
    ("Constant", lambda c: written(c.get("value").tolist()).join(("(+ 0.0 ", ")"))),
    ("DepthToSpace", depth_to_space), ("SpaceToDepth", space_to_depth), ("CenterCropPad", center), ("Shape", shape_of),
    ("Size", "(size x)"),
)  # fmt: skip
SHAPE = (
    *(Row(operator, form, exact=True) for operator, form in MOVEMENT),
    Row("MatMul", "(matmul x y)"), Row("Gemm", gemm), Row("Einsum", einsum),
    Row("MatMulInteger", "(matmul (- (cast x i32) (cast z i32)) (- (cast y i32) (cast w i32)))"),
)  # fmt: skip
