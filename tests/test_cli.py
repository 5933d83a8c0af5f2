"""The command line: words, exit codes, what goes to stdout and stderr. Runs are on the device that is NumPy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from reference_device import ReferenceDevice

import sexpgpu
from sexpgpu.cli import main as cli
from sexpgpu.train.metrics import read_metrics

FILE = """
(defhyper lr 0.01)
(defhyper batch 32)
(defloader digits (builtin "digits" :batch batch))
(defoptimizer plain (p g &key (lr 0.1)) (- p (* lr g)))
(defrun fit
  :data         digits
  :loss         (sum (square (- (matmul x (param "w" [64 10] (normal 0.02))) 0.5)) :axis -1)
  :optimizer    (plain :lr lr)
  :microbatches 2
  :steps        3)
(defvariant small (batch 8))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as the working one, without any of our variables, and runs on NumPy."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SEXPGPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SEXPGPU_CACHE", str(tmp_path / "cache"))

    def open_reference(choice: Any, settings: Any) -> ReferenceDevice:
        if choice.kind == "cuda":
            return real(choice, settings)  # type: ignore[return-value]
        return ReferenceDevice()

    from sexpgpu.cli import check
    from sexpgpu.device import open_device as real
    from sexpgpu.train import launch

    monkeypatch.setattr(launch, "open_device", open_reference)
    monkeypatch.setattr(check, "open_device", open_reference)
    (tmp_path / "fit.sexp").write_text(FILE)
    return tmp_path


Said = tuple[int, str, str]


@pytest.fixture
def sexpgpu_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`sexpgpu WORDS…` in this process: exit code, stdout, stderr."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["sexpgpu", *words])
        with pytest.raises(SystemExit) as ended:
            cli.start()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def test_a_run_prints_its_folder_on_stdout_and_words_on_stderr(sexpgpu_command: Any) -> None:
    code, out, err = sexpgpu_command("run", "fit.sexp")
    assert code == 0
    path = Path(out.strip())
    assert path.parent == Path("runs/fit")
    lines = err.splitlines()
    assert lines[0] == f"sexpgpu {sexpgpu.__version__}: fit.sexp"
    assert lines[1].startswith("experiment  fit (fit.sexp), hash ")
    assert any(line.startswith("step 3/3  loss ") for line in lines)
    assert lines[-2] == f"results: {path}"
    assert lines[-1].startswith("memory: peak ")


def test_the_run_folder_says_everything(sexpgpu_command: Any) -> None:
    _, out, err = sexpgpu_command("run", "fit.sexp", "--variant", "small", "lr=0.02")
    path = Path(out.strip())
    names = {p.name for p in path.iterdir()}
    wanted = (
        "experiment.sexp settings.json env.json graph.txt lowering.txt metrics.jsonl status.json log.txt checkpoints"
    )
    assert set(wanted.split()) <= names
    assert (path / "experiment.sexp").read_text() == FILE
    settings = json.loads((path / "settings.json").read_text())
    assert settings["hypers"] == {"lr": "0.02", "batch": "8"}
    assert settings["settings"]["device"] == {"value": "cpu", "from": "default"}
    assert json.loads((path / "status.json").read_text())["state"] == "done"
    assert (path / "log.txt").read_text() == err
    assert sorted(p.name for p in (path / "checkpoints" / "step-00000003").iterdir()) == sorted(
        "params.safetensors optimizer.safetensors state.json manifest.json experiment.sexp settings.json graph.txt".split()
    )


def test_includes_are_flattened_into_the_run_folder(sexpgpu_command: Any, here: Path) -> None:
    (here / "part.sexp").write_text("(defhyper lr 0.5) ; far\n")
    (here / "whole.sexp").write_text('; first\n(include "part.sexp")\n' + FILE.replace("(defhyper lr 0.01)", ""))
    _, out, _ = sexpgpu_command("run", "whole.sexp")
    text = (Path(out.strip()) / "experiment.sexp").read_text()
    assert "(defhyper lr 0.5) ; far" in text
    assert "include" not in text
    assert text.startswith("; first\n")


def test_words_with_an_equals_sign_set_hypers_and_run_options(sexpgpu_command: Any) -> None:
    _, out, _ = sexpgpu_command("run", "fit.sexp", "run.microbatches=1", "lr=0.5", "--steps", "2", "--name", "other")
    records = [r for r in read_metrics(Path(out.strip()) / "metrics.jsonl") if r["kind"] == "step"]
    assert [(r["step"], r["train/lr"]) for r in records] == [(1, 0.5), (2, 0.5)]
    assert Path(out).parent.name == "other"


def test_json_gives_the_outcome_as_one_object(sexpgpu_command: Any) -> None:
    code, out, err = sexpgpu_command("run", "fit.sexp", "--json", "--quiet")
    made = json.loads(out)
    assert (code, err, made["step"]) == (0, "", 3)
    assert made["train/loss"] > 0


def test_without_a_file_experiment_sexp_here_is_taken(sexpgpu_command: Any, here: Path) -> None:
    (here / "fit.sexp").rename(here / "experiment.sexp")
    code, out, _ = sexpgpu_command("run")
    assert code == 0
    assert Path(out).parent.name == "fit"


def test_without_any_file_the_builtin_example_is_taken_and_said(sexpgpu_command: Any) -> None:
    _, _, err = sexpgpu_command("run", "--device", "cuda")
    assert err.splitlines()[0] == "no FILE and no experiment.sexp here: the built-in example at its smoke variant"
    assert "builtin.sexp, variant smoke" in err.splitlines()[1]


def test_the_same_seed_gives_the_same_records_and_parameters(sexpgpu_command: Any) -> None:
    paths = [Path(sexpgpu_command("run", "fit.sexp", "--seed", seed)[1].strip()) for seed in ("7", "7", "8")]
    records = []
    for path in paths:
        steps = [r for r in read_metrics(path / "metrics.jsonl") if r["kind"] == "step"]
        records.append([{k: v for k, v in r.items() if k.startswith("train/")} for r in steps])
    parameters = [(path / "checkpoints/step-00000003/params.safetensors").read_bytes() for path in paths]
    assert records[0] == records[1] != records[2]
    assert parameters[0] == parameters[1] != parameters[2]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("run", "--stpes", "3"), 2, "--steps"),
        (("rnu",), 2, "Did you mean 'run'?"),
        (("run", "a.sexp", "b.sexp"), 2, "one FILE, not 2"),
        (("show", "fit.sexp"), 2, "which stage?"),
        (("run", "nowhere.sexp"), 1, "error[E-READ-006]"),
        (("run", "fit.sexp", "lrr=1"), 1, "did you mean lr?"),
        (("run", "fit.sexp", "--variant", "tiny"), 1, "error[E-NAME-006]"),
        (("run", "fit.sexp", "--steps", "many"), 1, "--steps=many is not a whole number"),
        (("run", "fit.sexp", "--device", "tpu"), 1, "--device=tpu is not a device"),
        (("run", "fit.sexp", "--run", "other"), 1, "error[E-RUN-005]"),
        (("explain", "E-SHAPE-999"), 1, "error[E-RUN-006]"),
    ],
)
def test_a_users_mistake_ends_with_its_code_and_no_traceback(
    sexpgpu_command: Any, words: tuple[str, ...], code: int, message: str
) -> None:
    ended, out, err = sexpgpu_command(*words)
    assert ended == code
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_cuda_that_cannot_be_had_stops_and_never_runs_on_the_cpu(sexpgpu_command: Any, here: Path) -> None:
    code, _, err = sexpgpu_command("run", "fit.sexp", "--device", "cuda")
    assert code == 1
    assert "error[E-DEV-001]: device cuda cannot be used here" in err
    assert "needs sexpgpu-linux-cuda, or pip install 'sexpgpu[cuda]' on Linux" in err
    assert not (here / "runs").exists()


def test_auto_takes_the_cpu_and_says_why(sexpgpu_command: Any) -> None:
    code, _, err = sexpgpu_command("run", "fit.sexp", "--device", "auto")
    assert code == 0
    assert "device auto: cpu, because " in err


def test_a_smoke_variant_that_is_not_there_gets_the_line_of_the_devices_page(sexpgpu_command: Any) -> None:
    code, _, err = sexpgpu_command("run", "fit.sexp", "--variant", "smoke")
    assert code == 1
    assert "variants: small" in err or "did you mean small?" in err
    assert "no smoke variant: check it on the GPU with sexpgpu run fit.sexp --device cuda --steps 3" in err


def test_a_variable_that_is_misspelt_gets_a_line(sexpgpu_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_THREDS", "1")
    _, _, err = sexpgpu_command("run", "fit.sexp")
    assert "SEXPGPU_THREDS is no setting; did you mean SEXPGPU_THREADS?" in err


def test_several_ranks_are_refused(sexpgpu_command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "2")
    code, _, err = sexpgpu_command("run", "fit.sexp")
    assert code == 1
    assert "error[E-DEV-002]: PMI_SIZE=2" in err


def test_explain_config_prints_every_setting_and_runs_nothing(sexpgpu_command: Any, here: Path) -> None:
    code, out, _ = sexpgpu_command("run", "fit.sexp", "--explain-config", "--steps", "9")
    assert code == 0
    assert next(line.split()[:3] for line in out.splitlines() if line.startswith("steps")) == ["steps", "9", "flag"]
    assert not (here / "runs").exists()


def test_check_prints_parameters_cost_memory_and_how_to_try(sexpgpu_command: Any) -> None:
    code, out, _ = sexpgpu_command("check", "fit.sexp")
    assert code == 0
    assert out.startswith("fit.sexp: no errors\n")
    assert "w          64 10      640  normal 0.02  decays" in out
    # x w and xᵀ dy, two microbatches of 32: 2 · 2 · 2 · 32 · 64 · 10
    assert "a step: 64 examples, 0.000 GFLOP in products; 3 steps" in out
    assert out.splitlines()[-1] == "try it: sexpgpu run fit.sexp --steps 3 --device cpu"


def test_check_as_json_holds_the_same(sexpgpu_command: Any) -> None:
    made = json.loads(sexpgpu_command("check", "fit.sexp", "--json")[1])
    assert made["errors"] == []
    assert made["step"] == {"flops": 2 * 2 * 2 * 32 * 64 * 10, "tokens": 64, "unit": "examples"}


def test_check_of_a_file_with_a_smoke_variant_names_it(sexpgpu_command: Any, here: Path) -> None:
    (here / "fit.sexp").write_text(FILE.replace("defvariant small", "defvariant smoke"))
    out = sexpgpu_command("check", "fit.sexp")[1]
    assert out.splitlines()[-1] == "try it: sexpgpu run fit.sexp --variant smoke --steps 3 --device cpu"


def test_check_of_a_large_file_without_smoke_sends_it_to_the_gpu(
    sexpgpu_command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sexpgpu.train import cost

    monkeypatch.setattr(cost, "CPU_FLOPS_PER_THREAD", 1.0)
    out = sexpgpu_command("check", "fit.sexp")[1]
    wanted = "no smoke variant: check it on the GPU with sexpgpu run fit.sexp --device cuda --steps 3"
    assert out.splitlines()[-1] == wanted
    assert wanted in sexpgpu_command("run", "fit.sexp")[2]


def test_check_warns_of_a_table_that_is_smaller_than_the_vocabulary(sexpgpu_command: Any, here: Path) -> None:
    text = """
(defloader d (builtin "text" :tokenizer (bytes) :seq 8 :batch 4))
(defrun r :data d :steps 3 :optimizer (sgd :lr 0.1)
  :loss (cross-entropy (embed (param "t" [10 256] (normal 0.02)) tokens) targets))
"""
    (here / "small.sexp").write_text(text)
    assert "warning: small.sexp:4:24: a table of 10 for tokens below 256" in sexpgpu_command("check", "small.sexp")[1]
    (here / "small.sexp").write_text(text.replace("[10 256]", "[256 256]"))
    assert "warning" not in sexpgpu_command("check", "small.sexp")[1]


def test_check_says_which_names_of_the_prelude_a_file_replaces(sexpgpu_command: Any, here: Path) -> None:
    (here / "own.sexp").write_text(f"(defun gelu (x) x)\n(defun exp (x) x)\n(def mine 1)\n{FILE}")
    out = sexpgpu_command("check", "own.sexp")[1]
    assert "warning: own.sexp:1:8: gelu replaces the prelude's in your files" in out
    assert "warning: own.sexp:2:8: exp replaces the prelude's in your files" in out
    assert out.count("warning") == 2


def test_the_experiment_in_the_readme_is_whole(sexpgpu_command: Any, here: Path) -> None:
    text = (Path(__file__).parent.parent / "README.md").read_text()
    (here / "readme.sexp").write_text(text.split("```lisp\n")[1].split("```")[0])
    code, out, err = sexpgpu_command("check", "readme.sexp")
    assert code == 0, err
    assert "classifier.hidden.weight" in out


def test_check_reports_every_problem_of_a_file(sexpgpu_command: Any, here: Path) -> None:
    (here / "bad.sexp").write_text(FILE.replace("matmul x", "matmull x").replace(":steps", ":stepps"))
    code, out, err = sexpgpu_command("check", "bad.sexp", "--json")
    assert code == 1
    problems = json.loads(out)["errors"]
    assert {problem["code"] for problem in problems} >= {"E-NAME-001", "E-RUN-002"}
    assert all(problem["line"] > 1 for problem in problems)
    assert err.count("error[") == len(problems)


@pytest.mark.parametrize(
    ("stage", "words"),
    [("ast", "(defhyper lr 0.01)"), ("ir", "return loss="), ("grad", "gradient:w=")],
)
def test_show_prints_a_stage(sexpgpu_command: Any, stage: str, words: str) -> None:
    code, out, _ = sexpgpu_command("show", "fit.sexp", stage)
    assert code == 0
    assert words in out


def test_explain_prints_one_code_or_the_list(sexpgpu_command: Any) -> None:
    assert sexpgpu_command("explain", "E-SHAPE-002")[1].startswith("E-SHAPE-002: ")
    assert "E-DP-001" in sexpgpu_command("explain")[1]


HELD = """
import sys, time
sys.path[:0] = sys.argv[2:]
from reference_device import ReferenceDevice
from sexpgpu.train import launch, loop
launch.open_device = lambda choice, settings: ReferenceDevice()
slow = loop.Training._step
def step(self, number):
    slow(self, number)
    time.sleep(0.05)
loop.Training._step = step
sys.argv = ["sexpgpu", "run", "fit.sexp", "--steps", "100000"]
from sexpgpu.cli.main import start
start()
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_after_the_step_and_sets_the_exit_code(here: Path, number: signal.Signals, code: int) -> None:
    root = Path(__file__).parent
    command = [sys.executable, "-c", HELD, "", str(root), str(root.parent)]
    process = subprocess.Popen(command, cwd=here, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    threading.Timer(60, process.kill).start()
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("step ") and " 1/100000 " in line:
            break
    time.sleep(0.1)
    process.send_signal(number)
    try:
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == code
    assert f"{number.name}: stopping after this step" in err
    assert "Traceback" not in err
    (status,) = here.glob("runs/fit/*/status.json")
    state = json.loads(status.read_text())
    assert state["state"] == "interrupted"
    assert (status.parent / "checkpoints" / f"step-{state['step']:08d}" / "manifest.json").is_file()
