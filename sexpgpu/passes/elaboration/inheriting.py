"""`:init`: the form that says which tensors parameters begin with."""

from __future__ import annotations

from pathlib import Path

from sexpgpu.errors import Error
from sexpgpu.lang.forms import Form, Listing, Symbol, Text
from sexpgpu.passes.elaboration.hypers import folder_of
from sexpgpu.passes.elaboration.options import Options
from sexpgpu.passes.elaboration.values import describe
from sexpgpu.passes.experiment import Init

_USAGE = '(from RUN|PATH :rename (("old.*" "new.*")…) :strict false :raw false)'


def init_of(reader: Options, form: Form) -> Init:
    """`(from RUN|PATH …)`; a name that is no run of the file is an expression that gives a path."""
    (source,), keywords = reader.parts(form, "from", _USAGE, 1)
    reader.known(form, keywords, ("rename", "strict", "raw"), ":init")
    rename = _renames(keywords["rename"]) if "rename" in keywords else ()
    strict, raw = (reader.boolean(keywords[k], f":{k}") if k in keywords else False for k in ("strict", "raw"))
    runs = [run.name for run in reader.program.of_kind("run")]
    if isinstance(source, Symbol) and source.name in runs:
        if source.name == reader.run.name:
            raise Error("E-RUN-007", f":init: the run {source.name} cannot begin with itself", source.span)
        return Init(source.name, True, Path(), rename, strict, raw, form.span)
    path = reader.value(source)
    if not isinstance(path, str) or not path:
        raise Error("E-RUN-004", f":init: a run or a path must stand here, not {describe(path)}", source.span)
    return Init(str(path), False, folder_of(form.span, path), rename, strict, raw, form.span)


def _renames(form: Form) -> tuple[tuple[str, str], ...]:
    made = []
    for item in form.items if isinstance(form, Listing) else (form,):
        names = [part.value for part in item.items if isinstance(part, Text)] if isinstance(item, Listing) else []
        if len(names) != 2 or not isinstance(item, Listing) or len(item.items) != 2:
            raise Error("E-SYN-001", ':rename is a list of pairs, as in (("old.*" "new.*"))', item.span)
        old, new = names
        if new.count("*") != old.count("*"):
            raise Error("E-SYN-001", f":rename: {old} and {new} have not as many *", item.span)
        made.append((old, new))
    return tuple(made)
