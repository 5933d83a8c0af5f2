"""What reaches a graph from a loader: a batch's fields, and `real` where the graph asks which rows are real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error, nearest
from sexpgpu.ir.facts import field_names
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType
from sexpgpu.loaderspec import Header, LoaderSpec
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.train.loader import Portions, open_loader

Fields = dict[str, NDArray[Any]]
GivenBatches = Iterable[Mapping[str, Any]] | Callable[[int, int], Mapping[str, Any]]
REAL = "real"


class Batches(Protocol):
    """Where a feed's microbatches come from: a loader, or whoever calls the trainer."""

    def take(self, portions: Portions, step: int, microbatch: int) -> Fields: ...


class Feed:
    """A loader as one graph reads it, portioned into steps and microbatches."""

    def __init__(self, loader: Batches, portions: Portions, graph: Graph) -> None:
        self.loader = loader
        self.portions = portions
        self._masked = REAL in field_names(graph)

    def microbatches(self, step: int) -> int:
        """How many microbatches of a step hold a real example; the others are not run."""
        whole = -(-self.portions.step_examples // self.portions.batch)
        return sum(1 for microbatch in range(whole) if self.portions.real(step, microbatch) > 0)

    def take(self, step: int, microbatch: int) -> Fields:
        batch = dict(self.loader.take(self.portions, step, microbatch))
        if self._masked and REAL not in batch:
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


def given_feed(
    batches: GivenBatches, header: Header, graph: Graph, microbatches: int | None, global_batch: int | None
) -> Feed:
    """The caller's batches in place of those of `:data`, as many microbatches a step as the run has."""
    batch = next(iter(header.fields.values())).shape[0]
    count = microbatches if global_batch is None else -(-global_batch // batch)
    assert count is not None
    examples = count * batch if global_batch is None else global_batch
    return Feed(Given(batches, graph), Portions(header.count, batch, count, examples), graph)


class Given:
    """Batches that the caller gives: `batches(step, microbatch)`, or one after another from an iterable."""

    def __init__(self, batches: GivenBatches, graph: Graph) -> None:
        self._types = {n.attributes["name"]: n.tensor for n in graph.inputs if n.attributes["kind"] == "field"}
        self._call = batches if callable(batches) else None
        self._following = iter(()) if callable(batches) else iter(batches)
        # A step that fails is looked at once more, so its batches are kept until the next one.
        self._step, self._kept = 0, dict[int, Mapping[str, Any]]()

    def take(self, portions: Portions, step: int, microbatch: int) -> Fields:
        batch = self._following_of(step, microbatch) if self._call is None else self._call(step, microbatch)
        optional = () if REAL in batch else (REAL,)
        return {n: fitting(batch, n, type_, "field") for n, type_ in self._types.items() if n not in optional}

    def _following_of(self, step: int, microbatch: int) -> Mapping[str, Any]:
        if step != self._step:
            self._step, self._kept = step, {}
        while len(self._kept) <= microbatch:
            try:
                self._kept[len(self._kept)] = next(self._following)
            except StopIteration:
                raise Error("E-RUN-004", f"the batches end before microbatch {microbatch} of step {step}") from None
        return self._kept[microbatch]


def fitting(arrays: Mapping[str, Any], name: str, type: TensorType, what: str) -> NDArray[Any]:
    """The array of a name, checked to have the shape the graph was made for and a dtype that can be read as its own."""
    if name not in arrays:
        close = nearest(name, list(arrays))
        raise Error("E-RUN-004", f"{what} {name} is missing", notes=[f"there is {close}"] if close else [])
    array = np.asarray(arrays[name])
    if array.shape != type.shape:
        raise Error("E-RUN-004", f"{what} {name} has shape {list(array.shape)}, {list(type.shape)} is needed")
    if not np.can_cast(array.dtype, numpy_dtype(type.dtype), "same_kind"):
        raise Error("E-RUN-004", f"{what} {name} has dtype {array.dtype}, {type.dtype} is needed")
    return array


def _wanted(graph: Graph) -> list[str]:
    return [name for name in field_names(graph) if name != REAL]
