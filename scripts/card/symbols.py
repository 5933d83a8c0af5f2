"""Whether every function of our tables is in the library that is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sexpgpu.cuda import cublas, cudnn, driver, library, nvrtc
from sexpgpu.cuda.binding import Table
from sexpgpu.errors import Error


@dataclass(frozen=True)
class Audit:
    """`problem`: why the library is not here."""

    library: str
    count: int
    missing: tuple[str, ...] = ()
    problem: str = ""

    @property
    def words(self) -> str:
        if self.problem:
            return self.problem
        return f"has not {', '.join(self.missing)}" if self.missing else f"all {self.count} functions"


def libraries() -> Iterator[tuple[str, Callable[[], Any], Table]]:
    yield library.DRIVER, lambda: library.load_driver(library.DRIVER), driver.TABLE
    tables = {library.NVRTC: nvrtc.FUNCTIONS, library.CUBLAS_LT: cublas.TABLE, library.CUDNN: cudnn.TABLE}
    for name, table in tables.items():
        yield name, lambda name=name: library.load(name), table  # type: ignore[misc]


def audit(name: str, load: Callable[[], Any], table: Table) -> Audit:
    try:
        loaded = load()
    except (OSError, Error) as problem:
        return Audit(name, 0, problem=str(problem))
    missing = tuple(f.name for f in table.functions if not hasattr(loaded, f.name))
    return Audit(name, len(table.functions), missing)
