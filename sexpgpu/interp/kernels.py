"""The kernels of a plan, ready to be called: from the plan's bundle, from single files, or compiled now.

A cold start compiles on every core: this process and its helpers go through the missing kernels from different
places, two and two towards each other, and skip what is there already, so that nobody ever waits for anybody.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sexpgpu.interp.cache import Cache, Code, entries_of
from sexpgpu.interp.loading import Linked, Mapped
from sexpgpu.processes import end_helpers, orders, rotated, start_helper

# A helper's start costs as much as this many kernels.
WORTH_A_HELPER = 8
MOST_HELPERS = 7


# What a kernel is called by: text that says all of it, such as a program's repr; and the call that writes its source.
Wanted = Mapping[str, Callable[[], str]]


class Kernels(msgspec.Struct):
    """Addresses by the kernels' texts, what holds the code, and what was done."""

    addresses: dict[str, int]
    holders: list[Any] = msgspec.field(default_factory=list)
    compiled: int = 0
    seconds: float = 0.0
    report: list[str] = msgspec.field(default_factory=list)


def load_kernels(wanted: Wanted, cache: Cache, processors: int = 1) -> Kernels:
    """Every kernel, compiled where the cache does not hold it. Sources are only written of those."""
    began = time.perf_counter()
    keys = {cache.key(text): text for text in wanted}
    loaded = _from_bundle(keys, cache) or _from_singles(keys, wanted, cache, processors)
    loaded.seconds = time.perf_counter() - began
    return loaded


def _from_bundle(keys: dict[str, str], cache: Cache) -> Kernels | None:
    if not keys:
        return Kernels({})
    try:
        mapped = Mapped.of_file(cache.bundle_path(list(keys)))
    except (OSError, ValueError):
        return None
    entries = entries_of(memoryview(mapped.memory))
    if entries is None or set(entries) != set(keys):
        return None
    return Kernels({keys[key]: mapped.address + place for key, place in entries.items()}, [mapped])


def _from_singles(keys: dict[str, str], wanted: Wanted, cache: Cache, processors: int) -> Kernels:
    found = {key: code for key in keys if (code := cache.read(key)) is not None}
    missing = [key for key in keys if key not in found]
    report: list[str] = []
    if missing:
        report += _compile({key: wanted[keys[key]]() for key in missing}, cache, processors)
        found |= {key: _whole(cache.read(key), key) for key in missing}
    made = Kernels({}, [], len(missing), 0.0, report)
    _map_flat({key: code for key, code in found.items() if code.flat}, keys, cache, made)
    objects = {f"k_{key}": code.data for key, code in found.items() if not code.flat}
    if objects:
        linked = Linked(objects)
        made.holders.append(linked)
        made.addresses |= {keys[name.removeprefix("k_")]: address for name, address in linked.addresses.items()}
    return made


def _whole(code: Code | None, key: str) -> Code:
    assert code is not None, f"kernel {key} was compiled and cannot be read"
    return code


def _map_flat(flat: dict[str, Code], keys: dict[str, str], cache: Cache, made: Kernels) -> None:
    """The bundle is written even where it cannot be mapped from the file: its bytes are what is mapped then."""
    if not flat:
        return
    path = cache.bundle_path(list(keys))
    whole = cache.write_bundle(path, flat)
    try:
        mapped = Mapped.of_file(path)
    except OSError as problem:
        made.report.append(f"kernel cache: {path.parent} does not allow code to be mapped ({problem}); it is copied")
        mapped = Mapped.of_bytes(whole)
    entries = entries_of(memoryview(whole))
    assert entries is not None
    made.holders.append(mapped)
    made.addresses |= {keys[key]: mapped.address + place for key, place in entries.items()}


def _compile(missing: dict[str, str], cache: Cache, processors: int) -> list[str]:
    """Compiles every missing kernel; lines about helpers that failed."""
    # Ranks that start together begin at different places too.
    order = rotated(sorted(missing), os.getpid())
    count = min(processors, 1 + len(order) // WORTH_A_HELPER, 1 + MOST_HELPERS)
    mine, *others = orders(order, count)
    helpers = []
    for other in others:
        pairs = [(key, missing[key]) for key in other]
        helpers.append(start_helper("sexpgpu.interp.compiling", {"folder": str(cache.folder), "sources": pairs}))
    from sexpgpu.interp.compiling import compile_sources

    failures: list[str] = []
    try:
        compile_sources(((key, missing[key]) for key in mine if not cache.path(key).exists()), cache.write)
        # What a helper left behind damaged or unfinished is made here.
        compile_sources(((key, missing[key]) for key in mine if cache.read(key) is None), cache.write)
    finally:
        failures += end_helpers(helpers)
    return failures
