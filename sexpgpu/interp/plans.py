"""The folder of plans: what was decided for a graph, read again at the next start instead of decided again.

A plan follows from the graph's text, from its device's choices and from our own files that plan; the key is their hash.
A file holds the plan's records as nested tuples, checked by a hash; one that is damaged is made again, which is a line
of the report. The folder is the kernel cache's, which is used only if it is this user's and closed to others.
"""

from __future__ import annotations

import hashlib
import marshal
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import xxhash

from sexpgpu.interp.cache import Cache
from sexpgpu.ir.graph import Graph
from sexpgpu.ir.text import print_graph
from sexpgpu.ir.types import TensorType
from sexpgpu.plan import kernel
from sexpgpu.plan.kernel import Plan

# Folders whose files decide how a graph becomes a plan.
_PLANNERS = ("ir", "ops", "passes", "plan")
# So many plans are kept, those that were made last.
MOST_PLANS = 512
_RECORDS: tuple[type, ...] = (
    TensorType, kernel.Load, kernel.Instruction, kernel.Store, kernel.Program, kernel.Place, kernel.Access,
    kernel.Generated, kernel.Matrix, kernel.Product, kernel.Indexed, kernel.Attention, kernel.Window, kernel.Loop,
    kernel.Buffer, kernel.Plan,
)  # fmt: skip
_NUMBERS = {record: number for number, record in enumerate(_RECORDS)}
_NAMES: list[tuple[str, ...]] = [record.__match_args__ for record in _RECORDS]  # type: ignore[attr-defined]
_PLAIN = (type(None), bool, int, float, str)
# What stands first in the list of something that is not plain; records have their number there.
_TUPLE, _SET, _DICT = -1, -2, -3
_DIGEST_BYTES = 16


def encoded(value: Any, known: dict[str, Any] | None = None) -> Any:
    """A plan, or any part of it, as nested lists and plain values; what is written alike is one object (0.0 and -0.0 are
    not), and marshal keeps it one."""
    known = {} if known is None else known
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is frozenset:
        made: Any = [_SET, *sorted(value)]
    elif kind is dict:
        made = [_DICT, *(encoded(part, known) for pair in value.items() for part in pair)]
    elif kind is tuple:
        parts = tuple(encoded(part, known) for part in value)
        made = [_TUPLE, *parts] if any(type(part) is list for part in parts) else parts
    else:
        number = _NUMBERS[kind]
        made = [number, *(encoded(getattr(value, name), known) for name in _NAMES[number])]
    return known.setdefault(repr(made), made)


def decoded(value: Any, known: dict[int, Any] | None = None) -> Any:
    """What `encoded` was given."""
    if type(value) is not list:
        return value
    known = {} if known is None else known
    found = known.get(id(value))
    if found is None:
        found = known[id(value)] = _made(value[0], [decoded(x, known) if type(x) is list else x for x in value[1:]])
    return found


def _made(number: int, parts: list[Any]) -> Any:
    if number == _TUPLE:
        return tuple(parts)
    if number == _SET:
        return frozenset(parts)
    if number == _DICT:
        return dict(zip(parts[::2], parts[1::2], strict=True))
    return _RECORDS[number](*parts)


@cache
def planners() -> str:
    """Everything but the graph and the device's choices that decides a plan."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(path for folder in _PLANNERS for path in (package / folder).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(graph: Graph, choices: Mapping[str, Any]) -> str:
    """The text of a graph has no labels; a plan has those of its inputs and outputs."""
    seen = [node for node in graph.nodes if node.op == "input"] + list(graph.outputs.values())
    labels = [getattr(node.type, "labels", ()) for node in seen]
    text = f"{planners()}\n{sorted(choices.items())}\n{labels}\n{print_graph(graph)}"
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
        data = marshal.dumps(encoded(made))
        self.cache.replace(path, xxhash.xxh3_128_digest(data) + data)
        self._prune()
        return made

    def _read(self, path: Path) -> Plan | None:
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        digest, data = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
        if digest != xxhash.xxh3_128_digest(data):
            self.cache.report.append(f"plan cache: {path.name} was damaged and is made again")
            return None
        found: Plan = decoded(marshal.loads(data))  # noqa: S302 only this user writes to the folder
        return found

    def _prune(self) -> None:
        """Other processes may do the same at the same time."""
        plans = list(self.cache.folder.glob("*.plan"))
        if len(plans) <= MOST_PLANS:
            return
        times = {path: path.stat().st_mtime_ns for path in plans if path.exists()}
        for path in sorted(times, key=times.__getitem__)[: len(plans) - MOST_PLANS]:
            path.unlink(missing_ok=True)
