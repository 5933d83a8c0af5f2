"""docs/conformance-pytorch.md, written from what was seen."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = """# Conformance with PyTorch

Values and gradients of our operations beside PyTorch's own samples of its operators (OpInfo, float32), recorded by
`scripts/verify opinfo` on {date} with PyTorch {torch}, {samples} samples for each operator at most.

Each sample is written as a user would write it, elaborated, differentiated by our own passes, compiled for the CPU and run in
float32. PyTorch computes the same operands in float64. The loss is the sum of the results times fixed random cotangents, and
every operand that PyTorch differentiates is compared; integers and conditions are compared exactly. Non-contiguous
operands are copied. The bound of an element has the same factors for every operator (`scripts/opinfo/theirs.py`):

    8 · (u · |y| + u · max |y| / 4 + u · terms + condition + error of PyTorch's float32)

with u = 2^-24; the condition is how far the float64 result moves, the largest of eight draws, when every operand moves by
±u of itself; `terms` is 0 but for gradients of attention, where it is the size of what
cancels in a saturated row; the last term is the largest error of the tensor that PyTorch's own float32 makes.

{passed} samples of {operators} operators pass, {gradients} of them with gradients; {failed} failed; {left} samples of these
operators are left out, for the reasons in the table. {others} operators have no row, for the reasons below it.

| operator | our form of its first sample | passed | with gradients | left out |
| --- | --- | --- | --- | --- |
"""


def write(made: Sequence[Any], path: Path, version: str, most: int) -> None:
    rows = [o for o in made if o.samples]
    rest: dict[str, list[str]] = defaultdict(list)
    for o in made:
        if not o.samples:
            rest[next(iter(o.left))].append(o.name)
    head = HEAD.format(
        date=time.strftime("%Y-%m-%d"), torch=version, samples=most, passed=sum(o.passed for o in rows),
        operators=sum(o.passed > 0 for o in rows), gradients=sum(o.with_gradient for o in rows),
        failed=sum(len(o.failed) for o in rows), left=sum(sum(o.left.values()) for o in rows),
        others=len(made) - len(rows),
    )  # fmt: skip
    lines = [_line(o) for o in rows]
    tail = ["", "## Operators without a row", "", "| reason | operators |", "| --- | --- |"]
    tail += [f"| {reason} | {', '.join(f'`{_cell(n)}`' for n in names)} |" for reason, names in sorted(rest.items())]
    path.write_text(head + "\n".join([*lines, *tail]) + "\n", encoding="utf-8")


def _line(o: Any) -> str:
    left = "; ".join(f"{count} × {reason}" for reason, count in o.left.items())
    failed = f"; **{len(o.failed)} failed**" if o.failed else ""
    return f"| `{_cell(o.name)}` | `{_cell(o.form)}` | {o.passed} of {o.samples} | {o.with_gradient} | {_cell(left)}{failed} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
