"""What pytest wrote of the tests on a card: how many passed, what failed, and what they recorded."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from card.sections import Outcome

# The only reason for which a test on a card may be skipped.
MAY_SKIP = "the simulator alone"


def outcome_of(results: Path) -> Outcome:
    """Nothing failed, nothing was skipped but what a card cannot tell, and something passed."""
    states: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": [], "the simulator's": []}
    seconds: dict[str, float] = {}
    losses: list[Any] = []
    for case in ElementTree.parse(results).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        states[_state(case)].append(name)
        seconds[name] = float(case.get("time") or 0)
        for found in case.iter("property"):
            if found.get("name") == "losses":
                losses.append(ast.literal_eval(found.get("value") or "None"))
    wrong = states["failed"] + states["skipped"]
    words = ", ".join(f"{len(names)} {state}" for state, names in states.items() if names) or "no test was found"
    lines = [*wrong, *map(_line, losses)]
    facts = {"lines": lines, **states, "seconds": seconds, "losses": losses}
    return Outcome("ok" if states["passed"] and not wrong else "failed", words, facts)


def _state(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    if skipped is None:
        return "passed"
    return "the simulator's" if MAY_SKIP in (skipped.get("message") or "") else "skipped"


def _line(found: dict[str, Any]) -> str:
    """How far the losses of both devices are apart, at the step where they are farthest."""
    pairs = list(zip(found["cpu"], found["cuda"], strict=True))
    apart = max(abs(ours - theirs) / abs(theirs) for theirs, ours in pairs)
    last = f"{pairs[-1][0]:.6f} and {pairs[-1][1]:.6f}"
    return f"{found['example']} {found['variant']}: {len(pairs)} steps, losses {last}, {apart:.1e} apart at most"
