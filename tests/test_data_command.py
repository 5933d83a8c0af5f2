"""`sexpgpu data`: what a file's loaders yield, and token files from texts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from sexpgpu.cli.main import commands
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.loader import open_loader
from sexpgpu.train.prepare import prepare

FILE = """
(defhyper rows 2)
(defhyper most 3)
(defloader names (lines "names.txt" :tokenizer (bytes) :seq 4 :batch rows :limit most))
(defloader play (text "play.txt" :tokenizer (bytes) :seq 4 :batch rows :split (train 0.9 val 0.1) :part train))
(defloader table (csv "t.csv" :fields (x ["a" "b"] y "c") :batch rows))
(defloader rest (synthetic :x (bf16 [4 20])))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEXPGPU_CACHE", str(tmp_path / "cache"))
    (tmp_path / "e.sexp").write_text(FILE)
    (tmp_path / "names.txt").write_text("ab\nabc\nabcd\n")
    (tmp_path / "play.txt").write_text("".join(f"line {n}\n" for n in range(9)))
    (tmp_path / "t.csv").write_text("a,b,c\n1.5,2,0\n3,4,1\n5,6,2\n")
    return tmp_path


def said(*words: str) -> str:
    done = CliRunner().invoke(commands, ["data", *words], catch_exceptions=False, standalone_mode=False)
    return done.output


def facts(*words: str) -> dict[str, Any]:
    return {loader["loader"]: loader for loader in json.loads(said(*words, "--json"))["loaders"]}


def test_fields_counts_and_first_records_are_shown_as_text() -> None:
    found = facts("e.sexp")
    assert list(found) == ["names", "play", "table", "rest"]
    names = found["names"]
    assert names["fields"]["mask"] == {"dtype": "bool", "shape": [2, 4]}
    assert (names["count"], names["batches"], names["vocabulary"], names["unit"]) == (3, 2, 256, "examples")
    # `abcd` fills its row without an end.
    assert (names["longest"], names["cut"]) == (5, 1)
    assert [example["targets"] for example in names["first"]] == ["ab\n", "abc\n", "abcd"]


def test_a_part_of_a_text_has_windows_and_tokens() -> None:
    play = facts("e.sexp")["play"]
    # 0.9 of 63 bytes are 56: thirteen windows of four and one more.
    assert (play["tokens"], play["count"], play["unit"]) == (56, 13, "windows")
    assert play["first"][0] == {"tokens": "line", "targets": "ine "}
    assert play["split"] == {"train": 0.9, "val": 0.1} and play["part"] == "train"


def test_numbers_of_a_table_are_shown_by_field() -> None:
    assert facts("e.sexp", "--loader", "table")["table"]["first"] == [
        {"x": "[1.5 2. ]", "y": "0"}, {"x": "[3. 4.]", "y": "1"}, {"x": "[5. 6.]", "y": "2"},
    ]  # fmt: skip


def test_the_report_has_a_line_a_fact() -> None:
    text = said("e.sexp", "--loader", "names")
    assert text.splitlines()[:4] == [
        "names: lines names.txt",
        "  fields      tokens i32[2 4], targets i32[2 4], mask bool[2 4]",
        "  examples    3 in 2 batches",
        "  vocabulary  256",
    ]
    assert "  1 targets   'ab\\n'" in text.splitlines()
    assert all(len(line) < 110 for line in said("e.sexp").splitlines())


def test_hypers_are_replaced_as_in_a_run() -> None:
    assert facts("e.sexp", "rows=3")["names"]["fields"]["tokens"]["shape"] == [3, 4]


def test_a_loader_without_a_batch_is_shown_an_example_at_a_time(here: Path) -> None:
    (here / "e.sexp").write_text('(defloader names (lines "names.txt" :tokenizer (bytes) :seq 4))')
    assert facts("e.sexp")["names"]["fields"]["tokens"]["shape"] == [1, 4]


def test_a_misspelt_loader_gets_the_nearest() -> None:
    with pytest.raises(Error) as caught:
        said("e.sexp", "--loader", "nams")
    assert caught.value.code == "E-NAME-001" and caught.value.notes == ["did you mean names?"]


def test_the_problems_of_all_loaders_are_reported(here: Path) -> None:
    (here / "e.sexp").write_text(FILE.replace("names.txt", "none.txt").replace('"c"', '"d"'))
    with pytest.raises(Diagnostics) as caught:
        said("e.sexp")
    assert [error.code for error in caught.value.errors] == ["E-DATA-001", "E-DATA-010"]


def test_problems_are_json_where_it_is_asked_for(here: Path) -> None:
    (here / "names.txt").unlink()
    done = CliRunner().invoke(commands, ["data", "e.sexp", "--json"])
    assert isinstance(done.exception, Diagnostics)
    (problem,) = json.loads(done.stdout)["errors"]
    assert (problem["code"], problem["line"]) == ("E-DATA-001", 4)


@pytest.mark.parametrize("words", [["e.sexp", "--out", "x"], ["prepare"], ["prepare", "a.txt"], ["prepare", "--out", "x"]])
def test_options_of_the_other_use_are_a_wrong_command_line(words: list[str]) -> None:
    done = CliRunner().invoke(commands, ["data", *words])
    assert done.exit_code == 2 and "data prepare" in done.output


# Token files


def test_bytes_are_written_as_u16_end_to_end_in_sorted_order(here: Path) -> None:
    (here / "b.txt").write_text("cd")
    (here / "a.txt").write_text("ab")
    text = said("prepare", "b.txt", "a.txt", "--out", "x.bin")
    assert np.fromfile("x.bin", "<u2").tolist() == [97, 98, 99, 100]
    assert text.splitlines() == [
        "x.bin: 4 tokens of 256, u16, from 4 bytes",
        'read it with (token-file "x.bin" :dtype u16 :tokenizer (bytes) :seq N :batch B)',
    ]


def vocabulary(path: Path, size: int) -> None:
    """A tokenizer.json of `size` words w0, w1 …, split at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel({f"w{n}": n for n in range(size)}, "w0"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.save(str(path))


@pytest.mark.parametrize(("size", "dtype"), [(65536, "u16"), (65537, "u32")])
def test_a_vocabulary_beyond_u16_is_written_as_u32(here: Path, size: int, dtype: str) -> None:
    vocabulary(here / "t.json", size)
    (here / "a.txt").write_text(f"w3 w{size - 1} w1")
    made = prepare(["a.txt"], "t.json", Path("x.bin"))
    assert (made.dtype, made.tokens, made.vocabulary) == (dtype, 3, size)
    assert np.fromfile("x.bin", "<" + dtype.replace("u16", "u2").replace("u32", "u4")).tolist() == [3, size - 1, 1]


def test_a_token_file_has_vocabulary_and_text_of_the_tokenizer_that_made_it(here: Path) -> None:
    vocabulary(here / "t.json", 300)
    (here / "a.txt").write_text("w3 w299 w1 w0")
    loader = prepare(["a.txt"], "t.json", Path("x.bin")).loader
    assert loader == '(token-file "x.bin" :dtype u16 :tokenizer (bpe "t.json") :seq N :batch B)'
    (here / "e.sexp").write_text(f"(defloader d {loader.replace('N', '3').replace('B', '1')})")
    found = facts("e.sexp")["d"]
    assert found["vocabulary"] == 300 and found["first"] == [{"tokens": "w3 w299 w1", "targets": "w299 w1 w0"}]


def test_a_header_is_llm_cs_and_read_back(here: Path) -> None:
    prepare(["names.txt"], "bytes", Path("x.bin"), header=True)
    head = np.fromfile("x.bin", "<i4", 256)
    assert head[:3].tolist() == [20240520, 1, 12] and not head[3:].any()
    loader = open_loader(LoaderSpec("token-file", ("x.bin",), base=here, seq=3, batch=1), 0, False)
    assert bytes(loader.batch(1, 0, 1)["tokens"][0].tolist()) == b"ab\n"


def test_a_header_that_would_say_too_small_a_vocabulary_is_refused(here: Path) -> None:
    vocabulary(here / "t.json", 60000)
    with pytest.raises(Error) as caught:
        prepare(["names.txt"], "t.json", Path("x.bin"), header=True)
    assert caught.value.code == "E-DATA-007" and "60000" in caught.value.message and not Path("x.bin").exists()


def test_a_token_file_is_replaced_whole_or_left_as_it_was(here: Path) -> None:
    Path("x.bin").write_bytes(b"before")
    vocabulary(here / "t.json", 10)
    (here / "a.txt").write_bytes(b"w1 w2\n\xff\n")
    with pytest.raises(Error) as caught:
        prepare(["a.txt"], "t.json", Path("x.bin"))
    assert caught.value.code == "E-DATA-008" and "a.txt:2: not UTF-8" in caught.value.message
    assert Path("x.bin").read_bytes() == b"before" and not list(here.glob(".*.tmp-*"))
    prepare(["names.txt"], "bytes", Path("x.bin"))
    assert Path("x.bin").stat().st_size == 24


def test_a_text_is_never_written_over(here: Path) -> None:
    with pytest.raises(Error) as caught:
        prepare(["names.txt"], "bytes", Path("./names.txt"))
    assert caught.value.code == "E-DATA-007" and (here / "names.txt").read_text() == "ab\nabc\nabcd\n"


def test_a_folder_that_cannot_be_written_to_is_named(here: Path) -> None:
    with pytest.raises(Error) as caught:
        prepare(["names.txt"], "bytes", Path("none/x.bin"))
    assert caught.value.code == "E-DATA-001" and f"none{os.sep}x.bin" in caught.value.message
