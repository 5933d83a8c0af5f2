"""The derivative of a scan: a scan over reversed time whose body is the derivative of the body.

The forward scan stacks what the backward one needs. The gradient of a constant is a sum over time: where what is summed
is linear in stacked values (a product, a sum, views of these), the sum is one such operation on all of them after the
loop; else it is a carry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexpgpu.ir.graph import Graph, Node, copy_into
from sexpgpu.ops.scan import add_argument, add_scan, parts
from sexpgpu.passes.active import (
    active_nodes,
    add_seed,
    dependent_nodes,
    first_reached,
    is_float,
    materialised,
    reached,
    with_outputs,
)
from sexpgpu.passes.stored import EXPENSIVE
from sexpgpu.passes.time_sums import TimeSums

# Copies a graph's nodes, those that are differentiated in depth extended by what their derivatives need.
Extend = Callable[[Graph, Graph, set[Node]], tuple[dict[Node, Node], dict[Node, Any]]]
# Appends the reverse pass; the cotangents are extended.
Reverse = Callable[[Graph, dict[Node, Node], set[Node], Mapping[Node, Any]], None]


@dataclass(frozen=True)
class BackwardScan:
    """The derivative of a scan for one set of wanted operands and given outputs.

    forward     the body with `saved` values as further outputs
    backward    the body of the backward scan: `handed` carries' cotangents and the `running` sums are its carries; the
                `kept` operands' elements, the saved values and the `given` cotangents are scanned
    of_xs       what is scanned that gets a gradient, stacked
    sums        the sums over time after the loop: outputs by the operand's number; its inputs are `sources`
    """

    forward: Graph
    own: int
    saved: int
    backward: Graph
    given: tuple[int, ...]
    handed: tuple[int, ...]
    running: tuple[int, ...]
    of_xs: tuple[int, ...]
    kept_xs: tuple[int, ...]
    kept_constants: tuple[int, ...]
    sums: Graph
    sources: tuple[tuple[str, int], ...]

    def reverse(self, node: Node, given: Mapping[int, Node]) -> dict[int, Node]:
        """Appends the backward scan of a forward scan; gives the gradients by operand."""
        graph, length = node.graph, node.attributes["length"]
        _, xs, constants = parts(node)
        types: Sequence[Any] = node.type  # type: ignore[assignment]

        def cotangent(k: int) -> Node:
            return given.get(k) or graph.constant(0.0, types[k].dtype, types[k].shape)

        zeros = [graph.constant(0.0, node.inputs[k].dtype, node.inputs[k].shape) for k in self.running]
        saved = [graph.add("get", (node,), {"index": self.own + k}) for k in range(self.saved)]
        of_outputs = [cotangent(k) for k in self.given]
        made = add_scan(
            graph,
            self.backward,
            [*(cotangent(k) for k in self.handed), *zeros],
            [*(xs[k] for k in self.kept_xs), *saved, *of_outputs],
            [constants[k] for k in self.kept_constants],
            length,
            not node.attributes["reverse"],
        )
        named = (*self.handed, *self.running, *self.of_xs)
        gradients = dict(zip(named, made, strict=False))
        pools = {"x": xs, "constant": constants, "saved": saved, "given": of_outputs, "made": made[len(named) :]}
        replace = {new: pools[pool][k] for new, (pool, k) in zip(self.sums.inputs, self.sources, strict=True)}
        copy_into(graph, self.sums, replace)
        for name, total in self.sums.outputs.items():
            before = gradients.get(int(name))
            gradients[int(name)] = replace[total] if before is None else before + replace[total]
        return gradients


def differentiate_scan(
    node: Node, wanted: Sequence[int], given: Sequence[int], extend: Extend, reverse: Reverse
) -> BackwardScan:
    """The derivative with respect to the `wanted` operands, given cotangents of the `given` outputs."""
    return _Derivation(node, tuple(wanted), tuple(given), extend, reverse).run()


class _Derivation:
    def __init__(
        self, node: Node, wanted: tuple[int, ...], given: tuple[int, ...], extend: Extend, reverse: Reverse
    ) -> None:
        self.node, self.wanted, self.given = node, wanted, given
        self.extend, self.reverse = extend, reverse
        self.body: Graph = node.attributes["body"]
        self.carries: int = node.attributes["carries"]
        self.first_constant = self.carries + node.attributes["scanned"]

    def run(self) -> BackwardScan:
        active, self.handed = self._active()
        self.work = work = Graph(self.body.name)
        replace, derived = self.extend(self.body, work, active)
        self.forward_count = len(work.nodes)
        self.arguments = [replace[n] for n in self.body.inputs]
        self.outputs = [replace[n] for n in self.body.outputs.values()]
        self._seed()
        cotangents: dict[Node, Node] = {}
        for k, seed in self.seeds.items():
            before = cotangents.get(self.outputs[k])
            cotangents[self.outputs[k]] = seed if before is None else before + seed
        self.reverse(work, cotangents, {replace[n] for n in active}, derived)
        self.gradients = {k: cotangents[a] for k, a in enumerate(self.arguments) if a in cotangents}
        return self._finish()

    def _active(self) -> tuple[set[Node], tuple[int, ...]]:
        """The nodes through which a gradient flows, and the carries that hand one on: both grow through the carries."""
        inputs, outputs = self.body.inputs, list(self.body.outputs.values())
        depending = set(self.wanted)
        while True:
            depends = dependent_nodes(self.body, [inputs[k] for k in depending])
            more = {k for k in range(self.carries) if outputs[k] in depends and is_float(inputs[k])} - depending
            if not more:
                break
            depending |= more
        reached = set(self.given)
        while True:
            active = active_nodes([outputs[k] for k in reached], depends)
            more = {k for k in depending if k < self.carries and inputs[k] in active} - reached
            if not more:
                return active, tuple(sorted(k for k in reached if k in depending and k < self.carries))
            reached |= more

    def _seed(self) -> None:
        """The cotangents of the body's outputs, as inputs."""
        reached = dict.fromkeys((*self.handed, *(k for k in self.given if k >= self.carries)))
        self.seeds = {k: add_seed(self.work, k, self.outputs[k].tensor) for k in reached}

    def _finish(self) -> BackwardScan:
        """What is saved, and the bodies. A function that costs more than reading its result again is saved."""
        first, forward = self.first_constant, self.work.nodes[: self.forward_count]
        kept = {*self.outputs, *self.arguments[: self.carries], *(n for n in forward if n.op in EXPENSIVE)}
        stops = materialised(self.work, self.forward_count, kept - {*self.arguments[self.carries :]})
        sums = TimeSums(self.work, self.arguments[first:], self.node.attributes["length"], stops)
        running: dict[int, Node] = {}
        for k in self.wanted:
            gradient = self.gradients.get(k)
            rest = sums.add(str(k), gradient) if k >= first and gradient is not None else None
            if rest is not None:
                running[k] = rest
        of_xs = {k: self.gradients[k] for k in self.wanted if self.carries <= k < first and k in self.gradients}
        next_carries = {k: self.gradients.get(k) or self._zero(k) for k in self.handed}
        given = {*self.arguments, *self.seeds.values()}
        made = [n for n in sums.stacks if n not in given and n not in stops]
        made += [seed for k, seed in self.seeds.items() if k < self.carries and seed in sums.stacks]
        roots = [*next_carries.values(), *running.values(), *of_xs.values(), *made]
        saved_set = first_reached(roots, self.forward_count, stops) | (stops & set(sums.stacks))
        saved = sorted(saved_set, key=lambda n: n.index)
        backward, kept_xs, kept_constants = self._backward(next_carries, running, [*of_xs.values(), *made], saved)
        pools = {
            "x": [self.arguments[k] for k in range(self.carries, first)],
            "constant": self.arguments[first:],
            "saved": saved,
            "given": [seed for k, seed in self.seeds.items() if k >= self.carries],
            "made": made,
        }
        places = {node: (pool, k) for pool, nodes in reversed(pools.items()) for k, node in enumerate(nodes)}
        inputs = {new: old for known in (sums.stacks, sums.invariants) for old, new in known.items()}
        return BackwardScan(
            forward=with_outputs(self.body, self.work, self.forward_count, self.outputs, saved),
            own=len(self.outputs),
            saved=len(saved),
            backward=backward,
            given=tuple(k for k in self.seeds if k >= self.carries),
            handed=self.handed,
            running=tuple(running),
            of_xs=tuple(of_xs),
            kept_xs=kept_xs,
            kept_constants=kept_constants,
            sums=sums.graph,
            sources=tuple(places[inputs[node]] for node in sums.graph.inputs),
        )

    def _zero(self, k: int) -> Node:
        return self.work.constant(0.0, self.arguments[k].dtype, self.arguments[k].shape)

    def _backward(
        self, next_carries: Mapping[int, Node], running: Mapping[int, Node], stacked: Sequence[Node], saved: Sequence[Node]
    ) -> tuple[Graph, tuple[int, ...], tuple[int, ...]]:
        """The body of the backward scan, and which elements and constants of the forward scan it reads."""
        needed = reached([*next_carries.values(), *running.values(), *stacked], set(saved))
        kept = [k for k in range(self.carries, len(self.arguments)) if self.arguments[k] in needed - set(saved)]
        kept_xs = [k for k in kept if k < self.first_constant]
        kept_constants = [k for k in kept if k >= self.first_constant]
        backward = Graph(f"{self.body.name}-backward")
        copies: dict[Node, Node] = {}

        def give(name: str, node: Node) -> None:
            copies[node] = add_argument(backward, name, node.tensor)

        for k in self.handed:
            give(f"d{k}", self.seeds[k])
        before = {k: add_argument(backward, f"sum{k}", self.arguments[k].tensor) for k in running}
        for k in kept_xs:
            give(f"a{k}", self.arguments[k])
        for k, node in enumerate(saved):
            give(f"s{k}", node)
        for k, seed in self.seeds.items():
            if k >= self.carries:
                give(f"d{k}", seed)
        for k in kept_constants:
            give(f"a{k}", self.arguments[k])
        for node in self.work.nodes:
            if node in needed and node not in copies:
                copies[node] = backward.clone(node, [copies[i] for i in node.inputs])
        outputs = [copies[node] for node in next_carries.values()]
        outputs += [before[k] + copies[node] for k, node in running.items()]
        outputs += [copies[node] for node in stacked]
        backward.outputs = {f"out{k}": node for k, node in enumerate(outputs)}
        shift = self.carries
        return backward, tuple(k - shift for k in kept_xs), tuple(k - self.first_constant for k in kept_constants)
