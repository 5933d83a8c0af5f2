"""A recorded case of each operator of ONNX's node tests, in our form: `scripts/verify onnx` records them and runs all."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from onnx_nodes.bound import difference  # noqa: E402
from onnx_nodes.ours import Prepared  # noqa: E402

ROWS = json.loads((ROOT / "tests" / "data" / "onnx_sample.json").read_text())


def arrays(rows: dict[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.array(values, dtype).reshape(shape) for name, (dtype, shape, values) in rows.items()}


@pytest.mark.parametrize("row", ROWS, ids=[row["case"] for row in ROWS])
def test_a_form_gives_what_onnx_expects(row: dict[str, Any]) -> None:
    operands, parameters = arrays(row["operands"]), arrays(row["parameters"])
    made = Prepared(row["form"], operands, parameters).meant()
    inputs = [*operands.values(), *parameters.values()]
    assert difference(made, list(arrays(row["expected"]).values()), inputs, exact=row["exact"]) is None


def test_every_row_of_the_page_has_passed_cases_or_a_reason() -> None:
    page = (ROOT / "docs" / "conformance-onnx.md").read_text()
    table = [line.split("|")[1:-1] for line in page.split("## Operators")[1].splitlines() if line.startswith("| ")][2:]
    assert len(table) > 150
    for operator, passed, left, reason in table:
        assert passed.strip() or left.strip(), operator
        assert bool(left.strip()) == bool(reason.strip()), operator


def test_a_float_beyond_its_bound_and_another_dtype_are_found() -> None:
    one = np.ones(3, np.float32)
    assert difference([one], [one], [one], exact=False) is None
    assert difference([one * np.float32(1 + 3e-6)], [one], [one], exact=False) is not None
    assert difference([one.astype(np.int32)], [one], [one], exact=False) is not None
