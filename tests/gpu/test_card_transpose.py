"""Transposed operands on a card, exactly."""

from __future__ import annotations

import pytest

from tests.test_cuda_transpose import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
