"""Loaders: what a batch holds at any position, and what is refused."""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from sexpgpu.errors import Error
from sexpgpu.loaderspec import Field, LoaderKind, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train.builtin import StandardLibrary, digits
from sexpgpu.train.loader import Loader, Portions, header, open_loader
from sexpgpu.train.order import offset, order
from sexpgpu.train.prose import prose

SPAN = Span(Source("a.sexp", "(text data)"), 0, 11)


def spec(kind: LoaderKind, base: Path, *paths: str, **options: Any) -> LoaderSpec:
    return LoaderSpec(kind, paths, base=base, span=SPAN, **options)


def text(base: Path, content: bytes, **options: Any) -> LoaderSpec:
    (base / "a.txt").write_bytes(content)
    return spec("text", base, "a.txt", **{"tokenizer": ("bytes",), "batch": 2, "seq": 4, **options})


def refused(code: str, loader: LoaderSpec) -> Error:
    with pytest.raises(Error) as caught:
        header(loader)
    assert caught.value.code == code
    assert caught.value.span is SPAN
    return caught.value


def in_order(loader: Loader, field: str, batches: int) -> list[Any]:
    return [row for m in range(batches) for row in loader.batch(1, m, batches)[field].tolist()]


# Texts


def test_a_window_is_seq_tokens_and_the_same_shifted_by_one(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(21))), 0, shuffled=False)
    batch = loader.batch(1, 0, 1)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch["targets"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    for array in batch.values():
        assert array.dtype == np.int32 and array.flags.c_contiguous


@pytest.mark.parametrize(("size", "count"), [(5, 1), (8, 1), (9, 2), (21, 5), (22, 5), (24, 5), (25, 6)])
def test_n_tokens_give_the_floor_of_n_minus_one_over_seq_windows(tmp_path: Path, size: int, count: int) -> None:
    assert header(text(tmp_path, bytes(size))).count == count


def test_the_header_gives_fields_and_vocabulary(tmp_path: Path) -> None:
    found = header(text(tmp_path, bytes(100), batch=3, seq=8))
    assert dict(found.fields) == {"tokens": Field("i32", (3, 8)), "targets": Field("i32", (3, 8))}
    assert found.vocabulary == 256


def test_files_are_joined_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(bytes(range(6, 11)))
    (tmp_path / "a.txt").write_bytes(bytes(range(6)))
    for paths in (("*.txt",), ("b.txt", "a.txt")):
        loader = open_loader(spec("text", tmp_path, *paths, seq=5, batch=2), 0, shuffled=False)
        assert loader.count == 2
        assert loader.batch(1, 0, 1)["targets"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]


def test_windows_run_across_many_small_files(tmp_path: Path) -> None:
    for index in range(10):
        (tmp_path / f"{index}.txt").write_bytes(bytes([2 * index, 2 * index + 1]))
    joined = text(tmp_path, bytes(range(20)), seq=7, split=(("a", 0.25), ("b", 0.75)), part="b")
    pieces = replace(joined, paths=("?.txt",))
    (tmp_path / "a.txt").rename(tmp_path / "joined")
    whole = open_loader(replace(joined, paths=("joined",)), 0, shuffled=False)
    parts = open_loader(pieces, 0, shuffled=False)
    assert whole.batch(1, 0, 1)["tokens"].tolist() == [[*range(5, 12)], [*range(12, 19)]]
    assert parts.batch(1, 0, 1)["tokens"].tolist() == whole.batch(1, 0, 1)["tokens"].tolist()
    assert parts.identity() != "" and len(parts.identity()) == 32


def test_a_split_cuts_bytes_where_nanogpt_does(tmp_path: Path) -> None:
    split = (("train", 0.9), ("val", 0.1))
    loaders = [
        open_loader(text(tmp_path, bytes(range(101)), seq=1, batch=1, split=split, part=part), 0, shuffled=False)
        for part in ("train", "val")
    ]
    n = 101
    assert [loader.count for loader in loaders] == [int(n * 0.9) - 1, n - int(n * 0.9) - 1]
    assert loaders[1].batch(1, 0, 1)["tokens"].tolist() == [[90]]


def test_fractions_that_sum_to_one_reach_the_last_byte(tmp_path: Path) -> None:
    split = (("a", 0.7), ("b", 0.2), ("c", 0.1))
    assert header(text(tmp_path, bytes(100), seq=1, batch=1, split=split, part="c")).count == 10 - 1


def test_shuffled_windows_follow_the_keyed_order(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(201)), seq=10), 7, shuffled=True)
    seen = in_order(loader, "tokens", 10)
    assert [row[0] for row in seen] == (10 * order(7, 0, np.arange(20), 20)).tolist()


def test_later_epochs_shift_every_window_but_the_last_stays_inside(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(203)), seq=10, batch=20), 7, shuffled=True)
    for epoch in (1, 2, 3):
        shift = offset(7, epoch, 10)
        starts = loader.batch(epoch + 1, 0, 1)["tokens"][:, 0]
        expected = np.minimum(10 * order(7, epoch, np.arange(20), 20) + shift, 203 - 11)
        assert starts.tolist() == expected.tolist()


def test_file_order_wins_over_the_use_and_never_shifts(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(21)), order="file", batch=5), 0, shuffled=True)
    for step in (1, 2, 3):
        assert loader.batch(step, 0, 1)["tokens"][:, 0].tolist() == [0, 4, 8, 12, 16]
    shuffled = open_loader(text(tmp_path, bytes(range(21)), order="shuffled", batch=5), 0, shuffled=False)
    assert shuffled.batch(1, 0, 1)["tokens"][:, 0].tolist() == (4 * order(0, 0, np.arange(5), 5)).tolist()


def test_a_limit_keeps_the_first_windows(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(201)), limit=3), 0, shuffled=False)
    assert loader.count == 3
    assert [row[0] for row in in_order(loader, "tokens", 2)] == [0, 4, 8, 0]


def test_only_the_fields_asked_for_are_read(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(21)), 0, shuffled=False, fields=["targets"])
    assert list(loader.batch(1, 0, 1)) == ["targets"]


# Positions


def test_a_batch_is_a_function_of_its_position_alone(tmp_path: Path) -> None:
    place = text(tmp_path, bytes(range(256)) * 9, seq=3, batch=5)
    forward = open_loader(place, 3, shuffled=True)
    seen = [forward.batch(step, m, 3)["tokens"] for step in range(1, 120) for m in range(3)]
    fresh = open_loader(place, 3, shuffled=True)
    for at in reversed(range(len(seen))):
        assert np.array_equal(fresh.batch(at // 3 + 1, at % 3, 3)["tokens"], seen[at])


def test_steps_run_through_epochs_without_a_gap(tmp_path: Path) -> None:
    loader = open_loader(text(tmp_path, bytes(range(8)), seq=1, batch=3), 1, shuffled=False)
    assert loader.count == 7
    rows = [int(v) for s in range(1, 5) for m in range(2) for v in loader.batch(s, m, 2)["tokens"][:, 0]]
    assert rows == [i % 7 for i in range(24)]


def test_array_examples_in_file_order_are_the_formula_of_the_contract(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(10))
    loader = open_loader(spec("arrays", tmp_path, "a.npz", batch=4), 0, shuffled=False)
    b, n, microbatches = 4, 10, 3
    for s in (1, 2, 5):
        for m in range(microbatches):
            expected = [(((s - 1) * microbatches + m) * b + i) % n for i in range(b)]
            assert loader.batch(s, m, microbatches)["x"].tolist() == expected


def test_an_epoch_ends_with_a_short_step_padded_by_its_last_real_example(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(10))
    loader = open_loader(spec("arrays", tmp_path, "a.npz", batch=2), 0, shuffled=False)
    portions = loader.portions(3, whole_epochs=True)
    assert portions.steps_per_epoch == 2
    assert [portions.real(step, m) for step in (1, 2, 3, 4) for m in range(3)] == [2, 2, 2, 2, 2, 0] * 2
    assert loader.take(portions, 2, 1)["x"].tolist() == [8, 9]
    wide = replace(portions, microbatches=2, batch=4, step_examples=8)
    assert [wide.real(2, m) for m in range(2)] == [2, 0]
    assert wide.positions(2, 0).tolist() == [8, 9, 9, 9]
    assert wide.positions(4, 0).tolist() == [18, 19, 19, 19]


def test_a_global_batch_that_the_batch_does_not_divide_ends_in_a_short_microbatch() -> None:
    portions = Portions(count=100, batch=4, microbatches=3, step_examples=10)
    assert [portions.real(1, m) for m in range(3)] == [4, 4, 2]
    assert portions.positions(2, 2).tolist() == [18, 19, 19, 19]
    taken = [p for s in (1, 2, 3) for m in range(3) for p in portions.positions(s, m)[: portions.real(s, m)]]
    assert taken == list(range(30))


def test_a_pass_visits_everything_once(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(11))
    loader = open_loader(spec("arrays", tmp_path, "a.npz", batch=4), 0, shuffled=False)
    portions = loader.passing()
    assert portions.microbatches == 3
    rows = [loader.take(portions, 1, m)["x"][: portions.real(1, m)].tolist() for m in range(3)]
    assert rows == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


# Token files


def llm_c_header(magic: int, version: int, count: int) -> bytes:
    head = np.zeros(256, "<i4")
    head[:3] = magic, version, count
    return head.tobytes()


def test_bare_tokens_are_read_by_their_dtype(tmp_path: Path) -> None:
    for dtype, stored in ((None, "<u2"), ("u16", "<u2"), ("u32", "<u4")):
        (tmp_path / "t.bin").write_bytes((1000 + np.arange(9)).astype(stored).tobytes())
        loader = open_loader(spec("token-file", tmp_path, "t.bin", seq=4, batch=2, dtype=dtype), 0, shuffled=False)
        assert loader.batch(1, 0, 1)["targets"].tolist() == [[1001, 1002, 1003, 1004], [1005, 1006, 1007, 1008]]
        assert loader.vocabulary is None


@pytest.mark.parametrize(("magic", "stored", "vocabulary"), [(20240520, "<u2", 50257), (20240801, "<u4", 128256)])
def test_llm_c_files_say_their_dtype_themselves(tmp_path: Path, magic: int, stored: str, vocabulary: int) -> None:
    tokens = (1000 + np.arange(9)).astype(stored)
    (tmp_path / "t.bin").write_bytes(llm_c_header(magic, 1, 9) + tokens.tobytes())
    loader = open_loader(spec("token-file", tmp_path, "t.bin", seq=4, batch=2), 0, shuffled=False)
    assert loader.batch(1, 0, 1)["tokens"].tolist() == [[1000, 1001, 1002, 1003], [1004, 1005, 1006, 1007]]
    assert loader.vocabulary == vocabulary


def test_shards_are_read_as_one_stream(tmp_path: Path) -> None:
    for index in range(2):
        tokens = (10 * index + np.arange(10)).astype("<u2")
        (tmp_path / f"t{index}.bin").write_bytes(llm_c_header(20240520, 1, 10) + tokens.tobytes())
    loader = open_loader(spec("token-file", tmp_path, "t*.bin", seq=6, batch=3), 0, shuffled=False)
    assert loader.batch(1, 0, 1)["tokens"].tolist() == [[*range(6)], [*range(6, 12)], [*range(12, 18)]]


def test_damaged_token_files_are_refused(tmp_path: Path) -> None:
    place = spec("token-file", tmp_path, "t.bin", seq=4, batch=2)
    (tmp_path / "t.bin").write_bytes(bytes(101))
    assert "101 bytes" in refused("E-DATA-005", place).message
    (tmp_path / "t.bin").write_bytes(llm_c_header(20240520, 1, 50) + bytes(40))
    assert "50 tokens, it holds 20" in refused("E-DATA-005", place).message
    refused("E-DATA-005", replace(place, dtype="u32"))
    refused("E-DATA-004", replace(place, dtype="i64"))


# Arrays


def saved(folder: Path, **arrays: Any) -> list[str]:
    """The arrays in each of the formats; the names of the files."""
    from safetensors.numpy import save_file

    np.savez(folder / "plain.npz", **arrays)
    np.savez_compressed(folder / "packed.npz", **arrays)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / "a.safetensors")
    return ["plain.npz", "packed.npz", "a.safetensors"]


def test_arrays_of_every_format_give_the_same_fields(tmp_path: Path) -> None:
    x, y = np.arange(24.0).reshape(6, 2, 2) / 7, np.arange(6, dtype=np.uint8)
    for name in saved(tmp_path, x=x, y=y):
        loader = open_loader(spec("arrays", tmp_path, name, batch=3), 0, shuffled=False)
        assert dict(loader.fields) == {"x": Field("f32", (3, 2, 2)), "y": Field("i32", (3,))}
        batch = loader.batch(2, 0, 1)
        assert batch["x"].dtype == np.float32 and np.array_equal(batch["x"], x[3:].astype(np.float32))
        assert batch["y"].dtype == np.int32 and batch["y"].tolist() == [3, 4, 5]


def test_npy_files_are_fields_named_after_the_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(np.arange(12, dtype=">i2").reshape(4, 3)))
    np.save(tmp_path / "y.npy", np.arange(4))
    loader = open_loader(spec("arrays", tmp_path, "x.npy", "y.npy", batch=2), 0, shuffled=False)
    assert dict(loader.fields) == {"x": Field("i32", (2, 3)), "y": Field("i64", (2,))}
    batch = loader.batch(1, 0, 1)
    assert batch["x"].tolist() == [[0, 1, 2], [3, 4, 5]] and batch["x"].flags.c_contiguous


@pytest.mark.parametrize(
    ("stored", "read"),
    [("bool", "bool"), ("i1", "i32"), ("u1", "i32"), ("i2", "i32"), ("u2", "i32"), ("i4", "i32"), ("u4", "u32"),
     ("i8", "i64"), ("f2", "f16"), ("f4", "f32"), ("f8", "f32")],
)  # fmt: skip
def test_small_integers_widen_and_doubles_narrow(tmp_path: Path, stored: str, read: str) -> None:
    np.save(tmp_path / "x.npy", np.ones(3, stored))
    assert header(spec("arrays", tmp_path, "x.npy", batch=3)).fields["x"].dtype == read


def test_bfloat16_arrays_keep_their_dtype(tmp_path: Path) -> None:
    import ml_dtypes
    from safetensors.numpy import save_file

    save_file({"x": np.array([1.5, -2.0], ml_dtypes.bfloat16)}, tmp_path / "a.safetensors")
    loader = open_loader(spec("arrays", tmp_path, "a.safetensors", batch=2), 0, shuffled=False)
    assert loader.fields["x"] == Field("bf16", (2,))
    assert loader.batch(1, 0, 1)["x"].astype(float).tolist() == [1.5, -2.0]
    assert len(loader.identity()) == 32


def test_a_split_of_arrays_is_a_keyed_choice_that_shares_out_every_example(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    split = (("train", 0.8), ("val", 0.2))
    parts = [
        np.concatenate([loader.batch(s, 0, 1)["x"] for s in range(1, loader.count + 1)])
        for part in ("train", "val")
        for loader in [open_loader(spec("arrays", tmp_path, "a.npz", batch=1, split=split, part=part), 0, False)]
    ]
    assert [len(part) for part in parts] == [80, 20]
    assert sorted(np.concatenate(parts).tolist()) == list(range(100))
    assert parts[1].tolist() == sorted(parts[1].tolist()) != list(range(80, 100))


def test_the_split_does_not_depend_on_the_seed_of_the_run(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    place = spec("arrays", tmp_path, "a.npz", batch=20, split=(("train", 0.8), ("val", 0.2)), part="val")
    one, other = (open_loader(place, seed, shuffled=True).batch(1, 0, 1)["x"].tolist() for seed in (0, 1))
    assert one != other and sorted(one) == sorted(other)


def test_arrays_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(4))
    assert "x 3, y 4" in refused("E-DATA-006", spec("arrays", tmp_path, "a.npz", batch=1)).message
    np.savez(tmp_path / "a.npz", x=np.zeros(3, np.uint64))
    assert "uint64" in refused("E-DATA-004", spec("arrays", tmp_path, "a.npz", batch=1)).message
    np.savez(tmp_path / "a.npz", x=np.array(3.0))
    refused("E-DATA-006", spec("arrays", tmp_path, "a.npz", batch=1))
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    error = refused("E-DATA-002", spec("arrays", tmp_path, "a.npz", batch=4))
    assert error.message == ":batch 4 needs 4 examples, the data has 3"
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert "array x" in refused("E-DATA-006", spec("arrays", tmp_path, "a.npz", "x.npy", batch=1)).message
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    assert "object" in refused("E-DATA-004", spec("arrays", tmp_path, "x.npy", batch=1)).message
    refused("E-DATA-005", replace(text(tmp_path, b"1,2", batch=1), kind="arrays"))


def test_every_truncation_and_any_garbage_is_refused_not_crashed_on(tmp_path: Path) -> None:
    names = saved(tmp_path, x=np.arange(6.0))
    np.save(tmp_path / "x.npy", np.arange(6.0))
    for name in [*names, "x.npy"]:
        whole = (tmp_path / name).read_bytes()
        for size in range(0, len(whole), 7):
            (tmp_path / name).write_bytes(whole[:size])
            refused("E-DATA-005", spec("arrays", tmp_path, name, batch=1))
        (tmp_path / name).write_bytes(b"\xff" * 64)
        refused("E-DATA-005", spec("arrays", tmp_path, name, batch=1))


# Builtins


def test_the_generated_text_has_these_bytes_on_every_machine() -> None:
    content = prose(300_000)
    assert len(content) == 300_000
    assert hashlib.sha256(content).hexdigest() == "3b1dab17f5881e958369ab1f5c7dade6ab74c464b7730772c791aaf6e3de812b"
    assert prose(1000) == content[:1000]


def test_the_generated_digits_have_these_bytes_on_every_machine() -> None:
    x, y = digits()
    assert x.shape == (1797, 64) and x.dtype == np.float32 and y.shape == (1797,) and y.dtype == np.int32
    assert x.min() == 0 and x.max() == 1 and np.array_equal(x * 16, np.round(x * 16))
    assert np.bincount(y).tolist() == [180] * 7 + [179] * 3
    assert (
        hashlib.sha256((x * 16).astype(np.uint8).tobytes() + y.astype(np.uint8).tobytes()).hexdigest()
        == "58d422d32b5f87e4cf0004837c59fefb5e21b5f60da52937b9292642e4f28038"
    )


def test_digits_can_be_told_apart_but_not_by_the_mean_image_alone() -> None:
    x, y = digits()
    x = x.astype(np.float64)
    means = np.stack([x[:1000][y[:1000] == d].mean(0) for d in range(10)])
    distance = ((x[1000:, None] - means) ** 2).sum(-1)
    by_mean = np.mean(distance.argmin(1) == y[1000:])
    distance = ((x[1000:, None] - x[None, :1000]) ** 2).sum(-1)
    by_neighbour = np.mean(y[:1000][distance.argmin(1)] == y[1000:])
    assert by_mean < 0.95 < by_neighbour


def test_builtin_loaders_have_the_fields_of_their_kind() -> None:
    found = header(LoaderSpec("builtin", ("digits",), batch=32))
    assert dict(found.fields) == {"x": Field("f32", (32, 64)), "y": Field("i32", (32,))}
    assert found.count == 1797
    loader = open_loader(LoaderSpec("builtin", ("text",), batch=4, seq=8, tokenizer=("bytes",)), 0, shuffled=False)
    assert loader.count == (300_000 - 1) // 8
    assert bytes(loader.batch(1, 0, 1)["tokens"].ravel().tolist()) == prose(32)


def test_the_standard_library_is_its_sources_in_order_without_tests(tmp_path: Path) -> None:
    import sysconfig

    root = Path(sysconfig.get_path("stdlib"))
    library = StandardLibrary(None)
    paths = [path for path, _ in library.listing]
    assert "dataclasses.py" in paths and "json/decoder.py" in paths
    assert not {"test", "tests", "site-packages"} & {folder for path in paths for folder in path.split("/")}
    assert library.size_bytes() > 5_000_000
    content = library.bytes()
    assert content.size == library.size_bytes()
    assert content[: library.listing[0][1].st_size].tobytes() == (root / paths[0]).read_bytes()


def small_library(folder: Path) -> Path:
    (folder / "lib" / "pkg").mkdir(parents=True)
    (folder / "lib" / "test").mkdir()
    for name, content in (("b.py", "b"), ("a.py", "aa"), ("pkg/z.py", "zzz"), ("test/t.py", "t"), ("c.txt", "c")):
        (folder / "lib" / name).write_text(content)
    return folder / "lib"


def test_the_joined_library_is_kept_in_the_cache_until_a_source_changes(tmp_path: Path) -> None:
    root, cache = small_library(tmp_path), tmp_path / "cache"
    assert StandardLibrary(cache, root).bytes().tobytes() == b"aabzzz"
    (kept,) = (cache / "text").iterdir()
    kept.write_bytes(b"cached")
    assert StandardLibrary(cache, root).bytes().tobytes() == b"cached"
    (root / "b.py").write_text("bbb")
    assert StandardLibrary(cache, root).bytes().tobytes() == b"aabbbzzz"


def test_the_identity_is_of_the_content_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    content = bytes(range(50))
    here = open_loader(text(tmp_path, content), 0, shuffled=False).identity()
    assert here == open_loader(text(tmp_path / "elsewhere", content), 1, shuffled=True).identity()
    assert here != open_loader(text(tmp_path, content[::-1]), 0, shuffled=False).identity()


# Refusals


def test_missing_files_are_named_with_the_place_that_was_looked_at(tmp_path: Path) -> None:
    error = refused("E-DATA-001", spec("text", tmp_path, "none.txt", seq=4, batch=1))
    assert error.message == "there is no file none.txt"
    assert str(tmp_path / "none.txt") in error.notes[0]
    assert refused("E-DATA-001", spec("text", tmp_path, "*.none", seq=4, batch=1)).message == "no file matches *.none"
    (tmp_path / "folder").mkdir()
    assert "not a file" in refused("E-DATA-001", spec("text", tmp_path, "folder", seq=4, batch=1)).message


def test_a_text_too_short_for_one_window_says_needed_and_found(tmp_path: Path) -> None:
    error = refused("E-DATA-002", text(tmp_path, bytes(8), seq=8))
    assert error.message == "one window of :seq 8 needs 9 bytes, found 8"
    split = (("train", 0.9), ("val", 0.1))
    error = refused("E-DATA-002", text(tmp_path, bytes(50), seq=8, split=split, part="val"))
    assert error.message == "one window of :seq 8 needs 9 bytes, found 5 in part val"
    refused("E-DATA-002", text(tmp_path, b""))


@pytest.mark.parametrize(
    ("split", "part", "words"),
    [
        ((("train", 0.9), ("val", 0.2)), "val", "sum to 1.1"),
        ((("train", 0.0), ("val", 0.2)), "val", "fraction of train is 0"),
        ((("train", math.nan), ("val", 0.2)), "val", "fraction of train is nan"),
        ((("train", 0.9), ("val", 0.1)), None, "needs :part, one of train, val"),
        ((("train", 0.9), ("val", 0.1)), "vall", "no part vall"),
        (None, "val", "without :split"),
    ],
)
def test_a_split_that_cannot_be_made_is_refused(
    tmp_path: Path, split: tuple[tuple[str, float], ...] | None, part: str | None, words: str
) -> None:
    assert words in refused("E-DATA-003", text(tmp_path, bytes(100), split=split, part=part)).message


def test_missing_and_unknown_options_are_refused(tmp_path: Path) -> None:
    assert "needs :seq" in refused("E-DATA-007", text(tmp_path, bytes(50), seq=None)).message
    assert "needs :batch" in refused("E-DATA-007", text(tmp_path, bytes(50), batch=None)).message
    assert ":limit is 0" in refused("E-DATA-007", text(tmp_path, bytes(50), limit=0)).message
    assert refused("E-DATA-007", text(tmp_path, bytes(50), tokenizer=("byte",))).notes == ["did you mean bytes?"]
    error = refused("E-DATA-007", spec("builtin", tmp_path, "digit", batch=1))
    assert error.notes == ["did you mean digits?"]
