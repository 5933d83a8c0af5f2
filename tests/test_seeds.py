"""docs/seeds.md: every clause of the two documents is in its table, and what the table names is there."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import sexpgpu
from sexpgpu.cli.main import commands

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seeds.md"
STATES = ("true", "exceeded", "replaced", "in part", "not begun")
# The clauses, by line of the document and letter.
CLAUSES = """
D:3a D:3b D:3c D:6a D:6b D:7a D:7b D:11a D:11b D:13-15 D:17a D:17b D:21 D:25 D:26a D:26b D:27a D:27b D:28a D:28b D:28c
D:28d D:30a D:30b D:34a D:34b D:34c D:34d D:34e D:36 D:38 D:39 D:41 D:43a D:43b D:43c D:44a D:44b D:44c D:44d D:45
D:46a D:46b D:47 D:51a D:51b D:51c D:53a D:53b D:54 D:55 D:56 D:60a D:60b D:63 D:64a D:64b D:64c D:65a D:65b D:66a
D:66b D:66c D:66d D:66e D:68-71 D:73 D:77a D:77b D:80 D:81 D:82 D:83 D:84 D:85 D:86 D:88 resume
X:3a X:3b X:3c X:3d X:7 X:10-13 X:15a X:15b X:19 X:21 X:23a X:23b X:23c X:23d X:27-29 X:31a X:31b X:31c X:31d X:33a
X:33b X:33c X:33d X:37a X:37b X:37c X:37d X:39a X:39b X:39c X:41 X:45a X:45b X:45c X:45d X:47
C:1 C:2 C:3 C:4 C:5 C:6 C:7 C:8 C:9 C:10
""".split()


@dataclass(frozen=True)
class Row:
    clause: str
    state: str
    pages: tuple[str, ...]
    proofs: tuple[str, ...]


def rows() -> list[Row]:
    """The rows of the three tables of clauses; the table of states has two columns."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 5 or cells[0] in ("id", "---"):
            continue
        pages = tuple(re.findall(r"\]\(([^)]+)\)", cells[3]))
        found.append(Row(cells[0], cells[2], pages, tuple(re.findall(r"`([^`]+)`", cells[4]))))
    return found


@cache
def functions_of(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def is_there(proof: str) -> bool:
    """Whether a test `test_file.py::test_name`, or a script, exists."""
    file, colons, name = proof.partition("::")
    if not colons:
        return proof.startswith("scripts/") and (ROOT / proof).is_file()
    return (ROOT / "tests" / file).is_file() and name.startswith("test_") and name in functions_of(file)


def test_every_clause_is_in_the_table_once() -> None:
    assert sorted(row.clause for row in rows()) == sorted(CLAUSES)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.clause)
def test_a_clause_names_a_state_and_tests_that_exist(row: Row) -> None:
    state = next((state for state in STATES if re.match(rf"{state}(:|$)", row.state)), None)
    assert state is not None, f"{row.state} is none of {', '.join(STATES)}"
    assert [proof for proof in row.proofs if not is_there(proof)] == [], "is there no more"
    assert [page for page in row.pages if not (PAGE.parent / page).is_file()] == [], "is there no more"
    if state == "not begun":
        assert re.search(r"issues? \d|no issue yet", row.state), "who brings it?"
    else:
        assert row.proofs, "what holds is proved by a test or a script"
    if state == "in part":
        assert row.state != "in part", "what stands, and what does not?"


def test_a_test_that_does_not_exist_is_found_missing() -> None:
    assert is_there("test_seeds.py::test_every_clause_is_in_the_table_once")
    assert is_there("scripts/verify")
    assert not is_there("test_seeds.py::test_of_something_else")
    assert not is_there("test_nothing.py::test_every_clause_is_in_the_table_once")
    assert not is_there("test_seeds.py::rows")
    assert not is_there("scripts/nothing")


def test_the_pages_that_the_documents_name_are_there() -> None:
    for page in ("devices", "execution-modes", "storage", "testing-and-validation", "doctor", "settings"):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        links = re.findall(r"\]\(([\w-]+\.md)\)", text)
        assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


def test_a_file_cannot_name_a_device(tmp_path: Path) -> None:
    file = tmp_path / "named.sexp"
    file.write_text(
        '(defloader d (builtin "digits" :batch 4))\n'
        '(defrun t :data d :loss (cross-entropy (linear x 10 :name "l") y) :optimizer (adamw :lr 1e-3)'
        ' :steps 1 :device "cuda")\n'
    )
    with pytest.raises(sexpgpu.Diagnostics) as caught:
        sexpgpu.load(file)
    (problem,) = caught.value.errors
    assert (problem.code, problem.message) == ("E-RUN-002", "a run has no key :device")


def test_profile_is_another_name_of_variant() -> None:
    (option,) = [option for option in commands.commands["run"].params if option.name == "variants"]
    assert option.opts == ["--variant", "--profile"]


def test_train_takes_the_options_of_run() -> None:
    assert commands.commands["train"].params == commands.commands["run"].params
    assert commands.commands["train"].callback is commands.commands["run"].callback
