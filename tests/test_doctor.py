"""`sexpgpu doctor`: this machine as it is, and machines that lack something."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.cuda.library import LIBRARIES, Library
from sexpgpu.cuda.probe import Card, Driver, probe_driver
from sexpgpu.dist.found import Found
from sexpgpu.dist.world import without_launcher
from sexpgpu.doctor import PACKAGES, Line, Report, examine, library_line, mpi_lines, version_key, writable
from tests.fake_cuda import FakeCuda, Figures

REPOSITORY = Path(__file__).parents[1]
A100 = Card(0, "NVIDIA A100-SXM4-80GB", (8, 0), 80 * 2**30)
NO_DRIVER = Driver(None, problem="no NVIDIA driver is found (libcuda.so.1)")


def examined(folder: Path, driver: Driver = NO_DRIVER, **variables: str) -> Report:
    environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(folder), "SEXPGPU_OUT": str(folder / "runs")}
    return examine(environment | variables, folder, driver)


def line_of(report: Report, topic: str) -> Line:
    (found,) = [line for line in report.lines if line.topic == topic]
    return found


def run(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = without_launcher(os.environ) | {"PYTHONPATH": str(REPOSITORY), "HOME": str(folder)} | variables
    command = [sys.executable, "-m", "sexpgpu", "doctor", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip


def test_doctor_finds_this_machine_able_to_run_on_the_cpu(tmp_path: Path) -> None:
    done = run(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["devices"]["cpu"] in ("ok", "warn")
    assert report["device"] == "cpu"
    topics = {line["topic"]: line for line in report["lines"]}
    assert topics["python"]["words"].startswith(f"CPython {sys.version.split()[0]}")
    assert f"{len(os.sched_getaffinity(0))} " in topics["cpu"]["words"]
    assert topics["cache folder"]["verdict"] == topics["output folder"]["verdict"] == "ok"
    assert list(tmp_path.iterdir()) == [], "looking leaves nothing"


def test_the_text_has_a_line_for_each_thing_with_its_verdict(tmp_path: Path) -> None:
    done = run(tmp_path)
    lines = [line for line in done.stdout.splitlines() if "  fix: " not in line]
    assert all(re.match(r"(ok  |warn|fail)  \S", line) for line in lines)
    assert lines[0].split()[1] == "python"
    assert "device cpu" in lines[-2]


def test_no_mpi_library_is_a_warning_with_the_fix(tmp_path: Path) -> None:
    done = run(tmp_path, "--json", MPI4PY_LIBMPI="/missing/libmpi.so")
    (line,) = [line for line in json.loads(done.stdout)["lines"] if line["topic"] == "mpi library"]
    assert (line["verdict"], line["fix"]) == ("warn", "pip install mpich")
    assert done.returncode == 0, "one rank needs none"


def test_a_launcher_of_another_mpi_is_a_warning_that_names_both(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.9.7'\n")
    mpirun.chmod(0o755)
    report = examined(tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert line_of(report, "mpi launcher").words.startswith("Open MPI 4.9.7")
    library = line_of(report, "mpi library").words
    if not library.startswith("MPICH"):
        pytest.skip("no MPICH here to differ from")
    (line,) = [line for line in report.lines if line.topic == "mpi" and "two different" in line.words]
    assert line.verdict == "warn"
    assert "the library is MPICH" in line.words
    assert "the launcher Open MPI 4.9.7" in line.words
    assert "mpirun of MPICH" in line.fix


@pytest.mark.parametrize(
    ("library", "launcher", "differ"),
    [
        ("MPICH 5.0.2", "MPICH 4.2", False),
        ("MPICH 5.0.2", "Intel MPI 2021.17", False),  # one protocol
        ("Open MPI 5.0.11", "MPICH 5.0.2", True),
        ("Open MPI 5.0.11", "Open MPI 4.1.6", False),
    ],
)
def test_which_launchers_fit_a_library(library: str, launcher: str, differ: bool) -> None:
    lines = mpi_lines(Found(library, "/lib/libmpi.so"), Found(launcher, "/bin/mpirun"))
    assert any("two different" in line.words for line in lines) == differ


def test_a_launcher_that_does_not_run_is_a_warning(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nexit 7\n")
    mpirun.chmod(0o755)
    line = line_of(examined(tmp_path, PATH=str(tmp_path)), "mpi launcher")
    assert line.verdict == "warn"
    assert line.words == f"{mpirun} --version fails with exit code 7"


def test_a_read_only_cache_is_a_warning(tmp_path: Path) -> None:
    # The proc file system lets nobody make a file, not even root.
    report = examined(tmp_path, SEXPGPU_CACHE="/proc/sexpgpu")
    line = line_of(report, "cache folder")
    assert line.verdict == "warn"
    assert "/proc/sexpgpu" in line.words
    assert "SEXPGPU_CACHE" in line.fix
    assert line_of(report, "device cpu").verdict == "warn"
    assert report.exit_code == 0


def test_a_cache_that_others_may_write_is_a_warning(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    line = line_of(examined(tmp_path, SEXPGPU_CACHE=str(cache)), "cache folder")
    assert (line.verdict, line.fix) == ("warn", f"chmod 700 {cache}")


def test_an_output_folder_that_cannot_be_written_fails(tmp_path: Path) -> None:
    report = examined(tmp_path, SEXPGPU_OUT="/proc/runs")
    line = line_of(report, "output folder")
    assert (line.verdict, line.code) == ("fail", "E-STORE-003")
    assert report.exit_code == 1


def test_a_folder_is_writable_where_its_parent_is(tmp_path: Path) -> None:
    assert writable(tmp_path / "a" / "b") == ""
    (tmp_path / "file").write_text("")
    assert writable(tmp_path / "file" / "b") != ""


@pytest.mark.parametrize(
    ("driver", "variable", "words"),
    [
        (Driver((13, 0), (A100,)), "0 1", "SEXPGPU_DEVICES=0 1 is not a list of ordinals"),
        (Driver((13, 0), (A100,)), "0,0", "SEXPGPU_DEVICES=0,0 is naming ordinal 0 twice"),
        (Driver((13, 0), (A100,)), "0,1", "names ordinal 1; 1 visible"),
        (Driver((13, 0), ()), "0", "no GPU is visible"),
    ],
)
def test_devices_that_cannot_be_are_e_dp_001(tmp_path: Path, driver: Driver, variable: str, words: str) -> None:
    report = examined(tmp_path, driver, SEXPGPU_DEVICES=variable)
    line = line_of(report, "SEXPGPU_DEVICES")
    assert (line.verdict, line.code) == ("fail", "E-DP-001")
    assert words in line.words
    assert "SEXPGPU_DEVICES=0,1" in line.fix
    assert report.exit_code == 1, "the variable is set, whatever the device"


def test_no_visible_gpu_is_only_a_line_where_the_device_is_the_cpu(tmp_path: Path) -> None:
    report = examined(tmp_path, Driver((13, 0), ()))
    line = line_of(report, "SEXPGPU_DEVICES")
    assert (line.verdict, line.code) == ("warn", "E-DP-001")
    assert report.exit_code == 0


def test_no_visible_gpu_fails_where_the_device_is_cuda(tmp_path: Path) -> None:
    report = examined(tmp_path, Driver((13, 0), ()), SEXPGPU_DEVICE="cuda")
    assert line_of(report, "SEXPGPU_DEVICES").verdict == "fail"
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SEXPGPU_NODES": "two"}, "SEXPGPU_NODES=two is not a whole number"),
        ({"SEXPGPU_NODES": "2"}, "with device cpu, which is not cuda"),
        ({"SEXPGPU_NODES": "2", "SEXPGPU_DEVICE": "cuda", "SEXPGPU_NODE_RANK": "2"}, "SEXPGPU_NODE_RANK=2 is not in 0..2"),
        (
            {"SEXPGPU_NODES": "2", "SEXPGPU_DEVICE": "cuda", "SEXPGPU_NODE_RANK": "0", "SEXPGPU_RENDEZVOUS": "host"},
            "SEXPGPU_RENDEZVOUS=host is not host:port",
        ),
        ({"SEXPGPU_NODE_GRADIENTS": "f16"}, "SEXPGPU_NODE_GRADIENTS=f16 is not f32 or bf16"),
    ],
)  # fmt: skip
def test_node_variables_that_cannot_be_are_e_dp_005(tmp_path: Path, variables: dict[str, str], words: str) -> None:
    report = examined(tmp_path, **variables)
    found = [line for line in report.lines if line.code == "E-DP-005"]
    assert words in found[0].words
    assert found[0].verdict == "fail"
    assert report.exit_code == 1


def test_every_wrong_variable_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "sexpgpu.toml").write_text('[runtime]\nthreads = "many"\n')
    report = examined(tmp_path, SEXPGPU_DEVICES="x", SEXPGPU_NODE_GRADIENTS="f16", SEXPGPU_MEMORY="big")
    codes = {line.code for line in report.lines if line.verdict == "fail"}
    assert {"E-DP-001", "E-DP-005", "E-RUN-007"} <= codes
    assert line_of(report, "sexpgpu.toml").words.startswith("threads in")


@pytest.mark.parametrize(
    ("driver", "verdict", "words"),
    [
        (Driver((13, 0), (A100,)), "ok", "serves CUDA 13.0"),
        (Driver((12, 8), (A100,)), "fail", "serves CUDA 12.8"),
        (NO_DRIVER, "fail", "no NVIDIA driver is found"),
    ],
)
def test_the_driver_is_held_against_the_floor(tmp_path: Path, driver: Driver, verdict: str, words: str) -> None:
    line = line_of(examined(tmp_path, driver), "cuda driver")
    assert line.verdict == verdict
    assert words in line.words
    assert ("580" in line.fix) == (verdict == "fail")


def test_a_card_shows_its_name_capability_and_memory(tmp_path: Path) -> None:
    old = Card(1, "NVIDIA T4", (7, 5), 15 * 2**30)
    report = examined(tmp_path, Driver((13, 0), (A100, old)))
    assert line_of(report, "gpu 0").words == "NVIDIA A100-SXM4-80GB, compute capability 8.0, 80.0 GiB"
    assert line_of(report, "gpu 1").verdict == "warn"


def test_a_library_older_than_its_floor_is_not_used() -> None:
    # click stands in for a library that is here in some version.
    line = library_line(Library("click", "999.0", optional=True))
    assert line.verdict == "warn"
    assert re.fullmatch(r"found [\d.]+, needs 999\.0: not used", line.words)
    assert library_line(Library("click", "999.0")).verdict == "fail"
    assert library_line(Library("click", "1.0")).verdict == "ok"


NVRTC_FILES = ("nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvidia/cu13/lib/libnvrtc.so.13")


def installed_nvrtc(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, files: tuple[str, ...] = NVRTC_FILES
) -> Library:
    """NVRTC in this version is all that is installed; its files are empty."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    record = folder / f"nvidia_cuda_nvrtc-{version}.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nvidia-cuda-nvrtc\nVersion: {version}\n")
    (record / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.setattr(sys, "path", [str(folder)])
    return LIBRARIES[0]


def test_a_library_shows_its_version_and_the_files_that_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = library_line(installed_nvrtc(tmp_path, monkeypatch, "13.0.88"), Driver((13, 0)))
    assert line == Line("cuda-nvrtc", "ok", ", ".join(["13.0.88", *(f"{tmp_path}/{file}" for file in NVRTC_FILES)]))


def test_nvrtc_without_its_builtins_fails_with_the_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = library_line(installed_nvrtc(tmp_path, monkeypatch, "13.0.88", NVRTC_FILES[1:]))
    assert (line.verdict, line.code) == ("fail", "E-DEV-003")
    assert line.words == "13.0.88 without libnvrtc-builtins.so.13.*"
    assert line.fix == "pip install --force-reinstall nvidia-cuda-nvrtc==13.0.88"


def test_nvrtc_that_is_newer_than_the_driver_is_a_warning_that_says_what_it_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = installed_nvrtc(tmp_path, monkeypatch, "13.2.51")
    line = library_line(library, Driver((13, 0)))
    assert line.verdict == "warn"
    assert line.words.endswith("; newer than the driver's CUDA 13.0, which loads its machine code and not its PTX")
    assert line.fix.endswith("a newer driver, or pip install nvidia-cuda-nvrtc==13.0.88")
    line = library_line(library, Driver((13, 2)))
    assert line.verdict == "ok"
    assert line.words.endswith("; newer than 13.0.88, with which this version was tried")


def test_what_is_not_installed_fails_where_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    lines = {line.topic: line for line in map(library_line, LIBRARIES)}
    assert {topic: (line.verdict, line.code) for topic, line in lines.items()} == {
        "cuda-nvrtc": ("fail", "E-DEV-003"),
        "cublas": ("fail", "E-DEV-003"),
        "cudnn-cu13": ("warn", ""),
    }
    assert lines["cudnn-cu13"].words == "is not installed, and not needed"


def test_versions_are_compared_by_number() -> None:
    assert version_key("9.13.0.50") > version_key("9.9")
    assert version_key("2.4.6rc1")[:3] == (2, 4, 6)


def test_the_least_versions_are_those_of_setup_cfg() -> None:
    content = configparser.ConfigParser()
    content.read(REPOSITORY / "setup.cfg")
    wanted = content["options"]["install_requires"].split("\n")
    assert dict(line.split(" >= ") for line in wanted if line) == PACKAGES
    cuda = [line.split(";")[0].strip() for line in content["options.extras_require"]["cuda"].split("\n") if line]
    assert cuda == [f"{library.distribution} == {library.least}" for library in LIBRARIES]


def test_the_probe_reads_driver_and_cards() -> None:
    assert probe_driver(FakeCuda(Figures(A100.name, (8, 0), A100.memory_bytes), version=13010).load) == Driver(
        (13, 1), (A100,)
    )


def test_a_driver_without_a_card_is_a_driver() -> None:
    assert probe_driver(FakeCuda(start=100).load) == Driver((13, 0), ())


def test_the_stub_of_a_toolkit_is_no_driver() -> None:
    found = probe_driver(FakeCuda(start=34).load)
    assert found.version is None
    assert found.problem == (
        "the NVIDIA driver does not start: "
        "cuInit gives error 34, CUDA_ERROR_STUB_LIBRARY: CUDA driver is a stub library"
    )


def test_a_machine_without_the_library_has_no_driver() -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    assert probe_driver(missing).problem == "no NVIDIA driver is found (libcuda.so.1)"
