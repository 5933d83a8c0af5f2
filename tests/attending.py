"""Training graphs of one attention, and bounds of float32's error in it by the usual counting of roundings."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.interp.executor import Engine
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import plan
from tests.elaborated import experiment, parameter

Array = np.ndarray
HOSTS = {"loss-scale": 1.0}
# Half a unit in the last place of 1.
EPS = 2.0**-24


@dataclass(frozen=True)
class Case:
    """Sizes: batch, heads of q, heads of k, rows, columns, width, width of v; `mask` is its shape."""

    sizes: tuple[int, int, int, int, int, int, int]
    causal: bool = False
    scale: float | None = None
    mask: tuple[int, ...] | None = None

    @property
    def factor(self) -> float:
        return self.sizes[5] ** -0.5 if self.scale is None else self.scale

    def values(self, seed: int = 0) -> dict[str, Array]:
        """q, k, v, the cotangent `d`, and a mask in which every row has something."""
        b, h, g, t, s, d, e = self.sizes
        rng = np.random.default_rng(seed)
        shapes = {"q": (b, h, t, d), "k": (b, g, s, d), "v": (b, g, s, e), "d": (b, h, t, e)}
        made = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        if self.mask is not None:
            made["mask"] = rng.random(self.mask) < 0.7
            made["mask"][..., 0] = True
        return made

    def seen(self, values: Mapping[str, Array]) -> Array:
        b, h, _, t, s, _, _ = self.sizes
        seen = np.tril(np.ones((t, s), bool)) if self.causal else np.ones((t, s), bool)
        return np.broadcast_to(seen & values.get("mask", np.True_), (b, h, t, s))

    def graph(self) -> Graph:
        """Outputs `loss` = Σ d · attention(q, k, v), `predict` and the gradients; q, k and v are parameters."""
        values = self.values()
        fields = {name: values[name] for name in ("d", "mask") if name in values}
        named = " ".join(parameter(name, values[name]) for name in "qkv")
        keys = " :causal true" if self.causal else ""
        keys += "" if self.scale is None else f" :scale {self.scale}"
        keys += "" if self.mask is None else " :mask mask"
        with tempfile.TemporaryDirectory() as folder:
            return training_graph(experiment(Path(folder), fields, f"(sum (* d (attention {named}{keys})))"))


def run(graph: Graph, values: Mapping[str, Array], engine: Engine, **options: Any) -> dict[str, Array]:
    """Gradients, the loss, and `out` and `lse` of the forward region, by the CPU's kernels."""
    loaded = engine.load(plan(graph, native=engine.blas is not None, **options))
    for node in graph.inputs:
        name, kind = node.attributes["name"], node.attributes["kind"]
        loaded.bind(f"{kind}:{name}", np.ascontiguousarray(values[name]))
    loaded.run(HOSTS)
    return {name: loaded.output(name).copy() for name in graph.outputs}


def with_inner(graph: Graph) -> Graph:
    """The graph with the forward region's result and its rows' log-sum-exp as outputs."""
    region = next(node for node in graph.nodes if node.op == "region")
    for name, index in (("out", 0), ("lse", 2)):
        graph.outputs[name] = graph.add("get", (region,), {"index": index})
    return graph


def expected(case: Case, values: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Results in float64 by the textbook's formulas, and bounds of the error that float32 may make in them.

    A sum of n products has at most n roundings. An error x of a score is one of 2x in a probability beside it.
    """
    _, h, g, t, s, d, e = case.sizes
    q, dout = (values[name].astype(np.float64) for name in "qd")
    k, v = (np.repeat(values[name].astype(np.float64), h // g, 1) for name in "kv")
    seen, factor = case.seen(values), case.factor
    scores = np.where(seen, q @ turned(k) * factor, -np.inf)
    largest = scores.max(-1, keepdims=True)
    lse = largest + np.log(np.exp(scores - largest).sum(-1, keepdims=True))
    p = np.exp(scores - lse)
    out, dp = p @ v, dout @ turned(v)
    delta = (dout * out).sum(-1, keepdims=True)
    slope = p * (dp - delta) * factor

    a_q, a_k, a_v, a_dout = (np.abs(x) for x in (q, k, v, dout))
    sizes = np.where(seen, np.abs(scores), 0).max(-1, keepdims=True) + np.abs(lse) + np.abs(largest)
    of_scores = (a_q @ turned(a_k) * abs(factor)).max(-1, keepdims=True) * (d + 2) * EPS + 3 * sizes * EPS
    of_p = 2 * of_scores + (s + 8) * EPS
    of_out = p @ a_v * (of_p + (s + 4) * EPS)
    of_delta = (a_dout * of_out).sum(-1, keepdims=True) + (a_dout * np.abs(out)).sum(-1, keepdims=True) * (e + 1) * EPS
    of_slope = (
        p * (np.abs(dp - delta) * (of_p + 4 * EPS) + a_dout @ turned(a_v) * (e + 1) * EPS + of_delta) * abs(factor)
    )
    a_slope = np.abs(slope)

    def grouped(x: Array) -> Array:
        return x.reshape(x.shape[0], g, h // g, s, -1).sum(2)

    n = t * (h // g) + 1
    made = {
        "out": (out, of_out),
        "lse": (lse[..., 0], (of_scores + (s + 4) * EPS + 4 * sizes * EPS)[..., 0]),
        "gradient:q": (slope @ k, of_slope @ a_k + a_slope @ a_k * (s + 1) * EPS),
        "gradient:k": (grouped(turned(slope) @ q), grouped(turned(of_slope + a_slope * n * EPS) @ a_q)),
        "gradient:v": (grouped(turned(p) @ dout), grouped(turned(p * (of_p + n * EPS)) @ a_dout)),
    }
    return {name: value for name, (value, _) in made.items()}, {name: bound for name, (_, bound) in made.items()}


def turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)
