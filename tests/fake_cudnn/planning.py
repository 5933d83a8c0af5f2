"""Graphs planned by the installed cuDNN for a card that is not here, in a process of its own, which has a driver without one.

    python -m tests.fake_cudnn.planning CARD < graphs

Graphs come as text that Python reads (their repr), plans go as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from sexpgpu.cuda import cudnn_graph
from sexpgpu.cuda.cards import CARDS, cudnn_properties
from sexpgpu.cuda.cudnn import cudnn
from sexpgpu.cuda.cudnn_graph import OperationGraph
from sexpgpu.cuda.cudnn_plans import Described, Refusal, plan
from sexpgpu.plan.kernel import Place
from tests.fake_cudnn.no_card import NoCard

LIMIT_S = 240
NAMES: dict[str, Any] = {**vars(cudnn_graph), "Place": Place, "inf": inf}


@dataclass(frozen=True)
class Planned:
    """A plan (`understood`: the graph as cuDNN wrote it down), or the words of a refusal."""

    engine: int = -1
    workspace_bytes: int = 0
    understood: Mapping[str, Any] | None = None
    refusal: str = ""


def plans_of(
    card: str, graphs: Mapping[str, OperationGraph], most_workspace_bytes: int | None = None
) -> dict[str, Planned]:
    """What cuDNN makes of graphs for a card."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fake_cudnn.planning", card, json.dumps(most_workspace_bytes)],
        input=repr(dict(graphs)), cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {name: Planned(**found) for name, found in json.loads(done.stdout).items()}


def main() -> None:
    card, limit = Described(cudnn_properties(CARDS[sys.argv[1]])), json.loads(sys.argv[2])
    driver = NoCard()
    calls = cudnn()
    made: dict[str, dict[str, Any]] = {}
    for name, graph in eval(sys.stdin.read(), NAMES).items():
        found = plan(calls, graph, card, limit)
        if isinstance(found, Refusal):
            made[name] = {"refusal": str(found)}
            continue
        understood = json.loads(found.text)["operationGraph"]
        made[name] = {"engine": found.engine, "workspace_bytes": found.workspace_bytes, "understood": understood}
        found.close()
    print(json.dumps(made))
    assert driver.library is not None


if __name__ == "__main__":
    main()
