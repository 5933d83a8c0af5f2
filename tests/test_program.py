"""Programs: includes, variants, --set, what wins over what."""

from __future__ import annotations

from pathlib import Path

import pytest
from elaborating import LOADER, elaborated, errors_of, header_of, names, run_of

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.ir.host import evaluate
from sexpgpu.lang.program import load_program
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.passes.experiment import Experiment

WIDTHS = run_of(
    '(* (sum (param "w" [n] zeros)) lr x)',
    "(defhyper n 4) (defhyper lr 0.5) (defhyper name \"a\") (defvariant small (n 2)) (defvariant tiny (n 1) (run :seed 9))",
)  # fmt: skip


def size(experiment: Experiment) -> int:
    return experiment.parameters[0].shape[0]


def folder_errors(path: Path, **keywords: object) -> list[Error]:
    try:
        elaborate(load_program(path, **keywords), header_of)  # type: ignore[arg-type]
    except Diagnostics as problems:
        return problems.errors
    raise AssertionError("no problem was found")


def test_a_variant_replaces_a_hypers_default() -> None:
    assert size(elaborated(WIDTHS, variants=["small"])) == 2


def test_the_later_variant_wins() -> None:
    assert size(elaborated(WIDTHS, variants=["tiny", "small"])) == 2


def test_set_wins_over_variants() -> None:
    assert size(elaborated(WIDTHS, variants=["small"], sets=["n=7"])) == 7


def test_a_variant_may_hold_options_of_the_run_and_set_wins_over_them() -> None:
    assert elaborated(WIDTHS, variants=["tiny"]).options.seed == 9
    assert elaborated(WIDTHS, variants=["tiny"], sets=["run.seed=3"]).options.seed == 3


def test_set_of_steps_takes_the_place_of_epochs() -> None:
    text = run_of("x", rest=":epochs 3")
    options = elaborated(text, sets=["run.steps=5"]).options
    assert (options.steps, options.epochs) == (5, None)


def test_steps_given_by_the_caller_win_over_the_file() -> None:
    from sexpgpu.lang.program import program_of
    from sexpgpu.source import Source

    made = elaborate(program_of(Source("e.sexp", run_of("x", rest=":epochs 3"))), header_of, steps=0)
    assert (made.options.steps, made.options.epochs) == (0, None)


def test_an_integer_hyper_set_to_a_float_becomes_one() -> None:
    text = run_of("(* x k)", "(defhyper k 2)")
    hosts = [n.attributes["expression"] for n in elaborated(text, sets=["k=2.5"]).training.nodes if n.op == "host"]
    assert hosts == [("hyper", "k", 2.5)]


def test_a_float_hyper_set_to_an_integer_stays_a_float() -> None:
    hosts = [n.attributes["expression"] for n in elaborated(WIDTHS, sets=["lr=2"]).training.nodes if n.op == "host"]
    assert hosts == [("hyper", "lr", 2.0)] and isinstance(hosts[0][2], float)


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("n=true", "E-RUN-004"), ('n="a"', "E-RUN-004"), ("m=1", "E-NAME-006"), ("run.stepz=1", "E-RUN-002"),
        ("n", "E-RUN-004"), ("n=1 2", "E-RUN-004"), ("n=(", "E-READ-001"), ("run.seed=x", "E-NAME-001"),
    ],
)  # fmt: skip
def test_a_wrong_set_is_an_error_at_the_command_line(setting: str, code: str) -> None:
    error = errors_of(WIDTHS, sets=[setting])[0]
    assert error.code == code and error.span is not None and error.span.source.name == "<command line>"


def test_a_wrong_set_shows_what_it_replaces() -> None:
    assert errors_of(WIDTHS, sets=["n=true"])[0].notes == ["replaces (defhyper n 4) at e.sexp:2:1"]


def test_a_text_hyper_needs_no_quotes_on_the_command_line() -> None:
    text = run_of("x", '(defhyper path "d.npz")', loader="(defloader d (arrays path :batch 8))")
    spec = elaborated(text, sets=["path=/data/x.npz"]).loaders["d"]
    assert spec.paths == ("/data/x.npz",)


def test_paths_are_relative_to_the_file_and_to_the_folder_one_is_in_where_they_were_typed(tmp_path: Path) -> None:
    text = run_of("x", '(defhyper path "d.npz")', loader="(defloader d (arrays path :batch 8))")
    (tmp_path / "e.sexp").write_text(text)
    bases = [
        elaborate(load_program(tmp_path / "e.sexp", sets=sets), header_of).loaders["d"].base
        for sets in ([], ["path=e.npz"])
    ]
    assert bases == [tmp_path, Path()]


def test_an_unknown_variant_suggests_the_nearest() -> None:
    (error,) = errors_of(WIDTHS, variants=["smal"])
    assert error.code == "E-NAME-006" and error.notes == ["did you mean small?"]


def test_a_file_with_several_runs_needs_a_choice() -> None:
    text = run_of("x") + "\n(defrun s :data d :loss (* x 2) :optimizer (sgd) :steps 2)"
    (error,) = errors_of(text)
    assert error.code == "E-RUN-005" and "r, s" in error.message
    assert elaborated(text, run="s").options.steps == 2
    assert errors_of(text, run="t")[0].code == "E-RUN-005"


def test_definitions_see_each_other_in_any_order() -> None:
    made = elaborated(run_of("(f x)", "(defun f (x) (* x (g b)))\n(def b (* 2 c))\n(defun g (y) y)\n(defhyper c 3)"))
    constants = [n.attributes["value"] for n in made.training.nodes if n.op == "constant"]
    assert 6.0 in constants


def test_a_users_definition_shadows_the_preludes_in_the_users_files_only() -> None:
    # rmsnorm of the prelude goes on using the prelude's own mean.
    text = run_of("(* (mean x) (rmsnorm x))", "(defun mean (x) 2)")
    made = elaborated(text)
    body = next(n.attributes["body"] for n in made.training.nodes if n.op == "region")
    assert [n.op for n in body.nodes].count("sum") == 1
    assert 2.0 in [n.attributes["value"] for n in made.training.nodes if n.op == "constant"]


def test_an_include_stands_for_the_forms_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "layer.sexp").write_text('(include "more.sexp") (deflayer l (x) (* x (more)))')
    (tmp_path / "parts" / "more.sexp").write_text('(defun more () (param "w" [64] zeros))')
    (tmp_path / "main.sexp").write_text('(include "parts/layer.sexp")\n' + run_of("(l x)"))
    assert names(elaborate(load_program(tmp_path / "main.sexp"), header_of)) == ["l.w"]


def test_a_cycle_of_includes_shows_the_chain(tmp_path: Path) -> None:
    for name, other in (("a", "b"), ("b", "c"), ("c", "a")):
        (tmp_path / f"{name}.sexp").write_text(f'(include "{other}.sexp")')
    (error,) = folder_errors(tmp_path / "a.sexp")
    a, b, c = (tmp_path / f"{name}.sexp" for name in "abc")
    assert error.code == "E-READ-007" and error.notes == [f"{a} → {b} → {c} → {a}"]
    assert error.span is not None and error.span.source.path == c


def test_an_include_outside_the_main_files_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.sexp").write_text("(def a 1)")
    (tmp_path / "inner").mkdir()
    main = tmp_path / "inner" / "main.sexp"
    main.write_text('(include "../other.sexp")\n' + run_of("x"))
    (error,) = folder_errors(main)
    assert error.code == "E-READ-007" and error.span is not None and error.span.line == 1
    assert elaborate(load_program(main, allow_outside=True), header_of).name == "r"


def test_a_link_out_of_the_folder_is_outside(tmp_path: Path) -> None:
    (tmp_path / "other.sexp").write_text("(def a 1)")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "link.sexp").symlink_to(tmp_path / "other.sexp")
    (tmp_path / "inner" / "main.sexp").write_text('(include "link.sexp")\n' + run_of("x"))
    (error,) = folder_errors(tmp_path / "inner" / "main.sexp")
    assert error.code == "E-READ-007"


def test_a_missing_include_is_an_error_at_its_text(tmp_path: Path) -> None:
    (tmp_path / "main.sexp").write_text('(include "none.sexp")\n' + run_of("x"))
    (error,) = folder_errors(tmp_path / "main.sexp")
    assert error.code == "E-READ-006" and error.span is not None and error.span.column == 10


def test_more_than_64_includes_are_refused(tmp_path: Path) -> None:
    for k in range(66):
        (tmp_path / f"f{k}.sexp").write_text(f"(def a{k} 1)")
    (tmp_path / "main.sexp").write_text("".join(f'(include "f{k}.sexp")\n' for k in range(66)) + run_of("x"))
    errors = folder_errors(tmp_path / "main.sexp")
    assert [e.span.line for e in errors if e.span] == [65, 66] and {e.code for e in errors} == {"E-READ-007"}


def test_a_schedule_is_computed_on_the_host() -> None:
    text = run_of('(* x (param "w" [64] ones))', "(defhyper lr 0.1)", ":steps 10",
                  "(adamw :lr (warmup-cosine step :peak lr :warmup 4 :total total-steps))")  # fmt: skip
    rate = elaborated(text).learning_rate
    assert rate is not None
    values = [evaluate(rate, {"step": s, "total-steps": 10}) for s in (1, 4, 7, 10)]
    # P·s/W up to W, then half of a cosine down to 0.1·P.
    assert values == pytest.approx([0.025, 0.1, 0.1 * (0.1 + 0.9 * 0.5), 0.01])


def test_the_default_learning_rate_of_an_optimizer_is_known() -> None:
    assert elaborated(run_of('(* x (param "w" [64] ones))', optimizer="(adamw)")).learning_rate == ("number", 1e-3)


def test_loader_lines_have_a_spec_with_all_they_say() -> None:
    split = ":split (train 0.9 val 0.1) :part val :order file :limit 3"
    text = f'(defloader d (text ["a" "b"] :tokenizer (bytes) :seq 6 :batch 2 {split}))'
    spec = elaborated(text + '\n(defrun r :data d :loss (cast tokens f32) :optimizer (sgd) :steps 1)').loaders["d"]
    assert (spec.paths, spec.tokenizer, spec.seq, spec.batch) == (("a", "b"), ("bytes",), 6, 2)
    assert (spec.split, spec.part, spec.order, spec.limit) == ((("train", 0.9), ("val", 0.1)), "val", "file", 3)
    assert spec.name == "d" and spec.span is not None and spec.span.text.startswith("(text")


def test_every_option_of_a_run_is_evaluated() -> None:
    rest = """:steps (* 2 3) :microbatches 2 :clip-grad-norm c :precision off :ema 0.99 :log-every 5 :sum-lanes 8 :seed 1
      :eval [(every 2 d :batches 1 :metrics [m]) (every 3 d)] :checkpoint (every 4 :keep 3 :best d/loss min :to "x")
      :stop (patience 5 d/loss) :diagnostics [n]"""
    text = run_of("x", "(defhyper c 1.0) (defmetric m :reduce max x) (defdiagnostic n :every 2 x)", rest)
    options = elaborated(text).options
    assert (options.steps, options.microbatches, options.ema, options.log_every) == (6, 2, 0.99, 5)
    assert (options.sum_lanes, options.seed, options.clip_grad_norm) == (8, 1, ("hyper", "c", 1.0))
    assert [(e.every, e.batches, [m.reduce for m in e.metrics]) for e in options.evaluations] == [(2, 1, ["max"]), (3, None, [])]
    checkpoint, stop = options.checkpoint, options.stop
    assert checkpoint is not None and stop is not None
    assert (checkpoint.every, checkpoint.keep, checkpoint.best, checkpoint.to) == (4, 3, ("d/loss", "min"), "x")
    assert (stop.patience, stop.record, options.diagnostics) == (5, "d/loss", ("n",))


def test_loaders_are_found_by_name_alone() -> None:
    assert LOADER in run_of("x") and elaborated(run_of("x")).options.data == "d"
