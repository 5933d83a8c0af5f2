"""ONNX's backend node tests through our operations on the CPU: every case passes, or has its reason."""

from __future__ import annotations

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnx_nodes import ours
from onnx_nodes.bound import difference
from onnx_nodes.case import Array, Case, Left, Row
from onnx_nodes.reasons import REASON
from onnx_nodes.rows_elementwise import ELEMENTWISE
from onnx_nodes.rows_formulas import FORMULAS
from onnx_nodes.rows_layers import LAYERS
from onnx_nodes.rows_sequences import SEQUENCES
from onnx_nodes.rows_shape import SHAPE
from onnx_nodes.rows_windows import WINDOWS
from sexpgpu.errors import Diagnostics, Error

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import onnx
    from onnx import helper, numpy_helper
    from onnx.backend.test.loader import load_model_tests

ROWS: dict[str, Row] = {row.operator: row for row in (*ELEMENTWISE, *SHAPE, *LAYERS, *WINDOWS, *SEQUENCES, *FORMULAS)}
# Plans whose kernels are compiled at once.
CHUNK = 60
# Inputs and expected values that stand in the test rounded to four decimals; the mean is of four of nine.
WRITTEN = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 0.5e-4 * (1 + 4 / 9)}


@dataclass
class Tally:
    """What became of an operator's cases."""

    passed: int = 0
    left: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def models() -> Iterator[Any]:
    """The node tests whose model is not an operator's expansion into others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = load_model_tests(kind="node")
    yield from (test for test in found if "_expanded" not in test.name)


def case_of(test: Any) -> Case:
    """Raises Left where its types or structure are not the language's."""
    graph = test.model.graph
    for value in (*graph.input, *graph.output):
        _check_type(value.type)
    if len(graph.node) != 1:
        raise Left("is a model of several nodes")
    node = graph.node[0]
    given, expected = test.data_sets[0]
    arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    arrays |= {v.name: _array(a) for v, a in zip(graph.input, given, strict=True)}
    attributes = {a.name: _attribute(a) for a in node.attribute}
    names = [o.name for o in graph.output]
    return Case(
        test.name, node.op_type, attributes, [arrays[name] if name else None for name in node.input],
        [_array(a) for a in expected], [list(node.output).index(name) for name in names], test.model.opset_import[0].version,
    )  # fmt: skip


def _array(value: Any) -> Array:
    return numpy_helper.to_array(value) if hasattr(value, "dims") else np.asarray(value)


def _attribute(a: Any) -> Any:
    value = helper.get_attribute_value(a)
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _check_type(kind: Any) -> None:
    which = kind.WhichOneof("value")
    if which != "tensor_type":
        raise Left(f"{which.removesuffix('_type').replace('_', ' ')} values are not in the language")
    name = onnx.TensorProto.DataType.Name(kind.tensor_type.elem_type)
    if name.lower() not in ("float", "float16", "bfloat16", "int32", "int64", "uint8", "uint32", "bool"):
        raise Left(f"the type {name.lower()} is not in the language")


@dataclass
class Wanted:
    """A case that is run, its row and our form."""

    case: Case
    row: Row
    text: str
    prepared: ours.Prepared


def prepared(test: Any, tally: dict[str, Tally]) -> Wanted | None:
    operator = test.model.graph.node[0].op_type
    seen = tally.setdefault(operator, Tally())
    text = ""
    try:
        case = case_of(test)
        if operator not in ROWS:
            raise Left(f"not an operation of the language: {REASON[operator]}")
        row = ROWS[operator]
        text = row.form(case) if callable(row.form) else row.form
        return Wanted(case, row, text, ours.Prepared(text, case.operands, case.parameters))
    except Left as left:
        seen.left[str(left)] += 1
    except (Diagnostics, Error) as problem:
        seen.failed.append(f"{test.name}: {text}\n{problem}")
    except Exception:
        seen.failed.append(f"{test.name}: {text}\n{traceback.format_exc()}")
    return None


def _difference(one: Wanted, made: Sequence[Array]) -> str | None:
    case = one.case
    inputs = [a for a in case.inputs if a is not None]
    return difference(made, case.expected, inputs, one.row.exact, WRITTEN.get(case.name, 0.0))


def settle(wanted: Sequence[Wanted], tally: dict[str, Tally], compiled: bool) -> None:
    for one in wanted:
        if compiled:
            one.prepared.load()
    for one in wanted:
        seen = tally[one.case.operator]
        try:
            wrong = _difference(one, one.prepared.run() if compiled else one.prepared.meant())
        except Exception:
            wrong = traceback.format_exc()
        if wrong is None:
            seen.passed += 1
        else:
            seen.failed.append(f"{one.case.name}: {one.text}\n{wrong}")


def run(only: Sequence[str] = (), compiled: bool = True) -> tuple[dict[str, Tally], list[Wanted]]:
    """Every case, or those of some operators; by our CPU kernels, or by the NumPy meaning of the graphs."""
    tally: dict[str, Tally] = {}
    done: list[Wanted] = []
    waiting: list[Wanted] = []
    for test in models():
        if only and test.model.graph.node[0].op_type not in only:
            continue
        one = prepared(test, tally)
        waiting += [one] if one else []
        if len(waiting) == CHUNK:
            settle(waiting, tally, compiled)
            done += waiting
            waiting = []
    settle(waiting, tally, compiled)
    return tally, [*done, *waiting]
