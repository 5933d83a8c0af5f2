"""Every operator of OpInfo: its float32 samples through our operations, compared with PyTorch in float64."""

from __future__ import annotations

import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ours
import theirs
from reasons import reason_for
from row import Left, Row
from rows_elementwise import ELEMENTWISE
from rows_layers import LAYERS
from rows_shape import SHAPE

from sexpgpu.errors import Diagnostics, Error

ROWS: tuple[Row, ...] = (*ELEMENTWISE, *SHAPE, *LAYERS)
# Most samples of one operator that are compiled; the others of more are left out by number.
MOST = 100


@dataclass
class Outcome:
    """What became of an operator's samples."""

    name: str
    samples: int = 0
    passed: int = 0
    with_gradient: int = 0
    form: str = ""
    left: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


def outcomes(only: Sequence[str] = ()) -> Iterator[Outcome]:
    """One for each operator, in OpInfo's order."""
    rows = {row.name: row for row in ROWS}
    for operator in theirs.operators():
        name = theirs.full_name(operator)
        if only and name not in only:
            continue
        row = rows.get(name)
        if not theirs.takes_float32(operator):
            yield Outcome(name, left=Counter({"takes no float32": 1}))
        elif row is None:
            yield Outcome(name, left=Counter({reason_for(name): 1}))
        else:
            yield _operator(operator, row)


def _operator(operator: Any, row: Row) -> Outcome:
    made = Outcome(row.name)
    ready = []
    for sample in theirs.samples(operator):
        made.samples += 1
        try:
            if len(ready) == MOST:
                raise Left(f"is beyond the first {MOST} that are run")
            asked = theirs.prepared(operator, row, sample)
            made.form = made.form or asked.call.text
            ready.append((asked, _elaborated(asked)))
        except Left as left:
            made.left[str(left)] += 1
        except (Diagnostics, Error) as problem:
            made.failed.append(f"{_shown(sample)}: {_first(problem)}")
        except RuntimeError as problem:
            made.failed.append(f"{_shown(sample)}: PyTorch refuses it, {problem}")
    ours.engine().compile()
    for asked, prepared in ready:
        problem = _compared(asked, prepared)
        if problem:
            made.failed.append(f"{asked.call.text} {_shapes(asked)}: {problem}")
        else:
            made.passed += 1
            made.with_gradient += bool(asked.gradients)
    return made


def _elaborated(asked: theirs.Sample) -> ours.Prepared:
    prepared = ours.prepare(
        asked.call.text, _values(asked), _cotangents(asked), len(asked.results), asked.gradients, asked.call.training
    )
    prepared.load()
    return prepared


def _values(asked: theirs.Sample) -> dict[str, Any]:
    return {name: _float32(o.leaf.numpy()) for name, o in asked.call.operands.items()}


def _float32(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype.kind == "f" else value


def _cotangents(asked: theirs.Sample) -> dict[int, Any]:
    return {k: c.numpy() for k, c in enumerate(asked.cotangents) if c is not None}


def _compared(asked: theirs.Sample, prepared: ours.Prepared) -> str:
    """What is wrong, or nothing."""
    given = {**_values(asked), **{f"cotangent.{k}": c for k, c in _cotangents(asked).items()}}
    made = prepared.run(given)
    expected = {str(k): e for k, e in enumerate(asked.results)}
    expected |= {f"gradient:{name}": e for name, e in asked.gradients.items()}
    for name, one in expected.items():
        value = made.get(name)
        if value is None:
            return f"no {name}"
        problem = _difference(value, one)
        if problem:
            return f"{name} {problem}"
    return ""


def _difference(value: Any, expected: theirs.Expected) -> str:
    wanted = expected.value.numpy(force=True)
    if value.shape != wanted.shape:
        return f"has the shape {value.shape}, not {wanted.shape}"
    if expected.bound is None:
        wrong = value != wanted
    else:
        with np.errstate(all="ignore"):
            rounded = wanted.astype(np.float32)
            near = np.abs(value.astype(np.float64) - wanted) <= expected.bound.numpy(force=True)
            same = (value == rounded) | (np.isnan(value) & np.isnan(rounded))
        wrong = ~np.where(np.isfinite(rounded), near, same)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    limit = "" if expected.bound is None else f" ± {expected.bound.numpy(force=True)[place]:.3g}"
    return f"is {value[place]!r} at {place}, not {wanted[place]!r}{limit}; {int(wrong.sum())} of {wrong.size} wrong"


def _first(problem: Diagnostics | Error) -> str:
    error = problem.errors[0] if isinstance(problem, Diagnostics) else problem
    return f"{error.code} {error.message}"


def _shown(sample: Any) -> str:
    return str(sample.summary())[:300]


def _shapes(asked: theirs.Sample) -> str:
    return " ".join(f"{name}{tuple(o.leaf.shape)}" for name, o in asked.call.operands.items())


def main() -> None:
    warnings.simplefilter("ignore")
    for made in outcomes(sys.argv[1:]):
        if not made.samples:
            continue
        print(f"{made.name}: {made.passed}/{made.samples}, {made.with_gradient} with gradient", dict(made.left), flush=True)
        for line in made.failed[:4]:
            print("   FAIL", line, flush=True)


if __name__ == "__main__":
    begin = time.perf_counter()
    main()
    print(f"{time.perf_counter() - begin:.0f} s")
