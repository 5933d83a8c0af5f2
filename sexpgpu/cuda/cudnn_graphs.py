"""Our regions as operation graphs of cuDNN: attention and its gradient, and a product with bias and activation.

cuDNN recognises attention by the form of its graph: the same values said in another order are computed in parts, or
refused. So the order of operations here, and which values have names, are those that its fused engines know.
"""

# B batch, H heads of q, G heads of k and v, T rows, S columns, D width, E width of v

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from sexpgpu.cuda.cudnn_graph import ALIGNMENT_BYTES, Drawing, OperationGraph, Tensor
from sexpgpu.cuda.epilogue import Epilogue
from sexpgpu.plan.kernel import Access, Attention, Matrix, Place, Product

SIZE_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
# What each operand of an attention is, in the order of its loads and stores.
FORWARD = ("q", "k", "v"), ("out", "lse")
BACKWARD = ("q", "k", "v", "out", "lse", "dout"), ("dq", "dk", "dv")

_MODES: dict[str, Literal["GELU_FWD", "GELU_APPROX_TANH_FWD"]] = {
    "gelu": "GELU_FWD",
    "gelu-tanh": "GELU_APPROX_TANH_FWD",
}


def why_not_attention(launch: Attention, dtype: str) -> str:
    """Why cuDNN is not asked for an attention at all; '': it is, and may still refuse."""
    if dtype not in ("bf16", "f16"):
        return f"cuDNN's attention takes bf16 and f16, not {dtype} (it would multiply f32 as tf32, and has no gradient of it)"
    if launch.masked:
        return "cuDNN's attention takes no mask of what counts"
    names, results = BACKWARD if launch.backward else FORWARD
    for name, access in zip((*names, *results), (*launch.loads[: len(names)], *launch.stores)):
        assert access.place is not None
        size = 4 if name == "lse" else SIZE_BYTES[dtype]
        # Columns are neighbours, so every row begins where a stride says.
        steps = () if name == "lse" else access.strides
        if any(step * size % ALIGNMENT_BYTES for step in steps) or access.place.offset % ALIGNMENT_BYTES:
            return f"cuDNN needs rows that begin at multiples of {ALIGNMENT_BYTES} bytes, and {name} has others"
    return ""


def attention(launch: Attention, dtype: str) -> OperationGraph:
    """The graph of an attention of which `why_not_attention` says nothing; lse is in f32."""
    return _backward(launch, dtype) if launch.backward else _forward(launch, dtype)


@dataclass(frozen=True)
class _Sizes:
    """A launch's operands as tensors of a graph."""

    launch: Attention
    dtype: str
    drawing: Drawing

    def _access(self, name: str) -> Access | None:
        names, results = BACKWARD if self.launch.backward else FORWARD
        if name in names:
            return self.launch.loads[names.index(name)]
        k = results.index(name)
        return self.launch.stores[k] if k < len(self.launch.stores) else None

    def rows(self, name: str, of_k: bool, width: int) -> Tensor:
        """[B H T D], or [B G S D] of k and v."""
        launch, access = self.launch, self._access(name)
        assert access is not None and access.place is not None
        heads, rows = (launch.heads // launch.group, launch.columns) if of_k else (launch.heads, launch.rows)
        sizes = (launch.batch, heads, rows, width)
        return self.drawing.tensor(self.dtype, sizes, (*access.strides, 1), access.place)

    def turned(self, name: str, width: int) -> Tensor:
        """k or v as [B G D S]: the same memory."""
        launch, access = self.launch, self._access(name)
        assert access is not None and access.place is not None
        batch, head, row = access.strides
        sizes = (launch.batch, launch.heads // launch.group, width, launch.columns)
        return self.drawing.tensor(self.dtype, sizes, (batch, head, 1, row), access.place)

    def lse(self) -> Tensor:
        """[B H T 1], in row-major order; virtual where nobody wants it, since without it cuDNN refuses."""
        launch, access = self.launch, self._access("lse")
        sizes = (launch.batch, launch.heads, launch.rows, 1)
        return self.drawing.tensor("f32", sizes, place=access.place if access is not None else None)

    def causal(self, scores: Tensor) -> Tensor:
        """Of row t only columns up to t count."""
        if not self.launch.causal:
            return scores
        drawing = self.drawing
        seen = drawing.at_least(drawing.position(scores, 2), drawing.position(scores, 3))
        return drawing.select(seen, scores, drawing.number(-inf))


def _forward(launch: Attention, dtype: str) -> OperationGraph:
    drawing = Drawing("attention")
    of = _Sizes(launch, dtype, drawing)
    q, k, v = of.rows("q", False, launch.width), of.turned("k", launch.width), of.rows("v", True, launch.value_width)
    out, lse = of.rows("out", False, launch.value_width), of.lse()
    scores = of.causal(drawing.pointwise("MUL", drawing.product(q, k), drawing.number(launch.scale)))
    largest = drawing.reduce("MAX", scores)
    exponentials = drawing.pointwise("EXP", drawing.pointwise("SUB", scores, largest))
    total = drawing.reduce("ADD", exponentials)
    drawing.pointwise("ADD", largest, drawing.pointwise("LOG", total), lse)
    p = drawing.pointwise("DIV", exponentials, total, dtype=dtype)
    drawing.matmul(p, v, out)
    return drawing.done()


def _backward(launch: Attention, dtype: str) -> OperationGraph:
    """ds goes through cuDNN's workspace, B·H·T·S elements: where it does not, dq is added up with atomics, in any order."""
    drawing = Drawing("attention-backward")
    of = _Sizes(launch, dtype, drawing)
    q, k, v = of.rows("q", False, launch.width), of.turned("k", launch.width), of.turned("v", launch.value_width)
    out, lse, dout = of.rows("out", False, launch.value_width), of.lse(), of.rows("dout", False, launch.value_width)
    dq, dk, dv = (
        of.rows("dq", False, launch.width),
        of.rows("dk", True, launch.width),
        of.rows("dv", True, launch.value_width),
    )
    scale = drawing.number(launch.scale)
    # The factor 1 stands where dropout's would: without it cuDNN does not see attention here, and takes thrice the workspace.
    delta = drawing.pointwise("MUL", drawing.reduce("ADD", drawing.pointwise("MUL", dout, out)), drawing.number(1.0))
    shifted = drawing.pointwise("SUB", drawing.pointwise("MUL", drawing.product(q, k), scale), lse)
    p = drawing.pointwise("EXP", of.causal(shifted))
    _grouped_product(drawing, drawing.turned(p, dtype), dout, dv)
    dp = drawing.pointwise("SUB", drawing.product(dout, v), delta)
    ds = drawing.pointwise("MUL", drawing.pointwise("MUL", dp, p), scale, dtype=dtype)
    _grouped_product(drawing, drawing.turned(ds, dtype), q, dk)
    drawing.matmul(ds, drawing.turned(k, dtype), dq)
    return drawing.done()


def _grouped_product(drawing: Drawing, a: Tensor, b: Tensor, y: Tensor) -> None:
    """a b, added up over the heads of q that share one of y. What is added up is in f32."""
    if y.sizes[1] == a.sizes[1]:
        drawing.matmul(a, b, y)
    else:
        drawing.reduce("ADD", drawing.product(a, b), y)


def why_not_product(product: Product, epilogue: Epilogue) -> str:
    """Why cuDNN is not asked for a product; '': it is, and may still refuse."""
    if product.dtype not in ("bf16", "f16"):
        return f"cuDNN's products take bf16 and f16 here, not {product.dtype} (it would multiply f32 as tf32)"
    if product.accumulate:
        return "cuDNN's products add to nothing"
    if 0 in (product.m, product.n, product.k):
        return "it has no elements"
    for name, matrix in (("a", product.a), ("b", product.b), ("c", product.c)):
        if matrix.has_loops:
            return f"{name} is no matrix, but loops"
        step = _step(matrix)
        if step is None:
            return f"the matrices of {name} are not evenly spaced"
        size = SIZE_BYTES[product.c_dtype if name == "c" else product.dtype]
        long = max(matrix.row, matrix.column)
        starts = (matrix.place.offset, matrix.starts[0] * size, step * size, long * size)
        if any(start % ALIGNMENT_BYTES for start in starts):
            return f"cuDNN needs rows that begin at multiples of {ALIGNMENT_BYTES} bytes, and {name} has others"
    if epilogue.bias is not None and epilogue.bias.offset % ALIGNMENT_BYTES:
        return f"cuDNN needs a bias that begins at a multiple of {ALIGNMENT_BYTES} bytes"
    return ""


def product(launch: Product, epilogue: Epilogue) -> OperationGraph:
    """The graph of a product of which `why_not_product` says nothing; sums, bias and activation are in f32."""
    drawing = Drawing("product")
    a = _matrix(drawing, launch.a, launch.dtype, launch.m, launch.k)
    b = _matrix(drawing, launch.b, launch.dtype, launch.k, launch.n)
    c = _matrix(drawing, launch.c, launch.c_dtype, launch.m, launch.n)
    if epilogue.bias is None and not epilogue.activation:
        drawing.matmul(a, b, c)
        return drawing.done()
    y = drawing.product(a, b)
    if epilogue.bias is not None:
        bias = drawing.tensor(epilogue.bias_dtype or launch.c_dtype, (1, 1, launch.n), place=epilogue.bias)
        y = drawing.pointwise("ADD", y, bias, None if epilogue.activation else c)
    if epilogue.activation:
        drawing.pointwise(_MODES[epilogue.activation], y, y=c)
    return drawing.done()


def _matrix(drawing: Drawing, matrix: Matrix, dtype: str, rows: int, columns: int) -> Tensor:
    step, size = _step(matrix), SIZE_BYTES[dtype]
    assert step is not None
    place = Place(matrix.place.buffer, matrix.place.offset + matrix.starts[0] * size)
    return drawing.tensor(dtype, (len(matrix.starts), rows, columns), (step, matrix.row, matrix.column), place)


def _step(matrix: Matrix) -> int | None:
    """How far apart the matrices of a batch are; None: not evenly."""
    steps = {later - earlier for earlier, later in zip(matrix.starts, matrix.starts[1:], strict=False)}
    if len(steps) > 1:
        return None
    return steps.pop() if steps else matrix.row * matrix.column
