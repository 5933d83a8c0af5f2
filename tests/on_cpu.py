"""Graphs run by the CPU's kernels: planned, compiled, executed from the tape."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sexpgpu.interp.executor import Engine
from sexpgpu.ir.graph import Graph
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.build import plan


@cache
def engine(threads: int = 2) -> Engine:
    """One engine a process: compiled kernels are shared by its tests."""
    return Engine(threads, Path(os.environ["SEXPGPU_CACHE"]))


def run_graph(
    graph: Graph,
    values: Mapping[str, Any],
    hosts: Mapping[str, float] | None = None,
    *,
    keep_values: bool = False,
    threads: int = 2,
) -> dict[str, np.ndarray]:
    """The outputs in their dtypes; `values` by the input nodes' names."""
    made = plan(graph, keep_values=keep_values)
    loaded = engine(threads).load(made)
    arrays = []
    for node in graph.inputs:
        array = np.array(values[node.attributes["name"]], numpy_dtype(node.dtype))
        arrays.append(array)
        loaded.bind(f"{node.attributes['kind']}:{node.attributes['name']}", array)
    loaded.run(hosts or {})
    return {name: loaded.output(name).copy() for name in graph.outputs}
