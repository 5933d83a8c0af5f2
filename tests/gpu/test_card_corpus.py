"""Every family of kernels on a card: the bits of the simulator, which has those of the CPU; products within their bounds."""

from __future__ import annotations

import pytest

from tests import cuda_corpus
from tests.cuda_corpus import Case
from tests.on_card import OpenCard

pytestmark = [pytest.mark.gpu]
CASES = cuda_corpus.cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_card_has_the_results_of_the_simulator(case: Case, card: OpenCard, monkeypatch: pytest.MonkeyPatch) -> None:
    found, simulated = cuda_corpus.run(case)
    monkeypatch.setattr(cuda_corpus, "Simulated", card.faces()["Simulated"])
    beside, ours = cuda_corpus.run(case)
    assert found == beside == []
    for one, other in zip(ours, simulated, strict=True):
        assert cuda_corpus.equal(case, one, other)
