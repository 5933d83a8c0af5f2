"""Bodies of loops while they are elaborated, and the tensors in a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sexpgpu.ir.graph import Attribute, Graph, Node
from sexpgpu.ops.scan import add_argument
from sexpgpu.passes.elaboration.values import POISON, Value, Values, listed, several


class Body(Graph):
    """The body of a scan while its function runs. What the function takes from around it becomes a constant of the scan:
    an input here, with the outer node in `constants`. Parameters, fields and host scalars are made outside."""

    def __init__(self, outer: Graph) -> None:
        super().__init__("scan")
        self.outer = outer
        self.constants: dict[Node, Node] = {}

    def add(
        self, op: str, inputs: Iterable[Node] = (), attributes: dict[str, Attribute] | None = None, *,
        labels: tuple[str | None, ...] | None = None,
    ) -> Node:  # fmt: skip
        attributes = attributes or {}
        if op == "host" or (op == "input" and attributes["kind"] != "argument"):
            with self.outer.at(self._origin):
                return self.inside(self.outer.add(op, inputs, attributes, labels=labels))
        return super().add(op, map(self.inside, inputs), attributes, labels=labels)

    def inside(self, node: Node) -> Node:
        """A node of this body or of a graph around it, as this body sees it."""
        if node.graph is self:
            return node
        if isinstance(self.outer, Body):
            node = self.outer.inside(node)
        if node not in self.constants:
            self.constants[node] = add_argument(self, f"constant{len(self.constants)}", node.tensor)
        return self.constants[node]


def inside(body: Body, values: Iterable[Value]) -> list[Value]:
    """Values whose tensors come from around a body, as the body sees them."""
    return [mapped(body.inside, value) for value in values]


def mapped(change: Callable[[Node], Node], value: Value) -> Value:
    """The value with every tensor in it (in lists, too) changed."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, tuple) and any(True for _ in tensors(value)):
        made = [mapped(change, part) for part in value]
        return several(made) if isinstance(value, Values) else listed(made)
    return value


def replaced(value: Value, old: Value, new: Value) -> Value:
    """The value with one that it is, or that stands in its lists, changed for another."""
    if value is old:
        return new
    if not isinstance(value, tuple):
        return value
    parts = [replaced(part, old, new) for part in value]
    return several(parts) if isinstance(value, Values) else listed(parts)


def tensors(value: Value) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)


def is_wrong(value: Value) -> bool:
    """Whether a part of a value is poison."""
    return value is POISON or (isinstance(value, tuple) and any([is_wrong(part) for part in value]))
