"""Texts as tokens of a `tokenizer.json`, by a small one that is trained here."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import sexpgpu
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.loaderspec import LoaderKind, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train import encoded
from sexpgpu.train.kept import Kept
from sexpgpu.train.loader import header, open_loader
from sexpgpu.train.prose import prose
from sexpgpu.train.tokenizers import FileTokenizer

SPAN = Span(Source("a.sexp", "(text data)"), 0, 11)
TEXT = prose(6000).decode()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2's kind: BPE of bytes, with an end of text; 300 tokens."""
    engine = tokenizers.Tokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    engine.train_from_iterator([TEXT], trainer)
    path = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
    engine.save(str(path))
    return path


def ids(trained: Path, text: str) -> list[int]:
    """What the package itself says."""
    return list(tokenizers.Tokenizer.from_file(str(trained)).encode(text, add_special_tokens=False).ids)


def spec(kind: LoaderKind, trained: Path, base: Path, content: str | bytes, **options: Any) -> LoaderSpec:
    (base / "a.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    given = {"tokenizer": ("bpe", str(trained)), "batch": 1, "seq": 10, **options}
    return LoaderSpec(kind, ("a.txt",), base=base, span=SPAN, **given)


def stream(place: LoaderSpec, cache: Path | None = None) -> list[int]:
    """All tokens of a text."""
    loader = open_loader(place, 0, shuffled=False, cache=cache)
    return [token for m in range(loader.count) for token in loader.batch(1, m, loader.count)["tokens"][0].tolist()]


def test_a_text_is_the_tokens_of_the_vocabulary(trained: Path, tmp_path: Path) -> None:
    expected = ids(trained, TEXT)
    place = spec("text", trained, tmp_path, TEXT)
    assert header(place).count == (len(expected) - 1) // 10
    assert header(place).vocabulary == 300
    assert stream(place) == expected[: header(place).count * 10]


def test_a_split_cuts_bytes_and_never_a_character(trained: Path, tmp_path: Path) -> None:
    text = "ä" * 100
    for part, characters in (("train", 51), ("val", 49)):
        place = spec("text", trained, tmp_path, text, seq=1, split=(("train", 0.507), ("val", 0.493)), part=part)
        # 0.507 of 200 bytes is 101, inside the 51st character: the cut moves behind it.
        assert header(place).count == len(ids(trained, "ä" * characters)) - 1


def test_a_long_text_is_encoded_in_pieces_to_the_same_tokens(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT.replace(". ", ".\n").replace("the", "the\n\n")
    whole = stream(spec("text", trained, tmp_path, text))
    monkeypatch.setattr(encoded, "PIECE_BYTES", 500)
    data = np.frombuffer(text.encode(), np.uint8)
    assert encoded.piece_bytes(data) < 600
    assert stream(spec("text", trained, tmp_path, text)) == whole


def test_tokens_are_cached_by_content_and_tokenizer(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    first = stream(spec("text", trained, tmp_path, TEXT), cache)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(FileTokenizer, "encode", lambda self, texts: pytest.fail("encoded again"))
        assert stream(spec("text", trained, elsewhere, TEXT), cache) == first
    shorter = spec("text", trained, tmp_path, TEXT[:-500])
    assert stream(shorter, cache) == stream(shorter)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({**json.loads(trained.read_text()), "pre_tokenizer": None, "decoder": None}))
    assert stream(spec("text", other, tmp_path, TEXT), cache) != first


def test_the_builtin_text_is_encoded_like_a_file(trained: Path) -> None:
    place = LoaderSpec("builtin", ("text",), span=SPAN, seq=10, batch=1, tokenizer=("bpe", str(trained)))
    assert open_loader(place, 0, False).batch(1, 0, 1)["tokens"][0].tolist() == ids(trained, prose(300).decode())[:10]


def test_damaged_tokens_are_made_again_and_that_is_said(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, cache = spec("text", trained, tmp_path, TEXT), tmp_path / "cache"
    first = stream(place, cache)
    (entry,) = (cache / "data").glob("*.arrays")
    content = bytearray(entry.read_bytes())
    content[100] ^= 255
    entry.write_bytes(content)
    assert stream(place, cache) == first
    assert "damaged and is made again" in capsys.readouterr().err


def test_the_header_of_a_text_seen_before_does_not_read_the_text(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache = spec("text", trained, tmp_path, TEXT), tmp_path / "cache"
    known = header(place, cache)
    monkeypatch.setattr(Kept, "arrays", lambda self: pytest.fail("arrays were read"))
    monkeypatch.setattr(encoded, "mapped", lambda *_: pytest.fail("the text was read"))
    monkeypatch.setattr("sexpgpu.train.kept.digest_of_bytes", lambda _: pytest.fail("the text was hashed"))
    assert header(place, cache) == known


def test_records_stand_between_ends_of_text(trained: Path, tmp_path: Path) -> None:
    end = ids(trained, "<|endoftext|>")
    for kind, content in (("lines", "the miller\n"), ("jsonl", '{"text": "the miller"}\n')):
        place = spec(kind, trained, tmp_path, content)  # type: ignore[arg-type]
        batch = open_loader(place, 0, shuffled=False).batch(1, 0, 1)
        record = ids(trained, "the miller")
        assert batch["tokens"][0][batch["mask"][0]].tolist() == end + record
        assert batch["targets"][0][batch["mask"][0]].tolist() == record + end


def test_a_tokenizer_without_an_end_of_text_asks_for_a_boundary(trained: Path, tmp_path: Path) -> None:
    content = json.loads(trained.read_text())
    content["added_tokens"] = []
    content["model"]["vocab"]["nothing"] = content["model"]["vocab"].pop("<|endoftext|>")
    (tmp_path / "t.json").write_text(json.dumps(content))
    with pytest.raises(Error) as caught:
        header(spec("lines", tmp_path / "t.json", tmp_path, "ab\n"))
    assert caught.value.code == "E-DATA-007" and ":boundary" in caught.value.message
    place = spec("lines", tmp_path / "t.json", tmp_path, "ab\n", options=(("boundary", "."),))
    assert open_loader(place, 0, False).batch(1, 0, 1)["tokens"][0, 0] == ids(trained, ".")[0]


def test_a_text_that_is_not_utf_8_is_refused_with_line_and_byte(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(Error) as caught:
        header(spec("text", trained, tmp_path, b"ab\ncd\xe4\n"))
    assert caught.value.code == "E-DATA-008" and caught.value.span is SPAN
    assert caught.value.message.endswith("a.txt:2: not UTF-8: byte 5 of the file is 0xe4")


NO_TOKENIZERS = ["", "{}", "[]", '{"model": {"vocab": {}}}', '{"model": {"vocab": {"a": "b"}}}', "\0", "[" * 10000]


@pytest.mark.parametrize("content", NO_TOKENIZERS)
def test_what_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(Error) as caught:
        header(spec("text", tmp_path / "t.json", tmp_path, TEXT))
    assert caught.value.code == "E-DATA-005" and "tokenizer.json" in caught.value.message


def test_a_tokenizer_that_the_package_does_not_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"model": {"vocab": {"a": 0}}}')
    with pytest.raises(Error) as caught:
        header(spec("text", tmp_path / "t.json", tmp_path, TEXT))
    assert caught.value.code == "E-DATA-005"


def test_without_the_package_the_message_says_what_to_install(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tokenizers":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(Error) as caught:
        header(spec("text", trained, tmp_path, TEXT))
    assert caught.value.code == "E-DATA-009" and caught.value.notes == ["pip install 'sexpgpu[text]'"]


PROGRAM = """
  (defloader d (text "a.txt" :tokenizer (bpe "tokenizer.json") :seq 8 :batch 2))
  (deflayer logits (tokens)
    (linear (embed (param "wte" [{rows} 4] (normal 0.02)) tokens) (vocab-size d) :name "head"))
  (defrun go :data d :optimizer (sgd) :steps 1 :loss (cross-entropy (logits tokens) targets))
"""


def program(trained: Path, folder: Path, rows: str) -> Path:
    spec("text", trained, folder, TEXT)
    (folder / "tokenizer.json").write_bytes(trained.read_bytes())
    (folder / "e.sexp").write_text(PROGRAM.format(rows=rows))
    return folder / "e.sexp"


def test_the_size_of_the_vocabulary_is_known_at_compile_time(trained: Path, tmp_path: Path) -> None:
    parameters = sexpgpu.load(program(trained, tmp_path, "(vocab-size d)")).init()
    assert parameters["logits.wte"].shape == (300, 4) and parameters["logits.head.weight"].shape == (4, 300)


def test_check_warns_of_a_table_smaller_than_the_vocabulary(trained: Path, tmp_path: Path) -> None:
    from sexpgpu.cli.check import small_tables

    experiment = sexpgpu.load(program(trained, tmp_path, "256")).elaborated
    (line,) = small_tables(experiment)
    assert "a table of 256 for tokens below 300" in line
    assert small_tables(sexpgpu.load(program(trained, tmp_path, "300")).elaborated) == []


def test_a_missing_tokenizer_is_named(trained: Path, tmp_path: Path) -> None:
    file = program(trained, tmp_path, "300")
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(Diagnostics) as caught:
        sexpgpu.load(file)
    assert caught.value.errors[0].code == "E-DATA-001" and "tokenizer.json" in caught.value.errors[0].message
