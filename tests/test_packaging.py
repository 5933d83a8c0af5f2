"""The built wheel carries what setup.cfg says: dependencies, command, data."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

import sexpgpu

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Built from a copy, so that the checkout stays clean; without isolation, so that nothing is downloaded."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.cfg", "README.md"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "sexpgpu", copy / "sexpgpu", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import sys\nfrom setuptools.build_meta import build_wheel\nprint(build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(copy)]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(copy / done.stdout.split()[-1]) as archive:
        yield archive


def metadata(wheel: zipfile.ZipFile, file: str) -> str:
    name = next(n for n in wheel.namelist() if n.endswith(f".dist-info/{file}"))
    return wheel.read(name).decode()


def test_the_wheel_names_version_and_python(wheel: zipfile.ZipFile) -> None:
    message = Parser().parsestr(metadata(wheel, "METADATA"))
    found = (message["Name"], message["Version"], message["Requires-Python"])
    assert found == ("sexpgpu", sexpgpu.__version__, ">=3.11")


def test_the_base_brings_no_cuda_wheel_and_the_extra_pins_them(wheel: zipfile.ZipFile) -> None:
    requirements = Parser().parsestr(metadata(wheel, "METADATA")).get_all("Requires-Dist") or []
    base = {r.split(">")[0].strip() for r in requirements if "extra ==" not in r}
    wanted = "numba numpy llvmlite mpi4py click rich msgspec safetensors ml_dtypes xxhash"
    assert {name.replace("-", "_") for name in base} == set(wanted.split())
    cuda = sorted(r.split(";")[0].strip() for r in requirements if 'extra == "cuda"' in r)
    assert cuda == ["nvidia-cublas==13.1.0.3", "nvidia-cuda-nvrtc==13.0.88", "nvidia-cudnn-cu13==9.13.0.50"]


def test_the_wheel_has_the_command(wheel: zipfile.ZipFile) -> None:
    assert "sexpgpu = sexpgpu.__main__:main" in metadata(wheel, "entry_points.txt")


def test_every_file_of_the_language_is_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    here = {str(path.relative_to(ROOT)) for path in (ROOT / "sexpgpu").rglob("*.sexp")}
    assert here
    assert here <= set(wheel.namelist())


def test_the_version_comes_at_once_and_without_heavy_imports() -> None:
    code = (
        "import sys\nsys.argv = ['sexpgpu', '--version']\nfrom sexpgpu.__main__ import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'numba', 'llvmlite', 'rich', 'mpi4py', 'msgspec') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [f"sexpgpu {sexpgpu.__version__}", "[]"]


def test_the_version_takes_little_time() -> None:
    """Processor time, the best of several: a machine that does something else at the time proves nothing."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "sexpgpu", "--version"], capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.3
