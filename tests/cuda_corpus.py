"""Small plans that use every family of CUDA kernels at sizes with tails, with their inputs: what mutants are run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexpgpu.codegen.cuda_attention import WIDEST_HEAD
from sexpgpu.codegen.cuda_source import CudaKernel
from sexpgpu.ir.graph import Graph, Node
from sexpgpu.ir.types import TensorType
from sexpgpu.ops.pointwise import numpy_dtype
from sexpgpu.plan.build import plan
from sexpgpu.plan.kernel import Buffer, Matrix, Place, Plan, Product, Program
from tests import attending, programs
from tests.on_simulator import Simulated
from tests.programs import Builder, base_of, empty, launch_plan
from tests.test_cuda_many import updates

RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Case:
    """`arrays`: what the external buffers hold, by name. `tolerance`: relative to the largest value, of results that have
    no fixed bits; 0 where they have."""

    name: str
    plan: Plan
    arrays: tuple[tuple[str, Any], ...]
    tolerance: float = 0.0
    hosts: Mapping[str, float] | None = None


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def of_program(name: str, program: Program, operands: list[Any], outputs: list[Any]) -> Case:
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    arrays += [o for o, s in zip(outputs, program.stores, strict=True) if s.alias is None]
    given = tuple((f"buffer:{n}", base_of(array)) for n, array in enumerate(arrays))
    return Case(name, launch_plan(program, operands, outputs), given)


def rowwise(values: Any, shape: tuple[int, ...]) -> Any:
    return np.broadcast_to(values[:, None], shape)


def cases() -> list[Case]:
    """Every family once or twice."""
    return [*maps(), *rows(), *columns(), *products(), *indexed(), *attention()]


def maps() -> list[Case]:
    b = Builder("map", 3)
    x, column, row = b.load(), b.load(), b.load("zero")
    b.store(b.do("add", b.do("mul", x, column), row))
    shape = (3, 5, 33)
    operands = [normal(*shape), np.broadcast_to(normal(33), shape), np.broadcast_to(normal(5, 1), shape)]
    t = Builder("map", 2)
    t.store(t.do("tanh", t.load("any")))
    many, sizes = updates()
    given = tuple((f"buffer:{n}", normal(size)) for n, size in enumerate(sizes))
    return [
        of_program("gelu", programs.gelu(), [normal(1025)], [empty((1025,))]),
        of_program("broadcast map", b.program(), operands, [empty(shape)]),
        of_program("transposed map", t.program(), [normal(65, 33).T], [empty((33, 65))]),
        Case("updates", many, given),
    ]


def rows() -> list[Case]:
    norm = [normal(9, 33), np.broadcast_to(normal(33), (9, 33)), np.broadcast_to(normal(33), (9, 33))]
    norm.append(np.broadcast_to(np.full(1, 33, np.float32), (9, 33)))
    stores = [empty((9, 33)), rowwise(empty((9,)), (9, 33)), rowwise(empty((9,)), (9, 33))]
    best = rowwise(empty((3,), "i32"), (3, 1100))
    return [
        of_program("softmax", programs.softmax(), [normal(5, 1000)], [empty((5, 1000))]),
        of_program("long softmax", programs.softmax(), [normal(3, 1025)], [empty((3, 1025))]),
        of_program("layernorm", programs.layernorm(), norm, stores),
        of_program("argmax", programs.reduction("row", "argmax"), [normal(3, 1100) - 10], [best]),
    ]


def columns() -> list[Case]:
    made = []
    for shape in ((20, 33), (65, 70), (4200, 5)):
        total = np.broadcast_to(empty((shape[1],)), shape)
        made.append(of_program(f"columns {shape}", programs.reduction("column", "sum"), [normal(*shape)], [total]))
    return made


def products() -> list[Case]:
    made = [of_windows("f32", 1e-5), of_windows("bf16", 1e-2)]
    for name, a, b, axes in (
        ("product", (33, 45), (45, 66), ((1,), (0,))),
        ("product of transposes", (45, 70), (33, 45), ((0,), (1,))),
    ):
        graph = Graph(name)
        operands = [field(graph, letter, "f32", shape) for letter, shape in (("a", a), ("b", b))]
        graph.outputs["out"] = graph.add("contract", operands, {"batch": ((), ()), "contracted": axes})
        made.append(of_graph(graph, {"a": normal(*a), "b": normal(*b)}, 1e-5))
    return made


def of_windows(dtype: Any, tolerance: float) -> Case:
    """A weight's gradient: steps of the sum are the places of 10 × 16, columns the windows of 3 × 3 of 8 channels."""
    m, n, k, image = 35, 8 * 9, 10 * 16, 12 * 18
    rows, columns = ((10, 18), (16, 1)), ((8, image), (3, 18), (3, 1))
    shapes = ((m, k), (8, image), (m, n))
    arrays = [np.zeros(shape, numpy_dtype(dtype)) for shape in shapes]
    for array in arrays[:2]:
        array[...] = normal(*array.shape)
    b = Matrix(Place(1), 0, 0, (0,), rows, columns)
    launch = Product(dtype, m, n, k, Matrix(Place(0), k, 1, (0,)), b, Matrix(Place(2), n, 1, (0,)))
    buffers = tuple(Buffer(f"buffer:{number}", array.nbytes, "external") for number, array in enumerate(arrays))
    types = {buffer.name: TensorType(dtype, shape) for buffer, shape in zip(buffers, shapes, strict=True)}
    whole = Plan((launch,), buffers, 0, types, {"out": (Place(2), types["buffer:2"])})
    given = tuple((buffer.name, array) for buffer, array in zip(buffers, arrays, strict=True))
    return Case(f"product of windows in {dtype}", whole, given[:2], tolerance)


def attention() -> list[Case]:
    """Two heads of q that share one of k and v, with tails of rows and columns, forward and backward."""
    case = attending.Case((1, 2, 1, 70, 40, 8, 8), causal=True)
    graph, values = attending.with_inner(case.graph()), case.values()
    kinds = {node.attributes["name"]: node.attributes["kind"] for node in graph.inputs}
    given = tuple((f"{kind}:{name}", values[name]) for name, kind in kinds.items())
    return [Case("attention", plan(graph, widest_head=WIDEST_HEAD), given, 1e-5, attending.HOSTS)]


def indexed() -> list[Case]:
    numbers = np.random.default_rng(2)
    table, places, updates_ = normal(37, 12), numbers.integers(0, 37, 70).astype(np.int32), normal(70, 12)
    # Two are out of range, and one counts from the end.
    wrong = places.copy()
    wrong[[7, 40, 50]] = 37, -38, -1
    made = []
    for op, inputs, axis in (
        ("take", (table, wrong), 0),
        ("scatter_add", (np.zeros((37, 12), np.float32), places, updates_), 0),
        ("gather", (table, numbers.integers(0, 37, (5, 12)).astype(np.int32)), 0),
        ("cumsum", (normal(300, 40),), 0),
        ("argsort", (normal(5, 70),), 1),
    ):
        graph = Graph(op)
        nodes = [field(graph, f"x{n}", "i32" if x.dtype.kind == "i" else "f32", x.shape) for n, x in enumerate(inputs)]
        attributes = {"axis": axis, **({"descending": False} if op == "argsort" else {})}
        graph.outputs["out"] = graph.add(op, nodes, attributes)
        made.append(of_graph(graph, {f"x{n}": x for n, x in enumerate(inputs)}))
    return made


def field(graph: Graph, name: str, dtype: str, shape: tuple[int, ...]) -> Node:
    return graph.add("input", (), {"kind": "field", "name": name, "dtype": dtype, "shape": shape})


def of_graph(graph: Graph, values: dict[str, Any], tolerance: float = 0.0) -> Case:
    given = tuple((f"field:{name}", value) for name, value in values.items())
    return Case(graph.name, plan(graph, native=False), given, tolerance)


def kernels_of(case: Case) -> list[CudaKernel]:
    made = {launch.kernel.name: launch.kernel for launches in Simulated(case.plan).made for launch in launches}
    return list(made.values())


def run(case: Case, rewrite: Callable[[str], str] | None = None) -> tuple[list[Any], list[np.ndarray]]:
    """What the detectors found, and everything that the external buffers hold afterwards."""
    made = Simulated(case.plan, rewrite=rewrite)
    for name, array in case.arrays:
        made.bind(name, array)
    made.run(case.hosts)
    bound = [made.contents(name) for name, _ in case.arrays]
    flags = [made.contents("runtime:flags")] if case.plan.flags else []
    return made.findings, [*bound, *flags, *(made.output(name) for name in case.plan.outputs)]


def equal(case: Case, a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two results are the same, to the case's tolerance."""
    if case.tolerance == 0 or a.dtype != np.float32:
        return a.tobytes() == b.tobytes()
    x, y = a.astype(float), b.astype(float)
    return bool(np.abs(x - y).max() <= case.tolerance * np.abs(y).max())
