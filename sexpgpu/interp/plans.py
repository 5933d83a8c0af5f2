"""The folder of plans: what was decided for a graph, read again at the next start instead of decided again.

A plan follows from the graph's text, from its device's choices and from our own files that plan; the key is their hash.
A file holds the plan's records as nested tuples, checked by a hash; one that is damaged is made again, which is a line
of the report. The folder is the kernel cache's, which is used only if it is this user's and closed to others.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sexpgpu.interp.cache import Cache
from sexpgpu.ir.facts import digest_of
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.types import TensorType
from sexpgpu.plan import kernel
from sexpgpu.plan.kernel import Plan
from sexpgpu.private import prune, replace
from sexpgpu.records import Codec

# Folders whose files decide how a graph becomes a plan, and files that decide how it is written.
_PLANNERS = ("ir", "ops", "passes", "plan")
_WRITERS = ("records.py", "interp/plans.py")
# So many plans are kept, those that were made last.
MOST_PLANS = 512
_RECORDS: tuple[type, ...] = (
    TensorType, kernel.Load, kernel.Instruction, kernel.Store, kernel.Program, kernel.Place, kernel.Access,
    kernel.Generated, kernel.Matrix, kernel.Product, kernel.Indexed, kernel.Attention, kernel.Window, kernel.Loop,
    kernel.Buffer, kernel.Plan,
)  # fmt: skip
CODEC = Codec(_RECORDS)


@cache
def planners() -> str:
    """Everything but the graph and the device's choices that decides a plan."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(sys.version.encode())
    paths = [path for folder in _PLANNERS for path in (package / folder).rglob("*.py")]
    for path in sorted([*paths, *(package / name for name in _WRITERS)]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(graph: Graph, choices: Mapping[str, Any]) -> str:
    """The hash of everything that decides a plan."""
    text = f"{planners()}\n{sorted(choices.items())}\n{digest_of(graph)}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Plans:
    """Plans by their graphs."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache

    def plan(self, graph: Graph, *, keep_values: bool, landing: Mapping[str, int], native: bool) -> Plan:
        """The plan of a graph, as `plan.build.plan` makes it."""
        choices = {"keep_values": keep_values, "landing": sorted(landing.items()), "native": native}
        path = self.cache.folder / f"{key_of(graph, choices)}.plan"
        found = self._read(path)
        if found is not None:
            return found
        from sexpgpu.plan.build import bound_outputs, plan

        aliases = bound_outputs(graph)
        made = plan(graph, aliases=aliases, keep_values=keep_values, landing=landing, native=native)
        replace(path, CODEC.written(made))
        prune(self.cache.folder, ".plan", MOST_PLANS)
        return made

    def _read(self, path: Path) -> Plan | None:
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        try:
            found: Plan = CODEC.read(raw)
        except ValueError:
            self.cache.report.append(f"plan cache: {path.name} was damaged and is made again")
            return None
        return found
