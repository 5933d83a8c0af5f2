"""Records of text: a padded row each, framed by the boundary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train.loader import Loader, header, open_loader

SPAN = Span(Source("a.sexp", "(lines data)"), 0, 12)


def lines(base: Path, content: bytes, **options: Any) -> LoaderSpec:
    (base / "a.txt").write_bytes(content)
    given = {"tokenizer": ("bytes",), "batch": 2, "seq": 4, **options}
    return LoaderSpec("lines", ("a.txt",), base=base, span=SPAN, **given)


def jsonl(base: Path, content: str | bytes, **options: Any) -> LoaderSpec:
    (base / "a.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {"tokenizer": ("bytes",), "batch": 2, "seq": 8, **options}
    return LoaderSpec("jsonl", ("a.jsonl",), base=base, span=SPAN, **given)


def texts(loader: Loader, batches: int) -> list[bytes]:
    """The targets that count, of every row."""
    made = []
    for m in range(batches):
        batch = loader.batch(1, m, batches)
        made += [bytes(row[mask].tolist()) for row, mask in zip(batch["targets"], batch["mask"])]
    return made


def test_a_line_is_a_row_between_newlines_padded_with_zeros(tmp_path: Path) -> None:
    loader = open_loader(lines(tmp_path, b"ab\nc\n"), 0, shuffled=False)
    batch = loader.batch(1, 0, 1)
    assert batch["tokens"].tolist() == [[10, 97, 98, 0], [10, 99, 0, 0]]
    assert batch["targets"].tolist() == [[97, 98, 10, 0], [99, 10, 0, 0]]
    assert batch["mask"].tolist() == [[True, True, True, False], [True, True, False, False]]
    assert [array.dtype for array in batch.values()] == [np.int32, np.int32, np.bool_]
    assert all(array.flags.c_contiguous for array in batch.values())


def test_the_header_of_lines_gives_fields_count_and_vocabulary(tmp_path: Path) -> None:
    found = header(lines(tmp_path, b"ab\nc\nd", batch=3, seq=8))
    shape = (3, 8)
    assert dict(found.fields) == {"tokens": Field("i32", shape), "targets": Field("i32", shape), "mask": Field("bool", shape)}
    assert (found.count, found.vocabulary) == (3, 256)


def test_a_line_longer_than_a_row_is_cut_and_has_no_end(tmp_path: Path) -> None:
    loader = open_loader(lines(tmp_path, b"abc\nabcd\nabcdef\n", batch=3), 0, shuffled=False)
    batch = loader.batch(1, 0, 1)
    assert batch["targets"].tolist() == [[97, 98, 99, 10], [97, 98, 99, 100], [97, 98, 99, 100]]
    assert batch["tokens"].tolist() == [[10, 97, 98, 99]] * 3
    assert batch["mask"].all()


@pytest.mark.parametrize("content", [b"a\nbc", b"a\nbc\n", b"a\r\nbc\r\n", b"\n\na\n\r\n\nbc\n\n"])
def test_line_ends_are_lf_or_cr_lf_and_empty_lines_are_no_records(tmp_path: Path, content: bytes) -> None:
    assert texts(open_loader(lines(tmp_path, content), 0, shuffled=False), 1) == [b"a\n", b"bc\n"]


def test_lines_of_several_files_follow_each_other_in_sorted_order(tmp_path: Path) -> None:
    for name, content in (("b.txt", b"c\nd"), ("a.txt", b"a\nb"), ("aa.txt", b"")):
        (tmp_path / name).write_bytes(content)
    for paths in (("*.txt",), ("b.txt", "aa.txt", "a.txt")):
        spec = LoaderSpec("lines", paths, base=tmp_path, span=SPAN, seq=4, batch=2)
        assert texts(open_loader(spec, 0, shuffled=False), 2) == [b"a\n", b"b\n", b"c\n", b"d\n"]


def test_a_split_of_lines_chooses_them_by_key_and_shares_out_every_one(tmp_path: Path) -> None:
    content = b"".join(b"%03d\n" % number for number in range(100))
    split = (("train", 0.8), ("val", 0.2))
    parts = [
        texts(open_loader(lines(tmp_path, content, batch=1, split=split, part=part), 0, False), count)
        for part, count in (("train", 80), ("val", 20))
    ]
    assert sorted(parts[0] + parts[1]) == content.splitlines(keepends=True)
    assert parts[1] == sorted(parts[1]) != content.splitlines(keepends=True)[80:]


def test_a_limit_keeps_the_first_lines(tmp_path: Path) -> None:
    loader = open_loader(lines(tmp_path, b"a\nb\nc\nd\n", limit=2), 0, shuffled=False)
    assert texts(loader, 2) == [b"a\n", b"b\n", b"a\n", b"b\n"]


def test_lines_are_found_again_from_the_cache_until_the_file_changes(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    place = lines(tmp_path, b"a\nb\n")
    assert header(place, cache).count == header(place, cache).count == 2
    lines(tmp_path, b"a\nb\nc\n")
    assert header(place, cache).count == 3
    assert texts(open_loader(place, 0, False, cache=cache), 1) == [b"a\n", b"b\n"]


def test_the_identity_of_lines_is_of_their_content(tmp_path: Path) -> None:
    first = open_loader(lines(tmp_path, b"a\nb\n"), 0, False).identity()
    assert first == open_loader(lines(tmp_path, b"a\nb\n"), 1, True).identity()
    assert first != open_loader(lines(tmp_path, b"a\nc\n"), 0, False).identity()


def test_a_file_without_lines_and_a_batch_of_too_many_are_refused(tmp_path: Path) -> None:
    for content, message in ((b"\n\n", "the data has no records"), (b"a\n", ":batch 2 needs 2 examples, the data has 1")):
        with pytest.raises(Error) as caught:
            header(lines(tmp_path, content))
        assert (caught.value.code, caught.value.message, caught.value.span) == ("E-DATA-002", message, SPAN)


def test_a_loss_weighted_by_the_mask_is_the_mean_over_what_is_real(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("ab\nc\n")
    (tmp_path / "e.sexp").write_text("""
      (defloader names (lines "names.txt" :tokenizer (bytes) :seq 6 :batch 2))
      (deflayer logits (tokens) (param "w" [256] (constant 0.0)))
      (defrun go :data names :optimizer (sgd :lr 0.0) :steps 1
        :loss (weighted (cross-entropy (broadcast-to (logits tokens) [2 6 256]) targets) mask))
    """)
    experiment = sexpgpu.load(tmp_path / "e.sexp")
    step = experiment.compile(device="cpu")
    batch = open_loader(experiment.elaborated.loaders["names"], 0, False).batch(1, 0, 1)
    loss, gradients = step(experiment.init(), batch, step=1, seed=0, microbatch=0)
    assert loss == pytest.approx(np.log(256), rel=1e-6)
    # Five targets count: a, b, newline, c, newline; each pulls down 1/5 at itself and pushes up 1/256 everywhere.
    expected = np.full(256, 1 / 256)
    for byte in b"ab\nc\n":
        expected[byte] -= 1 / 5
    assert gradients["logits.w"] == pytest.approx(expected, abs=1e-6)


# JSON


def test_a_text_of_every_json_line_is_a_row_between_zeros(tmp_path: Path) -> None:
    loader = open_loader(jsonl(tmp_path, '{"text": "a\\nb", "n": 1}\n\n{"n": 2, "text": "\u00e9"}\n'), 0, shuffled=False)
    batch = loader.batch(1, 0, 1)
    assert batch["tokens"][:, :5].tolist() == [[0, 97, 10, 98, 0], [0, 0xC3, 0xA9, 0, 0]]
    assert texts(loader, 1) == [b"a\nb\0", b"\xc3\xa9\0"]
    assert loader.vocabulary == 256


def test_an_empty_text_is_a_row_of_its_boundary(tmp_path: Path) -> None:
    loader = open_loader(jsonl(tmp_path, '{"text": ""}\n{"text": "a"}\n{"text": ""}'), 0, shuffled=False)
    assert texts(loader, 2) == [b"\0", b"a\0", b"\0", b"\0"]


def test_field_says_which_key_and_boundary_which_token(tmp_path: Path) -> None:
    options = (("field", "body"), ("boundary", "\n"))
    place = jsonl(tmp_path, '{"body": "a", "text": "b"}\n' * 2, options=options)
    assert texts(open_loader(place, 0, False), 1) == [b"a\n", b"a\n"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text": "a"', "a.jsonl:3: not JSON: "),
        ("[" * 10000, "a.jsonl:3: not JSON: "),
        ("[1]", "a.jsonl:3: not a JSON object: [1]"),
        ('{"Text": "a"}', "a.jsonl:3: no text in it; did you mean :field 'Text'?"),
        ('{"body": "a", "n": 1}', "a.jsonl:3: no text in it, only body, n"),
        ('{"text": 17}', "a.jsonl:3: text is no text: 17"),
    ],
)
def test_a_line_that_is_not_the_record_it_should_be_is_refused_with_its_number(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(Error) as caught:
        header(jsonl(tmp_path, f'{{"text": "a"}}\n\n{line}\n{{"text": "a"}}\n'))
    assert caught.value.code == "E-DATA-008" and words in caught.value.message and caught.value.span is SPAN


def test_a_json_line_that_is_not_utf_8_is_refused_with_line_and_byte(tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        header(jsonl(tmp_path, b'{"text": "a"}\n{"text": "\xff"}\n'))
    assert caught.value.code == "E-DATA-008"
    assert "a.jsonl:2: not UTF-8: byte 24 of the file is 0xff" in caught.value.message


def test_the_json_key_is_written_as_a_text_in_the_file(tmp_path: Path) -> None:
    jsonl(tmp_path, '{"body": "ab"}\n{"body": "c"}\n')
    (tmp_path / "e.sexp").write_text("""
      (defloader d (jsonl "a.jsonl" :field "body" :tokenizer (bytes) :boundary "." :seq 4 :batch 2))
      (defrun go :data d :optimizer (sgd) :steps 1
        :loss (weighted (cross-entropy (linear (one-hot tokens (vocab-size d)) (vocab-size d)) targets) mask))
    """)
    loaders = sexpgpu.load(tmp_path / "e.sexp").elaborated.loaders
    assert texts(open_loader(loaders["d"], 0, False), 1) == [b"ab.", b"c."]


def test_a_boundary_of_two_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        header(jsonl(tmp_path, '{"text": "a"}\n' * 2, options=(("boundary", "ab"),)))
    assert caught.value.code == "E-DATA-007" and "'ab' is not one token" in caught.value.message
