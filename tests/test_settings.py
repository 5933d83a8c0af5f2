"""Settings: parsers, errors as the devices page words them, and which source wins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sexpgpu.errors import Error
from sexpgpu.settings import SETTINGS, Settings, Sources, explain, read_file, resolve, unknown_variables

TOML = """[runtime]
device = "auto"
threads = 2
keep-values = true
devices = [0, 1]
"""


def settings(
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    file: Mapping[str, Any] | None = None,
) -> Settings:
    return resolve(Sources(flags or {}, environment or {}, run or {}, file or {}, Path("sexpgpu.toml")))


def test_without_any_source_the_device_is_the_cpu_and_runs_go_to_runs() -> None:
    made = settings()
    assert (made.device, made.out, made.seed, made.steps, made.nodes) == ("cpu", Path("runs"), 0, None, 1)
    assert set(made.origins.values()) == {"default"}


def test_the_strongest_source_wins() -> None:
    file = {"seed": 1, "device": "auto", "out": "a", "precision": "float16"}
    run = {"seed": 2, "precision": "bfloat16"}
    environment = {"SEXPGPU_DEVICE": "cuda:1", "SEXPGPU_OUT": "b"}
    made = settings(environment, {"out": "c"}, run, file)
    assert (made.seed, made.precision, made.device, made.out) == (2, "bfloat16", "cuda:1", Path("c"))
    assert [made.origins[n] for n in ("seed", "precision", "device", "out")] == [
        "defrun",
        "defrun",
        "environment",
        "flag",
    ]
    assert settings(file=file).origins["device"] == "sexpgpu.toml"


def test_an_empty_variable_counts_as_unset() -> None:
    assert settings({"SEXPGPU_THREADS": ""}).origins["threads"] == "default"


def test_sizes_lists_and_endpoints_are_parsed() -> None:
    made = settings(
        {
            "SEXPGPU_MEMORY": "1.5GiB",
            "SEXPGPU_DEVICES": "1, 0",
            "SEXPGPU_RENDEZVOUS": "10.0.0.1:29500",
            "SEXPGPU_THREADS": "3",
        }
    )
    assert (made.memory, made.devices, made.rendezvous, made.threads) == (1610612736, (1, 0), ("10.0.0.1", 29500), 3)


def test_the_cache_follows_xdg() -> None:
    assert settings({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/sexpgpu")


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("SEXPGPU_DEVICE", "gpu", "E-DEV-001", "SEXPGPU_DEVICE=gpu is not a device: auto, cpu, cuda or cuda:N"),
        ("SEXPGPU_DEVICES", "0;1", "E-DP-001", "SEXPGPU_DEVICES=0;1 is not a list of ordinals such as 0,1"),
        ("SEXPGPU_DEVICES", "0,1,0", "E-DP-001", "SEXPGPU_DEVICES=0,1,0 is naming ordinal 0 twice"),
        ("SEXPGPU_THREADS", "0", "E-RUN-007", "SEXPGPU_THREADS=0 is below 1"),
        ("SEXPGPU_THREADS", "many", "E-RUN-007", "SEXPGPU_THREADS=many is not a whole number"),
        ("SEXPGPU_MEMORY", "big", "E-RUN-007", "SEXPGPU_MEMORY=big is not a size such as 40GiB or a number of bytes"),
        ("SEXPGPU_OUT", "s3://bucket/runs", "E-RUN-007", "SEXPGPU_OUT=s3://bucket/runs is a URL, not a folder"),
        ("SEXPGPU_NODES", "two", "E-DP-005", "SEXPGPU_NODES=two is not a whole number"),
        ("SEXPGPU_NODES", "0", "E-DP-005", "SEXPGPU_NODES=0 is below 1"),
        ("SEXPGPU_NODE_RANK", "-1", "E-DP-005", "SEXPGPU_NODE_RANK=-1 is below 0"),
        ("SEXPGPU_RENDEZVOUS", "node0", "E-DP-005", "SEXPGPU_RENDEZVOUS=node0 is not host:port"),
        ("SEXPGPU_NODE_GRADIENTS", "f16", "E-DP-005", "SEXPGPU_NODE_GRADIENTS=f16 is not f32 or bf16"),
        ("SEXPGPU_JOB_LEASE", "0", "E-RUN-007", "SEXPGPU_JOB_LEASE=0 is not a number of seconds above 0"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_it(variable: str, value: str, code: str, words: str) -> None:
    with pytest.raises(Error) as caught:
        settings({variable: value})
    assert (caught.value.code, caught.value.message) == (code, words)
    assert caught.value.notes


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SEXPGPU_NODES": "2"}, "SEXPGPU_NODES=2 with device cpu, which is not cuda"),
        ({"SEXPGPU_NODES": "2", "SEXPGPU_DEVICE": "cuda"}, "SEXPGPU_NODES=2 without SEXPGPU_NODE_RANK"),
        (
            {"SEXPGPU_NODES": "2", "SEXPGPU_DEVICE": "cuda", "SEXPGPU_NODE_RANK": "2"},
            "SEXPGPU_NODE_RANK=2 is not in 0..2",
        ),
        (
            {"SEXPGPU_NODES": "2", "SEXPGPU_DEVICE": "cuda", "SEXPGPU_NODE_RANK": "1"},
            "SEXPGPU_NODES=2 without SEXPGPU_RENDEZVOUS",
        ),
    ],
)
def test_several_nodes_need_all_three_variables_and_cuda(environment: dict[str, str], words: str) -> None:
    with pytest.raises(Error) as caught:
        settings(environment)
    assert (caught.value.code, caught.value.message) == ("E-DP-005", words)


def test_one_node_needs_none_of_the_others() -> None:
    assert settings({"SEXPGPU_NODES": "1"}).node_rank is None


def test_the_file_beside_the_experiment_is_read(tmp_path: Path) -> None:
    (tmp_path / "sexpgpu.toml").write_text(TOML)
    content, path = read_file(tmp_path)
    made = resolve(Sources({}, {}, {}, content, path))
    assert (made.device, made.threads, made.keep_values, made.devices) == ("auto", 2, True, (0, 1))


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("[runtime]\ndevcie = 1\n", "E-RUN-002", "no setting devcie"),
        ("[runtme]\n", "E-RUN-002", "runtme is no table of settings"),
        ("runtime = 3\n", "E-RUN-002", "runtime is no table of settings"),
        ("[runtime\n", "E-RUN-004", "cannot be read"),
    ],
)
def test_a_wrong_settings_file_is_an_error(tmp_path: Path, text: str, code: str, words: str) -> None:
    (tmp_path / "sexpgpu.toml").write_text(text)
    with pytest.raises(Error) as caught:
        read_file(tmp_path)
    assert caught.value.code == code
    assert words in caught.value.message


def test_a_variable_that_means_nothing_gets_a_line_with_the_nearest() -> None:
    assert unknown_variables({"SEXPGPU_THREDS": "1", "HOME": "/", "SEXPGPU_OUT": "x"}) == [
        "SEXPGPU_THREDS is no setting; did you mean SEXPGPU_THREADS?"
    ]


def test_the_explanation_has_a_line_for_every_setting_with_its_origin() -> None:
    lines = explain(settings({"SEXPGPU_THREADS": "2"})).splitlines()
    assert [line.split()[0] for line in lines] == [setting.name for setting in SETTINGS]
    assert "2" in next(line for line in lines if line.startswith("threads")).split()
    assert "environment" in next(line for line in lines if line.startswith("threads")).split()


def test_every_setting_has_a_sentence_and_a_field() -> None:
    made = settings()
    for setting in SETTINGS:
        assert setting.sentence
        assert hasattr(made, setting.field)
    assert set(made.plain()) == {setting.name for setting in SETTINGS}
