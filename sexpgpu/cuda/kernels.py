"""The CUDA modules of a plan, ready to be loaded: from the cache, or compiled now by several processes.

NVRTC compiles one source at a time whatever the threads, so a cold start takes processes: this one and its helpers go
through the missing modules from different places and skip what is there already, so that nobody waits for anybody.

Run as a module (`python -m sexpgpu.cuda.kernels`) it is such a helper.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sexpgpu.cuda.cubin_cache import CubinCache, Damaged, Module
from sexpgpu.cuda.nvrtc import OPTIONS, compile_source
from sexpgpu.processes import end_helpers, rotated, start_helper, while_wanted

# A helper's start costs about as much as a module.
WORTH_A_HELPER = 2
MOST_HELPERS = 7


@dataclass
class Modules:
    """Modules by the names that were asked for, and what was done: `rebuilt` counts damaged entries."""

    modules: dict[str, Module]
    compiled: int = 0
    cached: int = 0
    rebuilt: int = 0
    seconds: float = 0.0
    report: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        return f"{len(self.modules)} modules: {self.compiled} compiled, {self.cached} from the cache, {self.rebuilt} rebuilt"


@dataclass(frozen=True)
class _Work:
    """Sources by their keys, with all that their compiles share."""

    sources: Mapping[str, str]
    arch: str
    options: Sequence[str]
    cache: CubinCache


def load_cubins(
    sources: Mapping[str, str], arch: str, cache: CubinCache, processes: int = 1, options: Sequence[str] = OPTIONS
) -> Modules:
    """Every source as a module for the arch, compiled where the cache does not hold it."""
    began = time.perf_counter()
    keys = {name: cache.key(source, arch, options) for name, source in sources.items()}
    work = _Work({keys[name]: source for name, source in sources.items()}, arch, tuple(options), cache)
    report: list[str] = list(cache.report)
    found, damaged = _held(work, report)
    missing = [key for key in work.sources if key not in found]
    if missing:
        found |= _compile(work, missing, processes, report)
    return Modules(
        {name: found[key] for name, key in keys.items()},
        compiled=len(missing) - damaged,
        cached=len(work.sources) - len(missing),
        rebuilt=damaged,
        seconds=time.perf_counter() - began,
        report=report,
    )


def _held(work: _Work, report: list[str]) -> tuple[dict[str, Module], int]:
    """What the cache holds, and how many entries of it are damaged."""
    found, damaged = {}, 0
    for key in work.sources:
        try:
            module = work.cache.read(key)
        except Damaged as problem:
            damaged += 1
            report.append(f"kernel cache: {work.cache.path(key)} is damaged ({problem}) and made again")
        else:
            if module is not None:
                found[key] = module
    return found, damaged


def _compile(work: _Work, missing: Sequence[str], processes: int, report: list[str]) -> dict[str, Module]:
    """Every missing module; lines about helpers that failed and entries that cannot be written go to the report."""
    # Ranks that start together begin at different places too.
    order = rotated(sorted(missing), os.getpid())
    count = min(processes, len(order) // WORTH_A_HELPER, 1 + MOST_HELPERS)
    helpers = [
        start_helper("sexpgpu.cuda.kernels", _request(work, rotated(order, k * len(order) // count)))
        for k in range(1, count)
    ]
    unwritten: dict[str, None] = {}
    try:
        return dict(_made(work, order, lambda problem: unwritten.setdefault(problem)))
    finally:
        report += end_helpers(helpers)
        report += [f"kernel cache: cannot be written ({problem})" for problem in unwritten]


def _made(work: _Work, order: Iterable[str], refused: Callable[[str], object]) -> list[tuple[str, Module]]:
    """The modules in this order, those that are there by now read and the others compiled."""
    made = []
    for key in order:
        module = _read_whole(work.cache, key)
        if module is None:
            module = Module.of(compile_source(work.sources[key], work.arch, work.options))
            try:
                work.cache.write(key, module)
            except OSError as problem:
                refused(problem.strerror or str(problem))
        made.append((key, module))
    return made


def _read_whole(cache: CubinCache, key: str) -> Module | None:
    try:
        return cache.read(key)
    except Damaged:
        return None


def _request(work: _Work, order: Sequence[str]) -> dict[str, object]:
    return {
        "folder": str(work.cache.folder),
        "compiler": work.cache.compiler,
        "arch": work.arch,
        "options": list(work.options),
        "sources": [(key, work.sources[key]) for key in order],
    }


def main() -> None:
    """A helper process."""
    request = json.load(sys.stdin)
    sources = dict(request["sources"])
    cache = CubinCache(request["folder"], request["compiler"])
    _made(_Work(sources, request["arch"], request["options"], cache), while_wanted(sources), lambda problem: None)


if __name__ == "__main__":
    main()
