"""Products with a bias that cuDNN runs as one graph: what cuBLASLt cannot, a bias of f32 added to a sum that is rounded to
bf16 or f16 once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from sexpgpu.cuda.attentions import ChosenGraph
from sexpgpu.cuda.folding import Fold, folds
from sexpgpu.plan.kernel import Plan


@dataclass(frozen=True)
class ProductGraphs:
    """Those of a plan by their products' numbers, and the kernels that they do; of the others, how many for which reason."""

    chosen: Mapping[int, ChosenGraph] = field(default_factory=dict)
    done: frozenset[int] = frozenset()
    kept: Mapping[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        made = [f"products: {len(self.chosen)} with their bias by cuDNN"] if self.chosen else []
        return [*made, *(f"products: {n} without their bias in the call: {reason}" for reason, n in self.kept.items())]

    @property
    def workspace_bytes(self) -> int:
        return max((chosen.workspace_bytes for chosen in self.chosen.values()), default=0)


def candidates(plan: Plan) -> Mapping[int, Fold]:
    """Products of bf16 or f16 whose bias is in f32."""
    return {number: fold for number, fold in folds(plan).items() if fold.epilogue.bias_dtype}


def kept(plan: Plan, reason: str) -> ProductGraphs:
    """None is run so."""
    count = len(candidates(plan))
    return ProductGraphs(kept={reason: count} if count else {})


def product_graphs(plan: Plan, choose: Callable[[Fold], ChosenGraph | str]) -> ProductGraphs:
    chosen: dict[int, ChosenGraph] = {}
    done: set[int] = set()
    refused: Counter[str] = Counter()
    for number, fold in candidates(plan).items():
        made = choose(fold)
        if isinstance(made, str):
            refused[made] += 1
        else:
            chosen[number] = made
            done.add(fold.kernel)
    return ProductGraphs(chosen, frozenset(done), refused)
