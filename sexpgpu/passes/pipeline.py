"""The order of the passes, in one place: from an elaborated experiment to the graphs that are planned."""

from __future__ import annotations

from sexpgpu.ir.building import uncollected
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.passes.hoist import hoist
from sexpgpu.passes.precision import rounded
from sexpgpu.passes.simplify import simplify
from sexpgpu.passes.trim import has_scans, trim

# The cotangent of every element of the loss: 1 / (nominal weight of the step), set by the training loop.
LOSS_SCALE = ("runtime", "loss-scale")


def _finished(graph: Graph) -> Graph:
    made = simplify(graph)
    return simplify(trim(made)) if has_scans(made) else made


@uncollected()
def training_graph(experiment: Experiment) -> Graph:
    """Loss, weight and `gradient:NAME` of every trainable parameter, of one microbatch."""
    forward = hoist(rounded(experiment.training, experiment.options.precision))
    parameters = {node.attributes["name"]: node for node in forward.inputs if node.attributes["kind"] == "parameter"}
    trained = {p.name: parameters[p.name] for p in experiment.parameters if p.trainable}
    return _finished(differentiate(forward, {"loss": LOSS_SCALE}, trained))


@uncollected()
def update_graph(experiment: Experiment) -> Graph:
    """New parameters and optimizer states from the step's summed gradients."""
    return _finished(hoist(experiment.update))


@uncollected()
def evaluation_graphs(experiment: Experiment) -> dict[str, Graph]:
    """Loss, weight and metrics of one batch, by loader."""
    precision = experiment.options.precision
    return {name: _finished(hoist(rounded(graph, precision))) for name, graph in experiment.evaluations.items()}
