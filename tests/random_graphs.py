"""Random small graphs for the planner: every kind of view, reduction, product and indexing, in any order."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sexpgpu.ir.graph import Graph, Node
from sexpgpu.passes.differentiate import differentiate

SIZES = (1, 2, 3, 4, 6)
# Bounded functions: values stay near 1, so that float32 stays near float64.
UNARY = ("tanh", "neg", "abs", "sigmoid", "sin", "stop_gradient")
BINARY = ("add", "sub", "mul", "maximum", "minimum")
MOST_ELEMENTS = 2000

Draw = Any


class Maker:
    """Adds random nodes to a graph; `nodes` are float values that later nodes may read."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.graph = Shown("random")
        self.nodes: list[Node] = []
        self.fields: list[Node] = []

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def field(self, dtype: str, shape: tuple[int, ...]) -> Node:
        attributes = {"kind": "field", "name": f"x{len(self.fields)}", "dtype": dtype, "shape": shape}
        made = self.graph.add("input", (), attributes)
        self.fields.append(made)
        return made

    def shape(self, most: int = 3) -> tuple[int, ...]:
        return tuple(self.pick(SIZES) for _ in range(self.draw(st.integers(0, most))))

    def like(self, x: Node) -> Node:
        """Another value of x's shape: one there is, a constant, or one spread over the missing axes."""
        same = [n for n in self.nodes if n.shape == x.shape]
        choice = self.pick(("same", "same", "constant", "spread"))
        if choice == "constant":
            return self.graph.constant(self.pick((0.5, -1.0, 2.0)), "f32", x.shape)
        if choice == "same":
            return self.pick(same)  # type: ignore[no-any-return]
        return self.spread_to(self.pick(self.nodes), x.shape)

    def spread_to(self, x: Node, shape: tuple[int, ...]) -> Node:
        """x broadcast to the shape where its sizes stand there in order, else one element of it."""
        dims: list[int] = []
        at = 0
        for size in x.shape:
            while at < len(shape) and size not in (1, shape[at]):
                at += 1
            if at == len(shape):
                return self.spread_to(self.first(x), shape)
            dims.append(at)
            at += 1
        if x.shape == shape:
            return x
        return self.graph.add("broadcast", (x,), {"shape": shape, "dims": tuple(dims)})

    def first(self, x: Node) -> Node:
        rank = len(x.shape)
        cut = {"starts": (0,) * rank, "limits": (1,) * rank, "steps": (1,) * rank}
        return self.graph.add("reshape", (self.graph.add("slice", (x,), cut),), {"shape": ()})

    def step(self) -> None:
        x = self.pick(self.nodes[-4:])
        made = getattr(self, f"_{self.pick(STEPS)}")(x)
        if made is not None and 0 < made.tensor.elements <= MOST_ELEMENTS:
            self.nodes.append(made)

    def _unary(self, x: Node) -> Node:
        return self.graph.add(self.pick(UNARY), (x,))

    def _binary(self, x: Node) -> Node:
        return self.graph.add(self.pick(BINARY), (x, self.like(x)))

    def _select(self, x: Node) -> Node:
        """Chosen by position, not by value: no rounding decides."""
        if not x.shape:
            return x
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        here = self.graph.add("iota", (), {"dtype": "i32", "shape": x.shape, "axis": axis})
        low = self.graph.add("lt", (here, self.graph.constant(1, "i32", x.shape)))
        return self.graph.add("select", (low, x, self.like(x)))

    def _random(self, x: Node) -> Node:
        field = self.graph.add("random", (), {"shape": x.shape, "path": "p", "ordinal": self.draw(st.integers(0, 1))})
        return x * field

    def axes(self, x: Node) -> tuple[int, ...]:
        return tuple(a for a in range(len(x.shape)) if self.draw(st.booleans()))

    def _reduce(self, x: Node) -> Node:
        axes = self.axes(x)
        op = self.pick(("sum", "sum", "max", "min"))
        made = self.graph.add(op, (x,), {"axes": axes})
        if op == "sum":
            made = made * (1.0 / prod(x.shape[a] for a in axes))
        if self.draw(st.booleans()):
            return made
        dims = tuple(a for a in range(len(x.shape)) if a not in axes)
        back = self.graph.add("broadcast", (made,), {"shape": x.shape, "dims": dims})
        return self.graph.add(self.pick(BINARY), (x, back))

    def _reshape(self, x: Node) -> Node:
        rest, shape = x.tensor.elements, []
        while rest > 1 and len(shape) < 4:
            factor = self.pick([n for n in (*SIZES, rest) if rest % n == 0])
            shape.append(factor)
            rest //= factor
        return self.graph.add("reshape", (x,), {"shape": (*shape, rest)})

    def _permute(self, x: Node) -> Node:
        return self.graph.add("permute", (x,), {"axes": tuple(self.draw(st.permutations(range(len(x.shape)))))})

    def _broadcast(self, x: Node) -> Node:
        shape: list[int] = []
        dims: list[int] = []
        for size in x.shape:
            if self.draw(st.integers(0, 3)) == 0:
                shape.append(self.pick(SIZES))
            dims.append(len(shape))
            shape.append(self.pick(SIZES) if size == 1 else size)
        if self.draw(st.booleans()):
            shape.append(self.pick(SIZES))
        return self.graph.add("broadcast", (x,), {"shape": tuple(shape), "dims": tuple(dims)})

    def _slice(self, x: Node) -> Node:
        starts = tuple(self.draw(st.integers(0, n - 1)) for n in x.shape)
        limits = tuple(self.draw(st.integers(a + 1, n)) for a, n in zip(starts, x.shape, strict=True))
        steps = tuple(self.draw(st.integers(1, 2)) for _ in x.shape)
        return self.graph.add("slice", (x,), {"starts": starts, "limits": limits, "steps": steps})

    def _flip(self, x: Node) -> Node:
        return self.graph.add("flip", (x,), {"axes": self.axes(x)})

    def _pad(self, x: Node) -> Node:
        low, high, interior = (tuple(self.draw(st.integers(0, 2)) for _ in x.shape) for _ in range(3))
        return self.graph.add("pad", (x,), {"low": low, "high": high, "interior": interior, "value": 0.5})

    def _window_sizes(self, x: Node) -> dict[str, tuple[int, ...]]:
        """Of windows over the last one or two axes."""
        axes = x.shape[-self.draw(st.integers(1, 2)) :]
        sizes = tuple(self.draw(st.integers(1, n)) for n in axes)
        gaps = [(n - 1) // max(k - 1, 1) for n, k in zip(axes, sizes, strict=True)]
        dilations = tuple(self.draw(st.integers(1, max(min(gap, 2), 1))) for gap in gaps)
        return {"sizes": sizes, "strides": tuple(self.draw(st.integers(1, 2)) for _ in axes), "dilations": dilations}

    def _windows(self, x: Node) -> Node | None:
        return self.graph.add("windows", (x,), self._window_sizes(x)) if x.shape else None

    def _overlap(self, x: Node) -> Node | None:
        if len(x.shape) < 2:
            return None
        axes = self.draw(st.integers(1, len(x.shape) // 2))
        low, shape, strides, dilations = (
            tuple(self.draw(st.integers(least, most)) for _ in range(axes)) for least, most in ((0, 1), (1, 6), (1, 3), (1, 2))
        )
        attributes = {"low": low, "shape": shape, "strides": strides, "dilations": dilations}
        return self.graph.add("overlap_add", (x,), attributes)

    def _concat(self, x: Node) -> Node | None:
        if not x.shape:
            return None
        parts = [x, *(self.like(x) for _ in range(self.draw(st.integers(1, 2))))]
        return self.graph.add("concat", parts, {"axis": self.draw(st.integers(0, len(x.shape) - 1))})

    def _cumsum(self, x: Node) -> Node | None:
        return self.graph.add("cumsum", (x,), {"axis": self.draw(st.integers(0, len(x.shape) - 1))}) if x.shape else None

    def _contract(self, x: Node) -> Node:
        """With another value, over some of the axes whose sizes both have."""
        y = self.pick(self.nodes)
        pairs: list[tuple[int, int]] = []
        for i in self.draw(st.permutations(range(len(x.shape)))):
            free = [j for j in range(len(y.shape)) if y.shape[j] == x.shape[i] and j not in [q for _, q in pairs]]
            if free and self.draw(st.integers(0, 3)):
                pairs.append((i, self.pick(free)))
        batch = [pair for pair in pairs if self.draw(st.booleans())]
        contracted = [pair for pair in pairs if pair not in batch]
        sides = [tuple(tuple(pair[side] for pair in part) for side in (0, 1)) for part in (batch, contracted)]
        made = self.graph.add("contract", (x, y), {"batch": sides[0], "contracted": sides[1]})
        return made * (1.0 / prod(x.shape[i] for i, _ in contracted))

    def _take(self, x: Node) -> Node | None:
        if not x.shape:
            return None
        indices = self.field("i32", self.shape(2))
        return self.graph.add("take", (x, indices), {"axis": self.draw(st.integers(0, len(x.shape) - 1))})

    def _gather(self, x: Node) -> Node | None:
        if not x.shape:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        shape = tuple(self.pick((1, 2)) if i == axis else n for i, n in enumerate(x.shape))
        return self.graph.add("gather", (x, self.field("i32", shape)), {"axis": axis})

    def _scatter(self, x: Node) -> Node | None:
        if not x.shape:
            return None
        axis = self.draw(st.integers(0, len(x.shape) - 1))
        indices = self.field("i32", self.shape(1))
        updates = self.spread_to(self.pick(self.nodes), (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))
        return self.graph.add("scatter_add", (x, indices, updates), {"axis": axis})


STEPS = (
    "unary unary binary binary binary select random reduce reduce reduce reshape reshape permute permute broadcast slice "
    "flip pad windows overlap concat cumsum contract contract take gather scatter"
).split()


class Shown(Graph):
    """A graph that prints its nodes where Hypothesis shows a failing example."""

    def __repr__(self) -> str:
        lines = [f"{n} {[i.index for i in n.inputs]} {n.attributes}" for n in self.nodes]
        return "\n".join([*lines, *(f"{name} = %{n.index}" for name, n in self.outputs.items())])


@st.composite
def graphs(draw: Draw) -> Graph:
    """A graph of up to 14 steps with one to three outputs; of some the gradients too."""
    maker = Maker(draw)
    maker.nodes = [maker.field("f32", maker.shape()) for _ in range(draw(st.integers(1, 3)))]
    sources = list(maker.nodes)
    for _ in range(draw(st.integers(1, 14))):
        maker.step()
    graph = maker.graph
    for k in range(draw(st.integers(1, 3))):
        graph.outputs[f"y{k}"] = maker.nodes[-1 - draw(st.integers(0, min(3, len(maker.nodes) - 1)))]
    if not draw(st.booleans()):
        return graph
    last = maker.nodes[-1]
    graph.outputs["loss"] = graph.add("sum", (last,), {"axes": tuple(range(len(last.shape)))})
    return differentiate(graph, {"loss": ("number", 1.0)}, {n.attributes["name"]: n for n in sources})


def values_of(graph: Graph, seed: int) -> dict[str, np.ndarray]:
    """Values for every input: floats exact in float32, indices in range of anything (clamped by the operations)."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for node in graph.inputs:
        if node.dtype == "f32":
            made[node.attributes["name"]] = (rng.integers(-16, 17, size=node.shape) / 8).astype(np.float64)
        else:
            made[node.attributes["name"]] = rng.integers(-1, 3, size=node.shape).astype(np.int32)
    return made
