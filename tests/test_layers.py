"""A layer imports only layers below it: the list in setup.cfg against every import statement of the package."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "sexpgpu"


def section() -> configparser.SectionProxy:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser["sexpgpu:layers"]


def layers() -> dict[str, tuple[int, int]]:
    """Part of the package → (layer, lowest first; group inside the layer)."""
    found = {}
    for level, line in enumerate(section()["order"].strip().splitlines()):
        for group, names in enumerate(line.split("|")):
            found.update(dict.fromkeys(names.split(), (level, group)))
    return found


def exceptions() -> set[tuple[str, ...]]:
    return {tuple(line.split()) for line in section()["exceptions"].strip().splitlines()}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(text: str) -> list[str]:
    """The package's modules that a text imports, at the top and in functions, but for type checking too."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            # `from sexpgpu import errors` names a module, `from sexpgpu.plan.build import plan` a function.
            module = str(node.module)
            found += [f"{module}.{name.name}" if module == "sexpgpu" else module for name in node.names]
    return [name.removeprefix("sexpgpu.") for name in found if name.startswith("sexpgpu.")]


def violation(importer: str, imported: str) -> str | None:
    order = layers()
    own, other = importer.split(".")[0], imported.split(".")[0]
    if own == other or (importer, imported) in exceptions() or imported == "__version__":
        return None
    for part in (own, other):
        if part not in order:
            return f"{part} stands in no layer of setup.cfg"
    (level, group), (other_level, other_group) = order[own], order[other]
    if other_level < level or (other_level == level and other_group == group):
        return None
    return f"sexpgpu.{importer} imports sexpgpu.{imported}, which is not below it"


def test_every_import_goes_down() -> None:
    problems = []
    for path in sorted(PACKAGE.rglob("*.py")):
        importer = module_name(path)
        if importer:
            problems += [violation(importer, imported) for imported in imports_of(path.read_text())]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("ir.graph", "passes.fuse"),
        ("interp.device", "cuda.device"),
        ("cuda.nvrtc", "interp.device"),
        ("errors", "lang.reader"),
    ],
)
def test_an_import_that_goes_up_or_across_is_found(importer: str, imported: str) -> None:
    assert violation(importer, imported) == f"sexpgpu.{importer} imports sexpgpu.{imported}, which is not below it"


def test_imports_inside_functions_are_seen() -> None:
    assert imports_of("def f():\n    from sexpgpu.plan.build import plan\n    import sexpgpu.errors\n") == [
        "plan.build",
        "errors",
    ]


def test_only_the_interpreter_imports_numba_or_llvmlite() -> None:
    for path in PACKAGE.rglob("*.py"):
        if module_name(path).split(".")[0] != "interp":
            tree = ast.parse(path.read_text())
            names = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
            names += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names]
            assert not {"numba", "llvmlite"} & {name.split(".")[0] for name in names}, path
