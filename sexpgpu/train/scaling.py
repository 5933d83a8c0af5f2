"""The factor of the loss under `:precision float16`: small cotangents stay numbers of f16, and a step that overflows is skipped.

The law is that of PyTorch's GradScaler: a step whose loss or gradient is not finite is not applied and halves the scale; so
many steps in a row that are applied double it. Powers of two alone: scaling and unscaling round nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FIRST = 65536.0
# Below it there is nothing to gain: the cotangents are then smaller than those of the loss itself.
LEAST = 1.0
# Applied steps in a row that double the scale.
GROWTH_STEPS = 2000


class LossScale:
    """The scale of the next step. In the other precisions it is 1 and stays so, and no step is skipped."""

    def __init__(self, precision: str) -> None:
        self.dynamic = precision == "float16"
        self.value = FIRST if self.dynamic else 1.0
        # Applied steps since the scale changed, and skipped steps of the whole run.
        self.applied = 0
        self.skipped = 0

    @property
    def may_skip(self) -> bool:
        """Whether a smaller scale may yet help a step that is not finite."""
        return self.dynamic and self.value > LEAST

    def apply(self) -> None:
        """A step was applied."""
        self.applied += 1
        if self.dynamic and self.applied == GROWTH_STEPS:
            self.value, self.applied = self.value * 2, 0

    def skip(self) -> None:
        """A step was not finite and not applied."""
        assert self.may_skip, self.value
        self.value, self.applied, self.skipped = max(self.value / 2, LEAST), 0, self.skipped + 1

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"value": self.value, "applied": self.applied, "skipped": self.skipped} if self.dynamic else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.dynamic:
            self.value, self.applied, self.skipped = float(state["value"]), state["applied"], state["skipped"]

    def words(self) -> str:
        """What the report says of it."""
        return (
            f"from {FIRST:,.0f}: halved by a step that is not finite, which is skipped; "
            f"doubled by {GROWTH_STEPS:,} in a row that are"
        )
