"""Data files that were cut or changed give what is in them or a coded error at the loader, never a traceback."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from sexpgpu.errors import Error
from sexpgpu.loaderspec import LoaderKind, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train.loader import open_loader

SPAN = Span(Source("a.sexp", "(csv data)"), 0, 10)


def csv(path: Path) -> None:
    path.write_text('a,b,"c d"\n1,2.5,x\n-3,"4",y\n5,6e-2,"z\n"\n')


def jsonl(path: Path) -> None:
    path.write_text('{"text": "añ\\u00e9", "n": [1, {"a": null}]}\n{"text": ""}\n{"n": 1.5, "text": "b"}\n')


def parquet(path: Path) -> None:
    kind = pyarrow.list_(pyarrow.float32(), 2)
    table = pyarrow.table({"a": [1, 2, 3], "b": [0.5, 1, 2], "x": pyarrow.array([[1, 2], [3, 4], [5, 6]], kind)})
    pyarrow.parquet.write_table(table, path)


def safetensors(path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.arange(6.0).reshape(3, 2), "b": np.arange(3)}, path)


def npz(path: Path) -> None:
    np.savez(path, a=np.arange(6.0).reshape(3, 2), b=np.arange(3))


def tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    engine = Tokenizer(models.WordLevel({"a": 0, "b": 1, "</s>": 2}, "a"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.save(str(path))


TEXT: dict[str, Any] = {"seq": 4, "tokenizer": ("bytes",)}
CASES: dict[str, tuple[LoaderKind, Callable[[Path], None], dict[str, Any]]] = {
    "a.csv": ("csv", csv, {}),
    "a.jsonl": ("jsonl", jsonl, TEXT),
    "a.parquet": ("parquet", parquet, {}),
    "a.safetensors": ("arrays", safetensors, {}),
    "a.npz": ("arrays", npz, {}),
    "tokenizer.json": ("lines", tokenizer, {"seq": 4}),
}


def read(place: LoaderSpec) -> None:
    """All of it, if it can be read."""
    try:
        loader = open_loader(place, 0, shuffled=False)
        for step in range(loader.count):
            loader.batch(step + 1, 0, 1)
    except Error as error:
        assert error.code.startswith("E-DATA-") and error.span is SPAN, error


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    kind, write, options = CASES[name]
    file = tmp_path / name
    write(file)
    place = LoaderSpec(kind, (name,), base=tmp_path, span=SPAN, **{"batch": 1, **options})
    if name == "tokenizer.json":
        (tmp_path / "a.txt").write_text("a b\nb\n")
        place = LoaderSpec(kind, ("a.txt",), base=tmp_path, span=SPAN, batch=1, tokenizer=("bpe", str(file)), **options)
    whole = file.read_bytes()
    open_loader(place, 0, shuffled=False).batch(1, 0, 1)
    chance = random.Random(name)
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4, 16))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        file.write_bytes(changed[: chance.choice((len(changed), chance.randrange(len(changed))))])
        read(place)
