"""Our products on a card, within the bounds of their lengths."""

from __future__ import annotations

import pytest

from tests.test_cuda_product import *  # noqa: F403

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("kernels_on_the_card")]
