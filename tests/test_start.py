"""Starts kept: a warm start says and writes what a cold one does, and whatever decides a start makes it new."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.ir.facts import LateGraph, facts_of
from sexpgpu.ir.graph import Origin
from sexpgpu.ir.text import print_graph
from sexpgpu.train import start as starts
from sexpgpu.train.request import Request, early_settings
from sexpgpu.train.session import graphs_of
from sexpgpu.train.start import Start, Starts, fresh

EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
FILE = """
(defhyper width 24)
(defloader digits (builtin "digits" :batch 16))
(defrun fit
  :data      digits
  :loss      (cross-entropy (linear (relu (linear x width :name "hidden")) 10 :name "logits") y)
  :optimizer (adamw :lr 1e-2)
  :steps     2
  :eval      (every 2 digits :batches 2))
(defvariant small (width 8))
"""
# Imported by a start that elaborates.
ELABORATION = ("sexpgpu.lang.program", "sexpgpu.passes.elaborate", "sexpgpu.passes.pipeline", "sexpgpu.plan.build")
PROGRAM = f"""
import os, sys
from sexpgpu.__main__ import main
try:
    main()
finally:
    print(len(os.listdir("/proc/self/task")))
    print([name for name in {ELABORATION} if name in sys.modules])
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the file, as the working one; starts are its own, kernels the session's."""
    monkeypatch.chdir(tmp_path)
    kernels = Path(os.environ["PYTEST_KERNEL_CACHE"]) / "kernels"
    kernels.mkdir(mode=0o700, exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(kernels)
    monkeypatch.setenv("SEXPGPU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "fit.sexp").write_text(FILE)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "run", *words]


def run(*words: str, file: str = "fit.sexp") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(file, *words), capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def imported(done: subprocess.CompletedProcess[str]) -> list[str]:
    found: list[str] = json.loads(done.stdout.splitlines()[-1].replace("'", '"'))
    return found


def entries() -> list[Path]:
    return sorted(Path("cache/starts").glob("*.start"))


def timeless(text: str) -> str:
    """Without what differs between any two runs: times, the run's id, free memory, processes."""
    text = re.sub(r"\d{8}-\d{6}-([0-9a-f]{8})(-\d+)?", r"ID-\1", text)
    text = re.sub(r'"(time|throughput/tokens_per_s|runtime/step_ms|free|pid|eta)": ?[-\d.e+]+', r'"\1":N', text)
    text = re.sub(r"[\d,.]+ (examples|tokens)/s +[\d,.]+ m?s", r"N \1/s N ms", text)
    return re.sub(r"[\d.]+ [KMG]iB free", "N free", text)


def files_of(out: str) -> dict[str, str | bytes]:
    """Content by path of everything in the run folder."""
    (folder,) = Path(out).glob("*/*")
    read: dict[str, str | bytes] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, content = str(path.relative_to(folder)), path.read_bytes()
        read[name] = content if path.suffix == ".safetensors" else timeless(content.decode())
    return read


def test_a_warm_start_writes_and_says_what_a_cold_one_does_and_elaborates_nothing(here: Path) -> None:
    made, said = [], []
    for _ in range(2):
        done = run("--variant", "small", "--out", "runs")
        assert done.returncode == 0, done.stderr
        made.append(files_of("runs"))
        said.append((timeless(done.stderr), timeless(done.stdout.splitlines()[0])))
        shutil.rmtree("runs")
    assert imported(done) == [] and len(entries()) == 1
    assert said[0] == said[1]
    assert made[0].keys() == made[1].keys() and "graph.txt" in made[0]
    assert made[0] == made[1]


def test_a_warm_start_names_the_form_that_first_went_wrong_as_a_cold_one_does(here: Path) -> None:
    Path("bad.sexp").write_text(FILE.replace("(relu ", "(log "))
    cold, warm = run(file="bad.sexp"), run(file="bad.sexp")
    assert cold.returncode == warm.returncode == 1
    assert "error[E-NUM-001]" in warm.stderr and "bad.sexp:6:" in warm.stderr
    assert timeless(warm.stderr) == timeless(cold.stderr)
    assert imported(warm) != []


def test_times_of_a_warm_start_name_the_forms_of_the_file(here: Path) -> None:
    cold, warm = run("--timings"), run("--timings")

    def forms(done: subprocess.CompletedProcess[str]) -> set[str]:
        return set(re.findall(r"fit\.sexp:\d+(?::\d+)?", done.stderr))

    assert forms(warm) and forms(warm) == forms(cold)


def test_a_run_has_no_other_threads_than_its_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_THREADS", "1")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    assert run().stdout.splitlines()[-2] == "1"


def test_two_starts_at_once_leave_each_other_alone(here: Path) -> None:
    processes = [
        subprocess.Popen(command("fit.sexp", "--out", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for out in ("a", "b")
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    for process in processes:
        process.communicate()
    assert files_of("a").keys() == files_of("b").keys()
    parameters = "checkpoints/step-00000002/params.safetensors"
    assert files_of("a")[parameters] == files_of("b")[parameters]
    assert len(entries()) == 1 and not [p for p in Path("cache/starts").iterdir() if p.suffix == ".tmp"]


def ask(*sets: str, file: str = "fit.sexp", **more: Any) -> tuple[Starts, list[str]]:
    """The starts of a request, and the lines that they say."""
    request = Request(Path(file), sets=sets, **more)
    said: list[str] = []
    return Starts(request, early_settings(request), said.append), said


def kept(*sets: str, **more: Any) -> Start:
    """A start that was made now and kept."""
    folder, _ = ask(*sets, **more)
    made = fresh(folder.request, folder.early)
    folder.keep(made, made.experiment.options.precision, graphs_of(made.experiment))
    return made


@pytest.mark.parametrize("example", ["builtin", "digits", "gpt2", "lstm", "resnet"])
def test_a_start_of_an_example_comes_back_as_it_was(example: str) -> None:
    file = str(EXAMPLES / f"{example}.sexp")
    made = kept(file=file, variants=("smoke",))
    found = ask(file=file, variants=("smoke",))[0].find()
    assert found is not None and found.graphs is not None
    assert (found.text, found.hypers, found.variants, found.asked) == (
        made.text,
        made.hypers,
        made.variants,
        made.asked,
    )
    for name in starts.PLAIN_FIELDS:
        expected = getattr(made.experiment, name)
        if name == "parameters":
            expected = tuple(replace(p, origin=Origin(None)) for p in expected)
        assert repr(getattr(found.experiment, name)) == repr(expected)
    passed = graphs_of(made.experiment)
    for late, graph in [
        (found.experiment.training, made.experiment.training), (found.experiment.update, made.experiment.update),
        (found.graphs.training, passed.training), (found.graphs.update, passed.update),
        *((found.graphs.evaluations[name], graph) for name, graph in passed.evaluations.items()),
    ]:  # fmt: skip
        assert isinstance(late, LateGraph) and "nodes" not in vars(late)
        assert late.facts == replace_text(facts_of(graph, with_text=True), bool(late.facts.text))
        assert print_graph(late) == print_graph(graph)
        assert [node.origins for node in late.nodes] == [node.origins for node in graph.nodes]


def replace_text(facts: Any, with_text: bool) -> Any:
    import msgspec

    return facts if with_text else msgspec.structs.replace(facts, text="")


@pytest.fixture
def one(here: Path) -> Iterator[None]:
    kept()
    assert ask()[0].find() is not None
    yield


CHANGES: list[dict[str, Any]] = [
    {"sets": ("width=8",)}, {"variants": ("small",)}, {"run": "fit"}, {"allow_outside": True},
    {"flags": {"steps": "3"}}, {"flags": {"precision": "bfloat16"}}, {"flags": {"precision": "off"}},
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_what_is_asked_for_is_part_of_the_key(one: None, change: dict[str, Any]) -> None:
    request = Request(Path("fit.sexp"), **change)
    assert Starts(request, early_settings(request), print).find() is None


@pytest.mark.parametrize("flag", ["seed", "device", "threads", "out"])
def test_what_elaboration_does_not_read_is_no_part_of_the_key(one: None, flag: str) -> None:
    given = {"seed": "3", "device": "cpu", "threads": "1", "out": "elsewhere"}[flag]
    assert ask(flags={flag: given})[0].find() is not None


def test_a_changed_file_is_elaborated(one: None) -> None:
    Path("fit.sexp").write_text(FILE.replace("24", "25"))
    assert ask()[0].find() is None


def test_the_same_text_under_another_name_is_elaborated(one: None) -> None:
    shutil.copy("fit.sexp", "other.sexp")
    assert ask(file="other.sexp")[0].find() is None


def test_another_precision_in_sexpgpu_toml_is_elaborated(one: None) -> None:
    Path("sexpgpu.toml").write_text('[runtime]\nprecision = "bfloat16"\n')
    assert ask()[0].find() is None


@pytest.mark.parametrize("change", ["module", "prelude", "new"])
def test_a_change_of_our_own_files_is_seen(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "sexpgpu"
    (package / "prelude").mkdir(parents=True)
    module, prelude = package / "a.py", package / "prelude" / "b.sexp"
    module.write_text("x = 1")
    prelude.write_text("(def a 1)")
    monkeypatch.setattr(sexpgpu, "__file__", str(package / "__init__.py"))
    before, facts = list(starts.own_files()), module.stat()
    assert len(before) == 2
    if change == "new":
        (package / "c.py").write_text("")
    else:
        path = module if change == "module" else prelude
        path.write_text(path.read_text().replace("1", "2"))
        # As an archive that sets every time alike would leave it.
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert list(starts.own_files()) != before


@pytest.mark.parametrize("name", ["own_files", "version_of"])
def test_other_files_of_ours_and_another_numpy_elaborate(one: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, name, lambda *_: [("another",)])
    assert ask()[0].find() is None


def test_data_whose_header_says_something_else_is_elaborated(here: Path) -> None:
    np.savez("data.npz", x=np.zeros((40, 64), np.float32), y=np.zeros(40, np.int32))
    Path("fit.sexp").write_text(FILE.replace('(builtin "digits"', '(arrays "data.npz"'))
    kept()
    assert ask()[0].find() is not None
    np.savez("data.npz", x=np.ones((40, 64), np.float32), y=np.zeros(40, np.int32))
    assert ask()[0].find() is not None, "values alone decide no start"
    np.savez("data.npz", x=np.zeros((40, 32), np.float32), y=np.zeros(40, np.int32))
    assert ask()[0].find() is None
    Path("data.npz").unlink()
    assert ask()[0].find() is None
    with pytest.raises(sexpgpu.Diagnostics):
        fresh(ask()[0].request, ask()[0].early)


TABLES = """
(defloader a (csv "a.csv" :fields (x ["p" "q"] y "label") :batch 4))
(defloader b (synthetic :x (f32 [4 2]) :y (i32 [4] 3)))
(defloader both (mix (a 0.5) (b 0.5)))
(defloader words (lines "words.txt" :tokenizer (bytes) :seq 8 :batch 4))
(defrun fit :data both :loss (cross-entropy (linear x 3) y) :optimizer (sgd) :steps 1)
(defrun spell :data words :optimizer (sgd) :steps 1
  :loss (weighted (cross-entropy (linear (one-hot tokens 256) 256) targets) mask)
  :eval (every 1 words :batches 1))
"""


def test_a_start_on_tables_lines_and_mixes_is_kept_until_their_files_change(here: Path) -> None:
    table = "p,q,label\n" + "1.5,2,0\n3,4,1\n" * 4
    Path("a.csv").write_text(table)
    Path("words.txt").write_text("one\ntwo\nthree\nfour\n")
    Path("fit.sexp").write_text(TABLES)
    for name in ("fit", "spell"):
        cold, warm = imported(run("--run", name)), imported(run("--run", name))
        assert cold and not warm
    Path("a.csv").write_text(table.replace("2,0", "2,0.5"))
    assert "E-DATA-006" in run("--run", "fit").stderr
    Path("words.txt").write_text("one\ntwo\nthree\nfour\nfive\n")
    assert imported(run("--run", "spell"))


@pytest.mark.parametrize("place", [0, 40, -1], ids=["hash", "body", "end"])
def test_a_damaged_start_is_made_again_and_said(one: None, place: int) -> None:
    (path,) = entries()
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 1
    path.write_bytes(damaged)
    folder, said = ask()
    assert folder.find() is None
    assert said == [f"starts: {path.name} was damaged and is made again"]
    kept()
    assert path.read_bytes() == whole


def test_a_cut_start_is_made_again_and_said(one: None) -> None:
    (path,) = entries()
    path.write_bytes(path.read_bytes()[:100])
    folder, said = ask()
    assert folder.find() is None and len(said) == 1


def test_a_file_with_includes_is_elaborated_at_every_start(here: Path) -> None:
    Path("width.sexp").write_text("(defhyper width 24)")
    Path("fit.sexp").write_text(FILE.replace("(defhyper width 24)", '(include "width.sexp")'))
    kept()
    assert ask()[0].find() is None and not entries()


def test_a_folder_that_others_may_write_keeps_no_start_and_says_so(here: Path) -> None:
    Path("cache/starts").mkdir()
    Path("cache/starts").chmod(0o777)
    folder, said = ask()
    assert folder.find() is None
    made = fresh(folder.request, folder.early)
    folder.keep(made, "off", graphs_of(made.experiment))
    assert not entries()
    assert len(said) == 1 and "mode 777" in said[0]


def test_a_pipe_is_read_once(here: Path) -> None:
    os.mkfifo("pipe.sexp")
    assert ask(file="pipe.sexp")[0].find() is None


def test_a_file_that_is_not_there_is_still_the_readers_error(here: Path) -> None:
    folder, said = ask(file="none.sexp")
    assert folder.find() is None and said == []
    with pytest.raises((Error, sexpgpu.Diagnostics)):
        fresh(folder.request, folder.early)


def test_the_oldest_starts_go_when_there_are_too_many(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "MOST_STARTS", 2)
    for width in (3, 4, 5):
        kept(f"width={width}")
    assert len(entries()) == 2
    assert ask("width=5")[0].find() is not None
