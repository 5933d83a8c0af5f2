"""What a card would run: `show FILE kernels --arch sm_90` prints its CUDA C, `show FILE lowering --arch sm_90` its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sexpgpu.codegen.cuda_program import CudaProgram, card_plan, cuda_program
from sexpgpu.codegen.cuda_source import PREAMBLE, CudaLaunch
from sexpgpu.cuda.cubin import Resources, resources
from sexpgpu.cuda.cubin_cache import CubinCache
from sexpgpu.cuda.kernels import Modules, load_cubins
from sexpgpu.cuda.nvrtc import supported_archs
from sexpgpu.cuda.probe import LEAST_CAPABILITY
from sexpgpu.errors import Error
from sexpgpu.ir.graph import Graph
from sexpgpu.plan.work import Work, works_of
from sexpgpu.settings import Settings

# A kernel's forms are named up to so many.
FORMS = 6


@dataclass(frozen=True)
class Shown:
    """A kernel with all that is said about it."""

    name: str
    uses: Mapping[str, int]
    works: tuple[Work, ...]
    launch: CudaLaunch
    takes: Resources

    @property
    def where(self) -> str:
        places = list(dict.fromkeys(f"{work.form} ({work.place})" if work.place else work.form for work in self.works))
        more = f" and {len(places) - FORMS} more" if len(places) > FORMS else ""
        return "; ".join(places[:FORMS]) + more

    @property
    def spills(self) -> str:
        takes = self.takes
        if not (takes.spill_load_bytes or takes.spill_store_bytes):
            return "no spills"
        return f"spills {takes.spill_store_bytes} bytes stored, {takes.spill_load_bytes} loaded"


def checked_arch(arch: str) -> str:
    """The arch that was asked for, where NVRTC makes machine code for it."""
    least = LEAST_CAPABILITY[0] * 10 + LEAST_CAPABILITY[1]
    known = [f"sm_{number}" for number in supported_archs() if number >= least]
    if arch not in known:
        message = f"--arch {arch!r} is no architecture that kernels are compiled for"
        raise Error("E-RUN-007", message, notes=[f"there are {', '.join(known)}"])
    return arch


Programs = Mapping[str, tuple[Graph, CudaProgram]]


def compiled(graphs: Mapping[str, Graph], arch: str, settings: Settings) -> tuple[list[Shown], Modules, list[str]]:
    """Every kernel of the graphs, as `compiled_programs` has them."""
    arch = checked_arch(arch)
    return compiled_programs({name: (graph, _program(graph)) for name, graph in graphs.items()}, arch, settings)


def compiled_programs(programs: Programs, arch: str, settings: Settings) -> tuple[list[Shown], Modules, list[str]]:
    """Every kernel once, in the order of first use; the modules they came from; lines of notes."""
    sources = {f"{name} {key}": text for name, (_, p) in programs.items() for key, text in p.modules.items()}
    cache = CubinCache(settings.cache)
    made = load_cubins(sources, arch, cache, settings.threads)
    notes = [f"{name}: {note}" for name, (_, p) in programs.items() for note in p.plan.notes]
    takes: dict[str, Resources] = {}
    for module in made.modules.values():
        takes |= resources(module.image, module.log)
    return list(_shown(programs, takes)), made, [*made.report, *notes]


def _program(graph: Graph) -> CudaProgram:
    return cuda_program(card_plan(graph))


def _shown(programs: Programs, takes: Mapping[str, Resources]) -> Iterator[Shown]:
    works: dict[str, dict[Work, None]] = {}
    first: dict[str, CudaLaunch] = {}
    for graph, program in programs.values():
        for launches, work in zip(program.launches, works_of(program.plan, graph), strict=True):
            for launch in launches:
                first.setdefault(launch.kernel.name, launch)
                works.setdefault(launch.kernel.name, {})[work] = None
    for name, launch in first.items():
        uses = {graph: program.uses[name] for graph, (_, program) in programs.items() if program.uses.get(name)}
        yield Shown(name, uses, tuple(works[name]), launch, takes[name])


def cuda_kernels(graphs: Mapping[str, Graph], arch: str, settings: Settings) -> str:
    """One readable source: what all kernels share, then each with what it computes, where that was written, how often it
    runs and what it takes of the card."""
    shown, _, notes = compiled(graphs, arch, settings)
    functions = dict.fromkeys(function for kernel in shown for function in kernel.launch.kernel.functions)
    heads = [f"// {len(shown)} kernels for {arch}", *(f"// {note}" for note in notes), ""]
    return "\n".join([*heads, PREAMBLE, *functions, *(_text(kernel) for kernel in shown)])


def _text(kernel: Shown) -> str:
    takes, launch = kernel.takes, kernel.launch
    times = ", ".join(f"{count} × in {graph}" for graph, count in kernel.uses.items())
    blocks = " × ".join(str(n) for n in launch.grid if n > 1) or "1"
    lines = [
        f"{kernel.where}",
        f"{times}; first as {blocks} blocks of {launch.kernel.threads} threads",
        f"{takes.registers} registers, {kernel.spills}, {takes.shared_bytes + launch.shared_bytes} bytes of shared memory",
    ]
    return "\n".join([*(f"// {line}" for line in lines), launch.kernel.text])


def cuda_lowering(graphs: Mapping[str, Graph], arch: str, settings: Settings) -> str:
    """A table of the kernels: how often each runs, what it takes, how many bytes it moves for each that it must, and why."""
    shown, made, notes = compiled(graphs, arch, settings)
    return kernel_table(f"lowering: cuda {arch}", shown, made, notes)


def kernel_table(head: str, shown: Sequence[Shown], made: Modules, notes: Sequence[str]) -> str:
    """A row a kernel."""
    rows = [("kernel", "times", "registers", "spilled", "shared", "bytes ÷ least", "what, where")]
    for kernel in shown:
        takes = kernel.takes
        reason = f"{kernel.launch.note}; " if kernel.launch.note else ""
        rows.append(
            (
                kernel.name, str(sum(kernel.uses.values())), str(takes.registers),
                str(takes.spill_load_bytes + takes.spill_store_bytes),
                str(takes.shared_bytes + kernel.launch.shared_bytes), f"{kernel.launch.factor:.2f}", reason + kernel.where,
            )
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[6]]) for row in rows]
    return "\n".join([f"{head}, {len(shown)} kernels in {made.words}", *lines, *notes])
