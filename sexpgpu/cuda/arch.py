"""For which architecture kernels are compiled on a card: its own, or the nearest that NVRTC knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """`sm_90`: machine code; `compute_90`: PTX, which the driver translates. `report` is '' for a card's own arch."""

    name: str
    report: str = ""


def choose_arch(capability: tuple[int, int], supported: Sequence[int]) -> Arch:
    """The arch of a card, (9, 0), among those that NVRTC supports, 80, 90 ….

    Machine code runs on every newer card of its major number and on no other; PTX runs on every newer card.
    """
    own = capability[0] * 10 + capability[1]
    if own in supported:
        return Arch(f"sm_{own}")
    words = f"kernels: this NVRTC does not know compute capability {capability[0]}.{capability[1]}"
    older = [arch for arch in supported if arch < own]
    assert older, (
        f"compute capability {own} is older than any of {supported}: such a card is refused where it is opened"
    )
    nearest = max(older)
    if nearest // 10 == capability[0]:
        return Arch(f"sm_{nearest}", f"{words}; they are compiled for sm_{nearest}")
    return Arch(f"compute_{nearest}", f"{words}; they are PTX for compute_{nearest}, which the driver translates")
