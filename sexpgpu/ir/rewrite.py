"""Rewrite rules as text, `(mul ?x 1) => ?x`, matched at a node by its operation.

A pattern is an operation with patterns as operands, `?name` (any node; the same name twice must be the same node) or a
number (a constant filled with it, signs of zero told apart). A result is built from the same parts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Graph, Node

# A parsed pattern: ("?", name) | ("number", value) | (operation, pattern, …)
Pattern = tuple[object, ...]

_TOKEN = re.compile(r"[()]|[^\s()]+")


@dataclass(frozen=True)
class Rule:
    """`text` is what the tests print; `root` the operation under which the rule is found."""

    text: str
    root: str
    pattern: Pattern
    result: Pattern


def parse_rules(text: str) -> dict[str, list[Rule]]:
    """Rules by root operation; one a line, `;` begins a comment."""
    rules: dict[str, list[Rule]] = {}
    for line in text.splitlines():
        line = line.split(";")[0].strip()
        if line:
            left, right = (_parse(_TOKEN.findall(side)) for side in line.split("=>"))
            rules.setdefault(str(left[0]), []).append(Rule(line, str(left[0]), left, right))
    return rules


def _parse(tokens: list[str]) -> Pattern:
    token = tokens.pop(0)
    if token == "(":
        items: list[object] = [tokens.pop(0)]
        while tokens[0] != ")":
            items.append(_parse(tokens))
        tokens.pop(0)
        return tuple(items)
    return ("?", token) if token.startswith("?") else ("number", float(token))


def _same_number(a: float, b: float) -> bool:
    return a == b and math.copysign(1, a) == math.copysign(1, b)


def match(pattern: Pattern, node: Node, found: dict[str, Node]) -> bool:
    """Whether the node has the pattern's form; `found` is extended by its names."""
    if pattern[0] == "?":
        return found.setdefault(str(pattern[1]), node) is node
    if pattern[0] == "number":
        value = node.attributes["value"] if node.op == "constant" else None
        return isinstance(value, float) and _same_number(value, float(str(pattern[1])))
    if node.op != pattern[0] or len(node.inputs) != len(pattern) - 1:
        return False
    parts: Sequence[object] = pattern[1:]
    return all(match(p, i, found) for p, i in zip(parts, node.inputs, strict=True))  # type: ignore[arg-type]


def build(result: Pattern, graph: Graph, found: dict[str, Node], like: Node) -> Node:
    """The node that a rule's right side describes; numbers take the matched node's dtype and shape."""
    if result[0] == "?":
        return found[str(result[1])]
    if result[0] == "number":
        return graph.constant(float(str(result[1])), like.dtype, like.shape)
    operands = [build(part, graph, found, like) for part in result[1:]]  # type: ignore[arg-type]
    return graph.add(str(result[0]), operands)
