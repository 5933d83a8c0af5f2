"""docs/conformance-onnx.md, and the sample of cases that the tests run without the wheel."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import onnx

from onnx_nodes.check import WRITTEN, Tally, Wanted

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "conformance-onnx.md"
SAMPLE = ROOT / "tests" / "data" / "onnx_sample.json"
# Most elements of all tensors of a case of the sample, and what has no number in JSON.
SMALL = 130
HEAD = """# Conformance with ONNX's node tests

Every backend node test of the `onnx` wheel (`onnx.backend.test`, models of one operator; the expansions of operators into
others are left out) is written as a form of the language, compiled for the CPU and compared with the expected outputs.
Integers, bools, shapes, dtypes and everything that is moved, chosen or counted are equal; other floats are within
(8 |y| + 4 √n max |y|) u, u the unit roundoff of the dtype and n the elements of the largest input. A sum, a convolution or a
recurrence is written the way a user writes it, often out of several operations. `scripts/verify onnx` runs it again and
writes this page.

"""


def write_page(tally: Mapping[str, Tally]) -> None:
    passed, left, failed = (
        sum(count(t) for t in tally.values())
        for count in (lambda t: t.passed, lambda t: t.left.total(), lambda t: len(t.failed))
    )
    reasons: Counter[str] = sum((t.left for t in tally.values()), Counter())
    lines = [
        f"Run on {time.strftime('%Y-%m-%d')} with onnx {onnx.__version__}: {passed + left + failed:,} cases, "
        f"**{passed} passed**, {left} not run, each with its reason, {failed} failed.",
        "", "## Reasons", "", "| reason | cases |", "| --- | --- |",
        *(f"| {reason} | {n} |" for reason, n in reasons.most_common()),
        "", "## Operators", "", "| operator | passed | not run | reason |", "| --- | --- | --- | --- |",
    ]  # fmt: skip
    for operator, seen in sorted(tally.items()):
        why = "; ".join(f"{reason} ({n})" for reason, n in sorted(seen.left.items()))
        count = seen.left.total()
        lines.append(f"| {operator} | {seen.passed or ''} | {count or ''} | {why} |")
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")


def write_sample(wanted: Iterable[Wanted]) -> None:
    """The smallest case of each operator, where it is small."""
    best: dict[str, tuple[int, Wanted]] = {}
    for one in wanted:
        if one.case.name in WRITTEN:
            continue
        arrays = [*one.case.operands.values(), *one.case.parameters.values(), *one.case.expected]
        size = sum(a.size for a in arrays)
        kept = best.get(one.case.operator)
        if 0 < size <= SMALL and not any(a.dtype.name == "bfloat16" for a in arrays) and (kept is None or size < kept[0]):
            best[one.case.operator] = size, one
    rows = [_row(one) for _, (_, one) in sorted(best.items())]
    SAMPLE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


def _row(one: Wanted) -> dict[str, object]:
    packed = {
        part: {name: [a.dtype.name, list(a.shape), a.ravel().tolist()] for name, a in arrays.items()}
        for part, arrays in (("operands", one.case.operands), ("parameters", one.case.parameters),
                             ("expected", dict(enumerate(one.case.expected))))
    }  # fmt: skip
    return {"case": one.case.name, "form": one.text, "exact": one.row.exact, **packed}
