"""Operations that move, join, choose or make elements, and products, as a user writes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from row import Arguments, Operand, Row, written
from rows_elementwise import ONE_AXIS


def same(name: str, form: str, signature: str = "x", **more: object) -> Row:
    return Row(name, form, signature, **more)  # type: ignore[arg-type]


def listed(values: Sequence[object]) -> str:
    return written(list(values))


def shape_of(*sizes: object) -> list[int]:
    """PyTorch takes a shape as a list or as several numbers."""
    first = sizes[0]
    return list(first) if isinstance(first, (list, tuple)) else [s for s in sizes if s is not None]  # type: ignore[misc]


def expanded(a: Arguments) -> str:
    """−1 keeps a size."""
    lead = len(a.shape) - a.x.ndim
    return f"(broadcast-to x {listed(a.x.shape[k - lead] if n == -1 else n for k, n in enumerate(a.shape))})"


def swapped(x: torch.Tensor, i: int, j: int) -> list[int]:
    order = list(range(x.ndim))
    if order:
        order[i], order[j] = order[j], order[i]
    return order


def moved(a: Arguments) -> str:
    order = torch.empty([2 + k for k in range(a.x.ndim)]).movedim(a.source, a.destination).shape
    return f"(permute x {listed(n - 2 for n in order)})"


def parts_of(a: Arguments) -> str:
    """PyTorch's parts of one size, the last of which is shorter."""
    total = a.x.shape[a.dim]
    sizes = list(a.size) if isinstance(a.size, (list, tuple)) else [len(p) for p in torch.arange(total).split(a.size)]
    return f"(split x {listed(sizes)} :axis {a.dim})" if len(sizes) > 1 else "x"


def chunks(a: Arguments) -> str:
    sizes = [len(p) for p in torch.arange(a.x.shape[a.dim]).chunk(a.count)]
    return f"(split x {listed(sizes)} :axis {a.dim})"


def sliced(a: Arguments, dim: int, start: int, end: int, step: int = 1) -> str:
    before = dim % a.x.ndim
    starts, ends, steps = [0] * before + [start], [*a.x.shape[:before], end], [1] * before + [step]
    return f"(slice x {listed(starts)} {listed(ends)}{f' :steps {listed(steps)}' if step != 1 else ''})"


def one_slice(a: Arguments) -> str:
    end = a.x.shape[a.dim] if a.end is None else a.end
    return sliced(a, a.dim, a.start or 0, end, a.step)


def narrowed(a: Arguments) -> str:
    start = int(a.start) % max(a.x.shape[a.dim], 1)
    return sliced(a, a.dim, start, start + a.length)


def unbound(a: Arguments) -> str:
    n = a.x.shape[a.dim]
    parts = " ".join(f"(take x {k} :axis {a.dim})" for k in range(n))
    return parts if n == 1 else f"(values {parts})"


def padded(a: Arguments) -> str:
    """PyTorch's pairs begin with the last axis; a negative one cuts, which is a slice of ours."""
    pairs = list(zip(a.pad[::2], a.pad[1::2], strict=True))[::-1]
    widths = [[0, 0]] * (a.x.ndim - len(pairs)) + [list(p) for p in pairs]
    if all(w >= 0 for pair in widths for w in pair):
        return f"(pad x {written(widths)} :value {a.value or 0})"
    starts = [max(-low, 0) for low, _ in widths]
    ends = [n - max(-high, 0) for n, (_, high) in zip(a.x.shape, widths, strict=True)]
    grown = [[max(low, 0), max(high, 0)] for low, high in widths]
    return f"(pad (slice x {listed(starts)} {listed(ends)}) {written(grown)} :value {a.value or 0})"


def rolled(a: Arguments) -> str:
    """Several axes are rolled one after the other; without axes the whole row-major order is."""
    if a.dims is None or a.dims == ():
        return f"(reshape (roll (reshape x [-1]) {_one(a.shifts)}) (shape x))"
    shifts, dims = (v if isinstance(v, (list, tuple)) else [v] for v in (a.shifts, a.dims))
    made = "x"
    for shift, dim in zip(shifts, dims, strict=True):
        made = f"(roll {made} {shift} :axis {dim})"
    return made


def _one(value: object) -> object:
    return value[0] if isinstance(value, (list, tuple)) else value


def flat(a: Arguments) -> str:
    if a.x.ndim == 0:
        return "(reshape x [1])"
    start, end = a.start % a.x.ndim, a.end % a.x.ndim
    joined = math.prod(a.x.shape[start : end + 1])
    return f"(reshape x {listed([*a.x.shape[:start], joined, *a.x.shape[end + 1 :]])})"


def unflattened(a: Arguments) -> str:
    at, sizes = a.dim % a.x.ndim, list(a.sizes)
    if -1 in sizes:
        rest = -math.prod(sizes)
        sizes[sizes.index(-1)] = a.x.shape[at] // rest
    return f"(reshape x {listed([*a.x.shape[:at], *sizes, *a.x.shape[at + 1 :]])})"


def squeezed(a: Arguments) -> str:
    """Axes of other sizes than 1 are let be by PyTorch, and are an error here as in NumPy."""
    if not hasattr(a, "dim") or a.dim is None:
        return "(squeeze x)"
    dims = a.dim if isinstance(a.dim, (list, tuple)) else [a.dim]
    made = "x"
    for dim in sorted({d % a.x.ndim for d in dims}, reverse=True) if a.x.ndim else []:
        made = f"(squeeze {made} {dim})" if a.x.shape[dim] == 1 else made
    return made


def joined(name: str, axis: int, least: int) -> Row:
    """`hstack` and `vstack`: tensors of fewer axes get them first."""

    def form(a: Arguments) -> str:
        parts = []
        for k, t in enumerate(a.xs):
            shape = list(t.shape) if t.ndim >= least else ([1, *t.shape] if t.ndim else [1] * least)
            parts.append(f"xs-{k}" if t.ndim >= least else f"(reshape xs-{k} {listed(shape)})")
        return f"(concat [{' '.join(parts)}] :axis {0 if name == 'hstack' and all(t.ndim < 2 for t in a.xs) else axis})"

    return Row(name, form, "xs")


def columns(a: Arguments) -> str:
    parts = [f"xs-{k}" if t.ndim > 1 else f"(reshape xs-{k} [{t.numel()} 1])" for k, t in enumerate(a.xs)]
    return f"(concat [{' '.join(parts)}] :axis 1)"


def taken_along(a: Arguments) -> str:
    """NumPy and PyTorch broadcast the other axes; `gather` wants them equal."""
    if a.dim is None:
        return "(gather (reshape x [-1]) (reshape i [-1]) :axis 0)"
    at = a.dim % a.x.ndim
    whole = torch.broadcast_shapes(*([1 if k == at else n for k, n in enumerate(t.shape)] for t in (a.x, a.i)))
    x, i = (
        name if t.shape == torch.Size(sizes) else f"(broadcast-to {name} {listed(sizes)})"
        for name, t in (("x", a.x), ("i", a.i))
        for sizes in [[t.shape[k] if k == at else n for k, n in enumerate(whole)]]
    )
    return f"(gather {x} {i} :axis {a.dim})"


def corner(a: Arguments) -> bool:
    return a.x.ndim == a.i.ndim and any(
        n != m for k, (n, m) in enumerate(zip(a.x.shape, a.i.shape, strict=True)) if k != a.dim % max(a.x.ndim, 1)
    )


def gathered(a: Arguments) -> str:
    """PyTorch reads the corner of x that the indices cover; NumPy's take_along_axis wants it cut out."""
    if a.x.ndim == 0:
        return "(reshape (take (reshape x [1]) i) (shape i))"
    at = a.dim % a.x.ndim
    ends = [n if k == at else m for k, (n, m) in enumerate(zip(a.x.shape, a.i.shape, strict=True))]
    x = f"(slice x {listed([0] * a.x.ndim)} {listed(ends)})" if corner(a) else "x"
    return f"(gather {x} i :axis {a.dim})"


def scattered(a: Arguments) -> str:
    """Each element of U goes to its own place: rows of the flattened tensor at flattened indices."""
    if a.x.ndim == 0:
        return "(+ x u)"
    at, shape, part = a.dim % a.x.ndim, list(a.x.shape), list(a.i.shape)
    terms = []
    for k in range(len(shape)):
        stride = math.prod(shape[k + 1 :])
        along = listed([n if j == k else 1 for j, n in enumerate(part)])
        place = "i" if k == at else f"(reshape (iota {part[k]}) {along})"
        terms.append(f"(* {stride} {place})")
    u = f"(slice u {listed([0] * len(part))} {listed(part)})" if list(a.u.shape) != part else "u"
    place = f"(reshape (broadcast-to (+ {' '.join(terms)}) {listed(part)}) [-1])"
    return f"(reshape (scatter-add (reshape x [-1]) {place} (reshape {u} [-1])) {listed(shape)})"


def added(a: Arguments) -> str:
    u = "u" if a.alpha == 1 else f"(* {a.alpha} u)"
    if a.x.ndim == 0:
        return f"(+ x {u})"
    return f"(scatter-add x i {u} :axis {a.dim})"


def repeated(a: Arguments) -> str:
    """Each repeat is a new axis before its own, broadcast and merged into it."""
    times = list(a.times)
    lead = max(len(times) - a.x.ndim, 0)
    times = [1] * (a.x.ndim - len(times)) + times
    sizes = [1] * lead + list(a.x.shape)
    split = listed(v for n in sizes for v in (1, n))
    whole = listed(v for n, t in zip(sizes, times, strict=True) for v in (t, n))
    return f"(reshape (broadcast-to (reshape x {split}) {whole}) {listed(n * t for n, t in zip(sizes, times, strict=True))})"


def ranged(a: Arguments) -> str:
    low, high = (0, a.first) if a.end is None else (a.first, a.end)
    return f"(arange {int(low)} {int(high)} :dtype f32)"


def eye(a: Arguments) -> str:
    return f"(one-hot (iota {a.n}) {a.n if a.m is None else a.m})"


MOVEMENT = (
    same("reshape", "(reshape x {shape})", "x shape"),
    same("view", "(reshape x {shape})", "x shape",
         left=((lambda a: isinstance(a.shape, torch.dtype), "reads bits as another dtype"),)),
    same("reshape_as", "(reshape x (shape other))", "x other"),
    same("view_as", "(reshape x (shape other))", "x other"),
    same("ravel", "(reshape x [-1])"),
    Row("flatten", flat, "x start_dim:start=0 end_dim:end=-1"),
    Row("unflatten", unflattened, "x dim sizes"),
    same("permute", "(permute x {dims})", "x dims"),
    Row("transpose", lambda a: f"(permute x {listed(swapped(a.x, a.i, a.j))})", "x dim0:i dim1:j"),
    same("t", "(transpose x)"),
    same("T", "(transpose x)"),
    Row("mT", lambda a: f"(permute x {listed(swapped(a.x, -2, -1))})"),
    Row("movedim", moved, "x source destination"),
    Row("squeeze", squeezed, "x dim=None"),
    Row("squeeze|multiple", squeezed, "x dim=None"),
    same("unsqueeze", "(expand-dims x {dim})", "x dim"),
    Row("expand", expanded, "x shape"),
    same("expand_as", "(broadcast-to x (shape other))", "x other"),
    Row("broadcast_to", expanded, "x shape"),
    Row("flip", lambda a: f"(flip x :axis {written(a.dims)})" if a.dims else "x", "x dims"),
    same("fliplr", "(flip x :axis 1)"),
    same("flipud", "(flip x :axis 0)"),
    Row("roll", rolled, "x shifts dims=None"),
    Row("repeat", repeated, "x times"),
    Row("tile", repeated, "x dims:times"),
    same("cat", "(concat {xs} :axis {dim})", "xs dim=0",
         left=((lambda a: len({t.ndim for t in a.xs}) > 1, "joins tensors of different ranks, which NumPy refuses"),)),
    same("stack", "(stack {xs} :axis {dim})", "xs dim=0"),
    joined("hstack", 1, 1),
    joined("vstack", 0, 2),
    Row("column_stack", columns, "xs"),
    Row("split", parts_of, "x size dim=0"),
    Row("split|list_args", parts_of, "x size dim=0"),
    Row("split_with_sizes", parts_of, "x size dim=0"),
    Row("unsafe_split", parts_of, "x size dim=0"),
    Row("chunk", chunks, "x count dim=0"),
    Row("unsafe_chunk", chunks, "x count dim=0"),
    Row("unbind", unbound, "x dim=0"),
    Row("narrow", narrowed, "x dim start length"),
    same("select", "(take x {index} :axis {dim})", "x dim index"),
    Row("slice", one_slice, "x dim=0 start=None end=None step=1"),
    Row("constant_pad_nd", padded, "x pad value=0"),
    Row("nn.functional.pad|constant", padded, "x pad mode=None value=0"),
    same("tril", "(tril x :k {k})", "x diagonal:k=0"),
    same("triu", "(triu x :k {k})", "x diagonal:k=0"),
    Row("nn.functional.pixel_shuffle", lambda a: _shuffled(a, a.r), "x upscale_factor:r"),
    Row("nn.functional.channel_shuffle", lambda a: _channels(a), "x groups:g"),
)  # fmt: skip


def _shuffled(a: Arguments, r: int) -> str:
    *lead, c, h, w = a.x.shape
    n = len(lead)
    order = [*range(n), n, n + 3, n + 1, n + 4, n + 2]
    split = listed([*lead, c // r**2, r, r, h, w])
    return f"(reshape (permute (reshape x {split}) {listed(order)}) {listed([*lead, c // r**2, h * r, w * r])})"


def _channels(a: Arguments) -> str:
    b, c, *rest = a.x.shape
    order = [0, 2, 1, *range(3, 3 + len(rest))]
    return f"(reshape (permute (reshape x {listed([b, a.g, c // a.g, *rest])}) {listed(order)}) {listed(a.x.shape)})"


CHOICE = (
    Row("gather", gathered, "x dim index:i",
        left=((lambda a: a.x.ndim and a.i.ndim != a.x.ndim, "has indices of another rank, which NumPy refuses"),)),
    Row("take_along_dim", taken_along, "x indices:i dim=None"),
    same("index_select", "(take x i :axis {dim})", "x dim index:i", left=(ONE_AXIS,)),
    Row("index_add", added, "x dim index:i source:u alpha=1"),
    Row("scatter_add", scattered, "x dim index:i src:u"),
    Row("nn.functional.embedding", "(embed table ids)", "table ids"),
    Row("zeros_like", "(zeros-like x)"),
    Row("ones_like", "(ones-like x)"),
    Row("full_like", "(full (shape x) {value})", "x value"),
    Row("zeros", "(zeros {shape})", "shape"),
    Row("ones", "(ones {shape})", "shape"),
    Row("full", "(full {shape} {value})", "shape value"),
    Row("new_zeros", "(zeros {shape})", "x shape"),
    Row("new_ones", "(ones {shape})", "x shape"),
    Row("new_full", "(full {shape} {value})", "x shape value"),
    Row("eye", eye, "n m=None"),
    Row("arange", ranged, "first end=None step=1",
        left=((lambda a: a.step != 1 or any(isinstance(v, float) and v % 1 for v in (a.first, a.end)),
               "has a step or fractions: `arange` counts by one"),)),
)  # fmt: skip


def scaled(factor: object, text: str) -> str:
    return text if factor == 1 else f"(* {factor} {text})"


def plus(product: str) -> object:
    """β x + α a·b; with β = 0 PyTorch does not read x."""

    def form(a: Arguments) -> str:
        made = scaled(a.alpha, product)
        shape = {"(matmul a b)": (*a.a.shape[:-1], *a.b.shape[a.b.ndim - 1 :]) if a.b.ndim > 1 else a.a.shape[:-1]}
        return made if a.beta == 0 and shape else f"(+ {scaled(a.beta, 'x')} {made})"

    return form


def sums(a: Arguments) -> str:
    """PyTorch's letters, ours with spaces; ours are lower-case, and an ellipsis is spelt out."""
    inputs, _, output = a.equation.replace(" ", "").partition("->")
    if not _:
        letters = [c for c in sorted(set(inputs)) if c.isalpha() and inputs.count(c) == 1]
        output = "".join(letters)
    parts = [" ".join(f"{c.lower()}{'u' if c.isupper() else ''}" for c in part) for part in (*inputs.split(","), output)]
    return f'(einsum "{", ".join(parts[:-1])} -> {parts[-1]}" {" ".join(f"xs-{k}" for k in range(len(a.xs)))})'


ELLIPSIS = (lambda a: "." in a.equation, "has an ellipsis: `einsum` of language.md names every axis")
DIAGONAL = (
    lambda a: any(len(set(p)) != len(p) for p in a.equation.replace(" ", "").split("->")[0].split(",")),
    "names an axis twice in one operand",
)
ALPHA = "x a b beta=1 alpha=1"

PRODUCTS = (
    same("matmul", "(matmul x other)", "x other"),
    same("__rmatmul__", "(matmul other x)", "x other"),
    same("mm", "(matmul x other)", "x other"),
    same("bmm", "(matmul x other)", "x other"),
    same("mv", "(matmul x other)", "x other"),
    same("dot", "(dot x other)", "x other"),
    same("vdot", "(dot x other)", "x other"),
    same("outer", "(outer x other)", "x other"),
    Row("inner", lambda a: "(* x other)" if 0 in (a.x.ndim, a.other.ndim) else
        f"(matmul x {'(transpose other)' if a.other.ndim == 2 else 'other'})", "x other"),
    Row("linalg.vecdot", lambda a: f"(sum (* x other) :axis {a.dim})", "x other dim=-1"),
    Row("einsum", sums, "xs equation", left=(ELLIPSIS, DIAGONAL)),
    Row("addmm", plus("(matmul a b)"), ALPHA),  # type: ignore[arg-type]
    Row("addmm|decomposed", plus("(matmul a b)"), ALPHA),  # type: ignore[arg-type]
    Row("addmv", plus("(matmul a b)"), ALPHA),  # type: ignore[arg-type]
    Row("baddbmm", plus("(matmul a b)"), ALPHA),  # type: ignore[arg-type]
    Row("addbmm", plus("(sum (matmul a b) :axis 0)"), ALPHA),  # type: ignore[arg-type]
    Row("addr", plus("(outer a b)"), ALPHA),  # type: ignore[arg-type]
    Row("nn.functional.linear", lambda a: f"(linear x {a.weight.shape[0]}{'' if a.bias is not None else ' :bias false'})",
        "x weight bias=None",
        operands=lambda a: {"linear.weight": Operand(a.weight, lambda t: t.T)}
        | ({} if a.bias is None else {"linear.bias": Operand(a.bias)}),
        left=((lambda a: a.weight.ndim != 2, "has a weight of one axis"),)),
    Row("nn.functional.bilinear",
        lambda a: f'(+ (einsum "b i, o i j, b j -> b o" a weight b) {"0" if a.bias is None else "bias"})',
        "a b weight bias=None", left=((lambda a: a.a.ndim != 2, "has other axes than [b in]"),)),
)  # fmt: skip

SHAPE = (*MOVEMENT, *CHOICE, *PRODUCTS)
