"""PyTorch's side: OpInfo's float32 samples, computed and differentiated in float64, and how far float32 may be from it.

The bound. Floats of 24 bits make a relative error of u = 2^-24 in every operation. A backward stable algorithm gives the
exact result of operands that are off by a few u, so its error is a few u of the result plus a few times what moving every
operand by u does to the result. The second term is measured: the float64 function, and its gradient, are computed again
at operands (and cotangents) moved by ±u of themselves with random signs. The largest move of each element over
MOVES draws is its condition. Rounding errors of a sum have random signs too, so the draws grow with the number of terms as
the errors do (Higham and Mary 2019). FACTOR covers the few operations in a row and the chance of the draws:

    bound = FACTOR · (u · |y| + u · SHARE · max |y| + u · terms + condition + error of PyTorch's float32) + TINY

SHARE admits formulas that form an element from terms as large as the other elements. The error of PyTorch's own float32
kernels, the largest of the tensor, admits what the usual algorithm loses in terms that cancel: the gradient of a saturated
softmax, or of a norm over two elements. `terms` is the same for the one composite whose two passes do not cancel alike,
attention: a gradient is a sum over positions of p · (dy·v − Σ p dy·v) · q, whose difference is 0 where a row is saturated.
A step or a tie is no condition: moves are cut to LARGEST of the largest element.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from row import Call, Left, Operand, Row, arguments, call
from torch.utils._pytree import tree_flatten, tree_map

U = 2.0**-24
MOVES, FACTOR, SHARE, LARGEST, TINY = 8, 8.0, 0.25, 2.0**-12, 2.0**-126
SEED = 0


@dataclass
class Expected:
    """A tensor in float64 with its bound; integers and bools have none."""

    value: torch.Tensor
    bound: torch.Tensor | None


@dataclass
class Sample:
    """What one sample asks: our form, its operands, the results, the cotangents of float results and the gradients."""

    call: Call
    results: list[Expected]
    cotangents: list[torch.Tensor | None]
    # Of the operands that PyTorch differentiates, by our names.
    gradients: dict[str, Expected]


def operators() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def takes_float32(operator: Any) -> bool:
    return torch.float32 in operator.dtypes


def full_name(operator: Any) -> str:
    return operator.name + (f"|{operator.variant_test_name}" if operator.variant_test_name else "")


def samples(operator: Any) -> Iterator[Any]:
    """The operator's float32 samples, the same in every run."""
    torch.manual_seed(SEED)
    yield from operator.sample_inputs("cpu", torch.float32, requires_grad=operator.supports_autograd)


def prepared(operator: Any, row: Row, sample: Any) -> Sample:
    """Everything that a sample asks. Raises Left."""
    derive = bool(operator.supports_autograd and not row.no_gradient)
    exact, single = (_Run(operator, row, sample, dtype) for dtype in (torch.float64, torch.float32))
    generator = torch.Generator().manual_seed(SEED + 1)
    results = exact.results()
    cotangents = [
        torch.randn(y.shape, generator=generator).double() if derive and y.is_floating_point() and y.requires_grad else None
        for y in results
    ]
    wanted = [*map(torch.Tensor.detach, results), *exact.gradients(results, cotangents)]
    in_single = single.results()
    in_floats = [None if c is None else c.float() for c in cotangents]
    rough = [*map(torch.Tensor.detach, in_single), *single.gradients(in_single, in_floats)]
    moved = list(exact.moved(cotangents, generator))
    terms = row.terms(exact.arguments)
    found = [
        _expected(y, r, [m[k] for m in moved], terms if k >= len(results) else 0.0)
        for k, (y, r) in enumerate(zip(wanted, rough, strict=True))
    ]
    names = list(exact.differentiable) if len(wanted) > len(results) else []
    return Sample(exact.values(), found[: len(results)], cotangents, dict(zip(names, found[len(results) :], strict=True)))


class _Run:
    """A sample's call with floats of one dtype, leaves of its own."""

    def __init__(self, operator: Any, row: Row, sample: Any, dtype: torch.dtype) -> None:
        self.dtype = dtype
        given, positional, named = tree_map(self._leaf, (sample.input, sample.args, sample.kwargs))
        self.arguments = arguments(row, given, positional, named)
        self.call = call(row, self.arguments)
        self.function = lambda: row.value(operator.op(given, *positional, **named))
        tensors = tree_flatten((given, positional, named))[0]
        self.leaves = [t for t in tensors if isinstance(t, torch.Tensor) and t.dtype == dtype]
        self.differentiable = {name: o for name, o in self.call.operands.items() if o.leaf.requires_grad}

    def _leaf(self, value: Any) -> Any:
        if value is torch.float32:
            return self.dtype
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_complex() or value.layout != torch.strided:
            raise Left("is complex or sparse")
        copy = value.detach().clone(memory_format=torch.contiguous_format)
        return copy.to(self.dtype).requires_grad_(value.requires_grad) if value.dtype == torch.float32 else copy

    def results(self) -> list[torch.Tensor]:
        return [t for t in tree_flatten(self.function())[0] if isinstance(t, torch.Tensor)]

    def gradients(self, results: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Those of the operands, in order; none where no result has a cotangent."""
        pairs = [(y, c) for y, c in zip(results, cotangents, strict=True) if c is not None]
        operands = self.differentiable.values()
        if not pairs or not operands:
            return []
        leaves = [o.leaf for o in operands]
        found = torch.autograd.grad([y for y, _ in pairs], leaves, [c for _, c in pairs], allow_unused=True)
        return [
            o.placed(torch.zeros_like(o.leaf) if g is None else g).detach() for o, g in zip(operands, found, strict=True)
        ]

    def moved(self, cotangents: Sequence[torch.Tensor | None], generator: torch.Generator) -> Iterator[list[torch.Tensor]]:
        """Results and gradients of moved operands; the operands are as before afterwards."""
        kept = [leaf.detach().clone() for leaf in self.leaves]
        for _ in range(MOVES):
            self._set([_moved(value, generator) for value in kept])
            again = self.results()
            yield [
                *map(torch.Tensor.detach, again),
                *self.gradients(again, [c if c is None else _moved(c, generator) for c in cotangents]),
            ]
        self._set(kept)

    def _set(self, values: Sequence[torch.Tensor]) -> None:
        with torch.no_grad():
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.copy_(value)

    def values(self) -> Call:
        """The call, its operands placed and detached."""
        operands = {name: Operand(o.placed(o.leaf.detach())) for name, o in self.call.operands.items()}
        return Call(self.call.text, operands, self.call.training)


def _moved(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    signs = torch.randint(0, 2, value.shape, generator=generator).double() * 2 - 1
    return value * (1 + U * signs)


def _expected(value: torch.Tensor, rough: torch.Tensor, moved: Sequence[torch.Tensor], terms: float) -> Expected:
    if not value.is_floating_point() or value.numel() == 0:
        return Expected(value, torch.zeros_like(value) if value.is_floating_point() else None)
    finite = torch.where(value.isfinite(), value.abs(), 0.0)
    largest = finite.max()
    condition = torch.stack([_apart(y, value) for y in moved]).amax(0).clamp(max=largest * LARGEST)
    own = _apart(rough.double(), value).max()
    return Expected(value, FACTOR * (U * finite + U * SHARE * largest + U * terms + condition + own) + TINY)


def _apart(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a - b).abs().nan_to_num(0.0, 0.0)
