"""Globs over names of parameters."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sexpgpu.errors import nearest


def glob(pattern: str) -> re.Pattern[str]:
    """`*` matches any characters, dots included; each is a group."""
    return re.compile("(.*)".join([re.escape(part) for part in pattern.split("*")]) + r"\Z", re.DOTALL)


def nearest_glob(pattern: str, names: Sequence[str]) -> str | None:
    """The name that a misspelt one most likely means; of a glob also `part.*` and `*.part` of the names."""
    known = list(names)
    if "*" in pattern:
        for name in names:
            parts = name.split(".")
            for k in range(1, len(parts)):
                known += [f"{'.'.join(parts[:k])}.*", f"*.{'.'.join(parts[k:])}"]
    return nearest(pattern, list(dict.fromkeys(known)))
