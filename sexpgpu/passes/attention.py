"""The region `attention`: its own derivative, which keeps one number a row instead of the probabilities, and what a body
says, for devices that lower it natively.

    s = masked, scaled scores   p = exp(s − lse)   lse = log Σ exp(s), kept   out = p · v
    dp = dout · vᵀ   δ = Σ dout ⊙ out, a row   ds = p ⊙ (dp − δ)   and on from ds as the scores were made
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

from sexpgpu.ir.graph import Graph, Node, copy_into
from sexpgpu.ir.types import FLOATS
from sexpgpu.ops.table import OPS
from sexpgpu.passes.clusters import base_of

FORWARD, BACKWARD = "attention", "attention-backward"
# The arguments of a backward body after those of the forward one.
OUT, LSE, COTANGENT = "out", "lse", "dout"
# Appends a reverse pass to a graph: of these cotangents, towards these targets.
Reverse = Callable[[Graph, dict[Node, Node], list[Node]], None]


@dataclass(frozen=True)
class AttentionBody:
    """What a body computes. `scale` multiplies the scores; `causal`: of row t only columns up to t count; `mask` is the
    body's node (a view of its argument) that says which scores count."""

    backward: bool
    scale: float
    causal: bool
    mask: Node | None


@dataclass(frozen=True)
class _Softmax:
    """The nodes of a forward body: y = softmax(scores) · v, the softmax being exp(scores − shift) / total."""

    scores: Node
    shift: Node
    total: Node
    y: Node


# -- the derivative


def attention_derivative(body: Graph, reverse: Reverse) -> tuple[Graph, Graph] | None:
    """The body with `saved0`, the result, and `saved1`, lse, as further outputs; and the body of the backward region:
    its arguments are the forward body's, both saved values and the cotangent, its outputs the gradients of q, k and v.

    None where the body is of another form.
    """
    if body.name != FORWARD or len(body.outputs) != 1 or _softmax(body) is None:
        return None
    return _forward(body), _backward(body, reverse)


def _softmax(body: Graph) -> _Softmax | None:
    y = _under_reshapes(next(iter(body.outputs.values())))
    if y.op != "contract" or y.inputs[0].op != "div" or y.inputs[1].op != "input":
        return None
    exponential, total = y.inputs[0].inputs
    if exponential.op != "exp" or exponential.inputs[0].op != "sub" or base_of(total).op != "sum":
        return None
    scores, shift = exponential.inputs[0].inputs
    return _Softmax(scores, _before_broadcast(shift), _before_broadcast(total), y)


def _forward(body: Graph) -> Graph:
    made = Graph(body.name)
    copies: dict[Node, Node] = {}
    copy_into(made, body, copies)
    parts = _softmax(body)
    assert parts is not None
    out = copies[next(iter(body.outputs.values()))]
    lse = copies[parts.shift] + made.add("log", (copies[parts.total],))
    made.outputs = {"out0": out, "saved0": out, "saved1": _reshaped(lse, out.shape[:-1])}
    return made


def _backward(body: Graph, reverse: Reverse) -> Graph:
    parts = _softmax(body)
    assert parts is not None
    made = Graph(BACKWARD)
    copies: dict[Node, Node] = {}
    for node in body.inputs:
        copies[node] = made.clone(node, ())
    of = next(iter(body.outputs.values()))

    def argument(name: str, shape: tuple[int, ...]) -> Node:
        return made.add("input", (), {"kind": "argument", "name": name, "dtype": of.dtype, "shape": shape})

    out, lse, dout = argument(OUT, of.shape), argument(LSE, of.shape[:-1]), argument(COTANGENT, of.shape)
    _copy_up_to(parts.scores, made, copies)
    scores, y = copies[parts.scores], parts.y
    dy = _reshaped(dout, y.shape)
    p = made.add("exp", (scores - _along_rows(lse, scores),))
    vjp = OPS["contract"].vjp
    assert vjp is not None
    dp, dv = vjp(dy, scores, (p, copies[y.inputs[1]]), **y.attributes)
    assert dp is not None and dv is not None
    delta = made.add("sum", (dout * out,), {"axes": (len(of.shape) - 1,)})
    cotangents = {scores: p * (dp - _along_rows(delta, scores)), copies[y.inputs[1]]: dv}
    wanted = [copies[node] for node in body.inputs if node.dtype == of.dtype]
    reverse(made, cotangents, wanted)
    made.outputs = {
        f"g{k}": cotangents.get(node) or made.constant(0.0, node.dtype, node.shape) for k, node in enumerate(wanted)
    }
    return made


def _copy_up_to(node: Node, made: Graph, copies: dict[Node, Node]) -> None:
    """Copies what a node is made of."""
    needed: set[Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current not in needed:
            needed.add(current)
            pending.extend(current.inputs)
    for current in node.graph.nodes:
        if current in needed and current not in copies:
            copies[current] = made.clone(current, [copies[i] for i in current.inputs])


def _along_rows(x: Node, scores: Node) -> Node:
    """A value a row of the scores, for all of its columns."""
    rows = _reshaped(x, scores.shape[:-1])
    return x.graph.add("broadcast", (rows,), {"shape": scores.shape, "dims": tuple(range(len(scores.shape) - 1))})


def _reshaped(x: Node, shape: tuple[int, ...]) -> Node:
    return x if x.shape == shape else x.graph.add("reshape", (x,), {"shape": shape})


# -- what a body says


def recognise(body: Graph) -> AttentionBody | str:
    """What a forward or backward body of the region computes, or why it is not known."""
    narrow = next((node.dtype for node in body.inputs if node.dtype in FLOATS and node.dtype != "f32"), None)
    if narrow is not None:
        return f"it is given {narrow}, not f32"
    backward = body.name == BACKWARD
    scores = _scores_of_backward(body) if backward else _scores_of_forward(body)
    if scores is None:
        return "its form is not known"
    causal, mask, node = False, None, scores
    while node.op == "select" and _is_constant(node.inputs[2], -inf):
        condition, node = node.inputs[0], node.inputs[1]
        if _is_causal(condition):
            causal = True
        elif base_of(condition).op == "input" and mask is None:
            mask = condition
        else:
            return "its scores are masked by a computed value"
    scale = 1.0
    if node.op == "mul" and node.inputs[1].op == "constant":
        node, scale = node.inputs[0], float(node.inputs[1].attributes["value"])
    if node.op != "contract" or [base_of(i) for i in node.inputs] != body.inputs[:2]:
        return "its scores are not the products of q and k times a number"
    if not isfinite(scale) or scale == 0:
        return f"its scale is {scale}"
    return _known(body, AttentionBody(backward, scale, causal, mask))


def _known(body: Graph, found: AttentionBody) -> AttentionBody | str:
    floats = [node for node in body.inputs if node is not (found.mask and base_of(found.mask))]
    outputs = list(body.outputs.values())
    if len(floats) != (6 if found.backward else 3) or len(outputs) not in ((3,) if found.backward else (1, 3)):
        return "its arguments or results are not those of attention"
    if any(0 in node.shape for node in floats):
        return "it has no elements"
    return found


def _scores_of_forward(body: Graph) -> Node | None:
    parts = _softmax(body) if body.name == FORWARD else None
    return None if parts is None or parts.y.inputs[1] is not body.inputs[2] else parts.scores


def _scores_of_backward(body: Graph) -> Node | None:
    exponentials = [node for node in body.nodes if node.op == "exp"]
    if len(exponentials) != 1 or exponentials[0].inputs[0].op != "sub":
        return None
    scores, lse = exponentials[0].inputs[0].inputs
    return scores if base_of(lse).attributes.get("name") == LSE else None


def _is_causal(condition: Node) -> bool:
    """Whether it says that a column is at most its row's number, for the last two axes of a value."""
    compared = base_of(condition)
    if compared.op != "le" or len(compared.shape) != 2:
        return False
    columns, rows = compared.inputs
    return base_of(columns).op == "iota" == base_of(rows).op and base_of(columns).shape == compared.shape[1:]


def _is_constant(node: Node, value: float) -> bool:
    return node.op == "constant" and node.attributes["value"] == value


def _under_reshapes(node: Node) -> Node:
    while node.op == "reshape":
        node = node.inputs[0]
    return node


def _before_broadcast(node: Node) -> Node:
    return node.inputs[0] if node.op == "broadcast" else node
