"""What a launch tells: the faults that end it, the findings that do not, what it did to memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class Fault(Exception):
    """Going on is impossible; `kind` is a word such as out-of-bounds, misaligned, deadlock, unsupported."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(frozen=True)
class Finding:
    """A mistake after which the launch could go on; `where` is the line of the PTX and its text."""

    kind: str
    detail: str
    kernel: str
    where: str


@dataclass(frozen=True)
class Traffic:
    """Bytes of one allocation: distinct ones in each warp's instruction, summed; distinct ones in the whole launch."""

    loaded_bytes: int
    stored_bytes: int
    unique_loaded_bytes: int
    unique_stored_bytes: int


@dataclass(frozen=True)
class Outcome:
    """A launch that came to its end. `traffic` goes by the allocation's address, `instructions` counts each thread's."""

    findings: Sequence[Finding]
    instructions: int
    traffic: Mapping[int, Traffic]
