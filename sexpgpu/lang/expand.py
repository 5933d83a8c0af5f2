"""From one file's forms to all of the experiment's: each include is replaced by what its file holds."""

from __future__ import annotations

import stat
from dataclasses import dataclass, field
from pathlib import Path

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.forms import Form, Listing, Text
from sexpgpu.lang.grammar import TOP_FORMS, take_apart
from sexpgpu.lang.reader import load_source, read
from sexpgpu.source import Source

MAXIMUM_INCLUDES = 64


@dataclass
class Expansion:
    """Every top-level form in order, and every source that they came from."""

    forms: list[Form] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    errors: list[Error] = field(default_factory=list)


def expand(source: Source, allow_outside: bool = False) -> Expansion:
    """The forms of a source with its includes in place; problems are gathered in `errors`."""
    # A text that is no file stands in the current folder.
    root = source.path.resolve().parent if source.path is not None else Path().resolve()
    made = Expansion()
    _expand_source(source, made, _Chain(root, allow_outside, ()))
    return made


@dataclass(frozen=True)
class _Chain:
    """How the reader got here: (resolved path, shown name) from the main file on."""

    root: Path
    allow_outside: bool
    files: tuple[tuple[Path, str], ...]


def _expand_source(source: Source, made: Expansion, chain: _Chain) -> None:
    made.sources.append(source)
    if source.path is not None:
        chain = _Chain(chain.root, chain.allow_outside, (*chain.files, (source.path.resolve(), source.name)))
    try:
        forms = read(source)
    except Diagnostics as problems:
        made.errors += problems.errors
        return
    for form in forms:
        if not (isinstance(form, Listing) and form.head == "include"):
            made.forms.append(form)
            continue
        try:
            included = _included(form, source, chain, made)
        except Error as error:
            made.errors.append(error)
            continue
        _expand_source(included, made, chain)


def _included(form: Listing, source: Source, chain: _Chain, made: Expansion) -> Source:
    """The source that an include names."""
    text = take_apart(form, TOP_FORMS["include"]).one('"other.sexp"')
    assert isinstance(text, Text)
    folder = chain.root if source.path is None else source.path.resolve().parent
    path = folder / text.value
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise Error("E-READ-006", f"cannot read {text.value}: {error}", text.span) from None
    open_files = [p for p, _ in chain.files]
    if resolved in open_files:
        names = [name for _, name in chain.files[open_files.index(resolved) :]]
        shown = " → ".join([*names, names[0]])
        raise Error("E-READ-007", "include: a cycle", form.span, notes=[shown])
    if not chain.allow_outside and not resolved.is_relative_to(chain.root):
        message = f"include: {text.value} is outside {chain.root.name or chain.root}, the main file's folder"
        raise Error("E-READ-007", message, text.span, notes=["--allow-outside lets it in"])
    if len(made.sources) > MAXIMUM_INCLUDES:
        raise Error("E-READ-007", f"include: more than {MAXIMUM_INCLUDES} files", form.span)
    shown = str(Path(source.name).parent / text.value)
    if _may_wait(resolved):
        raise Error("E-READ-006", f"{shown} is a pipe or a device, not a file", text.span)
    try:
        return load_source(resolved, shown)
    except Error as error:
        raise Error(error.code, error.message, text.span, notes=error.notes) from None


def _may_wait(path: Path) -> bool:
    """Whether reading waits for somebody, as with a pipe. What cannot be asked cannot be read either."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
