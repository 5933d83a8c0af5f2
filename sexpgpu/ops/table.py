"""Every operation of the IR, by name."""

from __future__ import annotations

from sexpgpu.ops import indexing, movement, pointwise, product, reduction, region, windows
from sexpgpu.ops.record import Op

OPS: dict[str, Op] = {
    op.name: op for module in (region, pointwise, movement, reduction, product, windows, indexing) for op in module.records()
}
