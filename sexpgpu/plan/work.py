"""What each launch of a plan does, as a report of times names it: form, place, kind, operations, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import PurePath

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import SIZES
from sexpgpu.plan.kernel import Access, Attention, Generated, Indexed, Kernel, Matrix, Plan, Product, repeated
from sexpgpu.plan.report import flops_of

# A kernel that several forms were fused into is named by so many of them.
NAMES = 3


@dataclass(frozen=True)
class Work:
    """One launch. `form`: the heads of its forms, `layernorm, +`; `place`: where the first stands, FILE:LINE;
    `kind`: product, attention, map, row, column, or an indexed kernel's name; `flops`: those of products; `bytes`: what it
    reads and writes, each element counted once."""

    form: str
    place: str
    kind: str
    flops: int
    bytes: int


def works_of(plan: Plan, graph: Graph) -> Sequence[Work]:
    """The work of every launch of the plan of this graph, of those in loops all iterations together."""
    every = repeated(plan.launches)
    return tuple(_work(launch, times, [graph.nodes[index] for index in launch.nodes]) for launch, times in every)


def _work(launch: Kernel, times: int, nodes: Sequence[Node]) -> Work:
    forms = list(dict.fromkeys(map(form_of, nodes)))
    more = ", …" if len(forms) > NAMES else ""
    place = next((place for node in nodes if (place := _place(node))), "")
    where = ", ".join(forms[:NAMES]) + more
    return Work(where, place, _kind(launch), times * flops_of(launch), times * bytes_of(launch))


def form_of(node: Node) -> str:
    """A region's name, else the head of the form that the node came from, else its operation."""
    if node.op == "region":
        return str(node.attributes["body"].name)
    span = next((origin.span for origin in node.origins if origin.span is not None), None)
    head = "" if span is None else span.text.lstrip("([").split(maxsplit=1)[0].rstrip(")]")
    return head or node.op


def _place(node: Node) -> str:
    span = next((origin.span for origin in node.origins if origin.span is not None), None)
    return "" if span is None else f"{PurePath(span.source.name).name}:{span.line}"


def _kind(launch: Kernel) -> str:
    if isinstance(launch, Generated):
        return launch.program.kind
    if isinstance(launch, Attention):
        return "attention"
    return "product" if isinstance(launch, Product) else launch.op


def bytes_of(launch: Kernel) -> int:
    """Bytes of the operands, an element that is read along a loop of stride 0 counted once."""
    if isinstance(launch, Generated):
        program = launch.program
        read = (_touched(a, launch.sizes) * SIZES[load.dtype] for a, load in zip(launch.loads, program.loads))
        written = (_touched(a, launch.sizes) * SIZES[store.dtype] for a, store in zip(launch.stores, program.stores))
        return sum(read) + sum(written)
    if isinstance(launch, Product):
        operands = ((launch.a, launch.m, launch.k), (launch.b, launch.k, launch.n))
        elements = sum(_entries(matrix) * rows * columns for matrix, rows, columns in operands)
        return elements * SIZES[launch.dtype] + _entries(launch.c) * launch.m * launch.n * SIZES[launch.c_dtype]
    if isinstance(launch, Attention):
        return _attention_bytes(launch)
    return _indexed_bytes(launch)


def _attention_bytes(launch: Attention) -> int:
    """Its operands and results; a mask counts as often as it differs."""
    narrow, wide = SIZES[launch.dtype], SIZES["f32"]
    # q and out forward, and dout and dq backward; k and v, and dk and dv; lse.
    of_rows = launch.rows * (launch.width * narrow + (launch.value_width + 1) * wide)
    of_columns = launch.columns * (launch.width + launch.value_width) * narrow
    if launch.backward:
        of_rows += launch.rows * (launch.value_width * narrow + launch.width * wide)
        of_columns += launch.columns * (launch.width + launch.value_width) * wide
    sizes = (launch.batch, launch.heads, launch.rows, launch.columns)
    mask = _touched(launch.loads[-1], sizes) if launch.masked else 0
    return launch.batch * (launch.heads * of_rows + launch.heads // launch.group * of_columns) + mask


def _touched(access: Access, sizes: Sequence[int]) -> int:
    if access.place is None:
        return 0
    return prod(size for size, stride in zip(sizes, access.strides) if stride)


def _entries(matrix: Matrix) -> int:
    return len(set(matrix.starts))


def _indexed_bytes(launch: Indexed) -> int:
    """The elements that are moved, read once and written once, where they are added to others these too; the indices."""
    elements = launch.outer * launch.inner
    moved = elements * (launch.count if launch.inputs[1:] else launch.size)
    indices = launch.count * (elements if launch.op in ("gather", "gather_add") else 1)
    touched = 3 if launch.op in ("gather_add", "scatter_add") else 2
    return touched * moved * SIZES[launch.dtype] + (indices * SIZES[launch.index_dtype] if launch.index_dtype else 0)
