"""Tokenizers: a text's bytes, and what a `tokenizer.json` says, encoded by the package tokenizers.

The file alone gives vocabulary and boundary; the package is imported where a text is encoded or decoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sexpgpu.errors import Error, nearest
from sexpgpu.loaderspec import LoaderSpec
from sexpgpu.train.datafiles import guarded

Array = NDArray[Any]

# What ends a text in widely used vocabularies; the first that a tokenizer has stands between its records.
ENDS_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]")


class Tokenizer(Protocol):
    """`vocabulary`: one more than its largest token; `key`: what its tokens depend on."""

    vocabulary: int
    key: str

    def encode(self, texts: list[str]) -> list[Array]: ...

    def decode(self, tokens: Iterable[int]) -> str: ...

    def token(self, text: str) -> int | None:
        """The one token that is this text, if there is one."""
        ...


class Bytes:
    """A text's bytes, 0 to 255."""

    vocabulary = 256
    key = "bytes"

    def encode(self, texts: list[str]) -> list[Array]:
        return [np.frombuffer(text.encode(), np.uint8) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(token & 255 for token in tokens).decode(errors="replace")

    def token(self, text: str) -> int | None:
        content = text.encode()
        return content[0] if len(content) == 1 else None


class _AddedToken(msgspec.Struct, frozen=True):
    id: int
    content: str


class _Model(msgspec.Struct, frozen=True):
    """BPE and its like list {token: id}, Unigram [[token, score]…]."""

    vocab: dict[str, int] | list[tuple[str, float]]


class _TokenizerFile(msgspec.Struct, frozen=True):
    model: _Model
    added_tokens: list[_AddedToken] = []


class FileTokenizer:
    """A `tokenizer.json`. Raises E-DATA-001 and E-DATA-005 where it cannot be read."""

    def __init__(self, path: Path, spec: LoaderSpec) -> None:
        from xxhash import xxh3_128_hexdigest

        content = guarded(path, spec, path.read_bytes)
        try:
            file = msgspec.json.decode(content, type=_TokenizerFile)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
            raise Error("E-DATA-005", f"{path}: no tokenizer.json: {problem}", spec.span) from problem
        vocab = file.model.vocab
        self.ids: Mapping[str, int] = (
            dict(vocab) if isinstance(vocab, dict) else {text: number for number, (text, _) in enumerate(vocab)}
        )
        self.ids = {**self.ids, **{token.content: token.id for token in file.added_tokens}}
        if not self.ids or min(self.ids.values()) < 0:
            raise Error("E-DATA-005", f"{path}: no tokenizer.json: it has no vocabulary", spec.span)
        self.path, self.span = path, spec.span
        self.vocabulary = max(self.ids.values()) + 1
        self.key = f"tokenizer {xxh3_128_hexdigest(content)}"
        self.dtype = np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    @cached_property
    def engine(self) -> Any:
        try:
            from tokenizers import Tokenizer as Engine
        except ImportError:
            fix = ["pip install 'sexpgpu[text]'"]
            raise Error("E-DATA-009", "(bpe …) needs the package tokenizers", self.span, notes=fix) from None
        try:
            engine = Engine.from_file(str(self.path))
        # The package raises bare exceptions.
        except Exception as problem:
            raise Error("E-DATA-005", f"{self.path}: no tokenizer.json: {problem}", self.span) from problem
        engine.no_truncation()
        engine.no_padding()
        return engine

    def encode(self, texts: list[str]) -> list[Array]:
        """Without the tokens that a tokenizer puts around a text."""
        engine = self.engine
        try:
            return [np.array(made.ids, self.dtype) for made in engine.encode_batch(texts, add_special_tokens=False)]
        # A vocabulary without the token for what it does not know, say.
        except Exception as problem:
            raise Error("E-DATA-005", f"{self.path}: its tokenizer cannot encode: {problem}", self.span) from problem

    def decode(self, tokens: Iterable[int]) -> str:
        return str(self.engine.decode(list(tokens), skip_special_tokens=False))

    def token(self, text: str) -> int | None:
        return self.ids.get(text)


def tokenizer_of(spec: LoaderSpec) -> Tokenizer:
    """The loader's tokenizer; bytes where it says none."""
    match spec.tokenizer:
        case None | ("bytes",):
            return Bytes()
        case ("bpe", path):
            return FileTokenizer(Path(path), spec)
    raise no_tokenizer(spec)


def no_tokenizer(spec: LoaderSpec) -> Error:
    assert spec.tokenizer is not None
    close = nearest(spec.tokenizer[0], ("bytes", "bpe"))
    notes = [f"did you mean {close}?"] if close else ['there are (bytes) and (bpe "tokenizer.json")']
    return Error("E-DATA-007", f"no tokenizer ({' '.join(spec.tokenizer)})", spec.span, notes=notes)


def boundary_of(tokenizer: Tokenizer, spec: LoaderSpec, of_bytes: str) -> int:
    """The token between records: `:boundary`, else `of_bytes` of bytes and the end of text of a vocabulary."""
    asked = spec.option("boundary")
    if asked is not None:
        found = tokenizer.token(str(asked))
        if found is None:
            raise Error("E-DATA-007", f":boundary {asked!r} is not one token of the tokenizer", spec.span)
        return found
    candidates = (of_bytes,) if isinstance(tokenizer, Bytes) else ENDS_OF_TEXT
    for text in candidates:
        found = tokenizer.token(text)
        if found is not None:
            return found
    raise Error(
        "E-DATA-007", f"{spec.kind} needs :boundary, a token: the tokenizer has no end of text", spec.span,
        notes=[f"looked for {' '.join(ENDS_OF_TEXT)}"],
    )  # fmt: skip
