"""The kernel cache: warm processes, damaged entries, folders that cannot be trusted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sexpgpu.codegen.numba_kernel import emit
from sexpgpu.interp.cache import Cache
from sexpgpu.interp.flatten import flatten
from sexpgpu.interp.kernels import load_kernels
from sexpgpu.processes import orders
from tests import programs

PROGRAM = """
import sys
import numpy as np
from pathlib import Path
from sexpgpu.interp.executor import Engine
from tests import programs
engine = Engine(2, Path(sys.argv[1]))
x = np.linspace(-3, 3, 1000, dtype=np.float32)
y = np.empty_like(x)
programs.run_program(engine, programs.gelu(), [x], [y])
print("numba" in sys.modules, "llvmlite" in sys.modules, engine.workers._kernels.compiled, y.tobytes().hex()[:64])
engine.close()
"""


def run_process(folder: Path) -> list[str]:
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True, timeout=60,
        cwd=Path(__file__).parents[1],
    )  # fmt: skip
    return made.stdout.split()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder that one process has filled, and what that process printed."""
    folder = tmp_path_factory.mktemp("cache") / "kernels"
    return folder, run_process(folder)


def test_a_warm_process_has_the_same_bits_and_imports_neither_numba_nor_llvm(warm: tuple[Path, list[str]]) -> None:
    folder, cold = warm
    assert cold[0] == "True"
    again = run_process(folder)
    assert again[0] == "False"
    assert again[3] == cold[3]
    # Where code is flat (x86-64), LLVM is not needed either.
    if all(path.read_bytes()[8] == 1 for path in folder.rglob("*.kernel")):
        assert again[1] == "False"


def test_damaged_entries_are_made_again(warm: tuple[Path, list[str]]) -> None:
    folder, cold = warm
    for path in [*folder.rglob("*.kernel"), *folder.rglob("*.bundle")]:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(bytes(data))
    again = run_process(folder)
    assert again[0] == "True" and again[3] == cold[3]
    assert run_process(folder)[0] == "False"


def test_a_cut_entry_is_made_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kernels")
    wanted = {repr(programs.gelu()): lambda: emit(programs.gelu())}
    assert load_kernels(wanted, cache).compiled == 1
    for path in cache.folder.glob("*"):
        path.write_bytes(path.read_bytes()[:20])
    assert load_kernels(wanted, cache).compiled == 1
    assert load_kernels(wanted, cache).compiled == 0


def test_a_folder_that_others_may_write_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    cache = Cache(folder)
    assert cache.folder != folder
    assert len(cache.report) == 1 and "mode 777" in cache.report[0]
    assert not list(folder.iterdir())


def test_a_new_folder_is_closed_to_others(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "kernels")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    assert not cache.report


def test_a_key_changes_with_the_text(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "kernels")
    assert cache.key("a") != cache.key("b")
    assert len(cache.key("a")) == 32


def test_what_is_no_elf_object_is_not_flattened() -> None:
    assert flatten(b"not an object") is None


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_processes_take_every_key_and_begin_with_keys_of_their_own(count: int) -> None:
    keys = [f"{number:02}" for number in range(40)]
    made = orders(keys, count)
    assert len(made) == count and all(sorted(order) == keys for order in made)
    assert sorted(key for order in made for key in order[: 40 // count]) == keys


def test_two_processes_go_towards_each_other() -> None:
    there, back = orders(["a", "b", "c", "d", "e"], 2)
    assert there == ["a", "b", "c", "d", "e"] and back == ["e", "d", "c", "b", "a"]


def test_several_kernels_are_shared_with_helpers(tmp_path: Path) -> None:
    kinds = [(kind, op) for kind in ("row", "column") for op in ("sum", "prod", "max", "min", "argmax")]
    made = [programs.reduction(kind, op) for kind, op in kinds]
    wanted = {repr(p): (lambda p=p: emit(p)) for p in made}
    loaded = load_kernels(wanted, Cache(tmp_path / "kernels"), processors=2)
    assert not loaded.report
    assert set(loaded.addresses) == set(wanted) and all(loaded.addresses.values())
