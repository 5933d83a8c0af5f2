"""Reverse-mode differentiation on the IR: a graph with a loss becomes a graph with the loss and its gradients.

A region stays a region: its forward body gives the values that the backward pass needs as further outputs, and the
backward region has a body of primitives too. Values that the forward pass materialises anyway (reductions' results,
products and their operands, outputs) are saved; everything else is computed again from them and the arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.host import Expression
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.table import OPS
from sexpgpu.passes.active import (
    NESTED,
    active_nodes,
    add_seed,
    dependent_nodes,
    first_reached,
    is_float,
    materialised,
    reached,
    with_outputs,
)
from sexpgpu.passes.attention import FORWARD, attention_derivative
from sexpgpu.passes.scan_derivative import BackwardScan, differentiate_scan


def differentiate(graph: Graph, seeds: Mapping[str, Expression], targets: Mapping[str, Node]) -> Graph:
    """The graph extended by gradients.

    seeds    name of a scalar output → its cotangent, a number or (of an f32 output) a host scalar
    targets  name → node whose gradient is wanted, given as output `gradient:NAME` (zeros where the output does not
             depend on it)
    """
    made = Graph(graph.name)
    active = active_nodes([graph.outputs[name] for name in seeds], dependent_nodes(graph, targets.values()))
    replace, derived = _extend(graph, made, active)
    cotangents: dict[Node, Node] = {}
    for name, expression in seeds.items():
        root = replace[graph.outputs[name]]
        known = expression[0] == "number"
        seed = made.constant(expression[1], root.dtype) if known else made.add("host", (), {"expression": expression})
        _accumulate(cotangents, root, seed)
    reverse(made, cotangents, {replace[node] for node in active}, derived)
    made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    for name, node in targets.items():
        gradient = cotangents.get(replace[node])
        made.outputs[f"gradient:{name}"] = gradient or made.constant(0.0, node.dtype, node.shape)
    return made


@dataclass(frozen=True)
class BackwardRegion:
    """The derivative of a region's body for one set of wanted arguments and given cotangents.

    forward    the body with `saved` values as further outputs
    backward   arguments: `kept` arguments of the region, saved values, cotangents; outputs: one gradient for each of `wanted`
    kept       which arguments the backward body reads
    wanted     which arguments get a gradient
    given      which outputs have a cotangent
    """

    forward: Graph
    backward: Graph
    kept: tuple[int, ...]
    wanted: tuple[int, ...]
    given: tuple[int, ...]
    saved: int

    def reverse(self, node: Node, given: Mapping[int, Node]) -> dict[int, Node]:
        """Appends the backward region of a forward region; gives the gradients by operand."""
        graph = node.graph
        own = len(self.forward.outputs) - self.saved
        outputs = [node.type] if isinstance(node.type, TensorType) else list(node.type)
        seeds = [given.get(k) or graph.constant(0.0, outputs[k].dtype, outputs[k].shape) for k in self.given]
        saved = [graph.add("get", (node,), {"index": own + k}) for k in range(self.saved)]
        made = graph.add("region", [*(node.inputs[k] for k in self.kept), *saved, *seeds], {"body": self.backward})
        if len(self.wanted) == 1:
            return {self.wanted[0]: made}
        return {argument: graph.add("get", (made,), {"index": k}) for k, argument in enumerate(self.wanted)}


Backward = BackwardRegion | BackwardScan


def _extend(graph: Graph, made: Graph, active: set[Node]) -> tuple[dict[Node, Node], dict[Node, Backward]]:
    """Copies the forward nodes; active regions and scans give their saved values too."""
    replace: dict[Node, Node] = {}
    derived: dict[Node, Backward] = {}
    cache: dict[tuple[Any, ...], Backward] = {}
    given = _given_outputs(graph, active)
    for node in graph.nodes:
        inputs = [replace[i] for i in node.inputs]
        if node.op not in NESTED or node not in active:
            replace[node] = made.clone(node, inputs)
            continue
        wanted = tuple(k for k, i in enumerate(node.inputs) if i in active)
        attributes = {name: value for name, value in node.attributes.items() if name != "body"}
        key = (id(node.attributes["body"]), *attributes.values(), wanted, given[node])
        if key not in cache:
            if node.op == "scan":
                cache[key] = differentiate_scan(node, wanted, given[node], _extend, reverse)
            else:
                body = node.attributes["body"]
                cache[key] = _own_derivative(body) or differentiate_body(body, wanted, given[node])
        with made.like(node):
            extended = made.add(node.op, inputs, {**attributes, "body": cache[key].forward})
            single = isinstance(node.type, TensorType) and not isinstance(extended.type, TensorType)
            replace[node] = made.add("get", (extended,), {"index": 0}) if single else extended
        if node in graph.results:
            made.results.add(replace[node])
        derived[extended] = cache[key]
    return replace, derived


def _given_outputs(graph: Graph, active: set[Node]) -> dict[Node, tuple[int, ...]]:
    """For every active region the outputs that get a cotangent."""
    given: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node in active and node.op in NESTED and isinstance(node.type, TensorType):
            given[node] = {0}
        elif node in active and node.op == "get":
            given.setdefault(node.inputs[0], set()).add(node.attributes["index"])
    return {node: tuple(sorted(indices)) for node, indices in given.items()}


def _own_derivative(body: Graph) -> BackwardRegion | None:
    """The derivative that a region of this name carries; it gives the gradients of all float arguments."""
    made = attention_derivative(body, _reverse_towards)
    if made is None:
        return None
    forward, backward = made
    wanted = tuple(k for k, node in enumerate(body.inputs) if is_float(node))
    return BackwardRegion(forward, backward, tuple(range(len(body.inputs))), wanted, (0,), 2)


def _reverse_towards(graph: Graph, cotangents: dict[Node, Node], targets: list[Node]) -> None:
    reverse(graph, cotangents, active_nodes(list(cotangents), dependent_nodes(graph, targets)), {})


def differentiate_body(body: Graph, wanted: Sequence[int], given: Sequence[int]) -> BackwardRegion:
    """Splits a body's reverse pass into what the forward region saves and the backward region's own body."""
    work = Graph(body.name)
    results, inputs = list(body.outputs.values()), body.inputs
    active = active_nodes([results[k] for k in given], dependent_nodes(body, [inputs[k] for k in wanted]))
    replace, derived = _extend(body, work, active)
    arguments = [replace[node] for node in inputs]
    outputs = [replace[node] for node in results]
    forward_count = len(work.nodes)
    seeds: dict[Node, Node] = {}
    seed_nodes: list[Node] = []
    for k in given:
        seed = add_seed(work, k, outputs[k].tensor)
        seed_nodes.append(seed)
        seeds[outputs[k]] = seeds[outputs[k]] + seed if outputs[k] in seeds else seed
    targets = [arguments[k] for k in wanted]
    reverse(work, seeds, {replace[node] for node in active}, derived)
    gradients = [seeds.get(t) or work.constant(0.0, t.dtype, t.shape) for t in targets]
    stops = materialised(work, forward_count, {n for n in outputs if n.op not in ("input", "constant", "iota")})
    saved = sorted(first_reached(gradients, forward_count, stops), key=lambda n: n.index)
    forward = with_outputs(body, work, forward_count, outputs, saved)
    backward, kept = _backward_body(work, arguments, saved, seed_nodes, gradients)
    return BackwardRegion(forward, backward, kept, tuple(wanted), tuple(given), len(saved))


def _backward_body(
    work: Graph, arguments: Sequence[Node], saved: Sequence[Node], seeds: Sequence[Node], gradients: Sequence[Node]
) -> tuple[Graph, tuple[int, ...]]:
    """The body of the backward region: what the gradients need, with arguments, saved values and cotangents as inputs."""
    needed = reached(gradients, set(saved))
    kept = tuple(k for k, argument in enumerate(arguments) if argument in needed)
    # Only attention's own derivative has the name that devices look for.
    backward = Graph(f"{work.name}-backward" if work.name != FORWARD else f"{work.name}-derivative")
    copies: dict[Node, Node] = {}
    inputs = [(f"a{k}", arguments[k]) for k in kept] + [(f"s{k}", s) for k, s in enumerate(saved)]
    for name, node in [*inputs, *((seed.attributes["name"], seed) for seed in seeds)]:
        attributes = {"kind": "argument", "name": name, "dtype": node.dtype, "shape": node.shape}
        copies[node] = backward.add("input", (), attributes)
    for node in work.nodes:
        if node in needed and node not in copies:
            copies[node] = backward.clone(node, [copies[i] for i in node.inputs])
    backward.outputs = {f"g{k}": copies[node] for k, node in enumerate(gradients)}
    return backward, kept


def reverse(
    graph: Graph, cotangents: dict[Node, Node], active: set[Node], derived: Mapping[Node, Backward]
) -> None:
    """Appends the reverse pass over the nodes that are there now; `cotangents` is extended node by node.

    The cotangents of a region or scan are kept by output in `parts` until the node itself is reached.
    """
    parts: dict[Node, dict[int, Node]] = {}
    for node in graph.nodes[::-1]:
        if node in derived:
            given = {0: cotangents[node]} if node in cotangents else parts.pop(node, {})
            with graph.like(node):
                for operand, gradient in derived[node].reverse(node, given).items() if given else ():
                    _accumulate(cotangents, node.inputs[operand], gradient)
            continue
        dy = cotangents.get(node)
        if dy is None:
            continue
        if node.op == "get":
            parts.setdefault(node.inputs[0], {})[node.attributes["index"]] = dy
            continue
        vjp = OPS[node.op].vjp
        if vjp is None or not any(i in active for i in node.inputs):
            continue
        with graph.like(node):
            for i, contribution in zip(node.inputs, vjp(dy, node, node.inputs, **node.attributes), strict=True):
                if contribution is not None and i in active:
                    _accumulate(cotangents, i, contribution)


def _accumulate(cotangents: dict[Node, Node], node: Node, contribution: Node) -> None:
    before = cotangents.get(node)
    cotangents[node] = contribution if before is None else before + contribution
