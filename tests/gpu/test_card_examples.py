"""Every example trains on a card as on the CPU, and the graphs of one are what the CPU computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sexpgpu
from sexpgpu.api import load

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("a_card_for_runs")]
EXAMPLES = Path(sexpgpu.__file__).parent / "examples"
NAMES = ("builtin", "digits", "gpt2", "lstm", "resnet")
# Rounding differs from the first step on, and training makes the difference grow: relative to the loss.
FIRST, LAST = 1e-5, 1e-3
STEPS = {"sim": 3, "smoke": 20}


def losses(name: str, variant: str, kind: str, precision: str) -> list[float]:
    trainer = load(EXAMPLES / f"{name}.sexp", variant=variant).trainer(device=kind, seed=3, precision=precision)
    try:
        return [trainer.step().loss for _ in range(STEPS[variant])]
    finally:
        trainer._session.device.close() if kind == "cuda" else None


@pytest.mark.parametrize("variant", STEPS)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_has_the_losses_of_the_cpu(
    name: str, variant: str, record_property: Callable[[str, Any], None]
) -> None:
    theirs, ours = (losses(name, variant, kind, "off") for kind in ("cpu", "cuda"))
    record_property("losses", {"example": name, "variant": variant, "cpu": theirs, "cuda": ours})
    assert ours[0] == pytest.approx(theirs[0], rel=FIRST)
    assert ours == pytest.approx(theirs, rel=LAST)


@pytest.mark.parametrize("name", ["digits", "lstm"])
def test_with_our_own_products_an_example_has_the_cpus_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXPGPU_PRODUCTS", "own")
    theirs, ours = (losses(name, "sim", kind, "off") for kind in ("cpu", "cuda"))
    assert ours == theirs


@pytest.mark.parametrize(("precision", "rounding"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
@pytest.mark.parametrize("name", ["digits", "gpt2"])
def test_narrow_floats_have_the_losses_of_the_cpu_within_their_rounding(
    name: str, precision: str, rounding: float, record_property: Callable[[str, Any], None]
) -> None:
    theirs, ours = (losses(name, "sim", kind, precision) for kind in ("cpu", "cuda"))
    record_property("losses", {"example": name, "variant": f"sim {precision}", "cpu": theirs, "cuda": ours})
    # A rounding of an operand that falls the other way.
    assert ours == pytest.approx(theirs, rel=rounding)
