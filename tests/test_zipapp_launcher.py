"""The first step of the zipapp: which Python and machine it accepts, where it unpacks, and what it says otherwise."""

from __future__ import annotations

import configparser
import os
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

LAUNCHER = Path(__file__).parents[1] / "scripts" / "zipapp" / "launcher.py"
REQUIREMENTS = Path(__file__).parents[1] / "requirements"
FITTING = {
    "implementation": "cpython",
    "version": (3, 11, 7),
    "system": "Linux",
    "machine": "x86_64",
    "libc": ("glibc", "2.36"),
}


@pytest.fixture(scope="module")
def launcher() -> dict[str, Any]:
    return runpy.run_path(str(LAUNCHER), run_name="launcher")


@pytest.mark.parametrize(
    ("differs", "words"),
    [
        ({}, ""),
        ({"version": (3, 12, 1)}, "needs python3.11, this is 3.12"),
        ({"version": (3, 6, 15)}, "needs python3.11, this is 3.6"),
        ({"implementation": "pypy"}, "needs python3.11, this is pypy 3.11"),
        ({"system": "Darwin"}, "needs Linux x86_64, this is Darwin x86_64"),
        ({"machine": "aarch64"}, "needs Linux x86_64, this is Linux aarch64"),
        ({"libc": ("glibc", "2.27")}, "needs glibc 2.28 or newer, this is glibc 2.27"),
        ({"libc": ("", "")}, "needs glibc 2.28 or newer, this is another libc"),
    ],
)
def test_one_line_says_what_is_needed_and_what_is_here(
    launcher: dict[str, Any], differs: dict[str, Any], words: str
) -> None:
    assert launcher["unfit"]((3, 11), FITTING | differs, (2, 28)) == words


@pytest.mark.parametrize(
    ("environment", "root"),
    [
        ({"HOME": "/home/ada"}, "/home/ada/.cache/sexpgpu/unpacked"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "/fast"}, "/fast/sexpgpu/unpacked"),
        ({"HOME": "/home/ada", "XDG_CACHE_HOME": "relative"}, "/home/ada/.cache/sexpgpu/unpacked"),
        ({"HOME": "/home/ada", "SEXPGPU_CACHE": "/scratch/ada"}, "/scratch/ada/unpacked"),
        ({"HOME": "/home/ada", "SHIV_ROOT": "/shiv"}, "/shiv"),
    ],
)
def test_the_archive_is_unpacked_beside_the_kernels(
    launcher: dict[str, Any], monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], root: str
) -> None:
    monkeypatch.setenv("HOME", environment["HOME"])
    assert launcher["root_of"](environment) == root


def test_too_little_room_is_said_before_anything_is_unpacked(launcher: dict[str, Any], tmp_path: Path) -> None:
    words = launcher["room_problem"](str(tmp_path / "unpacked"), 2**60)
    assert words.startswith(f"needs {2**40 + 1} MiB in {tmp_path / 'unpacked'}, ")
    assert words.endswith(" MiB are free: set SEXPGPU_CACHE to a folder with room")


def test_the_folders_that_it_makes_are_closed_to_others(launcher: dict[str, Any], tmp_path: Path) -> None:
    assert launcher["room_problem"](str(tmp_path / "cache" / "unpacked"), 1) == ""
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700


def archive_for(folder: Path, minor: int) -> Path:
    """A small archive with the launcher, built for Python 3.`minor`; its bootstrap writes a file named `unpacked`."""
    path = folder / "program"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(LAUNCHER, "launcher.py")
        archive.writestr("__main__.py", "import launcher\nlauncher.main()\n")
        facts = f"PYTHON = (3, {minor})\nLIBC = (2, 17)\nUNPACKED_BYTES = 1\nBUILD_ID = 'abc'\n"
        archive.writestr("built_for.py", facts)
        archive.writestr("_bootstrap.py", "def bootstrap():\n    open('unpacked', 'w').close()\n")
    return path


@pytest.mark.skipif(sys.platform != "linux" or os.uname().machine != "x86_64", reason="the archive is for Linux x86_64")
@pytest.mark.parametrize("off", [0, 1])
def test_another_python_minor_gets_one_line_and_nothing_is_unpacked(tmp_path: Path, off: int) -> None:
    here = sys.version_info.minor
    command = [sys.executable, str(archive_for(tmp_path, here + off))]
    environment = os.environ | {"SEXPGPU_CACHE": str(tmp_path / "cache"), "PMI_RANK": "0"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )  # fmt: skip
    unpacked = (tmp_path / "unpacked").exists()
    if off:
        assert done.stderr == f"sexpgpu: needs python3.{here + 1}, this is 3.{here}\n"
        assert (done.returncode, unpacked, (tmp_path / "cache").exists()) == (1, False, False)
    else:
        assert done.stderr == f"unpacking to {tmp_path / 'cache' / 'unpacked' / 'program_abc'}, once\n"
        assert (done.returncode, unpacked) == (0, True)


def pins_of(file: str) -> dict[str, int]:
    """Package → number of hashes; every entry must be an exact version."""
    text = (REQUIREMENTS / file).read_text()
    assert "://" not in text, "a package index is the user's choice"
    pins = {}
    for entry in text.replace("\\\n", " ").splitlines():
        name, version = entry.split()[0].split("==")
        assert version
        pins[name.replace("-", "_")] = entry.count("--hash=sha256:")
    return pins


def test_every_dependency_is_pinned_by_version_and_hash() -> None:
    content = configparser.ConfigParser()
    content.read(REQUIREMENTS.parent / "setup.cfg")
    listed = content["options"]["install_requires"] + content["options.extras_require"]["mpi"]
    wanted = {line.split()[0] for line in listed.splitlines() if line.strip()}
    pins = pins_of("cpu.txt")
    assert wanted <= set(pins)
    assert all(pins.values())
    tools = pins_of("build.txt")
    assert {"shiv", "setuptools"} <= set(tools)
    assert all(tools.values())
