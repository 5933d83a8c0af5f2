"""Mutated experiments through reader, macros and elaboration: an experiment or diagnostics, whatever stands in the file."""

from __future__ import annotations

import time
from random import Random

from fuzzing import check, mutated, respaced, seeds

# With the fuzzing of the reader alone, 20 s; scripts/verify fuzz goes on for ten minutes, guided by coverage.
SECONDS = 14


def test_every_seed_is_an_experiment_or_has_problems() -> None:
    for text in seeds():
        check(text)


def test_mutated_experiments_give_an_experiment_or_problems() -> None:
    draw, texts, runs = Random(7), seeds(), 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        text = mutated(draw, texts, texts)
        if runs % 4 == 0:
            text = respaced(draw, text)
        try:
            check(text)
        except Exception as problem:
            raise AssertionError(f"after {runs} runs, of this file:\n{text}") from problem
        runs += 1
    assert runs > 20
