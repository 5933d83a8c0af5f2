"""Every CUDA kernel of every example, at its full size, compiled for three architectures: none spills, and how long it takes."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sexpgpu.cli.show import lowered_graphs
from sexpgpu.codegen.cuda_program import card_plan, cuda_program
from sexpgpu.cuda.cubin import resources
from sexpgpu.cuda.cubin_cache import CubinCache
from sexpgpu.cuda.kernels import load_cubins
from sexpgpu.ir.graph import Graph
from sexpgpu.train.request import Request, early_settings, read_experiment

ARCHS = ("sm_80", "sm_90", "sm_100")
COLD_S, WARM_S = 8.0, 0.3
# Which of its runs, where an example has several.
RUNS = {"fine-tune": "tune"}


def sources_of(graphs: dict[str, Graph]) -> dict[str, str]:
    """The modules of all graphs of an experiment; the same text once."""
    made: dict[str, str] = {}
    for graph in graphs.values():
        program = cuda_program(card_plan(graph))
        made |= {str(hash(text)): text for text in program.modules.values()}
    return made


def check(found: Any, examples: Path, processes: int) -> None:
    """`found` is scripts/verify's record of what held."""
    with TemporaryDirectory(prefix="sexpgpu-verify-") as folder:
        copies = Path(folder)
        # The one example that reads a text of the user's own.
        (copies / "data").mkdir()
        (copies / "data" / "input.txt").write_text("To be, or not to be, that is the question.\n" * 1000)
        for path in sorted(examples.glob("*.sexp")):
            copy = copies / path.name
            copy.write_text(path.read_text())
            request = Request(copy, run=RUNS.get(path.stem))
            _, experiment = read_experiment(request, early_settings(request))
            sources = sources_of(lowered_graphs(experiment))
            for arch in ARCHS:
                _compile(found, path.stem, arch, sources, processes)


def _compile(found: Any, name: str, arch: str, sources: dict[str, str], processes: int) -> None:
    with TemporaryDirectory(prefix="sexpgpu-verify-") as folder:
        cache = CubinCache(folder)
        cold = load_cubins(sources, arch, cache, processes)
        begin = time.perf_counter()
        load_cubins(sources, arch, CubinCache(folder), processes)
        warm = time.perf_counter() - begin
    takes = [each for module in cold.modules.values() for each in resources(module.image, module.log).items()]
    spilling = [f"{kernel} {t.spill_store_bytes}" for kernel, t in takes if t.spill_load_bytes or t.spill_store_bytes]
    most = max(t.registers for _, t in takes)
    words = f"{name} {arch}: {len(takes)} kernels, up to {most} registers"
    found.check(not spilling, f"{words}, none spills", ", ".join(spilling))
    times = f"{name} {arch}: cold {cold.seconds:.1f} s, warm {warm:.2f} s"
    if name == "gpt2":
        found.check(cold.seconds < COLD_S and warm < WARM_S, f"{times} (below {COLD_S:g} and {WARM_S:g})", str(cold.report))
    else:
        found.note(times)
