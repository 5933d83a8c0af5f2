"""NaN, infinities, zeros of both signs and subnormal numbers pass through every kernel of the examples as in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from on_cpu import engine
from plan_oracle import _Oracle

from sexpgpu import load
from sexpgpu.examples import __file__ as examples
from sexpgpu.ir.types import FLOATS, SIZES, TensorType
from sexpgpu.passes.pipeline import evaluation_graphs, training_graph, update_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Buffer, Generated, Place, Plan, flattened

RNG = np.random.default_rng(29)
FOLDER = Path(examples).parent
# Every example, as small as shows all its kernels.
SMALL: dict[str, dict[str, Any]] = {
    "builtin": {"layers": 1, "width": 48, "heads": 2, "seq": 16, "batch": 2},
    "charlm": {"layers": 1, "width": 48, "heads": 2, "seq": 16, "batch": 2},
    "digits": {},
    "gpt2": {"layers": 2, "width": 64, "heads": 2, "seq": 24, "vocab": 97},
    "lstm": {"width": 16, "inner": 8, "seq": 5, "batch": 2},
    "resnet": {"width": 2, "blocks": 1, "batch": 2},
    "fine-tune": {"hidden": 8, "batch": 2},
    "gradient-penalty": {"hidden": 8, "batch": 2},
}
# Which of its runs, where an example has several.
RUNS = {"fine-tune": "tune"}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40], np.float32)
# Kernels of these hold exactly; a formula's own error is tested with the formulas.
RELATIVE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, with the text beside them that charlm reads."""
    made = tmp_path_factory.mktemp("examples")
    for path in FOLDER.glob("*.sexp"):
        (made / path.name).write_text(path.read_text())
    (made / "data").mkdir()
    (made / "data" / "input.txt").write_text("To be, or not to be, that is the question.\n" * 200)
    return made


def plans(path: Path) -> tuple[Plan, ...]:
    made = load(path, set=SMALL[path.stem], run=RUNS.get(path.stem)).elaborated
    graphs = [training_graph(made), update_graph(made), *evaluation_graphs(made).values()]
    return tuple(plan(graph, aliases=bound_outputs(graph)) for graph in graphs)


def launches(path: Path) -> list[tuple[Plan, Generated]]:
    """One launch of every program."""
    found: dict[str, tuple[Plan, Generated]] = {}
    for made in plans(path):
        for launch in flattened(made.launches):
            if isinstance(launch, Generated):
                found.setdefault(repr(launch.program), (made, launch))
    return list(found.values())


def values_of(dtype: str, count: int) -> np.ndarray:
    if dtype not in FLOATS:
        return RNG.integers(0, 2 if dtype == "bool" else 5, count).astype(dtype.replace("i", "int").replace("u", "uint"))
    values = RNG.normal(size=count).astype(np.float32)
    special = RNG.random(count) < 0.05
    values[special] = RNG.choice(SPECIAL, int(special.sum()))
    return values


def window_bytes(buffer: int, sizes: tuple[int, ...], operands: list[Any]) -> int:
    """Up to where the accesses of a buffer reach."""
    reached = [
        access.place.offset + (sum((n - 1) * step for n, step in zip(sizes, access.strides)) + 1) * SIZES[kept.dtype]
        for access, kept in operands
        if access.place is not None and access.place.buffer == buffer
    ]
    return max(reached)


def alone(made: Plan, launch: Generated) -> tuple[Plan, dict[str, np.ndarray]]:
    """A plan of this launch by itself, every buffer of it filled with values of all kinds."""
    program = launch.program
    operands = [*zip(launch.loads, program.loads), *zip(launch.stores, program.stores)]
    dtypes = {access.place.buffer: kept.dtype for access, kept in operands if access.place is not None}
    numbers = {buffer: number for number, buffer in enumerate(dtypes)}
    buffers, types, arrays = [], {}, {}
    for buffer, dtype in dtypes.items():
        # A window of a loop has no memory of its own.
        size = made.buffers[buffer].size_bytes or window_bytes(buffer, launch.sizes, operands)
        name = f"field:b{buffer}"
        buffers.append(Buffer(name, size, "external"))
        types[name] = TensorType(dtype, (size // SIZES[dtype],))  # type: ignore[arg-type]
        arrays[name] = values_of(dtype, size // SIZES[dtype])

    def moved(access: Any) -> Any:
        place = access.place
        return access if place is None else replace(access, place=Place(numbers[place.buffer], place.offset))

    here = replace(launch, loads=tuple(map(moved, launch.loads)), stores=tuple(map(moved, launch.stores)))
    outputs = {name: (Place(number), types[name]) for number, name in enumerate(types)}
    return Plan((here,), tuple(buffers), 0, types, outputs), arrays


@pytest.mark.parametrize("name", SMALL)
def test_every_generated_kernel_treats_special_values_as_numpy_does(name: str, folder: Path) -> None:
    checked = 0
    for made, launch in launches(folder / f"{name}.sexp"):
        single, arrays = alone(made, launch)
        oracle = _Oracle(single, arrays, {}, 0)
        with np.errstate(all="ignore"):
            oracle.launch(single.launches[0])
        loaded = engine().load(single)
        for buffer, array in arrays.items():
            loaded.bind(buffer, array)
        loaded.run({})
        for number, (buffer, array) in enumerate(arrays.items()):
            expected = oracle.memory[number].view(array.dtype)
            if array.dtype != np.float32:
                assert np.array_equal(array, expected), launch.program
                continue
            bad = ~np.isfinite(expected)
            assert np.array_equal(np.isnan(array), np.isnan(expected)), (buffer, launch.program)
            assert np.array_equal(array[bad], expected[bad], equal_nan=True), (buffer, launch.program)
            scale = np.abs(expected[~bad]).max(initial=1.0)
            assert np.abs(array[~bad] - expected[~bad]).max(initial=0.0) <= RELATIVE * scale, (buffer, launch.program)
            checked += 1
    assert checked > 0


def test_every_example_is_looked_at() -> None:
    assert set(SMALL) == {path.stem for path in FOLDER.glob("*.sexp")}
