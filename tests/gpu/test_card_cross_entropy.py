"""A language model's head in chunks, on a card."""

from __future__ import annotations

import pytest

from tests.test_cuda_cross_entropy import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
