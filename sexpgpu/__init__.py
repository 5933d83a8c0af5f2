"""sexpgpu: one s-expression file says a whole machine-learning experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Diagnostics", "Error", "load", "__version__"]

if TYPE_CHECKING:
    from sexpgpu.api import load
    from sexpgpu.errors import Diagnostics, Error


def __getattr__(name: str) -> Any:
    """The Python face, imported at first use: `sexpgpu --version` must not wait for NumPy."""
    if name == "load":
        from sexpgpu.api import load

        return load
    if name in ("Diagnostics", "Error"):
        import sexpgpu.errors

        return getattr(sexpgpu.errors, name)
    raise AttributeError(f"module 'sexpgpu' has no attribute {name!r}")
