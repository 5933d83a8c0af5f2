"""The catalogue of codes: every entry says what it should, every example gives its error, every code is raised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import sexpgpu
from sexpgpu.catalogue import CATALOGUE
from sexpgpu.cli.explain import explain
from sexpgpu.errors import Diagnostics, Error
from sexpgpu.lang.program import program_of
from sexpgpu.passes.elaborate import elaborate
from sexpgpu.source import Source
from sexpgpu.train.loader import header as read_header

PACKAGE = Path(sexpgpu.__file__).parent
FAMILIES = "READ NAME SYN TYPE SHAPE MACRO ASSERT DATA RUN DEV MEM DP CKPT STORE NUM".split()
# Codes of parts that are designed and named, but not built yet. Nothing else may stand in the catalogue unused.
NOT_RAISED_YET = {"E-MACRO-001", "E-DP-006", "E-DP-007"}
EXAMPLES = [entry.code for entry in CATALOGUE.values() if entry.example]


def test_every_code_is_of_a_family_and_numbered() -> None:
    for code, entry in CATALOGUE.items():
        assert entry.code == code
        assert re.fullmatch(rf"E-({'|'.join(FAMILIES)})-\d\d\d", code), code


def test_every_entry_is_a_title_and_sentences_without_their_stops() -> None:
    for entry in CATALOGUE.values():
        for text in (entry.title, entry.why, entry.fix):
            assert text and text == text.strip() and text[-1] not in ".!" and "\n" not in text, entry.code
        assert len(entry.title) <= 60, entry.code


def test_the_codes_of_a_family_stand_together_in_order() -> None:
    families = [code.rpartition("-")[0] for code in CATALOGUE]
    assert len(set(families)) == sum(a != b for a, b in zip(families, ["", *families]))
    assert all(a < b for a, b in zip(CATALOGUE, list(CATALOGUE)[1:]) if a[:-3] == b[:-3])


def test_the_codes_of_the_devices_page_are_there() -> None:
    assert {f"E-DP-00{number}" for number in range(1, 9)} | {"E-MEM-001"} <= set(CATALOGUE)


def test_the_front_of_the_language_has_an_example_for_every_code() -> None:
    without = {entry.code for entry in CATALOGUE.values() if not entry.example}
    wanted = {code for code in CATALOGUE if code.split("-")[1] in ("READ", "NAME", "SYN", "TYPE", "SHAPE", "MACRO", "ASSERT")}
    # What a page of text cannot show: bytes that are no text, and sixteen mebibytes.
    assert without & wanted == {"E-READ-004", "E-READ-005"}


@pytest.mark.parametrize("code", EXAMPLES)
def test_an_example_gives_its_error(code: str, tmp_path: Path) -> None:
    text = CATALOGUE[code].example
    with pytest.raises(Diagnostics) as caught:
        elaborate(program_of(Source("example.sexp", text)), lambda spec: read_header(spec, tmp_path))
    got = {error.code for error in caught.value.errors}
    # A few lines without a run are enough to show an error; that the run is missing is then another.
    assert got - ({"E-RUN-005"} if "defrun" not in text else set()) == {code} or got == {code}
    for error in caught.value.errors:
        assert error.render().startswith(f"error[{error.code}]: ")


def test_every_code_is_raised_somewhere() -> None:
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "catalogue.py"]
    unused = {code for code in CATALOGUE if not any(f'"{code}"' in text for text in sources)}
    assert unused <= NOT_RAISED_YET


def test_explain_prints_a_code_in_full() -> None:
    assert explain("e-shape-002") == explain("SHAPE-002") == explain("E-SHAPE-002")
    assert explain("E-SYN-001") == (
        "E-SYN-001: form not well formed\n"
        "\n"
        "why  a form's parts are not what its grammar says\n"
        "fix  write it as the reference shows\n"
        "\n"
        "for example\n"
        "    (defhyper width)"
    )


def test_explain_lists_every_code_or_a_family() -> None:
    assert [line.split()[0] for line in explain(None).split("\n")] == list(CATALOGUE)
    assert [line.split()[0] for line in explain("e-num").split("\n")] == ["E-NUM-001", "E-NUM-002"]


def test_an_unknown_code_is_an_error_with_the_nearest() -> None:
    with pytest.raises(Error) as caught:
        explain("E-SHAEP-002")
    assert caught.value.code == "E-RUN-006" and caught.value.notes == ["did you mean E-SHAPE-002?"]
    with pytest.raises(Error) as caught:
        explain("?")
    assert caught.value.code == "E-RUN-006"
