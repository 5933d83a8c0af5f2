"""Checkpoints are whole or not there; what does not match the manifest is refused by name."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from sexpgpu.errors import Error
from sexpgpu.train.checkpoint import Unread, found, load, prune, save

Tensors = dict[str, NDArray[Any]]
PARAMETERS: Tensors = {
    "gpt.wte": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "bias": np.array([1.5], np.float32),
    "one": np.full((), 2, np.float32),
}
STATES: Tensors = {"gpt.wte:m": np.zeros((3, 2), np.float32)}


def test_what_was_saved_is_read_back(tmp_path: Path) -> None:
    (tmp_path / "graph.txt").write_text("graph")
    path = save(tmp_path / "checkpoints", 12, PARAMETERS, STATES, {"step": 12}, [tmp_path / "graph.txt"])
    assert path.name == "step-00000012"
    made = load(path)
    assert made.state == {"step": 12}
    for name, value in PARAMETERS.items():
        np.testing.assert_array_equal(made.parameters[name], value)
        assert made.parameters[name].shape == np.shape(value)
    assert list(made.states) == ["gpt.wte:m"]
    assert (path / "graph.txt").read_text() == "graph"
    assert [p.name for p in path.parent.iterdir()] == ["step-00000012"]


def test_the_tensors_are_safetensors_that_others_read(tmp_path: Path) -> None:
    path = save(tmp_path, 1, PARAMETERS, {}, {})
    read = load_file(path / "params.safetensors")
    np.testing.assert_array_equal(read["gpt.wte"], PARAMETERS["gpt.wte"])
    assert load_file(path / "optimizer.safetensors") == {}


def test_a_flipped_bit_is_found_and_the_file_named(tmp_path: Path) -> None:
    path = save(tmp_path, 1, PARAMETERS, STATES, {})
    content = bytearray((path / "params.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "params.safetensors").write_bytes(content)
    with pytest.raises(Error, match="E-CKPT-001.*params.safetensors: the content is not what was written"):
        load(path)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("manifest.json", "no manifest"),
        ("state.json", "state.json: No such file"),
        ("optimizer.safetensors", "optimizer"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, file: str, words: str) -> None:
    path = save(tmp_path, 1, PARAMETERS, STATES, {})
    (path / file).unlink()
    with pytest.raises(Error, match=f"E-CKPT-001.*{words}"):
        load(path)


def test_a_manifest_that_points_outside_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, 1, PARAMETERS, STATES, {})
    (path / "manifest.json").write_text('{"files": {"../x": {"size": 1}}}')
    with pytest.raises(Error, match=r"E-CKPT-001.*names '\.\./x'"):
        load(path)


def test_no_checkpoint_at_a_path_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(Error, match="E-CKPT-002"):
        load(tmp_path / "step-00000001")


def test_the_newest_are_kept_and_the_spared(tmp_path: Path) -> None:
    paths = [save(tmp_path, step, PARAMETERS, {}, {}) for step in (1, 2, 3, 4)]
    prune(tmp_path, 2, [paths[0]])
    assert [step for step, _ in found(tmp_path)] == [4, 3, 1]
    assert not any(path.name.startswith(".trash") for path in tmp_path.iterdir())


def test_the_same_step_again_replaces_the_checkpoint(tmp_path: Path) -> None:
    save(tmp_path, 1, PARAMETERS, {}, {"round": 1})
    assert load(save(tmp_path, 1, PARAMETERS, {}, {"round": 2})).state == {"round": 2}


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Error, match="E-STORE-003.*No space left"):
        save(tmp_path, 1, PARAMETERS, {}, {})
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_read_one_at_a_time_and_in_order(tmp_path: Path) -> None:
    kept = {f"w{k}": np.full((3, 5), k, np.float32) for k in range(4)}
    alive: list[str] = []

    def reading(name: str) -> Unread:
        def read() -> np.ndarray:
            alive.append(name)
            return kept[name].copy()

        return Unread(np.dtype(np.float32), (3, 5), read)

    path = save(tmp_path, 1, {name: reading(name) for name in kept}, {}, {})
    assert alive == list(kept)
    assert all(np.array_equal(load(path).parameters[name], array) for name, array in kept.items())


def test_files_are_synced_at_once_and_every_tensor_is_read_by_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[threading.Thread] = []
    together, sync = threading.Barrier(3, timeout=30), os.fsync

    def slow(handle: int) -> None:
        # Parameters, optimizer and state wait for each other; what comes after them is this thread's.
        if threading.current_thread() is not threading.main_thread():
            together.wait()
        sync(handle)

    def reading(value: float) -> Unread:
        def read() -> NDArray[Any]:
            readers.append(threading.current_thread())
            return np.full((3, 5), value, np.float32)

        return Unread(np.dtype(np.float32), (3, 5), read)

    monkeypatch.setattr(os, "fsync", slow)
    made = load(save(tmp_path, 1, {"a": reading(1), "b": reading(2)}, {"c": reading(3)}, {}))
    assert readers == [threading.current_thread()] * 3
    assert [made.parameters["b"][0, 0], made.states["c"][2, 4]] == [2, 3]


def test_a_tensor_that_cannot_be_read_ends_the_write_with_its_error(tmp_path: Path) -> None:
    def fail() -> NDArray[Any]:
        raise RuntimeError("the device is gone")

    before = threading.active_count()
    with pytest.raises(RuntimeError, match="the device is gone"):
        save(tmp_path, 1, {"a": Unread(np.dtype(np.float32), (1,), fail)}, STATES, {})
    for _ in range(100):
        if threading.active_count() == before:
            break
        time.sleep(0.01)
    assert threading.active_count() == before and not (tmp_path / "step-00000001").exists()
