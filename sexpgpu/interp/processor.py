"""What this process's CPU is, read without LLVM where the system tells it."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path


@cache
def processor() -> str:
    """The CPU's name and features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("model name", "flags", "Features", "CPU part", "CPU implementer")
    facts = {line.partition(":")[0].strip(): line for line in reversed(lines) if line.startswith(wanted)}
    return platform.machine() + "\n".join(facts[name] for name in sorted(facts))


@cache
def features() -> frozenset[str]:
    """The names of its features, as Linux spells them."""
    return frozenset(processor().split())


def simd_class() -> str:
    """The widest vectors that code is made for."""
    widths = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("sse4_2", "SSE4.2"), ("sve", "SVE"), ("asimd", "NEON"))
    return next((name for feature, name in widths if feature in features()), "no vectors known")
