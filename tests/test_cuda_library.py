"""Where the CUDA libraries are found, and what is said where one is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sexpgpu.cuda.library import BEFORE, BUILTINS, CUBLAS, CUDNN, LIBRARIES, NVRTC, find, load
from sexpgpu.errors import Error


def installed(folder: Path, distribution: str, version: str, *files: str) -> list[str]:
    """An environment in a folder with one distribution, its files empty. With no version: without its record."""
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(b"")
    if version:
        record = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (record / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return [str(folder)]


def test_a_library_is_found_by_the_record_of_its_distribution_wherever_it_lies(tmp_path: Path) -> None:
    folders = installed(tmp_path, "nvidia-cuda-nvrtc", "13.0.88", "elsewhere/deep/libnvrtc.so.13")
    found = find(NVRTC, folders)
    assert found is not None
    assert (found.path, found.version) == (tmp_path / "elsewhere/deep/libnvrtc.so.13", "13.0.88")


def test_a_library_without_a_record_is_found_in_the_folder_nvidia(tmp_path: Path) -> None:
    found = find(NVRTC, installed(tmp_path, "nvidia-cuda-nvrtc", "", "nvidia/cu13/lib/libnvrtc.so.13"))
    assert found is not None
    assert (found.path, found.version) == (tmp_path / "nvidia/cu13/lib/libnvrtc.so.13", "")


def test_a_record_whose_file_is_gone_finds_nothing(tmp_path: Path) -> None:
    folders = installed(tmp_path, "nvidia-cuda-nvrtc", "13.0.88", "nvidia/cu13/lib/libnvrtc.so.13")
    (tmp_path / "nvidia/cu13/lib/libnvrtc.so.13").unlink()
    assert find(NVRTC, folders) is None


def test_the_builtins_of_any_13_are_found_and_neither_their_second_form_nor_another_major(tmp_path: Path) -> None:
    names = ["libnvrtc-builtins.alt.so.13.2", "libnvrtc-builtins.so.13.2", "libnvrtc-builtins.so.12.9"]
    found = find(BUILTINS, installed(tmp_path, "nvidia-cuda-nvrtc", "13.2.1", *(f"nvidia/cu13/lib/{n}" for n in names)))
    assert found is not None
    assert found.path.name == "libnvrtc-builtins.so.13.2"


def test_no_name_is_unversioned() -> None:
    assert all(".so.13" in name or ".so.9" in name for name in BEFORE)
    assert {name for library in LIBRARIES for name in library.objects} == set(BEFORE)


def test_everything_a_library_needs_is_loaded_before_it() -> None:
    for name, before in BEFORE.items():
        for place, needed in enumerate(before):
            assert set(BEFORE[needed]) <= set(before[:place]), (name, needed)


@pytest.mark.parametrize(
    ("name", "install"),
    [
        (NVRTC, "pip install nvidia-cuda-nvrtc==13.0.88"),
        (CUBLAS, "pip install nvidia-cublas==13.1.0.3"),
        (CUDNN, "pip install nvidia-cuda-nvrtc==13.0.88 nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.13.0.50"),
    ],
)
def test_a_missing_library_is_e_dev_003_with_the_command_that_brings_it(
    tmp_path: Path, name: str, install: str
) -> None:
    with pytest.raises(Error) as caught:
        load(name, [str(tmp_path)])
    assert caught.value.code == "E-DEV-003"
    assert caught.value.notes == [install]


def test_of_several_libraries_only_what_is_missing_is_named(tmp_path: Path) -> None:
    for library in LIBRARIES[:2]:
        files = [f"nvidia/cu13/lib/{name.replace('*', '0')}" for name in library.objects]
        installed(tmp_path, library.distribution, library.least, *files)
    with pytest.raises(Error) as caught:
        load(CUDNN, [str(tmp_path)])
    assert caught.value.message == "not installed of the CUDA libraries: libcudnn.so.9"
    assert caught.value.notes == ["pip install nvidia-cudnn-cu13==9.13.0.50"]


def test_nvrtc_without_its_builtins_is_e_dev_003(tmp_path: Path) -> None:
    folders = installed(tmp_path, "nvidia-cuda-nvrtc", "13.0.88", "nvidia/cu13/lib/libnvrtc.so.13")
    with pytest.raises(Error) as caught:
        load(NVRTC, folders)
    assert caught.value.code == "E-DEV-003"
    assert "libnvrtc-builtins.so.13" in caught.value.message
    assert caught.value.notes == ["pip install nvidia-cuda-nvrtc==13.0.88"]


def test_a_damaged_library_is_e_dev_004_with_its_path(tmp_path: Path) -> None:
    files = ("nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvidia/cu13/lib/libnvrtc.so.13")
    folders = installed(tmp_path, "nvidia-cuda-nvrtc", "13.0.88", *files)
    with pytest.raises(Error) as caught:
        load(NVRTC, folders)
    assert caught.value.code == "E-DEV-004"
    assert f"{tmp_path}/nvidia/cu13/lib/libnvrtc-builtins.so.13.0 does not load: " in caught.value.message
    assert caught.value.notes == ["pip install --force-reinstall nvidia-cuda-nvrtc==13.0.88"]


PROGRAM = """
import ctypes, sys
from sexpgpu.cuda.binding import bind
from sexpgpu.cuda.nvrtc import FUNCTIONS, compile_source
from sexpgpu.errors import Error
try:
    compile_source("", "sm_80", calls=bind(ctypes.CDLL(sys.argv[1]), FUNCTIONS))
except Error as error:
    print(error.render())
"""


@pytest.mark.skipif(find(NVRTC) is None, reason="needs nvidia-cuda-nvrtc, of the extra [test]")
def test_builtins_that_nvrtc_does_not_find_are_e_dev_004() -> None:
    found = find(NVRTC)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(found.path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("error[E-DEV-004]: NVRTC does not find its builtins: "), done
    assert "libnvrtc-builtins.so.13" in done.stdout
    assert "pip install --force-reinstall nvidia-cuda-nvrtc==13.0.88" in done.stdout
