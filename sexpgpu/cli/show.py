"""`sexpgpu show FILE STAGE`: what each stage of the compiler makes of a file, as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sexpgpu.ir.graph import Graph
from sexpgpu.ir.text import print_graph
from sexpgpu.lang.printer import print_form
from sexpgpu.lang.program import Program
from sexpgpu.passes.experiment import Experiment
from sexpgpu.passes.pipeline import evaluation_graphs, training_graph, update_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Attention, Generated, Indexed, flattened
from sexpgpu.plan.report import describe
from sexpgpu.train.identity import graph_text
from sexpgpu.train.request import Request, early_settings, read_experiment, read_program

Graphs = dict[str, Graph]


def show_stage(request: Request, stage: str, arch: str | None = None) -> str:
    """The stage's text. Everything but `ast` needs a file without errors. `arch`: kernels and lowering of such a card."""
    if stage == "ast":
        return _forms(read_program(request))
    settings = early_settings(request)
    _, experiment = read_experiment(request, settings)
    if arch is None:
        return STAGES[stage](experiment)
    from sexpgpu.cli.show_cuda import cuda_kernels, cuda_lowering

    show = {"kernels": cuda_kernels, "lowering": cuda_lowering}[stage]
    return show(lowered_graphs(experiment), arch, settings)


def _forms(program: Program) -> str:
    return "\n".join(print_form(definition.form) for definition in program.definitions.values())


def lowered_graphs(experiment: Experiment) -> Graphs:
    """The graphs that are planned, by their names in the lowering report."""
    made = {"train": training_graph(experiment), "update": update_graph(experiment)}
    return made | evaluation_graphs(experiment)


def _gradients(experiment: Experiment) -> str:
    return "\n".join(f"; {name}\n{print_graph(graph)}" for name, graph in lowered_graphs(experiment).items())


def _regions(experiment: Experiment) -> str:
    """Every body once, with how often it is called."""
    blocks = []
    for name, graph in lowered_graphs(experiment).items():
        counts: dict[int, int] = {}
        bodies: dict[int, Graph] = {}
        for body in _bodies(graph):
            counts[id(body)] = counts.get(id(body), 0) + 1
            bodies[id(body)] = body
        blocks += [f"; {name}: {counts[key]} × {body.name}\n{print_graph(body)}" for key, body in bodies.items()]
    return "\n".join(blocks) or "no regions"


def _bodies(graph: Graph) -> Iterator[Graph]:
    for node in graph.nodes:
        body = node.attributes.get("body")
        if body is not None:
            yield body


def _plans(experiment: Experiment) -> str:
    return "\n".join(
        f"; {name}\n{describe(plan(graph, aliases=bound_outputs(graph)), graph)}"
        for name, graph in lowered_graphs(experiment).items()
    )


def _kernels(experiment: Experiment) -> str:
    """The source of every kernel once, in order of first use."""
    from sexpgpu.codegen.numba_attention import attention_kernel, emit_attention
    from sexpgpu.codegen.numba_indexed import emit_indexed
    from sexpgpu.codegen.numba_kernel import emit
    from sexpgpu.interp.gemm import tiling

    sources: dict[str, None] = {}
    for graph in lowered_graphs(experiment).values():
        for launch in flattened(plan(graph).launches):
            if isinstance(launch, Generated):
                sources.setdefault(emit(launch.program))
            elif isinstance(launch, Indexed):
                sources.setdefault(emit_indexed(launch.op, launch.dtype, launch.index_dtype or "i64"))
            elif isinstance(launch, Attention):
                sources.setdefault(emit_attention(*attention_kernel(launch, tiling())))
    return "\n\n".join(sources)


STAGES: dict[str, Callable[[Experiment], str]] = {
    "ir": graph_text,
    "grad": _gradients,
    "regions": _regions,
    "plan": _plans,
    "kernels": _kernels,
}
