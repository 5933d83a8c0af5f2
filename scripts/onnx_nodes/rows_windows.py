"""Convolutions and pools: products with windows, reductions of them."""

from __future__ import annotations

from math import ceil, prod

from onnx_nodes.case import Case, Left, Row, written
from onnx_nodes.rows_elementwise import TYPE


def paddings(c: Case, kernel: list[int], stride: list[int], dilation: list[int]) -> list[tuple[int, int]]:
    """[lo hi] of each spatial axis, as ONNX derives them."""
    n = len(kernel)
    auto = c.get("auto_pad", b"NOTSET").decode()
    if auto.startswith("SAME"):
        made = []
        for size, k, s, d in zip(c.shape()[2:], kernel, stride, dilation, strict=True):
            total = max((ceil(size / s) - 1) * s + (k - 1) * d + 1 - size, 0)
            made.append((total // 2, total - total // 2) if auto == "SAME_UPPER" else (total - total // 2, total // 2))
        return made
    pads = list(c.get("pads", [0] * 2 * n)) if auto == "NOTSET" else [0] * 2 * n
    return list(zip(pads[:n], pads[n:], strict=True))


class Pool:
    """Kernel, stride, dilation and padding of a pool. `:ceil` adds padding at the ends, which is not counted."""

    def __init__(self, c: Case) -> None:
        self.kernel = list(c.get("kernel_shape"))
        n = len(self.kernel)
        self.stride, self.dilation = list(c.get("strides", [1] * n)), list(c.get("dilations", [1] * n))
        self.padding = paddings(c, self.kernel, self.stride, self.dilation)
        self.more = [0] * n
        if c.get("ceil_mode", 0):
            for i, (size, k, s, d, (lo, hi)) in enumerate(
                zip(c.shape()[2:], self.kernel, self.stride, self.dilation, self.padding, strict=True)
            ):
                rest = size + lo + hi - (k - 1) * d - 1
                places = ceil(rest / s) + 1
                # A window that would begin in the padding at the end is none.
                places -= (places - 1) * s >= size + lo
                self.more[i] = max((places - 1) * s - rest, 0)
        self.axes = list(range(2 + n, 2 + 2 * n))

    def windows(self, x: str, value: str, counted: bool = False) -> str:
        """The windows of x with a value around it."""
        widths = [[0, 0], [0, 0], *([lo, hi + m] for (lo, hi), m in zip(self.padding, self.more, strict=True))]
        whole = f"(pad {x} {written(widths)} :value {value})" if any(map(any, widths)) else x
        return f"(windows {whole} {written(self.kernel)} :stride {written(self.stride)} :dilation {written(self.dilation)})"

    @property
    def plain(self) -> bool:
        even = all(lo == hi and 2 * lo <= k for (lo, hi), k in zip(self.padding, self.kernel, strict=True))
        return even and not any(self.more) and set(self.dilation) == {1}

    @property
    def options(self) -> str:
        padding = [lo for lo, _ in self.padding]
        return f"{written(self.kernel)} :stride {written(self.stride)} :padding {written(padding)}"


def average_pool(c: Case) -> str:
    pool = Pool(c)
    ones = f"(ones {written([1, 1, *c.shape()[2:]])})"
    if c.get("count_include_pad", 0):
        widths = written([[0, 0], [0, 0], *map(list, pool.padding)])
        ones = f"(pad {ones} {widths} :value 1)"
        counted = Pool(c)
        counted.padding = [(0, 0)] * len(pool.kernel)
        count = f"(sum {counted.windows(ones, '0')} :axis {written(pool.axes)})"
        return f"(/ (sum {pool.windows('x', '0')} :axis {written(pool.axes)}) {count})"
    if pool.plain:
        return f"(avg-pool x {pool.options})"
    total, count = (f"(sum {pool.windows(x, '0')} :axis {written(pool.axes)})" for x in ("x", ones))
    return f"(/ {total} {count})"


def max_pool(c: Case) -> str:
    pool = Pool(c)
    value = "-inf" if c.array(0).dtype.kind == "f" else "0"
    if len(c.outputs) == 1:
        if pool.plain and value == "-inf":
            return f"(max-pool x {pool.options})"
        return f"(max {pool.windows('x', value)} :axis {written(pool.axes)})"
    n = len(pool.kernel)
    strides = [prod(c.shape()[2 + i + 1 :]) for i in range(n)]
    if c.get("storage_order", 0):
        strides = [prod(c.shape()[2 : 2 + i]) for i in range(n)]
    places = " ".join(
        f"(* {s} (reshape (iota {size}) {written([-1 if k == i else 1 for k in range(n)])}))"
        for i, (s, size) in enumerate(zip(strides, c.shape()[2:], strict=True))
    )
    lead = c.shape()[0] * c.shape()[1]
    index = (f"(+ (reshape (* (iota {lead}) {prod(c.shape()[2:])}) {written([*c.shape()[:2], *[1] * n])}) "
             f"(reshape (+ 0 {places}) {written([1, 1, *c.shape()[2:]])}))")  # fmt: skip
    return (f"(let* ((w {pool.windows('x', value)}) (i {pool.windows(index, '0')}) "
            f"(joined (fn (t) (reshape t (append (map (fn (k) (dim t k)) (range {2 + n})) [-1])))) "
            f"(at (expand-dims (argmax (joined w) :axis -1) -1))) "
            f"(values (squeeze (gather (joined w) at) -1) (cast (squeeze (gather (joined i) at) -1) i64)))")  # fmt: skip


def lp_pool(c: Case) -> str:
    pool, p = Pool(c), float(c.get("p", 2))
    return f"(pow (sum (pow (abs {pool.windows('x', '0')}) {p}) :axis {written(pool.axes)}) {1 / p})"


def convolution(c: Case) -> str:
    """Our conv2d or conv1d, its weight the model's; padding that differs at the sides comes before."""
    weight = c.array(1)
    n = weight.ndim - 2
    if n > 2:
        raise Left("is a convolution over three axes, the language's are over one or two")
    kernel, stride, dilation = (list(v) for v in (weight.shape[2:], c.get("strides", [1] * n), c.get("dilations", [1] * n)))
    padding = paddings(c, kernel, stride, dilation)
    x, even = "x", [lo for lo, _ in padding]
    if any(lo != hi for lo, hi in padding):
        x, even = f"(pad x {written([[0, 0], [0, 0], *map(list, padding)])})", [0] * n
    c.parameters[f"conv{n}d.weight"] = weight
    if c.has(2):
        c.parameters[f"conv{n}d.bias"] = c.array(2)
    return (f"(conv{n}d {x} {weight.shape[0]} {written(kernel)} :stride {written(stride)} :padding {written(even)} "
            f":dilation {written(dilation)} :groups {c.get('group', 1)} :bias {written(c.has(2))})")  # fmt: skip

def causal_conv(c: Case) -> str:
    """A convolution of each channel by itself over what came before; the last inputs are the next state."""
    channels, _, k = c.shape(1)
    c.parameters["conv1d.weight"] = c.array(1)
    if c.has(2):
        c.parameters["conv1d.bias"] = c.array(2)
    whole = "(concat [w x] :axis 2)" if c.has(3) else f"(pad x [[0 0] [0 0] [{k - 1} 0]])"
    # Parameters are f32.
    made = f"(cast (conv1d whole {channels} {k} :groups {channels} :bias {written(c.has(2))}) {TYPE[c.array(0).dtype.name]})"
    if c.get("activation", b"none") in (b"silu", b"swish"):
        made = f"(silu {made})"
    length = c.shape()[2] + k - 1
    return f"(let ((whole {whole})) (values {made} (slice whole [nil nil {length - k + 1}] [nil nil nil])))"

WINDOWS = (
    Row("AveragePool", average_pool),
    Row("MaxPool", max_pool, exact=True),
    Row("LpPool", lp_pool),
    Row("GlobalAveragePool", lambda c: f"(mean x :axis {written(list(range(2, c.rank())))} :keep true)"),
    Row("GlobalMaxPool", lambda c: f"(max x :axis {written(list(range(2, c.rank())))} :keep true)", exact=True),
    Row("Conv", convolution),
    Row("CausalConvWithState", causal_conv),
)
