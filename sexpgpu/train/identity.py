"""Which experiment a run is: a hash of what is computed, whatever the file is called and however it is laid out."""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from sexpgpu.ir.facts import text_of
from sexpgpu.ir.graph import Graph
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.passes.experiment import Experiment, Parameter

# Raised when the same graph gives other bits than before.
NUMERICS_VERSION = 1
# Stands before the loader's name in the name of an evaluation's graph.
EVALUATION = "evaluation "
# Of a loader's record, what says where it stands, and no more.
PLACES = frozenset(("span", "base", "paths", "name"))


def graphs_by_name(experiment: Experiment) -> dict[str, Graph]:
    """All graphs: training, update, evaluations, predict."""
    graphs = {
        "training": experiment.training,
        "update": experiment.update,
        **{f"{EVALUATION}{name}": graph for name, graph in experiment.evaluations.items()},
        "predict": experiment.predict,
    }
    return {name: graph for name, graph in graphs.items() if graph is not None}


def graph_text(experiment: Experiment) -> str:
    """The IR of all graphs."""
    return "\n".join(f"; {name}\n{text_of(graph)}" for name, graph in graphs_by_name(experiment).items())


def experiment_hash(experiment: Experiment, text: str) -> str:
    """SHA-256 of the IR text, the parameters' initial laws, the optimizer's states, the loaders, the numerics version."""
    parts = [f"numerics {NUMERICS_VERSION}", text, *_precision(experiment)]
    parts += [f"parameter {p.name} {p.shape} {_law(p)} {p.decay} {p.trainable}" for p in experiment.parameters]
    parts += [f"state {s.parameter} {s.name} {s.shape} {s.fill!r}" for s in experiment.states]
    parts += [f"loader {name} {loader_text(spec)}" for name, spec in sorted(experiment.loaders.items())]
    parts.append(f"learning rate {experiment.learning_rate}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _law(parameter: Parameter) -> str:
    """The initial law; of what is read from a file, its name there."""
    law = parameter.initializer
    return str(law) if law.stored is None else str(replace(law, stored=("", law.stored[1])))


def _precision(experiment: Experiment) -> list[str]:
    """The IR text is that before rounding."""
    precision = experiment.options.precision
    return [] if precision == "off" else [f"precision {precision}"]


def training_hash(experiment: Experiment, seed: int) -> str:
    """SHA-256 of what decides the parameters after every step: what a resume must find as it was."""
    options = experiment.options
    parts = [f"numerics {NUMERICS_VERSION}", text_of(experiment.training), text_of(experiment.update)]
    parts += _precision(experiment)
    parts += [f"parameter {p.name} {p.shape} {p.decay} {p.trainable}" for p in experiment.parameters]
    parts += [f"loader {loader_text(experiment.loaders[options.data])}"]
    parts += [f"{options.microbatches} {options.global_batch} {options.clip_grad_norm} {options.sum_lanes} {seed}"]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def loader_text(spec: LoaderSpec) -> str:
    """A loader's record without places and paths; a builtin's only path is its name, and stays."""
    hidden = PLACES - {"paths"} if spec.kind == "builtin" else PLACES
    shown = replace(spec, tokenizer=spec.tokenizer and spec.tokenizer[:1])
    parts = [(loader_text(part), weight) for part, weight in spec.parts]
    own = [(name, getattr(shown, name)) for name in spec.__struct_fields__ if name not in hidden | {"parts"}]
    return repr([*own, ("parts", parts)])
