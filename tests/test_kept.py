"""Arrays in the cache folder: found again, made again where damaged, never half written."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sexpgpu.train.kept import Array, Kept, digest_of


def counting(made: list[int]) -> Mapping[str, Array]:
    made.append(1)
    return {"a": np.arange(1000, dtype=np.uint16), "b": np.array([[1.5, 2], [3, 4]]), "none": np.empty(0, np.int64)}


def same(arrays: Mapping[str, Array]) -> bool:
    return all(np.array_equal(arrays[n], x) and arrays[n].dtype == x.dtype for n, x in counting([]).items())


def test_arrays_are_made_once_and_read_back(tmp_path: Path) -> None:
    made: list[int] = []
    for _ in range(3):
        assert same(Kept(tmp_path, "key", lambda: counting(made)).arrays())
    assert len(made) == 1


def test_another_key_is_another_entry(tmp_path: Path) -> None:
    made: list[int] = []
    Kept(tmp_path, "one", lambda: counting(made)).arrays()
    Kept(tmp_path, "two", lambda: counting(made)).arrays()
    assert len(made) == 2


def test_the_places_are_known_from_the_footer_alone(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "key", lambda: counting([]))
    kept.arrays()
    assert kept.path is not None
    whole = bytearray(kept.path.read_bytes())
    whole[10] ^= 1
    kept.path.write_bytes(whole)
    places = Kept(tmp_path, "key", lambda: pytest.fail("made again")).places()
    assert {name: (place.dtype, place.shape) for name, place in places.items()} == {
        "a": ("<u2", (1000,)), "b": ("<f8", (2, 2)), "none": ("<i8", (0,)),
    }  # fmt: skip


@pytest.mark.parametrize("harm", ["a bit", "cut", "empty", "garbage"])
def test_a_damaged_entry_is_made_again_and_that_is_said(
    tmp_path: Path, harm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = Kept(tmp_path, "key", lambda: counting([]))
    kept.arrays()
    assert kept.path is not None
    whole = bytearray(kept.path.read_bytes())
    whole[10] ^= 1
    kept.path.write_bytes({"a bit": whole, "cut": whole[:-100], "empty": b"", "garbage": b"\xff" * 5000}[harm])
    again = Kept(tmp_path, "key", lambda: counting([]))
    assert again.places()["a"].shape == (1000,) and same(again.arrays())
    assert capsys.readouterr().err.count("was damaged and is made again") == 1
    assert same(Kept(tmp_path, "key", lambda: pytest.fail("made again")).arrays())


def write_often(folder: Path, number: int) -> None:
    for turn in range(30):
        Kept(folder, f"key {turn}", lambda t=turn: {"a": np.full(5000, t)}).arrays()  # type: ignore[misc]


def test_two_processes_that_write_the_same_entries_leave_whole_ones(tmp_path: Path) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=write_often, args=(tmp_path, n)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    for turn in range(30):
        found = Kept(tmp_path, f"key {turn}", lambda: pytest.fail("no whole entry")).arrays()["a"]
        assert found.tolist() == [turn] * 5000
    assert not list((tmp_path / "data").glob(".*"))


def test_without_a_folder_that_is_ours_arrays_are_made_in_memory_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    os.chmod(tmp_path / "data", 0o755)
    kept = Kept(tmp_path, "key", lambda: counting([]))
    assert kept.path is None and same(kept.arrays())
    assert "nothing is kept" in capsys.readouterr().err
    assert same(Kept(None, "key", lambda: counting([])).arrays())


def test_a_file_is_hashed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xxhash import xxh3_128_hexdigest

    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    assert digest_of(file, tmp_path / "cache") == xxh3_128_hexdigest(b"abc")
    with monkeypatch.context() as patched:
        patched.setattr("sexpgpu.train.kept.digest_of_bytes", lambda pieces: pytest.fail("read again"))
        assert digest_of(file, tmp_path / "cache") == xxh3_128_hexdigest(b"abc")
    file.write_bytes(b"abd")
    assert digest_of(file, tmp_path / "cache") == xxh3_128_hexdigest(b"abd")
