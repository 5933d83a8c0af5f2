"""The training loop on a device that is NumPy: sums over microbatches, the update, checks before it, records, stopping."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from reference_device import ReferenceDevice

from sexpgpu.device import OutOfRange
from sexpgpu.dist.exchange import SingleRank
from sexpgpu.dist.world import World
from sexpgpu.errors import Error
from sexpgpu.initial import Initializer
from sexpgpu.ir.graph import Graph, Node, Origin
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.passes.experiment import Checkpoint, Evaluation, Experiment, Metric, Parameter, RunOptions, State, Stop
from sexpgpu.settings import Settings, Sources, resolve
from sexpgpu.source import Source, Span
from sexpgpu.train.checkpoint import found, load
from sexpgpu.train.folder import create_run_folder
from sexpgpu.train.loop import Best, Outcome, Patience, Training, refuse_disagreement
from sexpgpu.train.metrics import read_metrics
from sexpgpu.train.progress import Progress
from sexpgpu.train.session import Session, lowering_report, memory_line, prepare
from sexpgpu.train.status import read_status
from sexpgpu.train.stopping import Stopped, StopRequest

EXAMPLES, FEATURES, BATCH = 40, 3, 4
SPAN = Span(Source("fit.sexp", "(mse (* x w) y)"), 0, 15)


def data() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(EXAMPLES, FEATURES)).astype(np.float32)
    return x, (x @ np.array([1, -2, 3], np.float32)).astype(np.float32)


def declare(graph: Graph, kind: str, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Node:
    return graph.add("input", (), {"kind": kind, "name": name, "dtype": dtype, "shape": shape})


def fit_graph(metric: bool = False, masked: bool = False) -> Graph:
    """Squared error of x · w: loss Σ over the batch, weight how many."""
    graph = Graph("fit")
    with graph.at(Origin(SPAN, "", ("in layer fit, called at fit.sexp:9:1",))):
        x, y = declare(graph, "field", "x", (BATCH, FEATURES)), declare(graph, "field", "y", (BATCH,))
        w = declare(graph, "parameter", "w", (FEATURES,))
        wide = graph.add("broadcast", (w,), {"shape": (BATCH, FEATURES), "dims": (1,)})
        error = graph.add("sum", (x * wide,), {"axes": (1,)}) - y
        squares = error * error
        weight = graph.constant(float(BATCH), "f32", ())
        if masked:
            real = declare(graph, "field", "real", (BATCH,), "bool")
            squares = graph.add("select", (real, squares, graph.constant(0.0, "f32", (BATCH,))))
            ones = graph.add("cast", (real,), {"dtype": "f32"})
            weight = graph.add("sum", (ones,), {"axes": (0,)})
        graph.outputs = {"loss": graph.add("sum", (squares,), {"axes": (0,)}), "weight": weight}
        if metric:
            worst = graph.add("max", (error,), {"axes": (0,)})
            graph.outputs |= {"metric:worst": worst, "metric-weight:worst": graph.constant(float(BATCH), "f32", ())}
    return graph


def momentum_graph(lr: float) -> Graph:
    """m' = 0.5 m + s g; w' = w − lr m'."""
    graph = Graph("update")
    w, g = declare(graph, "parameter", "w", (FEATURES,)), declare(graph, "gradient", "w", (FEATURES,))
    m = declare(graph, "state", "w:m", (FEATURES,))
    scale = graph.add("host", (), {"expression": ("runtime", "gradient-scale")})
    scaled = g * graph.add("broadcast", (scale,), {"shape": (FEATURES,), "dims": ()})
    after = m * 0.5 + scaled
    graph.outputs = {"parameter:w": w - after * lr, "state:w:m": after}
    return graph


OPTIONS = RunOptions(
    data="data", steps=5, epochs=None, microbatches=3, global_batch=None, clip_grad_norm=None, precision="off", ema=None,
    evaluations=(), checkpoint=None, stop=None, diagnostics=(), log_every=1, sum_lanes=None, seed=3,
)  # fmt: skip


def experiment(folder: Path, lr: float = 0.05, training: Graph | None = None, **options: Any) -> Experiment:
    x, y = data()
    np.savez(folder / "data.npz", x=x, y=y)
    loader = LoaderSpec("arrays", ("data.npz",), "data", folder, batch=BATCH, order="file")
    return Experiment(
        name="fit",
        options=replace(OPTIONS, **options),
        parameters=(Parameter("w", (FEATURES,), Initializer("constant", (0.5,)), False, True, Origin(None)),),
        states=(State("w", "m", (FEATURES,), 0.0),),
        loaders={"data": loader, "held-out": loader},
        headers={},
        training=training or fit_graph(),
        evaluations={"held-out": fit_graph(metric=True)},
        predict=None,
        update=momentum_graph(lr),
        learning_rate=("mul", ("number", lr), ("step",)),
    )


def settings(folder: Path, **flags: Any) -> Settings:
    return resolve(
        Sources({"out": folder / "runs", "cache": folder / "cache", **flags}, {}, {"steps": 5, "seed": 3}, {})
    )


def session_of(folder: Path, device: ReferenceDevice | None = None, steps: int = 5, **options: Any) -> Session:
    made = prepare(experiment(folder, **options), settings(folder, steps=steps), device or ReferenceDevice())
    made.model.start([("w", np.full(FEATURES, 0.5, np.float32))])
    return made


def train(
    session: Session, request: StopRequest | None = None, progress: Progress | None = None
) -> tuple[Outcome, Path]:
    folder = create_run_folder(session.settings.out, "fit", "0" * 64)
    facts: Mapping[str, Any] = {"seed": 3}
    made = Training(session, folder, progress or Progress(quiet=True), request or StopRequest(), facts)
    return made.run(), folder.path


def expected(steps: int, microbatches: int = 3, clip: float = math.inf, lr: float = 0.05) -> list[tuple[float, float]]:
    """(loss, gradient norm) of each step in float64, and w at the end as the function's own check."""
    x, y = (a.astype(np.float64) for a in data())
    w, m, made = np.full(FEATURES, 0.5), np.zeros(FEATURES), []
    for step in range(steps):
        rows = np.arange(step * microbatches * BATCH, (step + 1) * microbatches * BATCH) % EXAMPLES
        error = x[rows] @ w - y[rows]
        gradient = 2 * error @ x[rows] / len(rows)
        norm = float(np.sqrt(gradient @ gradient))
        made.append((float(np.mean(error**2)), norm))
        m = 0.5 * m + gradient * min(1, clip / norm)
        w = w - lr * m
    return made


def test_losses_and_norms_are_those_of_gradient_descent_in_float64(tmp_path: Path) -> None:
    outcome, path = train(session_of(tmp_path))
    steps = [record for record in read_metrics(path / "metrics.jsonl") if record["kind"] == "step"]
    for record, (loss, norm) in zip(steps, expected(5), strict=True):
        assert record["train/loss"] == pytest.approx(loss, rel=1e-5)
        assert record["train/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert outcome.loss == steps[-1]["train/loss"]
    assert [record["train/lr"] for record in steps] == pytest.approx([0.05 * step for step in range(1, 6)])


def test_clipping_scales_the_update_and_records_the_norm_before_it(tmp_path: Path) -> None:
    _, path = train(session_of(tmp_path, clip_grad_norm=("number", 1.5)))
    steps = [record for record in read_metrics(path / "metrics.jsonl") if record["kind"] == "step"]
    wanted = expected(5, clip=1.5)
    assert wanted[0][1] > 1.5
    assert [r["train/grad_norm"] for r in steps] == pytest.approx([norm for _, norm in wanted], rel=1e-5)
    assert [r["train/loss"] for r in steps] == pytest.approx([loss for loss, _ in wanted], rel=1e-5)


@pytest.mark.parametrize("lanes", [None, 1])
def test_many_microbatches_sum_to_the_same_mean(tmp_path: Path, lanes: int | None) -> None:
    _, path = train(session_of(tmp_path, microbatches=8, sum_lanes=lanes))
    steps = [record for record in read_metrics(path / "metrics.jsonl") if record["kind"] == "step"]
    assert [r["train/grad_norm"] for r in steps] == pytest.approx([n for _, n in expected(5, 8)], rel=1e-5)


def test_a_short_step_is_the_mean_over_its_real_examples(tmp_path: Path) -> None:
    """Forty examples in steps of twelve: the fourth has one whole microbatch; two epochs of four steps."""
    made = experiment(tmp_path, training=fit_graph(masked=True), steps=None, epochs=2, short=True)
    session = prepare(
        made, resolve(Sources({"cache": tmp_path, "out": tmp_path / "runs"}, {}, {}, {})), ReferenceDevice()
    )
    session.model.start([("w", np.full(FEATURES, 0.5, np.float32))])
    assert session.total_steps == 8
    _, path = train(session)
    steps = [record for record in read_metrics(path / "metrics.jsonl") if record["kind"] == "step"]
    x, y = (a.astype(np.float64) for a in data())
    w, m = np.full(FEATURES, 0.5), np.zeros(FEATURES)
    for index, record in enumerate(steps):
        rows = np.arange(index % 4 * 12, min(index % 4 * 12 + 12, EXAMPLES))
        error = x[rows] @ w - y[rows]
        gradient = 2 * error @ x[rows] / len(rows)
        assert record["train/loss"] == pytest.approx(float(np.mean(error**2)), rel=1e-4)
        assert record["train/grad_norm"] == pytest.approx(float(np.linalg.norm(gradient)), rel=1e-4)
        m = 0.5 * m + gradient
        w = w - 0.05 * m


def test_the_draws_of_a_call_are_placed_by_step_and_microbatch(tmp_path: Path) -> None:
    device = ReferenceDevice()
    train(session_of(tmp_path, device, steps=2))
    counters = [(counter.step, counter.microbatch) for _, counter in device.executables[0].calls]
    assert counters == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    hosts = device.executables[1].calls[-1][0]
    assert (hosts["step"], hosts["updates"], hosts["total-steps"]) == (2, 2, 2)


def test_evaluation_runs_when_due_and_after_the_last_step(tmp_path: Path) -> None:
    evaluation = Evaluation(2, "held-out", 5, (Metric("worst", "max", SPAN),), SPAN)
    outcome, path = train(session_of(tmp_path, evaluations=(evaluation,)))
    records = [record for record in read_metrics(path / "metrics.jsonl") if record["kind"] == "eval"]
    assert [record["step"] for record in records] == [2, 4, 5]
    w = load(path / "checkpoints" / "step-00000005").parameters["w"].astype(np.float64)
    x, y = (a.astype(np.float64)[: 5 * BATCH] for a in data())
    assert records[-1]["held-out/loss"] == pytest.approx(float(np.mean((x @ w - y) ** 2)), rel=1e-4)
    assert records[-1]["held-out/worst"] == pytest.approx(float(np.max(x @ w - y)), rel=1e-4)
    assert outcome.evaluations == {k: v for k, v in records[-1].items() if k.startswith("held-out/")}


def test_a_loss_that_is_not_finite_stops_before_the_update_and_names_the_form(tmp_path: Path) -> None:
    session = session_of(tmp_path, lr=1e30)
    with pytest.raises(Error) as caught:
        train(session)
    error = caught.value
    assert error.code == "E-NUM-001"
    assert "at step 2" in error.message
    assert error.span == SPAN
    assert "   = in layer fit, called at fit.sexp:9:1" in error.render()
    after_one = session_of(tmp_path, lr=1e30, steps=1)
    train(after_one)
    np.testing.assert_array_equal(session.model.read_parameters()["w"], after_one.model.read_parameters()["w"])
    np.testing.assert_array_equal(session.model.read_states()["w:m"], after_one.model.read_states()["w:m"])


def test_a_failed_run_says_so_in_its_status(tmp_path: Path) -> None:
    with pytest.raises(Error):
        train(session_of(tmp_path, lr=1e30))
    (path,) = (tmp_path / "runs" / "fit").iterdir()
    status = read_status(path / "status.json")
    assert status is not None
    assert (status.state, status.code) == ("failed", "E-NUM-001")


def test_an_index_out_of_range_stops_before_the_update(tmp_path: Path) -> None:
    device = ReferenceDevice()
    session = session_of(tmp_path, device)
    node = next(node for node in session.step.graphs.training.nodes if node.op == "mul")
    device.executables[0].problems.append(OutOfRange(node.index, 300, 256))
    with pytest.raises(Error) as caught:
        train(session)
    assert caught.value.code == "E-NUM-002"
    assert caught.value.message == "index 300 at step 1 is outside an axis of 256"
    assert caught.value.span == SPAN
    assert session.model.read_parameters()["w"].tolist() == [0.5] * 3


def test_no_steps_leave_the_initial_checkpoint(tmp_path: Path) -> None:
    outcome, path = train(session_of(tmp_path, steps=0))
    assert (outcome.step, outcome.loss) == (0, None)
    made = load(path / "checkpoints" / "step-00000000")
    assert made.parameters["w"].tolist() == [0.5] * 3
    assert (made.state["step"], made.state["seed"]) == (0, 3)


def test_checkpoints_are_kept_by_number_and_the_best_beside_them(tmp_path: Path) -> None:
    evaluation = Evaluation(1, "held-out", None, (), SPAN)
    rule = Checkpoint(every=1, keep=2, best=("held-out/loss", "max"))
    _, path = train(session_of(tmp_path, evaluations=(evaluation,), checkpoint=rule))
    records = [r for r in read_metrics(path / "metrics.jsonl") if r["kind"] == "eval"]
    best = max(records, key=lambda record: record["held-out/loss"])["step"]
    assert sorted(step for step, _ in found(path / "checkpoints")) == sorted({best, 4, 5})


def test_patience_ends_a_run_that_no_longer_improves(tmp_path: Path) -> None:
    evaluation = Evaluation(1, "held-out", None, (), SPAN)
    outcome, path = train(
        session_of(tmp_path, lr=0.0, steps=9, evaluations=(evaluation,), stop=Stop(2, "held-out/loss"))
    )
    assert outcome.step == 3
    status = read_status(path / "status.json")
    assert status is not None
    assert status.state == "done"


def test_the_end_by_patience_is_said_in_words() -> None:
    patience = Patience(Stop(2, "held-out/loss"))
    for loss in (1.0, 1.0, 1.5):
        patience.see({"held-out/loss": loss})
    assert patience.reached
    assert patience.words(7) == "ends after step 7: held-out/loss has not fallen in 2 evaluations (:stop)"


def test_a_nan_is_never_the_best() -> None:
    best = Best(Checkpoint(1, best=("held-out/loss", "min")))
    for step, loss in enumerate((float("nan"), 2.0, float("nan")), start=1):
        best.see({"held-out/loss": loss}, step)
    assert best.step == 2


class StopAtStep(Progress):
    def __init__(self, request: StopRequest, at: int) -> None:
        super().__init__(quiet=True)
        self.request, self.at = request, at

    def step(self, step: int, total: int, record: dict[str, Any]) -> None:
        if step == self.at:
            self.request.exit_code = 130


def test_a_request_to_stop_ends_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    request = StopRequest()
    with pytest.raises(Stopped) as caught:
        train(session_of(tmp_path), request, StopAtStep(request, 2))
    assert caught.value.exit_code == 130
    (path,) = (tmp_path / "runs" / "fit").iterdir()
    assert [step for step, _ in found(path / "checkpoints")] == [2]
    status = read_status(path / "status.json")
    assert status is not None
    assert (status.state, status.step) == ("interrupted", 2)


def test_a_file_stop_is_a_request(tmp_path: Path) -> None:
    request = StopRequest()
    request.watch(tmp_path / "STOP")
    assert not request.asked()
    (tmp_path / "STOP").touch()
    assert request.asked()
    assert request.exit_code == 0


def test_log_every_thins_the_records_and_keeps_the_last(tmp_path: Path) -> None:
    _, path = train(session_of(tmp_path, log_every=2))
    assert [r["step"] for r in read_metrics(path / "metrics.jsonl") if r["kind"] == "step"] == [2, 4, 5]


def test_the_annotations_say_what_was_planned(tmp_path: Path) -> None:
    _, path = train(session_of(tmp_path))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    memory = next(line for line in lines if line.get("name") == "memory")
    assert (memory["parameters"], memory["optimizer"]) == (12, 12)
    parts = ("parameters", "optimizer", "gradients", "constants", "cached", "workspaces", "live")
    assert memory["planned"] == sum(memory[part] for part in parts)
    assert next(line for line in lines if line.get("name") == "checkpoint")["path"] == "step-00000005"


def test_a_run_that_does_not_fit_is_refused_before_any_value_is_drawn(tmp_path: Path) -> None:
    class Small(ReferenceDevice):
        def free_bytes(self) -> int:
            return 100

    with pytest.raises(Error) as caught:
        session_of(tmp_path, Small())
    assert caught.value.code == "E-MEM-001"


@pytest.mark.parametrize("asked", [{"checkpoints": "s3://here/there"}, {"parallel": "jobs"}])
def test_a_setting_that_nothing_reads_yet_is_refused(tmp_path: Path, asked: dict[str, str]) -> None:
    with pytest.raises(Error, match="not available yet") as caught:
        prepare(experiment(tmp_path), settings(tmp_path, **asked), ReferenceDevice())
    assert caught.value.code == "E-RUN-007"


def test_the_report_and_the_last_line_keep_the_form_of_the_devices_page(tmp_path: Path) -> None:
    lines = lowering_report(session_of(tmp_path)).splitlines()
    assert lines[0] == "lowering: reference"
    assert lines[1].startswith("  train                     ")
    assert lines[-2].startswith("  memory                    ")
    assert lines[-1] == "  stacking                  1: a call of the graph is one microbatch"
    assert memory_line(round(2.8 * 2**30), round(2.75 * 2**30)) == "memory: peak 2.8 GiB of 2.8 GiB planned (+1.8%)"


class Disagreeing(SingleRank):
    """A second rank whose rank zero has other bits in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(rank=1, size=2)

    def broadcast(self, value: dict[str, int]) -> dict[str, int]:
        first = next(iter(value))
        return {**value, first: value[first] ^ 1}


def test_ranks_that_disagree_write_no_checkpoint(tmp_path: Path) -> None:
    model = session_of(tmp_path).model
    refuse_disagreement(SingleRank(), model, 7)
    with pytest.raises(Error, match="disagree at step 7") as caught:
        refuse_disagreement(Disagreeing(), model, 7)
    assert caught.value.code == "E-DP-004"
    assert next(iter(model.read_parameters())) in caught.value.message
    assert any("--resume latest continues from the one before" in note for note in caught.value.notes)
