"""The typed graph: interned nodes in order of evaluation, each with all the places it came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sexpgpu.ir.types import Dtype, NodeType, TensorType
from sexpgpu.source import Span


class Origin(msgspec.Struct, frozen=True):
    """Where a node came from: the form, the scope of names, the chain of calls (innermost first)."""

    span: Span | None
    scope: str = ""
    frames: tuple[str, ...] = ()


# An attribute value is hashable: numbers, strings, tuples of these, or a body Graph (by identity).
Attribute = Any


class Node:
    """One operation's result. Compared by identity; `index` is its place in the graph's order."""

    __slots__ = ("attributes", "graph", "index", "inputs", "op", "origins", "type")

    def __init__(
        self,
        graph: Graph,
        index: int,
        op: str,
        inputs: tuple[Node, ...],
        attributes: dict[str, Attribute],
        type: NodeType,
        origins: list[Origin],
    ) -> None:
        self.graph = graph
        self.index = index
        self.op = op
        self.inputs = inputs
        self.attributes = attributes
        self.type = type
        self.origins = origins

    @property
    def tensor(self) -> TensorType:
        """The type of a node that gives one tensor."""
        assert isinstance(self.type, TensorType), (self.op, self.type)
        return self.type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> Dtype:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"%{self.index} {self.op} {self.type}"

    # Arithmetic builds nodes, so that derivative rules read like the formulas they are.
    def __add__(self, other: Node | float) -> Node:
        return self.graph.binary("add", self, other)

    def __radd__(self, other: float) -> Node:
        return self.graph.binary("add", other, self)

    def __sub__(self, other: Node | float) -> Node:
        return self.graph.binary("sub", self, other)

    def __rsub__(self, other: float) -> Node:
        return self.graph.binary("sub", other, self)

    def __mul__(self, other: Node | float) -> Node:
        return self.graph.binary("mul", self, other)

    def __rmul__(self, other: float) -> Node:
        return self.graph.binary("mul", other, self)

    def __truediv__(self, other: Node | float) -> Node:
        return self.graph.binary("div", self, other)

    def __rtruediv__(self, other: float) -> Node:
        return self.graph.binary("div", other, self)

    def __neg__(self) -> Node:
        return self.graph.add("neg", (self,))


class Graph:
    """Nodes in order, an intern table, named outputs.

    The same operation on the same inputs with the same attributes is the same node. `inputs` lists the `input`
    nodes in order of declaration (for a region's body: its positional parameters).
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.outputs: dict[str, Node] = {}
        # Values that operations of the language gave: what `:precision` rounds (`passes/precision.py`).
        self.results: set[Node] = set()
        self._interned: dict[tuple[Any, ...], Node] = {}
        self._origin: Origin | None = None

    @property
    def inputs(self) -> list[Node]:
        return [node for node in self.nodes if node.op == "input"]

    def add(
        self,
        op: str,
        inputs: Iterable[Node] = (),
        attributes: dict[str, Attribute] | None = None,
        *,
        labels: tuple[str | None, ...] | None = None,
    ) -> Node:
        """The node of this operation, made or found. Its type follows from the operation's record.

        Raises `sexpgpu.ops.record.TypeMismatch` where the operands do not fit.
        """
        from sexpgpu.ops.table import OPS

        operands = tuple(inputs)
        attributes = attributes or {}
        # As text 0.0 differs from -0.0 and NaN equals NaN; the dtype tells 1 from 1.0.
        key = (op, *map(id, operands), *(attributes.items() if op != "constant" else map(repr, attributes.values())))
        found = self._interned.get(key)
        if found is not None:
            if self._origin is not None:
                _note_origin(found, self._origin)
            return found
        type_ = OPS[op].infer(*[node.type for node in operands], **attributes)
        if labels is not None and isinstance(type_, TensorType):
            type_ = type_.with_labels(labels)
        origins = [] if self._origin is None else [self._origin]
        node = Node(self, len(self.nodes), op, operands, attributes, type_, origins)
        self.nodes.append(node)
        self._interned[key] = node
        return node

    def clone(self, node: Node, inputs: Iterable[Node]) -> Node:
        """The same operation on other inputs, with the same origins and roundings."""
        with self.at(node.origins[0] if node.origins else None):
            labels = node.type.labels if node.op == "input" and isinstance(node.type, TensorType) else None
            made = self.add(node.op, inputs, node.attributes, labels=labels)
        for origin in node.origins[1:]:
            _note_origin(made, origin)
        if node in node.graph.results:
            self.results.add(made)
        return made

    def constant(self, value: float | bool, dtype: Dtype, shape: tuple[int, ...] = ()) -> Node:
        """A tensor filled with one number, written into the kernels that read it."""
        number = float(value) if dtype in ("f32", "bf16", "f16") else bool(value) if dtype == "bool" else int(value)
        return self.add("constant", (), {"value": number, "dtype": dtype, "shape": shape})

    def binary(self, op: str, a: Node | float, b: Node | float) -> Node:
        """A pointwise operation of which one operand may be a plain number."""
        if not isinstance(a, Node):
            assert isinstance(b, Node)
            a = self.constant(a, b.dtype, b.shape)
        if not isinstance(b, Node):
            b = self.constant(b, a.dtype, a.shape)
        return self.add(op, (a, b))

    def at(self, origin: Origin | None) -> _At:
        """For the length of a block: nodes made inside carry this origin."""
        return _At(self, origin)

    def like(self, node: Node) -> _At:
        """For the length of a block: nodes made inside come from where `node` came from."""
        return _At(self, node.origins[0] if node.origins else self._origin)


class _At:
    """A block whose nodes carry one origin. Thousands are entered at each start, and a generator costs four times as much."""

    __slots__ = ("_before", "_graph", "_origin")

    def __init__(self, graph: Graph, origin: Origin | None) -> None:
        self._graph, self._origin = graph, origin

    def __enter__(self) -> None:
        self._before = self._graph._origin
        self._graph._origin = self._origin

    def __exit__(self, *_: object) -> None:
        self._graph._origin = self._before


def live_nodes(graph: Graph) -> set[Node]:
    """The nodes that an output needs."""
    live: set[Node] = set()
    pending = list(graph.outputs.values())
    while pending:
        node = pending.pop()
        if node not in live:
            live.add(node)
            pending.extend(node.inputs)
    return live


def _note_origin(node: Node, origin: Origin) -> None:
    """Keeps a few distinct places; a node used by thousands of forms does not remember all of them."""
    if len(node.origins) < 8 and origin not in node.origins:
        node.origins.append(origin)


def copy_into(target: Graph, source: Graph, replace: dict[Node, Node]) -> None:
    """Appends the source's nodes to `target`; `replace` maps nodes and is extended with every copy."""
    for node in source.nodes:
        if node not in replace:
            replace[node] = target.clone(node, [replace[i] for i in node.inputs])
