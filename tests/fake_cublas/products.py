"""Products of matrices in every layout, and what they are described as."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sexpgpu.cuda.epilogue import NO_EPILOGUE, Epilogue
from sexpgpu.cuda.matmul import IEEE, Matmul, Rules, describe
from sexpgpu.plan.kernel import Matrix, Place, Product


def aligned(_: Place) -> int:
    return 256


def described(product: Product, epilogue: Epilogue = NO_EPILOGUE, rules: Rules = IEEE) -> Matmul:
    made = describe(product, aligned, epilogue, rules)
    assert isinstance(made, Matmul), made
    return made


def product(
    m: int, n: int, k: int, *, dtype: str = "f32", result: str | None = None, a_turned: bool = False, b_turned: bool = False,
    batch: int = 1, padding: int = 0, accumulate: bool = False, between: Sequence[int] = (),
) -> Product:  # fmt: skip
    """Matrices one after the other, lines `padding` elements apart; `between`: extra elements after so many of a batch."""

    def matrix(number: int, rows: int, columns: int, turned: bool) -> Matrix:
        inner, lines = (rows, columns) if turned else (columns, rows)
        leading = inner + padding
        steps = [lines * leading] * batch
        for at in between:
            steps[at - 1] += 8
        starts = [0, *np.cumsum(steps[:-1]).tolist()]
        return Matrix(Place(number), *((1, leading) if turned else (leading, 1)), tuple(starts))

    a, b, c = matrix(0, m, k, a_turned), matrix(1, k, n, b_turned), matrix(2, m, n, False)
    return Product(dtype, m, n, k, a, b, c, accumulate=accumulate, result=result)
