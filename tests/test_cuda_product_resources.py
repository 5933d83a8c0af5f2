"""What the products of the examples take of a card: a few kernels, registers enough that nothing spills."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sexpgpu import load
from sexpgpu.codegen.cuda_emit import alignment_of, cuda_launches
from sexpgpu.codegen.cuda_source import CudaKernel, module_source
from sexpgpu.cuda.cubin import resources
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.examples import __file__ as examples
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Product, flattened

# A multiprocessor's registers.
REGISTERS = 65536


def product_kernels(example: str, **options: Any) -> dict[str, CudaKernel]:
    """Of a training step, by name."""
    graph = training_graph(load(Path(examples).parent / f"{example}.sexp", set=options).elaborated)
    planned = plan(graph, aliases=bound_outputs(graph), native=False)
    products = [launch for launch in flattened(planned.launches) if isinstance(launch, Product)]
    made = [made for launch in products for made in cuda_launches(launch, alignment_of(planned))]
    return {launch.kernel.name: launch.kernel for launch in made}


NARROW = {"run.precision": "bfloat16"}
MAIN: tuple[tuple[str, dict[str, Any]], ...] = (("gpt2", {"layers": 2}), ("resnet", {}))
OTHERS = (("gpt2", {"layers": 2, **NARROW}), ("resnet", NARROW), ("builtin", {}), ("digits", {}), ("lstm", {}))


@pytest.mark.parametrize(
    "arch, used", [("sm_80", MAIN), ("sm_90", MAIN + OTHERS), ("sm_100", MAIN)], ids=["80", "90", "100"]
)
def test_no_product_of_the_examples_spills(arch: str, used: tuple[tuple[str, dict[str, Any]], ...]) -> None:
    kernels = {name: kernel for example, told in used for name, kernel in product_kernels(example, **told).items()}
    compiled = compile_source(module_source(kernels.values()), arch)
    found = resources(compiled.cubin, compiled.log)
    assert set(found) == set(kernels)
    for name, taken in found.items():
        assert (taken.spill_store_bytes, taken.spill_load_bytes, taken.stack_bytes) == (0, 0, 0), kernels[name].text
        assert taken.registers * kernels[name].threads <= REGISTERS


def test_layers_and_shapes_share_kernels() -> None:
    """Sizes and strides are arguments: more and wider layers of GPT-2 need no kernel more."""
    few = product_kernels("gpt2", layers=2)
    assert product_kernels("gpt2", layers=3).keys() == few.keys()
    assert len(few) <= 20
