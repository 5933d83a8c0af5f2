"""Plans kept between starts: what is read is what was decided, and whatever decides it is part of the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sexpgpu.plan.build
from sexpgpu.api import load
from sexpgpu.interp import plans
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.plans import CODEC, Plans, key_of
from sexpgpu.ir.graph import Graph
from sexpgpu.passes.pipeline import training_graph, update_graph
from sexpgpu.plan.build import bound_outputs, plan
from sexpgpu.plan.kernel import Plan

EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
CHOICES: dict[str, Any] = {"keep_values": False, "landing": {}, "native": True}


def graphs_of(example: str, variant: str = "smoke") -> list[Graph]:
    experiment = load(EXAMPLES / f"{example}.sexp", variant=variant).elaborated
    return [training_graph(experiment), update_graph(experiment)]


def planned(graph: Graph) -> Plan:
    return plan(graph, aliases=bound_outputs(graph))


@pytest.fixture(scope="module")
def training() -> Graph:
    return graphs_of("builtin")[0]


def refuse(*_: object, **__: object) -> Plan:
    raise AssertionError("planned again")


@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1, True, 1.0, float("-inf"), None, "a", (), (1, (2.5, "b")), frozenset((2, 1))]
)
def test_a_value_comes_back_with_its_type_and_sign(value: object) -> None:
    assert repr(CODEC.read(CODEC.written((value, 0.0, -0.0, True, 1)))) == repr((value, 0.0, -0.0, True, 1))


@pytest.mark.parametrize("example", ["builtin", "digits", "gpt2", "lstm", "resnet"])
def test_every_plan_of_the_examples_comes_back_as_it_was(example: str) -> None:
    for graph in graphs_of(example):
        made = planned(graph)
        # repr tells -0.0 from 0.0 and shows labels.
        assert repr(CODEC.read(CODEC.written(made))) == repr(made)


def test_a_second_start_reads_the_plan_of_the_first(
    training: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Plans(Cache(tmp_path / "kernels")).plan(training, **CHOICES)
    monkeypatch.setattr(sexpgpu.plan.build, "plan", refuse)
    assert repr(Plans(Cache(tmp_path / "kernels")).plan(training, **CHOICES)) == repr(made)


def test_a_damaged_plan_is_made_again_and_the_report_says_so(training: Graph, tmp_path: Path) -> None:
    made = Plans(Cache(tmp_path / "kernels")).plan(training, **CHOICES)
    (path,) = (tmp_path / "kernels").glob("*.plan")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    cache = Cache(tmp_path / "kernels")
    assert repr(Plans(cache).plan(training, **CHOICES)) == repr(made)
    assert cache.report == [f"plan cache: {path.name} was damaged and is made again"]
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "changed", [{"keep_values": True}, {"native": False}, {"landing": {"gradient:a": 64}}], ids=lambda c: next(iter(c))
)
def test_every_choice_of_the_device_is_part_of_the_key(training: Graph, changed: dict[str, object]) -> None:
    assert key_of(training, CHOICES) != key_of(training, {**CHOICES, **changed})


def test_another_graph_has_another_key(training: Graph) -> None:
    other = load(EXAMPLES / "builtin.sexp", variant="smoke", set={"layers": 1}).elaborated
    assert key_of(training, CHOICES) != key_of(training_graph(other), CHOICES)


def test_other_planners_have_other_keys(training: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key_of(training, CHOICES)
    monkeypatch.setattr(plans, "planners", lambda: "another version")
    assert key_of(training, CHOICES) != before


def test_the_oldest_plans_go_when_there_are_too_many(
    training: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    monkeypatch.setattr(sexpgpu.plan.build, "plan", lambda *_, **__: Plan((), (), 0, {}, {}))
    cache = Cache(tmp_path / "kernels")
    for place in range(4):
        Plans(cache).plan(training, keep_values=False, landing={"gradient:a": place}, native=True)
    assert len(list(cache.folder.glob("*.plan"))) == 2
