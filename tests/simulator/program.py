"""A kernel as the parser leaves it: instructions, registers by number, where its variables lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulator.dtypes import DTYPES


@dataclass(frozen=True)
class Instruction:
    """One line; `modifiers` are what follows the opcode's dots. A predicate goes by its register's name."""

    predicate: str | None
    negated: bool
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    text: str
    line: int

    @property
    def where(self) -> str:
        return f"line {self.line}: {self.text}"


@dataclass(frozen=True)
class Parameter:
    name: str
    offset: int
    n_bytes: int


@dataclass(frozen=True)
class Variable:
    """A variable of the module or of a function; `count` 0 with `external` is shared memory sized by the launch."""

    name: str
    space: str
    alignment: int
    type: str
    count: int
    values: bytes = b""
    external: bool = False

    @property
    def n_bytes(self) -> int:
        return self.count * DTYPES[self.type].itemsize


@dataclass(frozen=True)
class Function:
    """A function's text before its body is read; `line` is where the body begins."""

    name: str
    results: tuple[str, ...]
    parameters: tuple[str, ...]
    body: str
    line: int


@dataclass(frozen=True)
class Kernel:
    """`symbols` maps a variable's name to its space and its offset there; calls stand in the code as their bodies, and
    `passed` are the parts of the local frame that hold what is passed to them."""

    name: str
    parameters: Mapping[str, Parameter]
    registers: Mapping[str, int]
    register_types: Sequence[str]
    symbols: Mapping[str, tuple[str, int]]
    code: Sequence[Instruction]
    labels: Mapping[str, int]
    tables: Mapping[str, Sequence[str]]
    shared_bytes: int
    local_bytes: int
    passed: Sequence[slice]
    maximum_threads: int | None
    exact_threads: tuple[int, int, int] | None
    narrowest: Mapping[str, int]

    @property
    def parameter_bytes(self) -> int:
        return max((one.offset + one.n_bytes for one in self.parameters.values()), default=0)


@dataclass(frozen=True)
class Text:
    """A PTX text, read."""

    kernels: Mapping[str, Kernel]
    variables: Mapping[str, Variable]
