"""Reverse-mode differentiation on the IR: a graph with a loss becomes a graph with the loss and its gradients.

A region stays a region: its forward body gives the values that the backward pass needs as further outputs, and the
backward region has a body of primitives too. Values that the forward pass materialises anyway (reductions' results,
products and their operands, outputs) are saved; everything else is computed again from them and the arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.ir.graph import Graph, Node, copy_into
from sexpgpu.ir.host import Expression
from sexpgpu.ir.types import FLOATS, TensorType
from sexpgpu.ops.table import OPS
from sexpgpu.passes.attention import attention_derivative

_VIEWS = ("reshape", "permute", "broadcast", "slice", "flip", "windows")


def differentiate(graph: Graph, seeds: Mapping[str, Expression], targets: Mapping[str, Node]) -> Graph:
    """The graph extended by gradients.

    seeds    name of a scalar f32 output → its cotangent, a host scalar
    targets  name → node whose gradient is wanted, given as output `gradient:NAME` (zeros where the output does not
             depend on it)
    """
    made = Graph(graph.name)
    active = _active(graph, [graph.outputs[name] for name in seeds], targets.values())
    replace, regions = _forward(graph, made, active)
    cotangents: dict[Node, Node] = {}
    for name, expression in seeds.items():
        _accumulate(cotangents, replace[graph.outputs[name]], made.add("host", (), {"expression": expression}))
    reverse(made, cotangents, {replace[node] for node in active if node in replace}, regions)
    made.outputs = {name: replace[node] for name, node in graph.outputs.items()}
    for name, node in targets.items():
        gradient = cotangents.get(replace[node])
        made.outputs[f"gradient:{name}"] = gradient or made.constant(0.0, node.dtype, node.shape)
    return made


def _is_float(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.dtype in FLOATS


def _active(graph: Graph, roots: Iterable[Node], targets: Iterable[Node]) -> set[Node]:
    """The nodes through which a gradient flows: they depend on a target and a root depends on them."""
    depends = set(targets)
    for node in graph.nodes:
        if OPS[node.op].vjp is None and node.op not in ("region", "get"):
            continue
        if any(i in depends for i in node.inputs) and (node.op == "region" or _is_float(node)):
            depends.add(node)
    active: set[Node] = set()
    pending = [root for root in roots if root in depends]
    while pending:
        node = pending.pop()
        if node not in active:
            active.add(node)
            pending.extend(i for i in node.inputs if i in depends)
    return active


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


def _forward(graph: Graph, made: Graph, active: set[Node]) -> tuple[dict[Node, Node], dict[Node, BackwardRegion]]:
    """Copies the forward nodes; active regions give their saved values too."""
    replace: dict[Node, Node] = {}
    regions: dict[Node, BackwardRegion] = {}
    cache: dict[tuple[int, tuple[int, ...], tuple[int, ...]], BackwardRegion] = {}
    given = _given_outputs(graph, active)
    for node in graph.nodes:
        inputs = [replace[i] for i in node.inputs]
        if node.op != "region" or node not in active:
            replace[node] = made.clone(node, inputs)
            continue
        body = node.attributes["body"]
        wanted = tuple(k for k, i in enumerate(node.inputs) if i in active)
        key = (id(body), wanted, given[node])
        if key not in cache:
            cache[key] = _own_derivative(body) or differentiate_body(body, wanted, given[node])
        with made.like(node):
            extended = made.add("region", inputs, {"body": cache[key].forward})
            single = isinstance(node.type, TensorType) and not isinstance(extended.type, TensorType)
            replace[node] = made.add("get", (extended,), {"index": 0}) if single else extended
        regions[extended] = cache[key]
    return replace, regions


def _given_outputs(graph: Graph, active: set[Node]) -> dict[Node, tuple[int, ...]]:
    """For every active region the outputs that get a cotangent."""
    given: dict[Node, set[int]] = {}
    for node in graph.nodes:
        if node in active and node.op == "region" and isinstance(node.type, TensorType):
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
    wanted = tuple(k for k, node in enumerate(body.inputs) if _is_float(node))
    return BackwardRegion(forward, backward, tuple(range(len(body.inputs))), wanted, (0,), 2)


def _reverse_towards(graph: Graph, cotangents: dict[Node, Node], targets: list[Node]) -> None:
    reverse(graph, cotangents, _active(graph, list(cotangents), targets), {})


def differentiate_body(body: Graph, wanted: Sequence[int], given: Sequence[int]) -> BackwardRegion:
    """Splits a body's reverse pass into what the forward region saves and the backward region's own body."""
    work = Graph(body.name)
    replace: dict[Node, Node] = {}
    copy_into(work, body, replace)
    arguments = [replace[node] for node in body.inputs]
    outputs = [replace[node] for node in body.outputs.values()]
    forward_count = len(work.nodes)
    seeds: dict[Node, Node] = {}
    seed_nodes: list[Node] = []
    for k in given:
        attributes = {"kind": "argument", "name": f"d{k}", "dtype": outputs[k].dtype, "shape": outputs[k].shape}
        seed = work.add("input", (), attributes)
        seed_nodes.append(seed)
        seeds[outputs[k]] = seeds[outputs[k]] + seed if outputs[k] in seeds else seed
    targets = [arguments[k] for k in wanted]
    reverse(work, seeds, _active(work, [outputs[k] for k in given], targets), {})
    gradients = [seeds.get(t) or work.constant(0.0, t.dtype, t.shape) for t in targets]
    saved = _saved_values(work, gradients, forward_count, set(outputs))
    forward = _with_outputs(body, replace, saved)
    backward, kept = _backward_body(work, arguments, saved, seed_nodes, gradients)
    return BackwardRegion(forward, backward, kept, tuple(wanted), tuple(given), len(saved))


def _saved_values(work: Graph, gradients: Sequence[Node], forward_count: int, outputs: set[Node]) -> list[Node]:
    """The materialised forward values that the backward nodes reach first, in order."""
    materialised = set(outputs)
    for node in work.nodes[:forward_count]:
        if OPS[node.op].kind not in ("pointwise", "view", "input"):
            materialised.add(node)
        if node.op == "contract":
            materialised.update(_base(i) for i in node.inputs)
    materialised = {n for n in materialised if n.op not in ("input", "constant", "iota")}
    saved: set[Node] = set()
    seen: set[Node] = set()
    pending = list(gradients)
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.index < forward_count and node in materialised:
            saved.add(node)
        else:
            pending.extend(node.inputs)
    return sorted(saved, key=lambda n: n.index)


def _base(node: Node) -> Node:
    while node.op in _VIEWS:
        node = node.inputs[0]
    return node


def _with_outputs(body: Graph, replace: Mapping[Node, Node], saved: Sequence[Node]) -> Graph:
    """The body with the saved values as outputs `saved0`, `saved1`, … after its own."""
    if not saved:
        return body
    forward = Graph(body.name)
    copies: dict[Node, Node] = {}
    copy_into(forward, body, copies)
    back = {work: copies[node] for node, work in replace.items()}
    forward.outputs = {name: copies[node] for name, node in body.outputs.items()}
    forward.outputs |= {f"saved{k}": back[node] for k, node in enumerate(saved)}
    return forward


def _backward_body(
    work: Graph, arguments: Sequence[Node], saved: Sequence[Node], seeds: Sequence[Node], gradients: Sequence[Node]
) -> tuple[Graph, tuple[int, ...]]:
    """The body of the backward region: what the gradients need, with arguments, saved values and cotangents as inputs."""
    needed: set[Node] = set()
    stop = set(saved)
    pending = list(gradients)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            if node not in stop:
                pending.extend(node.inputs)
    kept = tuple(k for k, argument in enumerate(arguments) if argument in needed)
    backward = Graph(f"{work.name}-backward")
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
    graph: Graph, cotangents: dict[Node, Node], active: set[Node], regions: Mapping[Node, BackwardRegion]
) -> None:
    """Appends the reverse pass over the nodes that are there now; `cotangents` is extended node by node.

    A region's cotangents are kept by output in `parts` until the region itself is reached.
    """
    parts: dict[Node, dict[int, Node]] = {}
    for node in graph.nodes[::-1]:
        if node in regions:
            with graph.like(node):
                _reverse_region(graph, node, regions[node], parts.pop(node, {}), cotangents)
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


def _reverse_region(
    graph: Graph, node: Node, region: BackwardRegion, parts: dict[int, Node], cotangents: dict[Node, Node]
) -> None:
    """Adds the backward region of one forward region and hands its gradients to the inputs."""
    own = len(region.forward.outputs) - region.saved
    outputs = [node.type] if isinstance(node.type, TensorType) else list(node.type)
    given = {0: cotangents[node]} if node in cotangents else parts
    if not given:
        return
    seeds = [given.get(k) or graph.constant(0.0, outputs[k].dtype, outputs[k].shape) for k in region.given]
    saved = [graph.add("get", (node,), {"index": own + k}) for k in range(region.saved)]
    made = graph.add("region", [*(node.inputs[k] for k in region.kept), *saved, *seeds], {"body": region.backward})
    for k, argument in enumerate(region.wanted):
        gradient = made if len(region.wanted) == 1 else graph.add("get", (made,), {"index": k})
        _accumulate(cotangents, node.inputs[argument], gradient)
