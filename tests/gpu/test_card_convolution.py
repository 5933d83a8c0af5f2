"""Products of convolutions on a card, as the simulator's tests have them."""

from __future__ import annotations

import pytest

from tests.test_cuda_convolution import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
