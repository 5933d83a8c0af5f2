"""What reaches a graph from a loader: a batch's fields, and `real` where the graph asks which rows are real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.ir.graph import Graph
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.loader import Loader, Portions, open_loader

Fields = dict[str, NDArray[Any]]
REAL = "real"


def fields_read(graph: Graph) -> list[str]:
    """The fields that a graph reads, in order of declaration."""
    return [node.attributes["name"] for node in graph.inputs if node.attributes["kind"] == "field"]


class Feed:
    """A loader as one graph reads it, portioned into steps and microbatches."""

    def __init__(self, loader: Loader, portions: Portions, graph: Graph) -> None:
        self.loader = loader
        self.portions = portions
        self._masked = REAL in fields_read(graph)

    def microbatches(self, step: int) -> int:
        """How many microbatches of a step hold a real example; the others are not run."""
        whole = -(-self.portions.step_examples // self.portions.batch)
        return sum(1 for microbatch in range(whole) if self.portions.real(step, microbatch) > 0)

    def take(self, step: int, microbatch: int) -> Fields:
        batch: Fields = dict(self.loader.take(self.portions, step, microbatch))
        if self._masked:
            batch[REAL] = np.arange(self.portions.batch) < self.portions.real(step, microbatch)
        return batch


def training_feed(
    spec: LoaderSpec,
    graph: Graph,
    seed: int,
    cache: Path,
    microbatches: int | None,
    global_batch: int | None,
    whole_epochs: bool,
) -> Feed:
    """The shuffled loader of `:data`."""
    loader = open_loader(spec, seed, True, fields=_wanted(graph), cache=cache)
    count = microbatches if global_batch is None else -(-global_batch // loader.batch_size)
    assert count is not None
    return Feed(loader, loader.portions(count, global_batch, whole_epochs), graph)


def passing_feed(spec: LoaderSpec, graph: Graph, seed: int, cache: Path) -> Feed:
    """One pass in file order, for evaluation: the microbatches of step 1."""
    loader = open_loader(spec, seed, False, fields=_wanted(graph), cache=cache)
    return Feed(loader, loader.passing(), graph)


def _wanted(graph: Graph) -> list[str]:
    return [name for name in fields_read(graph) if name != REAL]
