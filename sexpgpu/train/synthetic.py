"""Random fields of any shape, for benchmarks: a number depends on its field, example and place alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.randomness import key_of, philox
from sexpgpu.train.order import Positions
from sexpgpu.train.share import Share

Array = NDArray[Any]

EXAMPLES = 1 << 20


class Synthetic:
    """Floats uniform in [−1, 1), integers uniform below the field's limit, booleans as a coin falls."""

    def __init__(self, spec: LoaderSpec, _cache: Path | None) -> None:
        if not spec.declared:
            raise Error("E-DATA-007", "synthetic needs a field, as in (synthetic :x (f32 [16 8]))", spec.span)
        self.declared = {name: (field, limit) for name, field, limit in spec.declared}
        self.fields: Mapping[str, Field] = {name: field for name, field, _ in spec.declared}
        firsts = {name: field.shape[0] for name, field in self.fields.items()}
        if len(set(firsts.values())) > 1:
            shown = ", ".join(f"{name} {length}" for name, length in firsts.items())
            raise Error("E-DATA-006", f"the fields have different batches: {shown}", spec.span)
        self.share = Share(spec, EXAMPLES)
        self.count = self.share.count
        self.vocabulary: int | None = None
        self.shift_limit = 1

    def gather(self, rows: Positions, shift: int, fields: Collection[str] | None) -> dict[str, Array]:
        examples = self.share.examples(rows)
        return {
            name: drawn(name, field, limit, examples)
            for name, (field, limit) in self.declared.items()
            if fields is None or name in fields
        }

    def identity(self) -> str:
        return repr(self.declared)


def drawn(name: str, field: Field, limit: int, examples: Positions) -> Array:
    """The field's values in these examples."""
    inner = field.shape[1:]
    blocks = np.arange(-(-prod(inner) // 4))
    words = philox(key_of(0, f"synthetic {name}", purpose="builtin"), blocks, examples[:, None], 0, 0)
    bits = np.stack(words, -1).reshape(len(examples), 4 * len(blocks))[:, : prod(inner)].reshape(len(examples), *inner)
    dtype = numpy_dtype(field.dtype)
    if field.dtype == "bool":
        return np.ascontiguousarray(bits >> np.uint32(31) == 1)
    if field.dtype in ("f32", "f16", "bf16"):
        made: Array = ((bits >> np.uint32(8)).astype(np.float32) * np.float32(2**-23) - np.float32(1)).astype(dtype)
        return made
    return (bits.astype(np.uint64) * np.uint64(limit) >> np.uint64(32)).astype(dtype)
