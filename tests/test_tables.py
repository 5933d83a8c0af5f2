"""Columns of CSV and Parquet files as fields; arrays that are mapped where they lie."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import sexpgpu
from sexpgpu.errors import Error
from sexpgpu.loaderspec import Field, LoaderKind, LoaderSpec
from sexpgpu.source import Source, Span
from sexpgpu.train.loader import header, open_loader

SPAN = Span(Source("a.sexp", "(csv data)"), 0, 10)
IRIS = "width,height,label,species\n1.5,2,0,setosa\n3,4.25,1,virginica\n-5e-1,6,2,setosa\n"


def csv(base: Path, content: str | bytes, name: str = "a.csv", **options: Any) -> LoaderSpec:
    (base / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return LoaderSpec("csv", (name,), base=base, span=SPAN, **{"batch": 1, **options})


def parquet(base: Path, name: str = "a.parquet", options: dict[str, Any] | None = None, **columns: Any) -> LoaderSpec:
    pyarrow.parquet.write_table(pyarrow.table(columns), base / name)
    return LoaderSpec("parquet", (name,), base=base, span=SPAN, **{"batch": 1, **(options or {})})


def whole(place: LoaderSpec, cache: Path | None = None) -> dict[str, list[Any]]:
    """All rows of every field, in order."""
    loader = open_loader(place, 0, shuffled=False, cache=cache)
    batches = [loader.batch(1, m, loader.count) for m in range(loader.count)]
    return {name: np.concatenate([batch[name] for batch in batches]).tolist() for name in loader.fields}


def refused(code: str, place: LoaderSpec) -> Error:
    with pytest.raises(Error) as caught:
        header(place)
    assert (caught.value.code, caught.value.span) == (code, SPAN)
    return caught.value


# CSV


def test_every_column_of_numbers_is_a_field_of_its_name(tmp_path: Path) -> None:
    place = csv(tmp_path, IRIS)
    assert dict(header(place).fields) == {
        "width": Field("f32", (1,)), "height": Field("f32", (1,)), "label": Field("i32", (1,)),
    }  # fmt: skip
    assert whole(place) == {"width": [1.5, 3, -0.5], "height": [2, 4.25, 6], "label": [0, 1, 2]}


def test_columns_are_grouped_into_one_field_in_the_order_that_is_said(tmp_path: Path) -> None:
    place = csv(tmp_path, IRIS, columns=(("x", ("height", "width")), ("y", "label"), ("one", ("label",))))
    assert dict(header(place).fields) == {
        "x": Field("f32", (1, 2)), "y": Field("i32", (1,)), "one": Field("i32", (1, 1)),
    }  # fmt: skip
    assert whole(place) == {"x": [[2, 1.5], [4.25, 3], [6, -0.5]], "y": [0, 1, 2], "one": [[0], [1], [2]]}


def test_integers_beyond_i32_are_i64_and_among_floats_they_are_floats(tmp_path: Path) -> None:
    found = header(csv(tmp_path, f"a,b,c\n1,{2**40},1\n2,3,1e3\n")).fields
    assert [found[name].dtype for name in "abc"] == ["i32", "i64", "f32"]


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ("a,b\r\n1,2\r\n\r\n3,4\r\n", "a.csv"), ("\ufeffa,b\n1,2\n3,4", "a.csv"), ("a\tb\n1\t2\n3\t4\n", "a.tsv"),
        ('"a", b\n"1", 2\n 3,"4"\n', "a.csv"),
    ],
)  # fmt: skip
def test_line_ends_marks_quotes_and_tabs_are_read(tmp_path: Path, content: str, name: str) -> None:
    assert whole(csv(tmp_path, content, name)) == {"a": [1, 3], "b": [2, 4]}


def test_another_delimiter_is_said(tmp_path: Path) -> None:
    assert whole(csv(tmp_path, "a;b\n1;2\n", options=(("delimiter", ";"),))) == {"a": [1], "b": [2]}
    assert "one character" in refused("E-DATA-007", csv(tmp_path, "a\n1", options=(("delimiter", ";;"),))).message


def test_csv_files_are_one_table_in_sorted_order(tmp_path: Path) -> None:
    csv(tmp_path, "a,b\n3,4\n", "2.csv")
    csv(tmp_path, "a,b\n1,2\n", "1.csv")
    assert whole(LoaderSpec("csv", ("*.csv",), base=tmp_path, span=SPAN, batch=1)) == {"a": [1, 3], "b": [2, 4]}
    csv(tmp_path, "a,c\n1,2\n", "3.csv")
    message = refused("E-DATA-010", LoaderSpec("csv", ("*.csv",), base=tmp_path, span=SPAN, batch=1)).message
    assert "3.csv has the columns a, c" in message


@pytest.mark.parametrize(
    ("content", "place", "what"),
    [
        ("a,b\n1,2\n3,x\n", ":3", "column 2 (b) is no number: 'x'"),
        ("a,b\n1,2\n\n3,\n", ":4", "column 2 (b) is no number: ''"),
        ('a,b\n1,"2"\n1,"2\n3"\n5,6,7\n', ":5", "3 cells in a row of 2 columns"),
        ("a,b\n1,2\n3\n", ":3", "1 cells in a row of 2 columns"),
        ('a,b\n1,"2\n', ":2", "not CSV"),
    ],
)
def test_a_wrong_cell_is_refused_with_its_line_and_column(tmp_path: Path, content: str, place: str, what: str) -> None:
    message = refused("E-DATA-008", csv(tmp_path, content)).message
    assert f"a.csv{place}: {what}" in message


def test_a_column_that_is_named_must_hold_numbers(tmp_path: Path) -> None:
    message = refused("E-DATA-008", csv(tmp_path, IRIS, columns=(("y", "species"),))).message
    assert "a.csv:2: column 4 (species) is no number: 'setosa'" in message


def test_a_csv_file_that_is_not_utf_8_is_refused_with_its_line(tmp_path: Path) -> None:
    assert "a.csv:3: not UTF-8: byte 5" in refused("E-DATA-008", csv(tmp_path, b"a\n1\n2\xe4\n")).message


@pytest.mark.parametrize(
    ("content", "code", "words"),
    [
        ("", "E-DATA-002", "is empty"),
        ("a,b\n", "E-DATA-002", "no rows"),
        ("a,b\nx,y\n", "E-DATA-002", "no column of numbers"),
        ("1,2\n3,4\n", "E-DATA-010", "numbers where the columns' names should stand: 1, 2"),
    ],
)
def test_a_file_without_names_or_numbers_is_refused(tmp_path: Path, content: str, code: str, words: str) -> None:
    assert words in refused(code, csv(tmp_path, content)).message


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path) -> None:
    error = refused("E-DATA-010", csv(tmp_path, IRIS, columns=(("x", ("widht", "height")),)))
    assert error.notes == ["did you mean 'width'?"]
    assert "2 columns 'a'" in refused("E-DATA-010", csv(tmp_path, "a,a\n1,2\n", columns=(("x", "a"),))).message


def test_a_csv_file_is_parsed_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, place = tmp_path / "cache", csv(tmp_path, "a\n1\n")
    assert whole(place, cache) == {"a": [1]}
    with monkeypatch.context() as patched:
        patched.setattr("sexpgpu.train.columns.CsvTable.columns", lambda self: pytest.fail("parsed again"))
        assert whole(place, cache) == {"a": [1]}
    csv(tmp_path, "a\n1.5\n")
    assert header(place, cache).fields["a"].dtype == "f32" and whole(place, cache) == {"a": [1.5]}


def test_a_split_of_a_table_shares_out_every_row(tmp_path: Path) -> None:
    split = (("train", 0.75), ("val", 0.25))
    content = "a\n" + "".join(f"{n}\n" for n in range(40))
    rows = [whole(csv(tmp_path, content, split=split, part=part))["a"] for part in ("train", "val")]
    assert [len(part) for part in rows] == [30, 10] and sorted(rows[0] + rows[1]) == list(range(40))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_fields_are_written_with_their_columns_in_the_file(tmp_path: Path, kind: str) -> None:
    csv(tmp_path, IRIS)
    parquet(tmp_path, width=[1.5, 3, -0.5], height=[2, 4.25, 6], label=[0, 1, 2])
    (tmp_path / "e.sexp").write_text(f"""
      (defloader d ({kind} "a.{kind}" :fields (x ["width" "height"] y "label") :batch 3))
      (defrun go :data d :optimizer (sgd) :steps 1 :loss (cross-entropy (linear x 3) y))
    """)
    experiment = sexpgpu.load(tmp_path / "e.sexp").elaborated
    assert {name: field.shape for name, field in experiment.headers["d"].fields.items()} == {"x": (3, 2), "y": (3,)}


# Parquet


def test_columns_of_parquet_are_fields_and_texts_are_left_out(tmp_path: Path) -> None:
    place = parquet(
        tmp_path, a=np.array([1, 2], np.int8), b=[0.5, 1.5], c=[True, False], s=["x", "y"], n=np.array([1, 2**40])
    )
    assert {name: field.dtype for name, field in header(place).fields.items()} == {
        "a": "i32", "b": "f32", "c": "bool", "n": "i64",
    }  # fmt: skip
    assert whole(place) == {"a": [1, 2], "b": [0.5, 1.5], "c": [True, False], "n": [1, 2**40]}


def test_lists_of_a_fixed_length_are_axes(tmp_path: Path) -> None:
    kind = pyarrow.list_(pyarrow.float32(), 3)
    place = parquet(tmp_path, x=pyarrow.array([[1, 2, 3], [4, 5, 6]], kind))
    assert header(place).fields["x"] == Field("f32", (1, 3))
    assert whole(place) == {"x": [[1, 2, 3], [4, 5, 6]]}


def test_parquet_files_are_one_table_in_sorted_order(tmp_path: Path) -> None:
    parquet(tmp_path, "2.parquet", a=[3])
    parquet(tmp_path, "1.parquet", a=[1, 2])
    place = LoaderSpec("parquet", ("*.parquet",), base=tmp_path, span=SPAN, batch=1)
    assert whole(place) == {"a": [1, 2, 3]}
    parquet(tmp_path, "3.parquet", a=[1.5])
    assert "is not the same" in refused("E-DATA-010", place).message


def test_what_parquet_columns_cannot_be_is_refused(tmp_path: Path) -> None:
    named = {"columns": (("y", "s"),)}
    assert "is string" in refused("E-DATA-004", parquet(tmp_path, s=["x"], options=named)).message
    assert refused("E-DATA-010", parquet(tmp_path, ss=[1], options=named)).notes == ["did you mean 'ss'?"]
    assert "uint64" in refused("E-DATA-004", parquet(tmp_path, a=np.array([1], np.uint64))).message
    (tmp_path / "a.parquet").write_bytes(b"PAR1" * 10)
    refused("E-DATA-005", LoaderSpec("parquet", ("a.parquet",), base=tmp_path, span=SPAN, batch=1))
    with pytest.raises(Error) as caught:
        whole(parquet(tmp_path, a=[1, None, 3]))
    assert caught.value.code == "E-DATA-008" and "no value in row 2" in caught.value.message


def test_the_header_of_parquet_is_its_footer(tmp_path: Path) -> None:
    place = parquet(tmp_path, a=np.arange(1000), b=np.arange(1000))
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    content[4:-2000] = bytes(len(content) - 2004)
    (tmp_path / "a.parquet").write_bytes(content)
    assert header(place).count == 1000


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = parquet(tmp_path, a=[1])
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert refused("E-DATA-009", place).notes == ["pip install 'sexpgpu[data]'"]


# Arrays that are mapped


def mapped_from(array: np.ndarray[Any, Any]) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return not isinstance(base, np.ndarray)


@pytest.mark.parametrize("format", ["a.npy", "a.npz", "a.safetensors"])
def test_uncompressed_arrays_are_mapped_not_read(tmp_path: Path, format: str) -> None:
    from safetensors.numpy import save_file

    a, b = np.arange(24, dtype=np.float32).reshape(4, 6), np.asfortranarray(np.arange(8).reshape(4, 2))
    if format == "a.npy":
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "b.npy", b)
    elif format == "a.npz":
        np.savez(tmp_path / "a.npz", a=a, b=b)
    else:
        save_file({"a": a, "b": np.ascontiguousarray(b)}, tmp_path / "a.safetensors", metadata={"made": "here"})
    paths = ("a.npy", "b.npy") if format == "a.npy" else (format,)
    loader = open_loader(LoaderSpec("arrays", paths, base=tmp_path, batch=2), 0, False)
    source: Any = loader.source
    assert loader.batch(2, 0, 1)["a"].tolist() == a[2:].tolist() and loader.batch(2, 0, 1)["b"].tolist() == b[2:].tolist()
    assert all(mapped_from(source.array(name)) for name in "ab")


KINDS: dict[str, tuple[LoaderKind, dict[str, Any]]] = {
    "text": ("text", {"seq": 8, "tokenizer": ("bytes",)}),
    "token-file": ("token-file", {"seq": 8}),
    "npy": ("arrays", {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_huge_sparse_file_is_not_read_at_elaboration(tmp_path: Path, kind: str) -> None:
    """Of 64 GiB nothing but the header is read: a batch at the end is there at once."""
    size, file = 1 << 36, tmp_path / "a.npy"
    with file.open("wb") as out:
        if kind == "npy":
            np.lib.format.write_array_header_1_0(out, {"descr": "<f4", "fortran_order": False, "shape": (1 << 34,)})
            size += out.tell()
        out.truncate(size)
    name, options = KINDS[kind]
    place = LoaderSpec(name, ("a.npy",), base=tmp_path, span=SPAN, batch=2, order="file", **options)
    count = {"text": (size - 1) // 8, "token-file": (size // 2 - 1) // 8, "npy": 1 << 34}[kind]
    assert header(place).count == count
    batch = open_loader(place, 0, True).batch(count // 2, 0, 1)
    assert all(not array.any() for array in batch.values())
