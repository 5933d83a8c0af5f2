"""Files that mean harm by what they include: each is an E-READ error, at once.

Large ones are in test_reader_fuzz, macros without end in test_macros."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sexpgpu.errors import Diagnostics
from sexpgpu.lang.program import load_program


def prepare(root: Path) -> Path:
    """A folder of files that mean harm; beside it one that nothing may reach."""
    (root / "secret.sexp").write_text("(def secret 1)")
    folder = root / "work"
    folder.mkdir()
    (folder / "itself.sexp").write_text('(include "itself.sexp")')
    (folder / "one.sexp").write_text('(include "two.sexp")')
    (folder / "two.sexp").write_text('(include "./sub/../one.sexp")')
    (folder / "sub").mkdir()
    (folder / "link.sexp").symlink_to(root / "secret.sexp")
    (folder / "parent").symlink_to(root)
    (folder / "circle.sexp").symlink_to(folder / "circle.sexp")
    (folder / "again.sexp").symlink_to(folder / "main.sexp")
    (folder / "zero.sexp").symlink_to("/dev/zero")
    os.mkfifo(folder / "pipe.sexp")
    (folder / "binary.sexp").write_bytes(b"\xff\xfe(\x00")
    (folder / "nul.sexp").write_bytes(b"(def a \x00 1)")
    (folder / "large.sexp").write_bytes(b";" * ((16 << 20) + 1))
    (folder / "closed.sexp").write_text("(def a 1)")
    (folder / "closed.sexp").chmod(0)
    (folder / "leaf.sexp").write_text("")
    for k in range(70):
        (folder / f"chain{k}.sexp").write_text(f'(include "chain{k + 1}.sexp")')
        (folder / f"tree{k}.sexp").write_text(f'(include "tree{k + 1}.sexp")' * 2)
    (folder / "tree70.sexp").write_text("")
    return folder


INCLUDES = {
    "itself": ("itself.sexp", "E-READ-007"),
    "a file that includes the first": ("one.sexp", "E-READ-007"),
    "the main file under another name": ("again.sexp", "E-READ-007"),
    "a chain of 71": ("chain0.sexp", "E-READ-007"),
    "a tree of 2^70": ("tree0.sexp", "E-READ-007"),
    "a file above": ("../secret.sexp", "E-READ-007"),
    "an absolute path": ("/etc/passwd", "E-READ-007"),
    "a link out of the folder": ("link.sexp", "E-READ-007"),
    "a path through a linked folder": ("parent/secret.sexp", "E-READ-007"),
    "a link to itself": ("circle.sexp", "E-READ-006"),
    "a folder": ("sub", "E-READ-006"),
    "the folder itself": (".", "E-READ-006"),
    "no name": ("", "E-READ-006"),
    "a device": ("zero.sexp", "E-READ-007"),
    "a pipe": ("pipe.sexp", "E-READ-006"),
    "a name too long": ("a" * 300, "E-READ-006"),
    "a path too long": ("a/" * 2_000, "E-READ-006"),
    "a file as a folder": ("leaf.sexp/a.sexp", "E-READ-006"),
    "bytes that are no text": ("binary.sexp", "E-READ-004"),
    "a NUL": ("nul.sexp", "E-READ-004"),
    "more than sixteen mebibytes": ("large.sexp", "E-READ-005"),
}


@pytest.mark.parametrize("what", INCLUDES)
def test_a_harmful_include_is_refused_at_once(what: str, tmp_path: Path) -> None:
    name, code = INCLUDES[what]
    folder = prepare(tmp_path)
    (folder / "main.sexp").write_text(f'(include "{name}")')
    begin = time.process_time()
    with pytest.raises(Diagnostics) as problems:
        load_program(folder / "main.sexp")
    # A second of an idle core, with room for a busy one.
    assert time.process_time() - begin < 5
    assert {error.code for error in problems.value.errors} == {code}
    assert "secret" not in problems.value.render().replace(name, "").replace(str(tmp_path), "")


def test_sixty_four_includes_are_allowed_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "leaf.sexp").write_text("")
    (tmp_path / "main.sexp").write_text('(include "leaf.sexp")' * 64)
    assert len(load_program(tmp_path / "main.sexp").sources) == 65
    (tmp_path / "main.sexp").write_text('(include "leaf.sexp")' * 65)
    with pytest.raises(Diagnostics) as problems:
        load_program(tmp_path / "main.sexp")
    assert [error.code for error in problems.value.errors] == ["E-READ-007"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    folder = prepare(tmp_path)
    (folder / "main.sexp").write_text('(include "closed.sexp")')
    with pytest.raises(Diagnostics) as problems:
        load_program(folder / "main.sexp")
    assert [error.code for error in problems.value.errors] == ["E-READ-006"]
