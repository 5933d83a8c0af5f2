"""One launch for many parameters, on a card: NumPy's bits."""

from __future__ import annotations

import pytest

from tests.test_cuda_many import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
