"""Every rewrite rule keeps the value bit for bit, edge values included."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.rewrite import Rule, build, match
from sexpgpu.ops.table import OPS
from sexpgpu.passes.simplify import RULES, simplify

EDGES = np.array([0.0, -0.0, 1.0, -1.0, 0.1, -3.5, 1e-45, 3e38, -3e38, np.inf, -np.inf, np.nan], np.float32)
ALL = [rule for rules in RULES.values() for rule in rules]


def _names(pattern: tuple[object, ...]) -> list[str]:
    if pattern[0] == "?":
        return [str(pattern[1])]
    return [] if pattern[0] == "number" else list(dict.fromkeys(n for p in pattern[1:] for n in _names(p)))  # type: ignore[arg-type]


def _is_bool(rule: Rule, name: str) -> bool:
    return name == "?c" or rule.root == "logical_not"


def _evaluate(node: Node, values: dict[Node, np.ndarray]) -> np.ndarray:
    if node in values:
        return values[node]
    with np.errstate(all="ignore"):
        return OPS[node.op].run(*[_evaluate(i, values) for i in node.inputs], **node.attributes)


def _bits(x: np.ndarray) -> np.ndarray:
    """Bits, with every NaN alike: its sign and payload are no part of a value."""
    x = np.asarray(x)
    return x if x.dtype == bool else np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


@pytest.mark.parametrize("rule", ALL, ids=[rule.text for rule in ALL])
def test_both_sides_of_a_rule_have_the_same_bits(rule: Rule) -> None:
    names = _names(rule.pattern)
    columns = [np.array([False, True]) if _is_bool(rule, name) else EDGES for name in names]
    points = [np.array(p) for p in zip(*itertools.product(*columns), strict=True)]
    graph = Graph()
    found = {}
    values: dict[Node, np.ndarray] = {}
    for name, point in zip(names, points, strict=True):
        dtype = "bool" if _is_bool(rule, name) else "f32"
        attributes = {"kind": "field", "name": name, "dtype": dtype, "shape": point.shape}
        found[name] = graph.add("input", (), attributes)
        values[found[name]] = point.astype(bool if dtype == "bool" else np.float32)
    like = next(iter(found.values()))
    left = build(rule.pattern, graph, found, like)
    assert match(rule.pattern, left, {})
    right = build(rule.result, graph, found, left)
    assert np.array_equal(_bits(_evaluate(left, values)), _bits(_evaluate(right, values)))


def test_a_sum_with_plus_zero_is_kept_because_minus_zero_would_change() -> None:
    graph = Graph()
    x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (3,)})
    graph.outputs["y"] = x + 0.0
    assert simplify(graph).outputs["y"].op == "add"


def test_a_permuted_operand_of_a_product_is_read_through_its_axes() -> None:
    graph = Graph()
    x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (3, 4)})
    w = graph.add("input", (), {"kind": "field", "name": "w", "dtype": "f32", "shape": (5, 4)})
    turned = graph.add("permute", (w,), {"axes": (1, 0)})
    graph.outputs["y"] = graph.add("contract", (x, turned), {"batch": ((), ()), "contracted": ((1,), (0,))})
    product = simplify(graph).outputs["y"]
    assert product.inputs[1].op == "input"
    assert product.attributes["contracted"] == ((1,), (1,))


def test_what_no_output_needs_is_left_behind() -> None:
    graph = Graph()
    x = graph.add("input", (), {"kind": "field", "name": "x", "dtype": "f32", "shape": (3,)})
    graph.add("exp", (x,))
    graph.outputs["y"] = x * 2.0
    assert [node.op for node in simplify(graph).nodes] == ["input", "constant", "mul"]
