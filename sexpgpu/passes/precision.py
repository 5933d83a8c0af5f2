"""`:precision` as casts: what every operation of the language gives is rounded once, to nearest even.

Elaboration marks the results of operations (`mark_results`), and this pass writes `cast` nodes behind them, before
differentiation: the graph computes in f32, and a result is f32 → bf16 → f32, under `float16` f32 → f16 → f32. Not rounded:
parameters, the loss, metrics, what buffers become, what the file casts, random fields, cross-entropy. What only moves elements
passes roundings on. A product reads parameters and fields rounded, too; a parameter's gradient passes that rounding as it is.

The file's own casts to bf16 or f16 mean the same in every precision: operations on such tensors compute in f32 and round.
"""

from __future__ import annotations

from typing import Any, Literal

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import TensorType

Precision = Literal["off", "bfloat16", "float16"]
DTYPES: dict[str, Literal["bf16", "f16"]] = {"bfloat16": "bf16", "float16": "f16"}
# These change no element.
MOVES = frozenset(("reshape", "permute", "broadcast", "slice", "flip", "windows", "concat", "pad"))
_LEAVES = frozenset(("input", "constant", "iota", "random", "host"))
# Functions and operations whose results stay f32; what a scan gives, its function has rounded.
UNROUNDED = frozenset(("cast", "cross-entropy", "random-uniform", "random-normal", "random-bernoulli", "scan"))
# Operations that take bf16 and f16 as they are.
_AS_THEY_ARE = MOVES | {"cast", "take", "gather", "region", "scan", "get", "stop_gradient"}
_NARROW = frozenset(("bf16", "f16"))


def mark_results(graph: Graph, name: str, value: Any) -> None:
    """Notes what the operation or prelude function `name`, called in a user's file, gave."""
    if name in UNROUNDED:
        return
    pending = [value]
    # One tensor may be moved from along many ways: it is come to once.
    moved: set[Node] = set()
    while pending:
        made = pending.pop()
        if isinstance(made, tuple):
            pending.extend(made)
        elif isinstance(made, Node) and made.op in MOVES:
            pending.extend(() if made in moved else made.inputs)
            moved.add(made)
        elif isinstance(made, Node) and made.graph is graph and made.op not in _LEAVES and _dtype(made) == "f32":
            graph.results.add(made)


def _dtype(node: Node) -> str:
    return node.type.dtype if isinstance(node.type, TensorType) else ""


def rounded(graph: Graph, precision: Precision) -> Graph:
    """The graph with its roundings written as casts; of a graph that has none, the graph itself."""
    return _Rounding(DTYPES.get(precision)).run(graph)


class _Rounding:
    def __init__(self, dtype: Literal["bf16", "f16"] | None) -> None:
        self.dtype = dtype
        # Old body → new one (the old is kept so that its identity stays taken).
        self.bodies: dict[tuple[int, tuple[int, ...]], tuple[Graph, Graph]] = {}
        # Names of the inputs of the body at hand that are parameters or fields outside.
        self.given: set[str] = set()

    def run(self, graph: Graph) -> Graph:
        if not any(self._concerns(node) for node in graph.nodes):
            return graph
        made = Graph(graph.name)
        replace: dict[Node, Node] = {}
        for node in graph.nodes:
            with made.like(node):
                replace[node] = self._node(made, node, replace)
        made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
        # Copies are marked as what they copy; these are rounded now.
        made.results.clear()
        return made

    def _concerns(self, node: Node) -> bool:
        if self.dtype is not None and (node in node.graph.results or node.op == "contract"):
            return True
        if "body" in node.attributes:
            return self._body(node) is not node.attributes["body"]
        return node.op not in _AS_THEY_ARE and any(_is_narrow(i) for i in node.inputs)

    def _body(self, node: Node) -> Graph:
        body: Graph = node.attributes["body"]
        scanned = node.op == "scan" and self.dtype is not None
        first = node.attributes.get("carries", 0)
        given = tuple(k for k, i in enumerate(node.inputs) if scanned and k >= first and self._is_given(_unmoved(i)))
        key = (id(body), given)
        if key not in self.bodies:
            before, self.given = self.given, {body.inputs[k].attributes["name"] for k in given}
            self.bodies[key] = (body, self.run(body))
            self.given = before
        return self.bodies[key][1]

    def _node(self, made: Graph, node: Node, replace: dict[Node, Node]) -> Node:
        inputs = [replace[i] for i in node.inputs]
        if node.op not in _AS_THEY_ARE and any(map(_is_narrow, inputs)):
            wide = [_cast(i, "f32") if _is_narrow(i) else i for i in inputs]
            new = made.add(node.op, wide, node.attributes)
            return _cast(new, node.dtype) if _is_narrow(node) else new
        if node.op == "contract" and self.dtype is not None:
            inputs = [self._factor(i, f"round_{self.dtype}") for i in inputs]
        if "body" in node.attributes:
            new = made.add(node.op, inputs, {**node.attributes, "body": self._body(node)})
        else:
            new = made.clone(node, inputs)
        if self.dtype is not None and node in node.graph.results:
            return _cast(_cast(new, self.dtype), "f32")
        return new

    def _factor(self, node: Node, rounding: str) -> Node:
        """An operand of a product: a parameter or a field, seen through what only moves it, is rounded."""
        if node.op in MOVES and len(node.inputs) == 1:
            inner = self._factor(node.inputs[0], rounding)
            return node if inner is node.inputs[0] else node.graph.add(node.op, (inner,), node.attributes)
        return node.graph.add(rounding, (node,)) if self._is_given(node) else node

    def _is_given(self, node: Node) -> bool:
        if node.op != "input" or node.dtype != "f32":
            return False
        return node.attributes["kind"] in ("parameter", "field") or node.attributes["name"] in self.given


def _unmoved(node: Node) -> Node:
    while node.op in MOVES and len(node.inputs) == 1:
        node = node.inputs[0]
    return node


def _is_narrow(node: Node) -> bool:
    return _dtype(node) in _NARROW


def _cast(node: Node, dtype: str) -> Node:
    return node.graph.add("cast", (node,), {"dtype": dtype})
