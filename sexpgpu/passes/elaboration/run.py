"""The options of a run as one record, evaluated and checked against each other."""

from __future__ import annotations

from msgspec.structs import replace

from sexpgpu.errors import Error, nearest
from sexpgpu.passes.elaboration.graphs import training_short
from sexpgpu.passes.elaboration.inheriting import init_of
from sexpgpu.passes.elaboration.loaders import Loaders
from sexpgpu.passes.elaboration.options import NEEDED_KEYS, PRECISIONS, Options
from sexpgpu.passes.experiment import RunOptions


def run_options(reader: Options, loaders: Loaders, steps: int | None, ranks: int) -> RunOptions | None:
    """The options of the run; None where there is no data to elaborate it on."""
    machine, keys = reader.machine, reader.keys
    if steps is not None:
        keys.pop("epochs", None)
    for one, other in (("steps", "epochs"), ("microbatches", "global-batch")):
        if one in keys and other in keys:
            machine.report(Error("E-RUN-003", f":{one} and :{other} exclude each other", keys.pop(other).span))
    step_count = steps if steps is not None else reader.read("steps", reader.count("steps", 0), None)
    epochs = reader.read("epochs", reader.count("epochs", 1), None)
    if steps is None and "steps" not in keys and "epochs" not in keys:
        message = f"the run {reader.run.name} has neither :steps nor :epochs"
        machine.report(Error("E-RUN-001", message, reader.run.form.span, notes=[NEEDED_KEYS]))
    global_batch = reader.read("global-batch", reader.count("global-batch", 1), None)
    loaders.default_batch = None if global_batch is None else -(-global_batch // ranks)
    microbatches = reader.read("microbatches", reader.count("microbatches", 1), None if global_batch else 1)
    data = reader.guarded(lambda: loaders.named(reader.need("data"), ":data"), None)
    made = RunOptions(
        data=data or "",
        steps=step_count,
        epochs=epochs,
        microbatches=microbatches,
        global_batch=global_batch,
        clip_grad_norm=reader.read("clip-grad-norm", reader.limit, None),
        precision=reader.read("precision", lambda form: reader.word(form, PRECISIONS, ":precision"), "off"),
        ema=reader.read("ema", reader.fraction("ema"), None),
        evaluations=reader.evaluations(),
        checkpoint=reader.checkpoint(),
        stop=reader.stop(),
        diagnostics=reader.diagnostics(),
        log_every=reader.read("log-every", reader.count("log-every", 1), 1),
        sum_lanes=reader.read("sum-lanes", reader.count("sum-lanes", 1), None),
        seed=reader.read("seed", reader.count("seed", 0), 0),
        init=reader.read("init", lambda form: init_of(reader, form), None),
    )
    reader.guarded(lambda: _refuse_unrecorded(reader, made), None)
    header = loaders.header(data) if data is not None else None
    for key in ("loss", "optimizer"):
        reader.guarded(lambda k=key: reader.need(k), None)  # type: ignore[misc]
    if header is None:
        return None
    by_ranks = data in loaders.without_batch and global_batch is not None
    return replace(made, short=training_short(made, header, loaders.spec(data or "")), batch_by_ranks=by_ranks)


def _refuse_unrecorded(reader: Options, made: RunOptions) -> None:
    """`:best` and `:stop` look at what an evaluation writes: a misspelt record would never choose, never stop."""
    written = [f"{e.loader}/{name}" for e in made.evaluations for name in ("loss", *(m.name for m in e.metrics))]
    wanted = {
        "checkpoint": made.checkpoint.best[0] if made.checkpoint and made.checkpoint.best else None,
        "stop": made.stop.record if made.stop else None,
    }
    for key, record in wanted.items():
        if record is not None and record not in written:
            close = nearest(record, written)
            notes = [f"did you mean {close}?" if close else f":eval writes: {', '.join(written) or 'nothing'}"]
            reader.machine.report(Error("E-NAME-001", f"no evaluation writes {record}", reader.keys[key].span, notes=notes))
