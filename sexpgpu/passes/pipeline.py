"""The order of the passes, in one place: from an elaborated experiment to the graphs that are planned."""

from __future__ import annotations

from sexpgpu.ir.building import uncollected
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.differentiate import differentiate
from sexpgpu.passes.experiment import Experiment
from sexpgpu.passes.precision import rounded
from sexpgpu.passes.simplify import simplify

# The cotangent of every element of the loss: 1 / (nominal weight of the step), set by the training loop.
LOSS_SCALE = ("runtime", "loss-scale")


@uncollected()
def training_graph(experiment: Experiment) -> Graph:
    """Loss, weight and `gradient:NAME` of every trainable parameter, of one microbatch."""
    forward = rounded(experiment.training, experiment.options.precision)
    parameters = {node.attributes["name"]: node for node in forward.inputs if node.attributes["kind"] == "parameter"}
    trained = {p.name: parameters[p.name] for p in experiment.parameters if p.trainable}
    return simplify(differentiate(forward, {"loss": LOSS_SCALE}, trained))


@uncollected()
def update_graph(experiment: Experiment) -> Graph:
    """New parameters and optimizer states from the step's summed gradients."""
    return simplify(experiment.update)


@uncollected()
def evaluation_graphs(experiment: Experiment) -> dict[str, Graph]:
    """Loss, weight and metrics of one batch, by loader."""
    precision = experiment.options.precision
    return {name: simplify(rounded(graph, precision)) for name, graph in experiment.evaluations.items()}
