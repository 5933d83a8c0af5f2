"""Attention on a card, within the bounds of float32."""

from __future__ import annotations

import pytest

from tests.test_cuda_attention import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
