"""Loaders: which examples a microbatch holds, as a pure function of its position, so that a resume needs no state."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.loaderspec import Field, Header, LoaderSpec
from sexpgpu.train.mix import Mix
from sexpgpu.train.order import Positions, offset, order
from sexpgpu.train.sources import SOURCES, ExampleSource

__all__ = ["Field", "Header", "Loader", "LoaderSpec", "Portions", "header", "open_loader"]

Batch = dict[str, NDArray[Any]]

# Positions whose order is computed at once: a NumPy call for a batch of twelve costs as much as for thousands.
ORDER_BLOCK = 4096


def header(spec: LoaderSpec, cache: Path | None = None) -> Header:
    """What elaboration needs to know of a loader, from the headers of its files alone."""
    source = SOURCES[spec.kind](spec, cache)
    return Header(source.fields, source.count, source.vocabulary)


def open_loader(
    spec: LoaderSpec,
    seed: int,
    shuffled: bool,
    *,
    fields: Collection[str] | None = None,
    cache: Path | None = None,
) -> Loader:
    """The loader with its data open. `shuffled` is the use's default, `:order` wins; only `fields` are ever read."""
    if spec.order is not None:
        shuffled = spec.order == "shuffled"
    source = SOURCES[spec.kind](spec, cache)
    return loader_of(spec, source, seed, shuffled, fields)


def loader_of(
    spec: LoaderSpec, source: ExampleSource, seed: int, shuffled: bool, fields: Collection[str] | None
) -> Loader:
    """The loader of a source; of a mix, with the loaders that it draws from, each in its own order."""
    if not isinstance(source, Mix):
        return Loader(source, seed, shuffled, fields)
    own = [shuffled if part.order is None else part.order == "shuffled" for part, _ in spec.parts]
    loaders = [loader_of(part, s, seed, o, fields) for (part, _), s, o in zip(spec.parts, source.sources, own)]
    return MixedLoader(source, loaders, seed, shuffled, fields)


class Portions(msgspec.Struct, frozen=True):
    """How steps and microbatches share out a loader's `count` examples, epoch after epoch.

    batch: static size B of a microbatch; microbatches: M; step_examples: those of a full step, M·B or `:global-batch`;
    whole_epochs: each epoch ends with a short step (`:epochs`), else they run into each other (`:steps`).
    """

    count: int
    batch: int
    microbatches: int
    step_examples: int
    whole_epochs: bool = False

    @property
    def steps_per_epoch(self) -> int:
        """Where whole epochs are taken: the steps of one, the last perhaps short."""
        return -(-self.count // self.step_examples)

    def begin(self, step: int) -> int:
        """The position, counted over all epochs, of the first example of a step (1-based)."""
        if not self.whole_epochs:
            return (step - 1) * self.step_examples
        epoch, within = divmod(step - 1, self.steps_per_epoch)
        return epoch * self.count + within * self.step_examples

    def real(self, step: int, microbatch: int) -> int:
        """How many examples of the microbatch are real; 0: it is not run."""
        whole = self.step_examples
        if self.whole_epochs:
            whole = min(whole, self.count - (step - 1) % self.steps_per_epoch * self.step_examples)
        return max(0, min(self.batch, whole - microbatch * self.batch))

    def positions(self, step: int, microbatch: int) -> Positions:
        """The positions of a microbatch's examples, the last real one repeated where it is short."""
        real = self.real(step, microbatch)
        assert real > 0, f"microbatch {microbatch} of step {step} holds no example"
        first = self.begin(step) + microbatch * self.batch
        return first + np.minimum(np.arange(self.batch), real - 1)


class Loader:
    """An open loader: `batch` gives any microbatch of any step."""

    def __init__(self, source: ExampleSource, seed: int, shuffled: bool, fields: Collection[str] | None = None) -> None:
        self.source = source
        self.seed = seed
        self.shuffled = shuffled
        self.wanted = fields
        self.fields = source.fields
        self.count = source.count
        self.vocabulary = source.vocabulary
        self.batch_size = next(iter(source.fields.values())).shape[0]
        self._ordered: dict[tuple[int, int], Positions] = {}

    def portions(self, microbatches: int, global_batch: int | None = None, whole_epochs: bool = False) -> Portions:
        """How a run of that many microbatches a step takes this loader's examples."""
        examples = microbatches * self.batch_size if global_batch is None else global_batch
        return Portions(self.count, self.batch_size, microbatches, examples, whole_epochs)

    def passing(self) -> Portions:
        """One pass over everything, for evaluation: microbatches of step 1, the last perhaps short."""
        return self.portions(-(-self.count // self.batch_size), whole_epochs=True)

    def batch(self, step: int, microbatch: int, microbatches: int) -> Batch:
        """Microbatch `microbatch` (from 0) of step `step` (from 1), where steps are full and epochs run on."""
        return self.take(self.portions(microbatches), step, microbatch)

    def take(self, portions: Portions, step: int, microbatch: int) -> Batch:
        """The same for any way of portioning; a short batch is padded (`portions.real` says from where)."""
        return self.rows(portions.positions(step, microbatch))

    def rows(self, positions: Positions) -> Batch:
        """What stands at these positions, ascending, counted over all epochs."""
        pieces = [
            self._gather(int(epoch), positions[positions // self.count == epoch] % self.count)
            for epoch in range(int(positions[0]) // self.count, int(positions[-1]) // self.count + 1)
        ]
        if len(pieces) == 1:
            return pieces[0]
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}

    def identity(self) -> str:
        """A hash of the contents of the loader's data."""
        return self.source.identity()

    def _gather(self, epoch: int, index: Positions) -> Batch:
        if not self.shuffled:
            return self.source.gather(index, 0, self.wanted)
        blocks = range(int(index[0]) // ORDER_BLOCK, int(index[-1]) // ORDER_BLOCK + 1)
        ordered = np.concatenate([self._order_block(epoch, block) for block in blocks])
        shift = offset(self.seed, epoch, self.source.shift_limit)
        return self.source.gather(ordered[index - blocks[0] * ORDER_BLOCK], shift, self.wanted)

    def _order_block(self, epoch: int, block: int) -> Positions:
        """Windows at positions [block · ORDER_BLOCK …) of an epoch; the few last used are kept."""
        found = self._ordered.pop((epoch, block), None)
        if found is None:
            index = np.arange(block * ORDER_BLOCK, min((block + 1) * ORDER_BLOCK, self.count))
            found = order(self.seed, epoch, index, self.count)
        self._ordered[epoch, block] = found
        if len(self._ordered) > 4:
            del self._ordered[next(iter(self._ordered))]
        return found


class MixedLoader(Loader):
    """Rows of several loaders, in shares."""

    def __init__(
        self, mix: Mix, loaders: list[Loader], seed: int, shuffled: bool, fields: Collection[str] | None
    ) -> None:
        super().__init__(mix, seed, shuffled, fields)
        self.mix, self.loaders = mix, loaders

    def _gather(self, epoch: int, index: Positions) -> Batch:
        which, positions = self.mix.draw(self.seed, epoch * self.count + index)
        batch: Batch = {}
        for number in np.unique(which).tolist():
            for name, rows in self.loaders[number].rows(positions[which == number]).items():
                batch.setdefault(name, np.empty((len(index), *rows.shape[1:]), rows.dtype))[which == number] = rows
        return batch
