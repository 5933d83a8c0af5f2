"""Every graph of every example's `sim` variant runs on the simulated card as on the CPU: the same numbers within rounding,
nothing found, and no byte moved twice without a reason."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sexpgpu
from sexpgpu.cli.show import lowered_graphs
from sexpgpu.codegen.cuda_many import groups_of
from sexpgpu.codegen.cuda_program import card_plan
from sexpgpu.ir.graph import Graph
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.passes.experiment import in_precision
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Attention, Plan, repeated
from sexpgpu.plan.work import bytes_of
from sexpgpu.train.request import Request, early_settings, read_experiment
from tests.on_cpu import engine
from tests.on_simulator import Simulated

EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
NAMES = ("builtin", "digits", "gpt2", "gradient-penalty", "lstm", "resnet")
HOSTS = {"step": 2.0, "updates": 2.0, "total-steps": 3.0, "loss-scale": 0.125, "gradient-scale": 1.0, "microbatches": 1.0}
# Of values whose sums run in another order; relative to the largest of their tensor.
TOLERANCE = 1e-5
# What is truly 0 (the gradient of a key's bias) is a sum of numbers of other gradients' size: so much of the largest.
ZERO = 1e-3
# A few numbers beside a region's operands: in tiny tensors they would count.
SMALL_BYTES = 64


def graphs_of(name: str, precision: str = "off") -> dict[str, Graph]:
    request = Request(EXAMPLES / f"{name}.sexp", variants=("sim",))
    _, experiment = read_experiment(request, early_settings(request))
    return lowered_graphs(in_precision(experiment, precision))


def values_of(made: Plan) -> dict[str, Any]:
    """Contents for every external buffer that a graph may read: small integers, parameters near 0, states not below 0."""
    numbers = np.random.default_rng(3)
    values = {}
    for name, type_ in made.externals.items():
        dtype = numpy_dtype(type_.dtype)
        if dtype.kind in "iub":
            values[name] = numbers.integers(0, 2 if dtype.kind == "b" else 10, type_.shape).astype(dtype)
        else:
            drawn = numbers.normal(size=type_.shape) * 0.1
            values[name] = (np.abs(drawn) if name.startswith(("state:", "buffer:")) else drawn).astype(dtype)
    return values


def on_cpu(made: Plan, values: Mapping[str, Any]) -> dict[str, Any]:
    loaded = engine().load(made)
    held = {name: value.copy() for name, value in values.items()}
    for name, value in held.items():
        loaded.bind(name, value)
    loaded.run(HOSTS)
    return {name: loaded.output(name).copy() for name in made.outputs}


def on_card(made: Plan, values: Mapping[str, Any]) -> Simulated:
    simulated = Simulated(made)
    for name, value in values.items():
        simulated.bind(name, value)
    simulated.run(HOSTS)
    return simulated


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_card_computes_every_graph_of_an_example_as_the_cpu_does(name: str) -> None:
    runs_as_on_the_cpu(graphs_of(name), TOLERANCE)


# A sum in another order may be rounded to the neighbour: half a unit in the last place.
@pytest.mark.parametrize(("precision", "half_ulp"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_a_simulated_card_computes_every_graph_in_narrow_floats_as_the_cpu_does(precision: str, half_ulp: float) -> None:
    runs_as_on_the_cpu(graphs_of("builtin", precision), half_ulp)


def runs_as_on_the_cpu(graphs: Mapping[str, Graph], tolerance: float) -> None:
    for graph in graphs.values():
        made = card_plan(graph)
        values = values_of(made)
        # The CPU widens what its attention reads.
        expected = on_cpu(plan(graph, aliases=bound_outputs(graph)), values)
        simulated = on_card(made, values)
        assert simulated.findings == []
        for output, theirs in expected.items():
            ours = simulated.output(output).astype(float)
            assert np.isfinite(ours).all(), output
            most = max(largest(theirs), ZERO * max(map(largest, expected.values())))
            assert np.abs(ours - theirs).max(initial=0.0) <= tolerance * most, output
        no_byte_is_moved_twice(made, simulated)


def test_in_bfloat16_attention_reads_what_was_rounded_without_copies() -> None:
    graph = graphs_of("builtin", "bfloat16")["train"]
    made = card_plan(graph)
    attentions = [launch for launch in made.launches if isinstance(launch, Attention)]
    assert [launch.dtype for launch in attentions] == ["bf16", "bf16"]
    read = [access for launch in attentions for access in (*launch.loads[:3], *launch.loads[5:])]
    assert {made.buffers[access.place.buffer].name for access in read if access.place} == {"cast"}


def largest(values: Any) -> float:
    return float(np.abs(values.astype(float)).max(initial=0.0))


def no_byte_is_moved_twice(made: Plan, simulated: Simulated) -> None:
    """Pointwise kernels and rows that are read once: at most 1.05 times the least; others at most what they say."""
    launches = list(repeated(made.launches))
    members = {group[0]: group for group in groups_of(made)}
    together: dict[int, int] = {}
    for number, _, moved in simulated.moved_bytes():
        together[number] = together.get(number, 0) + moved
    for number, moved in together.items():
        every = [launches[member] for member in members.get(number, [number])]
        least = sum(times * (bytes_of(launch) + SMALL_BYTES) for launch, times in every)
        cuda = simulated.made[number]
        factor = max(launch.factor for launch in cuda)
        assert moved <= 1.05 * factor * least, (cuda[0].kernel.text, moved / least, factor)
        if cuda[0].kernel.name.startswith(("map_", "many_")):
            assert factor == 1
        assert factor <= 1.05 or cuda[0].note
