"""`sexpgpu data`: what a file's loaders yield, and token files from texts, as text or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from sexpgpu.cli.run import as_problem, json_text
from sexpgpu.errors import Diagnostics, Error, nearest
from sexpgpu.loaderspec import Field, LoaderSpec
from sexpgpu.passes.elaborate import loaders_of
from sexpgpu.train.launch import problems_of
from sexpgpu.train.loader import Loader, header, open_loader
from sexpgpu.train.padded import Records
from sexpgpu.train.prepare import prepare
from sexpgpu.train.request import Request, early_settings, read_program
from sexpgpu.train.sources import Windows
from sexpgpu.train.tokenizers import Tokenizer, tokenizer_of

Array = NDArray[Any]

SHOWN = 3
WIDTH = 88


def data_report(request: Request, name: str | None, as_json: bool) -> str:
    """The loaders of a file, or one of them. Raises Error and Diagnostics as a run would."""
    try:
        facts = loader_facts(request, name)
    except (Error, Diagnostics) as problem:
        if as_json:
            click.echo(json_text({"errors": [as_problem(error) for error in problems_of(problem)]}))
        raise
    if as_json:
        return json_text({"errors": [], "loaders": facts})
    return "\n\n".join(text_of(fact) for fact in facts) or f"{request.source}: no loaders"


def loader_facts(request: Request, name: str | None) -> list[dict[str, Any]]:
    settings = early_settings(request)
    specs = loaders_of(read_program(request), lambda spec: header(spec, settings.cache))
    if name is not None and name not in specs:
        close = nearest(name, list(specs))
        notes = [f"did you mean {close}?"] if close else [f"loaders: {', '.join(specs) or 'none'}"]
        raise Error("E-NAME-001", f"no loader {name}", notes=notes)
    chosen = {key: spec for key, spec in specs.items() if name in (None, key)}
    # In the order of the file: what evaluation reads first.
    return [facts_of(spec, open_loader(spec, settings.seed, False, cache=settings.cache)) for spec in chosen.values()]


def facts_of(spec: LoaderSpec, loader: Loader) -> dict[str, Any]:
    """What is said of a loader."""
    source = loader.source
    lengths = source.lengths() if isinstance(source, Records) else None
    return {
        "loader": spec.name,
        "source": spec.kind,
        "paths": list(spec.paths),
        "fields": {n: {"dtype": f.dtype, "shape": [int(size) for size in f.shape]} for n, f in loader.fields.items()},
        "unit": "windows" if isinstance(source, Windows) else "examples",
        "count": loader.count,
        "batches": int(-(-loader.count // loader.batch_size)),
        "tokens": int(source.tokens) if isinstance(source, Windows) else None,
        "vocabulary": loader.vocabulary,
        "split": None if spec.split is None else dict(spec.split),
        "part": spec.part,
        # A record and the boundary after it.
        "longest": None if lengths is None else int(lengths.max()) + 1,
        "cut": None if lengths is None else int(np.count_nonzero(lengths + 1 > (spec.seq or 0))),
        "first": first_examples(spec, loader),
    }


def first_examples(spec: LoaderSpec, loader: Loader) -> list[dict[str, object]]:
    rows = loader.rows(np.arange(min(SHOWN, loader.count)))
    tokenizer = text_tokenizer(spec)
    found: list[dict[str, object]] = []
    for index in range(min(SHOWN, loader.count)):
        row = {name: array[index] for name, array in rows.items()}
        if tokenizer is None or "tokens" not in row:
            found.append({name: short(value) for name, value in row.items()})
            continue
        real = row["mask"] if "mask" in row else np.ones(row["targets"].shape, bool)
        found.append({name: tokenizer.decode(row[name][real].tolist()) for name in ("tokens", "targets")})
    return found


def text_tokenizer(spec: LoaderSpec) -> Tokenizer | None:
    """What reads the loader's tokens as a text."""
    if spec.kind == "mix":
        return text_tokenizer(spec.parts[0][0])
    return tokenizer_of(spec) if spec.tokenizer or spec.kind in ("text", "lines", "jsonl", "builtin") else None


def short(value: Array) -> str:
    """An example's array in one line."""
    flat = np.array2string(value.astype(np.float32) if value.dtype.name == "bfloat16" else value, threshold=12, edgeitems=3)
    return " ".join(flat.split())


def text_of(facts: dict[str, Any]) -> str:
    """A loader in lines: fields, how much there is, the first examples."""
    fields = [f"{name} {shape_text(field)}" for name, field in facts["fields"].items()]
    rows = [("fields", ", ".join(fields)), (facts["unit"], f"{facts['count']:,} in {facts['batches']:,} batches")]
    if facts["tokens"] is not None:
        rows.append(("tokens", f"{facts['tokens']:,}"))
    if facts["vocabulary"] is not None:
        rows.append(("vocabulary", f"{facts['vocabulary']:,}"))
    if facts["split"] is not None:
        shares = ", ".join(f"{name} {share:g}" for name, share in facts["split"].items())
        rows.append(("split", f"{shares}; this is {facts['part']}"))
    if facts["longest"] is not None:
        rows.append(("records", f"the longest has {facts['longest']:,} tokens with its end; {facts['cut']:,} are cut"))
    for number, example in enumerate(facts["first"], 1):
        for name, value in example.items():
            shown = repr(value) if name in ("tokens", "targets") and not value.startswith("[") else value
            rows.append((f"{number} {name}", shown if len(shown) <= WIDTH else shown[: WIDTH - 1] + "…"))
    width = max(len(key) for key, _ in rows)
    paths = " ".join(facts["paths"])
    head = f"{facts['loader']}: {facts['source']}" + (f" {paths}" if paths else "")
    return "\n".join([head, *(f"  {key:<{width}}  {value}" for key, value in rows)])


def shape_text(field: dict[str, Any]) -> str:
    known = Field(field["dtype"], tuple(field["shape"]))
    return f"{known.dtype}[{' '.join(map(str, known.shape))}]"


def prepare_report(texts: list[str], tokenizer: str, out: Path, header: bool, as_json: bool) -> str:
    made = prepare(texts, tokenizer, out, header)
    if as_json:
        return json_text(
            {"path": str(made.path), "tokens": made.tokens, "dtype": made.dtype, "vocabulary": made.vocabulary,
             "bytes": made.bytes_read, "loader": made.loader}
        )  # fmt: skip
    return (
        f"{made.path}: {made.tokens:,} tokens of {made.vocabulary:,}, {made.dtype}, from {made.bytes_read:,} bytes\n"
        f"read it with {made.loader}"
    )
