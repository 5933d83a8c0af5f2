"""`show FILE kernels --arch` and `show FILE lowering --arch`: what a card would run, printed without one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import sexpgpu
from sexpgpu.cli.main import commands
from sexpgpu.cuda.nvrtc import compile_source
from sexpgpu.errors import Error

DIGITS = str(Path(sexpgpu.__file__).parent / "examples" / "digits.sexp")
BUILTIN = str(Path(sexpgpu.__file__).parent / "examples" / "builtin.sexp")


def shown(*words: str) -> str:
    done = CliRunner().invoke(commands, ["show", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEXPGPU_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def test_the_kernels_that_are_shown_are_a_source_that_compiles() -> None:
    text = shown(DIGITS, "--variant", "sim", "kernels", "--arch", "sm_90")
    kernels = re.findall(r"__global__ void .*?(\w+_[0-9a-f]{12})\(", text)
    assert len(kernels) > 10 and len(set(kernels)) == len(kernels)
    assert all(name.encode() in compile_source(text, "sm_90").cubin for name in kernels)


def test_no_kernel_uses_an_approximate_function_or_flushes_small_numbers() -> None:
    ptx = compile_source(shown(BUILTIN, "--variant", "sim", "kernels", "--arch", "sm_90"), "sm_90").ptx
    assert "div.rn.f32" in ptx
    assert ".approx" not in ptx and ".ftz" not in ptx


def test_each_kernel_says_what_it_computes_where_that_is_written_and_what_it_takes() -> None:
    text = shown(DIGITS, "--variant", "sim", "kernels", "--arch", "sm_80")
    blocks = re.findall(r"((?://.*\n)+)extern", text)
    assert all(re.search(r"// \d+ registers, (no spills|spills .*), \d+ bytes of shared memory", b) for b in blocks)
    assert all(re.search(r"// \d+ × in (train|update|held-out)", b) for b in blocks)
    assert any("cross-entropy" in b and "digits.sexp:" in b for b in blocks)


def test_layers_of_one_shape_share_their_kernels() -> None:
    one, four = (
        shown(BUILTIN, "--variant", "sim", "--set", f"layers={layers}", "lowering", "--arch", "sm_80")
        for layers in (2, 4)
    )
    assert one.splitlines()[0].split(",")[1].split()[0] == four.splitlines()[0].split(",")[1].split()[0]


def test_the_lowering_counts_modules_from_the_cache() -> None:
    words = (DIGITS, "--variant", "sim", "lowering", "--arch", "sm_100")
    first, again = shown(*words), shown(*words)
    assert re.search(r"(\d+) modules: \1 compiled, 0 from the cache, 0 rebuilt", first.splitlines()[0])
    assert re.search(r"(\d+) modules: 0 compiled, \1 from the cache, 0 rebuilt", again.splitlines()[0])
    assert first.splitlines()[1:] == again.splitlines()[1:]


@pytest.mark.parametrize("arch", ["sm_99", "sm_75", "sm_090", "sm_\N{FULLWIDTH DIGIT NINE}0", ""])
def test_an_architecture_that_is_none_is_an_error_with_those_there_are(arch: str) -> None:
    with pytest.raises(Error, match=f"'{arch}'") as caught:
        shown(DIGITS, "kernels", "--arch", arch)
    assert caught.value.code == "E-RUN-007" and "sm_90" in caught.value.notes[0]


def test_an_architecture_is_for_kernels_and_lowering_only() -> None:
    done = CliRunner().invoke(commands, ["show", DIGITS, "plan", "--arch", "sm_90"])
    assert done.exit_code == 2 and "--arch is for kernels and lowering" in done.output
    done = CliRunner().invoke(commands, ["show", DIGITS, "lowering"])
    assert done.exit_code == 2 and "needs --arch" in done.output
