"""`:init`, `--init` and `(from-file …)`: parameters begin as another run's, a checkpoint's or a file's; `:freeze` keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from resumed import run_folder
from safetensors.numpy import load_file, save_file
from test_ranks import environment, mpirun

import sexpgpu
from sexpgpu.cli.check import check_request
from sexpgpu.cli.main import commands
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.train.launch import run
from sexpgpu.train.progress import Progress
from sexpgpu.train.request import Request

FILE = """(defloader digits (builtin "digits" :batch 8))
(deflayer body (x) (relu (linear x 16 :name "up")))
(defun classes (x n) (linear (body x) n :name "head"))
(defrun pretrain :data digits :steps 3 :checkpoint (every 1) :seed 1 EMA
  :loss (cross-entropy (classes x 10) y) :optimizer (adam :lr 0.01))
(defrun tune :data digits :steps 2 :seed 2 :checkpoint (every 1)
  :loss (cross-entropy (classes x 12) y) :optimizer (adam :lr 0.01) OPTIONS)
"""


def example(folder: Path, options: str, ema: str = "") -> Path:
    path = folder / "two.sexp"
    path.write_text(FILE.replace("OPTIONS", options).replace("EMA", ema))
    return path


def pretrained(file: Path, steps: int = 3) -> tuple[Path, dict[str, np.ndarray]]:
    """The checkpoint of a run of `pretrain`, and its parameters."""
    folder = run_folder(file, file.parent / "runs", steps, run="pretrain")
    path = folder / "checkpoints" / f"step-{steps:08d}"
    return path, load_file(path / "params.safetensors")


def begun(file: Path, **options: object) -> dict[str, np.ndarray]:
    """What `tune` begins with: the checkpoint of its step 0."""
    folder = run_folder(file, file.parent / "runs", 0, run="tune", **options)
    return load_file(folder / "checkpoints" / "step-00000000" / "params.safetensors")


def refused(file: Path, **options: object) -> Error:
    with pytest.raises((Error, Diagnostics)) as caught:
        begun(file, **options)
    problem = caught.value
    if isinstance(problem, Diagnostics):
        (problem,) = problem.errors
    assert not list(file.parent.glob("runs/tune/*"))
    return problem


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], *names: str) -> bool:
    return all(a[name].tobytes() == b[name].tobytes() for name in names)


# Where the tensors come from


HEAD_ASIDE = ':init (from pretrain :rename (("head.*" "old-head.*")))'


def test_a_run_begins_with_the_newest_checkpoint_of_another_run_of_the_file(tmp_path: Path) -> None:
    file = example(tmp_path, HEAD_ASIDE)
    pretrained(file, steps=1)
    _, newest = pretrained(file)
    made = begun(file)
    assert same(made, newest, "body.up.weight", "body.up.bias")
    # What it does not have begins as the law and the run's own seed say.
    assert made["head.weight"].shape == (16, 12)
    plain = example(tmp_path, "")
    assert same(made, begun(plain), "head.weight", "head.bias")


@pytest.mark.parametrize("how", ["run folder", "checkpoint", "file", "id", "run's name", "latest"])
def test_a_path_an_id_or_latest_is_found(how: str, tmp_path: Path) -> None:
    file = example(tmp_path, ':init (from "WHERE" :rename (("head.*" "old-head.*")))')
    path, expected = pretrained(file)
    relative = path.relative_to(tmp_path)
    where = {
        "run folder": relative.parent.parent,
        "checkpoint": relative,
        "file": relative / "params.safetensors",
        "id": path.parent.parent.name[:12],
        "run's name": "pretrain",
        "latest": "latest",
    }[how]
    file.write_text(file.read_text().replace("WHERE", str(where)))
    assert same(begun(file), expected, "body.up.weight")


def test_the_flag_replaces_the_source_and_keeps_the_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = example(tmp_path, ':init (from "nowhere" :rename (("head.*" "old-head.*")))')
    path, expected = pretrained(file)
    monkeypatch.chdir(path.parent)
    assert same(begun(file, init=path.name), expected, "body.up.weight")


def test_the_command_line_has_the_flag(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = example(tmp_path, "")
    save_file({"body.up.bias": np.full(16, 0.5, np.float32)}, tmp_path / "one.safetensors")
    flags = ["--init", str(tmp_path / "one.safetensors"), "--out", str(tmp_path / "runs"), "--steps", "0"]
    commands.main(["run", str(file), "--run", "tune", *flags], standalone_mode=False)
    out, err = capfd.readouterr()
    assert "init: 1 of 4 tensors begin as in" in err
    made = load_file(Path(out.strip()) / "checkpoints" / "step-00000000" / "params.safetensors")
    assert (made["body.up.bias"] == 0.5).all()
    commands.main(["check", str(file), "--run", "tune", *flags[:2]], standalone_mode=False)
    assert "init: 1 of 4 tensors begin as in" in capfd.readouterr().out


def test_the_averages_of_a_run_are_taken_unless_raw(tmp_path: Path) -> None:
    file = example(tmp_path, HEAD_ASIDE, ema=":ema 0.5")
    path, raw = pretrained(file)
    averages = load_file(path / "ema.safetensors")
    assert same(begun(file), averages, "body.up.weight")
    file = example(tmp_path, HEAD_ASIDE.replace(")))", ")) :raw true)"), ema=":ema 0.5")
    assert same(begun(file), raw, "body.up.weight")
    assert not same(raw, averages, "body.up.weight")


def test_floats_of_another_dtype_are_widened_or_rounded(tmp_path: Path) -> None:
    weight = np.random.default_rng(1).normal(size=(64, 16))
    bias = np.arange(16).astype(ml_dtypes.bfloat16)
    save_file({"body.up.weight": weight, "body.up.bias": bias}, tmp_path / "other.safetensors")
    made = begun(example(tmp_path, ':init (from "other.safetensors")'))
    np.testing.assert_array_equal(made["body.up.weight"], weight.astype(np.float32))
    np.testing.assert_array_equal(made["body.up.bias"], np.arange(16, dtype=np.float32))


def test_stars_of_a_rename_carry_what_they_matched(tmp_path: Path) -> None:
    arrays = {"net.up.w": np.full((64, 16), 1, np.float32), "net.up.b": np.full(16, 2, np.float32)}
    save_file(arrays, tmp_path / "other.safetensors")
    rename = '(("net.*.w" "body.*.weight") ("net.*.b" "body.*.bias") ("n*" "never.*"))'
    file = example(tmp_path, f':init (from "other.safetensors" :rename {rename})')
    assert "no tensor of" in refused(file).message and "matches n*" in refused(file).message
    made = begun(example(tmp_path, f':init (from "other.safetensors" :rename {rename[:-18]}))'))
    assert (made["body.up.weight"] == 1).all() and (made["body.up.bias"] == 2).all()


def test_python_begins_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = example(tmp_path, HEAD_ASIDE)
    _, expected = pretrained(file)
    monkeypatch.chdir(tmp_path)
    made = sexpgpu.load(file, run="tune")
    assert same(made.init(), expected, "body.up.weight")
    zeros = np.zeros(16, np.float32)
    trainer = made.trainer(device="cpu", parameters={"body.up.bias": zeros})
    assert same(trainer.parameters, {**expected, "body.up.bias": zeros}, "body.up.weight", "body.up.bias")


def test_a_resume_needs_the_source_no_more(tmp_path: Path) -> None:
    file = example(tmp_path, HEAD_ASIDE)
    path, _ = pretrained(file)
    run_folder(file, tmp_path / "runs", 1, run="tune")
    path.rename(path.with_name("gone"))
    folder = run_folder(file, tmp_path / "runs", 2, run="tune", resume="latest")
    assert (folder / "checkpoints" / "step-00000002").is_dir()


def test_two_ranks_begin_with_the_same_checkpoint(tmp_path: Path) -> None:
    file = example(tmp_path, ":microbatches 2 " + HEAD_ASIDE)
    _, expected = pretrained(file)
    words = ["run", str(file), "--run", "tune", "--steps", "0", "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        [mpirun(), "-n", "2", sys.executable, "-m", "sexpgpu", *words],
        env=environment(), capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("init: 2 of 4 tensors begin as in") == 1
    made = load_file(Path(done.stdout.strip()) / "checkpoints" / "step-00000000" / "params.safetensors")
    assert same(made, expected, "body.up.weight")


# What is said, what is refused


def test_the_run_says_what_is_taken_and_what_is_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = example(tmp_path, HEAD_ASIDE + ' :freeze ["head.bias"]')
    path, _ = pretrained(file)
    run(Request(file, run="tune", flags={"out": str(tmp_path / "runs"), "steps": 0}), Progress())
    said = capfd.readouterr().err
    assert f"init: 2 of 4 tensors begin as in {path}\n" in said
    assert "init: not in it, and begin as the file says: head.weight\n" in said
    assert "init: warning: frozen, and not in it: head.bias\n" in said
    assert "init: not used of it: head.bias, head.weight\n" in said
    (settings,) = tmp_path.glob("runs/tune/*/settings.json")
    assert json.loads(settings.read_text())["init"] == str(path)


def test_check_fits_it_or_says_that_it_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = example(tmp_path, HEAD_ASIDE)
    report = check_request(Request(file, run="tune"), False)
    assert "init: not there yet: :init: the run pretrain has no whole checkpoint under runs" in report
    assert "train it first: --run pretrain" in report
    pretrained(file)
    assert "init: 2 of 4 tensors begin as in runs/pretrain/" in check_request(Request(file, run="tune"), False)


def test_a_tensor_of_another_shape_is_refused_with_both_shapes_at_the_form(tmp_path: Path) -> None:
    file = example(tmp_path, "\n:init (from pretrain)")
    pretrained(file)
    with pytest.raises(Diagnostics) as caught:
        begun(file)
    weight, bias = sorted(caught.value.errors, key=lambda error: len(error.message), reverse=True)
    assert weight.code == bias.code == "E-SHAPE-001"
    assert "head.weight of " in weight.message
    assert weight.message.endswith("has shape [16, 10], the parameter head.weight has [16, 12]")
    assert weight.span is not None and (weight.span.line, weight.span.column) == (8, 7)
    assert not list(tmp_path.glob("runs/tune/*"))


@pytest.mark.parametrize(
    ("options", "code", "message", "note"),
    [
        (":init (from pretrian)", "E-NAME-001", "unknown name pretrian", "did you mean pretrain?"),
        (":init (from tune)", "E-RUN-007", ":init: the run tune cannot begin with itself", None),
        (":init (from 3)", "E-RUN-004", ":init: a run or a path must stand here, not the number 3", None),
        (":init pretrain", "E-SYN-001", "(from …) must stand here", None),
        (":init (from pretrain :renames ())", "E-RUN-002", ":init has no key :renames", "did you mean :rename?"),
        (':init (from pretrain :rename ("a" "b"))', "E-SYN-001", ":rename is a list of pairs", None),
        (':init (from pretrain :rename (("a*" "b")))', "E-SYN-001", ":rename: a* and b have not as many *", None),
        (":init (from pretrain :strict 1)", "E-RUN-004", ":strict", None),
    ],
)
def test_a_form_that_is_wrong_is_refused_before_anything_is_read(
    options: str, code: str, message: str, note: str | None, tmp_path: Path
) -> None:
    with pytest.raises(Diagnostics) as caught:
        sexpgpu.load(example(tmp_path, options), run="tune")
    (error,) = caught.value.errors
    assert error.code == code and error.message.startswith(message)
    assert note is None or note in error.notes


@pytest.mark.parametrize(
    ("options", "code", "message", "note"),
    [
        (':init (from "absent.safetensors")', "E-CKPT-002", "init: absent.safetensors is no file", "looked for"),
        (HEAD_ASIDE[:-1] + " :strict true)", "E-CKPT-003", "not the run's parameters alone", "not in it: head.weight"),
        (':init (from pretrain :rename (("bdoy.*" "a.*")))', "E-NAME-001", ":rename: no tensor of", "did you mean body.*?"),
        (':init (from pretrain :rename (("body.up.wieght" "a")))', "E-NAME-001", ":rename", "did you mean body.up.weight?"),
        (':init (from pretrain :rename (("*" "net.*")))', "E-CKPT-003", "none of the run's", "not used of it: body.up"),
        (':init (from pretrain :rename (("body.up.bias" "head.bias")))', "E-CKPT-003", "would both be head.bias", None),
        (':init (from "named.safetensors")', "E-CKPT-003", "none of", 'did you mean :rename (("bdy.up.bias" "body.up.bias"))?'),
        (':init (from "two.sexp")', "E-CKPT-003", "tensors are read from .safetensors files", None),
        (':init (from "torn.safetensors")', "E-CKPT-001", "not a whole .safetensors file", None),
        (':init (from "whole.safetensors")', "E-CKPT-003", "is int32, a parameter begins with floats", None),
    ],
)
def test_a_source_that_does_not_fit_is_refused(
    options: str, code: str, message: str, note: str | None, tmp_path: Path
) -> None:
    file = example(tmp_path, options)
    (tmp_path / "torn.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    save_file({"head.bias": np.zeros(12, np.int32)}, tmp_path / "whole.safetensors")
    save_file({"bdy.up.bias": np.zeros(16)}, tmp_path / "named.safetensors")
    pretrained(file)
    error = refused(file)
    assert error.code == code
    assert message in error.message
    assert note is None or any(note in n for n in error.notes), error.notes


# Tensors of a file, one by one


FROM_FILE = """(defloader digits (builtin "digits" :batch 8))
(defrun r :data digits :steps 1 :checkpoint (every 1) :optimizer (sgd)
  :loss (mean (matmul x (param "w" [64 4]
                          INIT)) :axis -1))
"""


def of_file(folder: Path, init: str) -> Path:
    (folder / "inner").mkdir(exist_ok=True)
    path = folder / "inner" / "from.sexp"
    path.write_text(FROM_FILE.replace("INIT", init))
    return path


def test_a_parameter_begins_with_a_tensor_of_a_file_beside_the_experiment(tmp_path: Path) -> None:
    file = of_file(tmp_path, '(from-file "arrays.safetensors" "net.w")')
    w = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float16)
    save_file({"net.w": w, "other": w}, tmp_path / "inner" / "arrays.safetensors")
    for _ in range(2):  # the second start finds what the first one kept
        folder = run_folder(file, tmp_path / "runs", 0)
        made = load_file(folder / "checkpoints" / "step-00000000" / "params.safetensors")
        np.testing.assert_array_equal(made["w"], w.astype(np.float32))
    np.testing.assert_array_equal(sexpgpu.load(file).init()["w"], w.astype(np.float32))
    assert '"arrays.safetensors" "net.w"' in check_request(Request(file), False).replace(f"{tmp_path}/inner/", "")


@pytest.mark.parametrize(
    ("init", "code", "message", "note"),
    [
        ('(from-file "none.safetensors" "w")', "E-CKPT-002", "there is no file", "looked for"),
        ('(from-file "arrays.safetensors" "net.v")', "E-CKPT-003", "has no tensor net.v", "did you mean net.w?"),
        ('(from-file "arrays.safetensors" "net.b")', "E-SHAPE-001", "has shape [4], the parameter w has [64, 4]", None),
        ('(from-file "arrays.safetensors" "net.i")', "E-CKPT-003", "is int32, a parameter begins with floats", None),
        ('(from-file "arrays.npz" "net.w")', "E-CKPT-003", "tensors are read from .safetensors", None),
    ],
)
def test_a_tensor_that_is_not_there_or_does_not_fit_is_refused_at_its_parameter(
    init: str, code: str, message: str, note: str | None, tmp_path: Path
) -> None:
    file = of_file(tmp_path, init)
    arrays = {"net.w": np.zeros((64, 4)), "net.b": np.zeros(4), "net.i": np.zeros((64, 4), np.int32)}
    save_file(arrays, tmp_path / "inner" / "arrays.safetensors")
    with pytest.raises(Diagnostics) as caught:
        run_folder(file, tmp_path / "runs", 0)
    (error,) = caught.value.errors
    assert error.code == code and message in error.message
    assert error.span is not None and (error.span.line, error.span.column) == (3, 25)
    assert note is None or any(note in n for n in error.notes)


@pytest.mark.parametrize("init", ['(from-file 3 "w")', '(from-file "a.safetensors" nil)', "(from-fiel)"])
def test_a_from_file_that_is_not_well_formed_is_refused(init: str, tmp_path: Path) -> None:
    with pytest.raises(Diagnostics) as caught:
        sexpgpu.load(of_file(tmp_path, init))
    assert caught.value.errors[0].code in ("E-TYPE-001", "E-NAME-001")


def test_a_scalar_begins_with_a_scalar(tmp_path: Path) -> None:
    save_file({"s": np.array(2.5, np.float16)}, tmp_path / "s.safetensors")
    path = tmp_path / "scalar.sexp"
    path.write_text(
        '(defloader digits (builtin "digits" :batch 8))\n'
        "(defrun r :data digits :steps 1 :optimizer (sgd)\n"
        '  :loss (mean (* x (param "s" [] (from-file "s.safetensors" "s"))) :axis -1))\n'
    )
    made = sexpgpu.load(path)
    assert made.init()["s"].shape == () and made.trainer(device="cpu").parameters["s"] == 2.5


# Frozen parameters


def test_a_frozen_parameter_has_no_gradient_and_no_state_and_stays(tmp_path: Path) -> None:
    file = example(tmp_path, ':freeze ["body.*"]')
    trained, frozen = (json.loads(check_request(Request(file, run=run), True)) for run in ("pretrain", "tune"))
    head, body = 4 * (16 * 12 + 12), 4 * (64 * 16 + 16)
    assert frozen["memory"]["optimizer"] == 2 * head
    assert trained["memory"]["optimizer"] == 2 * (body + 4 * (16 * 10 + 10))
    # Parts of the flat memory of gradients begin at cache lines of 64 bytes.
    assert head <= frozen["memory"]["gradients"] <= head + 2 * 64
    assert {p["name"]: p["trained"] for p in frozen["parameters"]} == {
        "body.up.weight": False, "body.up.bias": False, "head.weight": True, "head.bias": True,
    }  # fmt: skip
    assert "decays not trained" in check_request(Request(file, run="tune"), False)
    folder = run_folder(file, tmp_path / "runs", 2, run="tune")
    first, last = begun(file), load_file(folder / "checkpoints" / "step-00000002" / "params.safetensors")
    assert same(first, last, "body.up.weight", "body.up.bias")
    assert not same(first, last, "head.weight")
    states = load_file(folder / "checkpoints" / "step-00000002" / "optimizer.safetensors")
    assert {name.partition(":")[0] for name in states} == {"head.weight", "head.bias"}


@pytest.mark.parametrize(("glob", "near"), [("bdoy.*", "body.*"), ("*.wieght", "*.weight"), ("head.bais", "head.bias")])
def test_a_glob_that_freezes_nothing_is_refused_with_the_nearest(glob: str, near: str, tmp_path: Path) -> None:
    with pytest.raises(Diagnostics) as caught:
        sexpgpu.load(example(tmp_path, f':freeze ["{glob}"]'), run="tune")
    (error,) = caught.value.errors
    assert error.code == "E-NAME-001" and error.message == f":freeze: no parameter matches {glob}"
    assert error.notes == [f"did you mean {near}?"]
