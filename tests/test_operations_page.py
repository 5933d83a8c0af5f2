"""docs/operations.md: every operation of the language stands there, and every example is what `eval` prints."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sexpgpu.lang.program import program_of
from sexpgpu.passes.elaboration.operations import BUILTINS
from sexpgpu.source import Source

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from operation_examples import IN_A_FILE, INNER, MEANINGS, examples, value_of  # noqa: E402

PAGE = (ROOT / "docs" / "operations.md").read_text()
SHOWN = re.findall(r"`(\(\S[^`]*)` → `([^`]*)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("form", "value"), SHOWN, ids=[form for form, _ in SHOWN])
def test_an_example_has_the_value_that_the_page_shows(form: str, value: str) -> None:
    assert value_of(form) == value


def test_every_operation_has_an_example_or_stands_in_a_file_only() -> None:
    assert len(SHOWN) == len(examples())
    prelude = program_of(Source("page", "")).prelude
    public = {name for name, d in prelude.items() if d.kind in ("un", "layer")} - set(INNER)
    wanted = public | set(BUILTINS)
    assert wanted - set(examples()) - set(IN_A_FILE) == set()
    assert public <= set(MEANINGS)
