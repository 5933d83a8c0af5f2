"""What a library may do to a product's result before it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sexpgpu.plan.kernel import Place

# `gelu` is by erf.
Activation = Literal["", "gelu", "gelu-tanh"]


@dataclass(frozen=True)
class Epilogue:
    """`bias`: one number a column of the result, in its dtype or in `bias_dtype`, is added; then the activation.
    `gradient`: where the sums of the right operand's columns are written, in the result's dtype: with no bias and no
    activation."""

    bias: Place | None = None
    activation: Activation = ""
    gradient: Place | None = None
    bias_dtype: str = ""


NO_EPILOGUE = Epilogue()
