"""The IR as text, and back: `read_graph(print_graph(g))` is the same graph, node for node.

    body @softmax.1
      %0 = input() kind='argument' name='x' dtype='f32' shape=(3, 5) : f32[3 5]
      …
      return y=%7
    graph train
      %0 = input() kind='field' … : f32[3 5]
      %1 = region(%0) body=@softmax.1 : f32[3 5]
      return loss=%2

Places and labels are left out: the text is what the experiment's hash is taken of.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import NodeType, TensorType

# A body is the last attribute.
_BODY = re.compile(r"(.*?) ?body=(@\S+)")
_LINE = re.compile(r"  %(\d+) = (\w+)\(([^)]*)\) ?(.*) : [^:]*\Z")


def print_graph(graph: Graph) -> str:
    """The text of a graph, every body once, before its first use."""
    names: dict[int, str] = {}
    blocks: list[str] = []
    _print_bodies(graph, names, blocks)
    return "\n".join([*blocks, f"graph {graph.name}", *_lines(graph, names)]) + "\n"


def _print_bodies(graph: Graph, names: dict[int, str], blocks: list[str]) -> None:
    for node in graph.nodes:
        body = node.attributes.get("body")
        if body is None or id(body) in names:
            continue
        _print_bodies(body, names, blocks)
        names[id(body)] = f"@{body.name}.{len(names)}"
        blocks.append("\n".join([f"body {names[id(body)]}", *_lines(body, names)]))


def _lines(graph: Graph, names: dict[int, str]) -> Iterable[str]:
    for node in graph.nodes:
        operands = ", ".join(f"%{i.index}" for i in node.inputs)
        parts = [f"{k}={names[id(v)] if isinstance(v, Graph) else repr(v)}" for k, v in node.attributes.items()]
        attributes = " ".join(["", *parts])
        yield f"  %{node.index} = {node.op}({operands}){attributes} : {type_text(node.type)}"
    yield "  return " + " ".join(f"{name}=%{node.index}" for name, node in graph.outputs.items())


def type_text(type_: NodeType) -> str:
    """`f32[3 5]`, without labels; several in parentheses."""
    if not isinstance(type_, TensorType):
        return f"({', '.join(map(type_text, type_))})"
    return str(type_.with_labels(()))


def read_graph(text: str) -> Graph:
    """The graph of a text that `print_graph` made. Anything else is a ValueError with its line."""
    bodies: dict[str, Graph] = {}
    graph = Graph()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("body "):
            name = line[5:]
            graph = bodies[name] = Graph(name[1:].rsplit(".", 1)[0])
        elif line.startswith("graph "):
            graph = Graph(line[6:])
        elif line.startswith("  return"):
            for output in line[8:].split():
                name, _, place = output.rpartition("=%")
                graph.outputs[name] = graph.nodes[int(place)]
        else:
            _read_node(graph, line, number, bodies)
    return graph


def _read_node(graph: Graph, line: str, number: int, bodies: dict[str, Graph]) -> None:
    found = _LINE.match(line)
    if found is None:
        raise ValueError(f"line {number} is no node: {line}")
    place, op, operands, attributes = found.groups()
    inputs = [graph.nodes[int(o[1:])] for o in operands.split(", ") if o]
    node = graph.add(op, inputs, _read_attributes(attributes, bodies))
    if node.index != int(place):
        raise ValueError(f"line {number} repeats node %{node.index}: {line}")


def _read_attributes(text: str, bodies: dict[str, Graph]) -> dict[str, Any]:
    found = _BODY.fullmatch(text)
    if found is not None:
        return {**_read_attributes(found[1], bodies), "body": bodies[found[2]]}
    call = ast.parse(f"f({_separated(text)})", mode="eval").body
    assert isinstance(call, ast.Call)
    return {keyword.arg or "": _value(keyword.value) for keyword in call.keywords}


def _separated(text: str) -> str:
    """`a=1 b=(2, 3)` with commas between: a space before `name=` outside strings and brackets."""
    return re.sub(r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")| (?=\w+=)""", lambda m: m.group(1) or ", ", text)


def _value(node: ast.expr) -> Any:
    """A literal, with inf and nan."""
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.Tuple):
        return tuple(map(_value, node.elts))
    return ast.literal_eval(node)
