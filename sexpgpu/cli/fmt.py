"""`sexpgpu fmt`: files laid out anew in place, or checked for it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.layout import formatted
from sexpgpu.lang.reader import decode, load_source


def format_files(names: Sequence[str], check: bool) -> int:
    """Formats each file, `-` from stdin to stdout; prints the names of those that changed, or would. The exit code: 1
    where one would change under `check`. Files that cannot be read are problems, raised when the others are done."""
    problems: list[Error] = []
    changed = False
    for name in names:
        try:
            changed |= _stream(check) if name == "-" else _file(name, check)
        except Error as error:
            problems.append(error)
        except Diagnostics as found:
            problems += found.errors
    if problems:
        raise Diagnostics(problems)
    return int(check and changed)


def _stream(check: bool) -> bool:
    source = decode(sys.stdin.buffer.read(), "<stdin>")
    text = formatted(source)
    if not check:
        click.echo(text, nl=False)
    elif text != source.text:
        click.echo("<stdin>")
    return text != source.text


def _file(name: str, check: bool) -> bool:
    path = Path(name)
    source = load_source(path, name)
    text = formatted(source)
    if text == source.text:
        return False
    if not check:
        _replace(path.resolve(), text)
    click.echo(name)
    return True


def _replace(path: Path, text: str) -> None:
    """The file has its old text or the whole new one, whatever happens; a link stays one, and the mode is kept."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(text.encode("utf-8"))
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, path.stat().st_mode & 0o7777)
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise Error("E-READ-006", f"cannot write {path}: {error.strerror}") from None
