"""Every operation of the IR, by name."""

from __future__ import annotations

from sexpgpu.ops import indexing, movement, pointwise, product, reduction, region, scan, windows
from sexpgpu.ops.record import Op

_MODULES = (region, pointwise, movement, reduction, product, windows, indexing, scan)
OPS: dict[str, Op] = {op.name: op for module in _MODULES for op in module.records()}
