"""The cache of CUDA modules: what finds an entry, what damages one, and many processes at once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sexpgpu.cuda import kernels
from sexpgpu.cuda.cubin_cache import CubinCache, Module, toolchain
from sexpgpu.cuda.kernels import Modules, load_cubins
from sexpgpu.cuda.library import NVRTC, find
from sexpgpu.cuda.nvrtc import OPTIONS, SourceRejected, compile_source
from sexpgpu.processes import start_helper

if find(NVRTC) is None:
    pytest.skip("needs nvidia-cuda-nvrtc, of the extra [test]", allow_module_level=True)


def scale(factor: int) -> str:
    return f'extern "C" __global__ void k_scale(float *x) {{ x[threadIdx.x] *= {factor}.0f; }}\n'


SOURCES = {f"by {factor}": scale(factor) for factor in range(2, 8)}


def counts(made: Modules) -> tuple[int, int, int]:
    return made.compiled, made.cached, made.rebuilt


def test_a_source_is_compiled_once_and_then_read(tmp_path: Path) -> None:
    first = load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))
    second = load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))
    assert (counts(first), counts(second)) == ((2, 0, 0), (0, 2, 0))
    assert first.modules == second.modules
    assert first.modules["a"].image == compile_source(scale(2), "sm_80").cubin
    assert first.report == second.report == []


def test_names_of_the_same_source_share_one_module(tmp_path: Path) -> None:
    made = load_cubins({"a": scale(2), "b": scale(2)}, "sm_80", CubinCache(tmp_path / "c"))
    assert counts(made) == (1, 0, 0)
    assert made.modules["a"] == made.modules["b"]


def test_a_virtual_arch_gives_ptx_that_ends_in_0(tmp_path: Path) -> None:
    image = load_cubins({"a": scale(2)}, "compute_80", CubinCache(tmp_path / "c")).modules["a"].image
    assert b".entry k_scale(" in image
    assert image.index(b"\0") == len(image) - 1


def test_a_spill_is_still_known_of_a_module_that_is_read(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "c", "a compiler")
    module = Module(
        b"code", "ptxas warning : Registers are spilled to local memory in function 'k', 8 bytes spill stores"
    )
    cache.write("00", module)
    assert cache.read("00") == module


@pytest.mark.parametrize(
    ("source", "arch", "options", "compiler"),
    [
        (scale(3), "sm_80", OPTIONS, "NVRTC 13.0"),
        (scale(2), "sm_90", OPTIONS, "NVRTC 13.0"),
        (scale(2), "sm_80", (*OPTIONS, "--maxrregcount=32"), "NVRTC 13.0"),
        (scale(2), "sm_80", OPTIONS[::-1], "NVRTC 13.0"),
        (scale(2), "sm_80", OPTIONS, "NVRTC 13.1"),
    ],
)
def test_another_source_arch_option_or_compiler_is_another_key(
    tmp_path: Path, source: str, arch: str, options: tuple[str, ...], compiler: str
) -> None:
    key = CubinCache(tmp_path / "c", "NVRTC 13.0").key(scale(2), "sm_80", OPTIONS)
    assert key == CubinCache(tmp_path / "c", "NVRTC 13.0").key(scale(2), "sm_80", OPTIONS)
    assert CubinCache(tmp_path / "c", compiler).key(source, arch, options) != key


def test_parts_that_join_to_the_same_text_are_not_the_same_key(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "c", "NVRTC 13.0")
    assert cache.key("s", "sm_80", ("-a", "-b")) != cache.key("s", "sm_80", ("-a-b",))


def test_a_newer_compiler_compiles_again(tmp_path: Path) -> None:
    assert counts(load_cubins({"a": scale(2)}, "sm_80", CubinCache(tmp_path / "c", "NVRTC 13.0"))) == (1, 0, 0)
    assert counts(load_cubins({"a": scale(2)}, "sm_80", CubinCache(tmp_path / "c", "NVRTC 13.1"))) == (1, 0, 0)


def test_the_compiler_is_known_by_its_version_and_its_builtins() -> None:
    assert toolchain().startswith("NVRTC 13.")
    assert "builtins " in toolchain()


def flipped(place: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    "damage",
    [
        flipped(0), flipped(9), flipped(30), flipped(-100), flipped(1000),
        lambda data: b"", lambda data: data[:10], lambda data: data[: len(data) // 2], lambda data: data + b"\0",
    ],
    ids=["magic", "length", "hash", "end", "code", "empty", "head cut", "cut", "longer"],
)  # fmt: skip
def test_a_damaged_entry_is_made_again_and_said(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    first = load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))
    path = sorted((tmp_path / "c").iterdir())[0]
    path.write_bytes(damage(path.read_bytes()))
    second = load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))
    assert counts(second) == (0, 1, 1)
    assert second.modules == first.modules
    (line,) = second.report
    assert line.startswith(f"kernel cache: {path} is damaged (") and line.endswith(") and made again")
    assert counts(load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))) == (0, 2, 0)


def test_helper_processes_make_the_same_modules_as_one_process(tmp_path: Path) -> None:
    alone = load_cubins(SOURCES, "sm_80", CubinCache(tmp_path / "alone"))
    together = load_cubins(SOURCES, "sm_80", CubinCache(tmp_path / "together"), processes=3)
    assert together.modules == alone.modules
    assert counts(together) == (len(SOURCES), 0, 0)
    assert together.report == []


def test_a_helper_compiles_by_itself(tmp_path: Path) -> None:
    cache = CubinCache(tmp_path / "c")
    keys = [cache.key(source, "sm_80", OPTIONS) for source in SOURCES.values()]
    work = kernels._Work(dict(zip(keys, SOURCES.values())), "sm_80", OPTIONS, cache)
    helper = start_helper("sexpgpu.cuda.kernels", kernels._request(work, keys))
    assert helper.wait(60) == 0
    assert counts(load_cubins(SOURCES, "sm_80", CubinCache(tmp_path / "c"))) == (0, len(SOURCES), 0)


def test_a_helper_that_dies_is_said_and_its_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(module: str, request: object) -> subprocess.Popen[bytes]:
        helper = subprocess.Popen([sys.executable, "-c", "raise SystemExit(9)"])
        helper.wait()
        return helper

    monkeypatch.setattr(kernels, "start_helper", start)
    made = load_cubins(SOURCES, "sm_80", CubinCache(tmp_path / "c"), processes=2)
    assert made.report == ["kernels: a helper process failed with exit code 9"]
    assert set(made.modules) == set(SOURCES)


def test_runs_that_start_together_on_one_folder_all_have_whole_modules(tmp_path: Path) -> None:
    program = (
        "import sys, hashlib\nfrom sexpgpu.cuda.cubin_cache import CubinCache\n"
        "from sexpgpu.cuda.kernels import load_cubins\nfrom tests.test_cubin_cache import SOURCES\n"
        "made = load_cubins(SOURCES, 'sm_80', CubinCache(sys.argv[1]))\n"
        "print(made.report, [hashlib.sha256(m.image).hexdigest() for m in made.modules.values()])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "c")]
    root = Path(__file__).parents[1]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {process.communicate(timeout=60)[0] for process in running}
    assert len(outputs) == 1
    assert outputs.pop().startswith("[] [")
    assert len(list((tmp_path / "c").glob("*.cubin"))) == len(SOURCES)
    assert list((tmp_path / "c").glob(".*")) == [], "no unfinished file is left"


def test_a_source_of_ours_that_is_wrong_is_raised_from_a_start_with_helpers_too(tmp_path: Path) -> None:
    wrong = {**SOURCES, "wrong": 'extern "C" __global__ void k() { y = 1; }'}
    with pytest.raises(SourceRejected, match='identifier "y" is undefined'):
        load_cubins(wrong, "sm_80", CubinCache(tmp_path / "c"), processes=2)


def test_a_folder_that_others_may_write_is_not_used_and_said(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    folder.chmod(0o777)
    made = load_cubins({"a": scale(2)}, "sm_80", CubinCache(folder))
    assert counts(made) == (1, 0, 0)
    assert list(folder.iterdir()) == []
    assert made.report == [
        f"kernel cache: {folder} is not used (owner {folder.stat().st_uid}, mode 777; it must be yours with mode 700); "
        "every start compiles its kernels anew"
    ]


def test_a_folder_that_has_no_room_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: CubinCache, key: str, module: Module) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CubinCache, "write", full)
    made = load_cubins({"a": scale(2), "b": scale(3)}, "sm_80", CubinCache(tmp_path / "c"))
    assert made.report == ["kernel cache: cannot be written (No space left on device)"]
    assert set(made.modules) == {"a", "b"}
