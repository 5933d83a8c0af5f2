"""What the row kernels of the examples take of a card: registers enough that nothing spills, and reads of each byte once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexpgpu import load
from sexpgpu.codegen.cuda_emit import alignment_of, cuda_launches
from sexpgpu.codegen.cuda_source import CudaLaunch, module_source
from sexpgpu.cuda.cubin import resources
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.examples import __file__ as examples
from sexpgpu.passes.pipeline import training_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Generated, flattened


def row_launches(example: str, **options: int) -> list[CudaLaunch]:
    """Of a training step, each kernel once."""
    graph = training_graph(load(Path(examples).parent / f"{example}.sexp", set=options).elaborated)
    planned = plan(graph, aliases=bound_outputs(graph), native=False)
    rows = [a for a in flattened(planned.launches) if isinstance(a, Generated) and a.program.kind == "row"]
    made = [cuda_launch for row in rows for cuda_launch in cuda_launches(row, alignment_of(planned))]
    return list({launch.kernel.name: launch for launch in made}.values())


@pytest.fixture(scope="module")
def launches() -> list[CudaLaunch]:
    return [*row_launches("gpt2", layers=1), *row_launches("lstm"), *row_launches("digits")]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_no_row_kernel_of_the_examples_spills(arch: str, launches: list[CudaLaunch]) -> None:
    compiled = compile_source(module_source(launch.kernel for launch in launches), arch)
    found = resources(compiled.cubin, compiled.log)
    assert set(found) == {launch.kernel.name for launch in launches}
    for name, used in found.items():
        assert (used.spill_store_bytes, used.spill_load_bytes, used.stack_bytes) == (0, 0, 0), name


def test_only_rows_of_a_vocabulary_are_read_twice(launches: list[CudaLaunch]) -> None:
    notes = {launch.note for launch in launches if launch.note}
    assert notes == {"rows of 50257 are too long for registers: read 2 times"}
