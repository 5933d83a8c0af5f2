"""Every error code with its meaning, cause, fix and an example: `explain` and the docs page are made from it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One code. `example` is a file (or a command line) that gives the error; '' where none can be typed."""

    code: str
    title: str
    why: str
    fix: str
    example: str = ""


def _table(*entries: Entry) -> dict[str, Entry]:
    table = {entry.code: entry for entry in entries}
    assert len(table) == len(entries), "the same code twice"
    return table


def _text_run(loader: str) -> str:
    """A file that is whole but for its loader."""
    loss = "(cross-entropy (linear (one-hot tokens 256) 256) targets)"
    return f"(defloader data {loader})\n(defrun go :data data :loss {loss} :optimizer (sgd :lr 0.1) :steps 1)\n"


CATALOGUE: dict[str, Entry] = _table(
    Entry("E-READ-001", "unbalanced bracket", "a list is not closed, or closed by the other bracket", "close it"),
    Entry(
        "E-DATA-001",
        "a data file cannot be read",
        "there is no such file, no file matches the pattern, or the system refuses it",
        "check the path: it is relative to the file that the loader stands in",
        _text_run('(text "missing.txt" :tokenizer (bytes) :seq 8 :batch 2)'),
    ),
    Entry(
        "E-DATA-002",
        "too little data",
        "the data is empty, shorter than one window of seq + 1 tokens, or has fewer examples than a batch",
        "give more data, or a smaller :seq or :batch",
        _text_run('(builtin "text" :tokenizer (bytes) :seq 400000 :batch 2)'),
    ),
    Entry(
        "E-DATA-003",
        "a split that cannot be made",
        ":part and :split belong together, a part is one of the split's, fractions are above 0 and sum to at most 1",
        "name the parts with their fractions, and one of them: :split (train 0.9 val 0.1) :part train",
        _text_run('(builtin "text" :tokenizer (bytes) :seq 8 :batch 2 :split (train 0.9 val 0.1) :part test)'),
    ),
    Entry(
        "E-DATA-004",
        "a dtype that is not read",
        "token files hold u16 or u32; arrays bool, integers up to i64 and u32, or floats",
        "convert the file",
        _text_run('(token-file "tokens.bin" :dtype i64 :seq 8 :batch 2)'),
    ),
    Entry(
        "E-DATA-005",
        "a damaged or unknown data file",
        "a file's header contradicts its size or the loader, or its format is not known",
        "write the file again, or say the dtype that it has",
    ),
    Entry(
        "E-DATA-006",
        "arrays that do not fit together",
        "the arrays of a loader need the same number of examples (first axis) and different names",
        "name one file of matching arrays",
    ),
    Entry(
        "E-DATA-007",
        "a loader's option is missing or wrong",
        "the source needs an option, or does not know the value that it has",
        "see the source's row in the table of data sources",
        _text_run('(builtin "poems" :tokenizer (bytes) :seq 8 :batch 2)'),
    ),
    Entry(
        "E-STORE-001",
        "the run folder is in use",
        "another process writes to it; a run folder has one writer at a time",
        "wait for the other run, stop it with `sexpgpu stop`, or start in a new folder",
    ),
    Entry(
        "E-STORE-003",
        "the run folder cannot be written",
        "the folder cannot be made, or a write failed: no space, no permission",
        "free some space, or choose another folder with --out",
    ),
    Entry(
        "E-STORE-004",
        "a damaged file in the store",
        "a file that sexpgpu wrote does not read back",
        "restore the file, or remove the damaged line",
    ),
)
