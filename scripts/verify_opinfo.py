"""`scripts/verify opinfo`: PyTorch's own samples through our operations, and the page that records them."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent


def check(found: Any, page: Path) -> None:
    """Each operator of OpInfo; the page is written where none failed."""
    missing = [name for name in ("torch", "expecttest") if importlib.util.find_spec(name) is None]
    if missing:
        found.check(False, f"{' and '.join(missing)} not installed: pip install torch expecttest beside this package")
        return
    sys.path.insert(0, str(FOLDER / "opinfo"))
    warnings.simplefilter("ignore")
    import torch
    from check import MOST, outcomes
    from table import write

    made = []
    for one in outcomes():
        made.append(one)
        if one.samples:
            words = f"{one.name}: {one.passed} of {one.samples}, {one.with_gradient} with gradients"
            found.check(not one.failed, words, "\n".join(one.failed))
    passing = sum(one.passed > 0 for one in made)
    found.check(passing >= 90, f"{passing} operators have samples that pass, at least 90")
    if not found.failed:
        write(made, page, torch.__version__, MOST)
        found.note(f"written: {page.name}")
